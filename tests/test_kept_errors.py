"""A communicator that keeps an earlier error refuses further calls: the refusal is no cause."""

from __future__ import annotations

from pathlib import Path

from ncclforensics import analyze

REFUSAL = "init.cc:290 NCCL WARN Attempt to use communicator before the previous operation returned ncclSuccess"
CHAIN = (
    "gpu-a012:41887:41887 [3] NCCL INFO enqueue.cc:2014 -> {code}\n"
    "gpu-a012:41887:41887 [3] NCCL INFO collectives.cc:128 -> {code}"
)


def _titles(folder: Path, code: int) -> list[str]:
    lines = [
        "gpu-a012:41887:42107 [3] transport/net.cc:400 NCCL WARN NET/OFI Unexpected status (0) for message 246",
        "gpu-a012:41887:42107 [3] NCCL INFO transport/net.cc:1302 -> 3",
        "gpu-a012:41887:42107 [3] NCCL INFO proxy.cc:878 -> 3 [Progress Thread]",
        f"gpu-a012:41887:41887 [3] {REFUSAL}",
        CHAIN.format(code=code),
    ]
    (folder / "job.log").write_text("\n".join(lines) + "\n")
    findings = analyze([str(folder)]).findings
    return [finding.title for finding in findings if finding.severity == "error"]


def test_a_refusal_with_the_code_of_an_earlier_error_is_no_cause(tmp_path: Path) -> None:
    assert not any("Attempt to use communicator" in title for title in _titles(tmp_path, 3))


def test_a_refusal_of_an_operation_in_progress_is_a_wrong_use(tmp_path: Path) -> None:
    assert any("Attempt to use communicator" in title for title in _titles(tmp_path, 4))
