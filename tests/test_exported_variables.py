"""Variables that a job exports: which have no effect depends on the version; names of other software are left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclforensics import analyze

VERSION = "gpu-a012:41887:41887 [0] NCCL INFO NCCL version {}+cuda12.4\n"


@pytest.mark.parametrize(
    ("exported", "version", "expected"),
    [
        ("NCCL_WORK_FIFO_DEPTH=1024", "2.18.6", None),  # 2.21.5 is the last version that reads it
        ("NCCL_WORK_FIFO_DEPTH=1024", "2.27.7", ("certain", "NCCL read it up to 2.21.5: set NCCL_WORK_FIFO_BYTES")),
        ("NCCL_WORK_FIFO_DEPTH=1024", None, ("likely", "NCCL read it up to 2.21.5: set NCCL_WORK_FIFO_BYTES")),
        ("NCCL_SHM_USE_CUDA_MEMCPY=1", "2.27.7", None),
        ("NCCL_IB_ENABLE=1", "2.27.7", ("certain", "NCCL never read it: set NCCL_IB_DISABLE")),
        ("NCCL_SINGLE_RING_THRESHOLD=0", "2.27.7", ("certain", "NCCL read it up to 2.2")),
        ("NCCL_SHARP_DISABLE=1", "2.27.7", None),  # of the SHARP plugin
        ("NCCL_SOCKET_IFNAM=eth0", "2.27.7", ("likely", "NCCL_SOCKET_IFNAME may be meant")),
        ("NCCL_INSPECTOR_ENABLE=1", "2.27.7", None),  # of a profiler plugin
        ("NCCL_TESTS_VERSION=v2.16.9", "2.27.7", None),  # of a build script
        ("NCCL_IB_TIMEOUT=22", "2.27.7", None),
    ],
)
def test_a_variable_without_effect(
    tmp_path: Path, exported: str, version: str | None, expected: tuple[str, str] | None
) -> None:
    (tmp_path / "job.log").write_text(f"+ export {exported}\n" + (VERSION.format(version) if version else ""))

    findings = [f for f in analyze([str(tmp_path)], everything=True).findings if f.rule == "env-not-echoed"]

    assert [(f.certainty, f.detail) for f in findings] == ([expected] if expected else [])


@pytest.mark.parametrize("line", ["NCCL_IB_ENABLE = 1", "NCCL_IB_ENABLE = 1     # switches InfiniBand on"])
def test_a_variable_that_a_script_lists_with_a_remark_is_read_without_it(tmp_path: Path, line: str) -> None:
    (tmp_path / "job.log").write_text(f"=== NCCL Environment ===\n{line}\n" + VERSION.format("2.27.7"))

    report = analyze([str(tmp_path)], everything=True)

    assert report.run["exported_variable"].select("variable", "value").rows() == [("NCCL_IB_ENABLE", "1")]
    assert [f.rule for f in report.findings if f.rule == "env-not-echoed"] == ["env-not-echoed"]
