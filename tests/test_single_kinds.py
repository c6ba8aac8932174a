"""Inputs of one kind that show no rank to judge: the answer says what they are and what they cannot show."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from ncclforensics import analyze
from ncclforensics.cli import main
from ncclforensics.cli.analysis import MOST_PROBLEMS
from ncclforensics.views.json_report import as_object
from ncclforensics.views.text_screen import screen
from tests.incidents import INCIDENTS


@pytest.mark.parametrize(
    ("folder", "files", "phrases"),
    [
        (
            "the-inspector-counts-calls-that-a-log-lacks",
            "gpu-*.log",
            ("records of NCCL's Inspector (2 of 4 ranks)", "shows no call that stands still"),
        ),
        ("a-hop-of-a-ring-stands-still", "trace-*", ("traces of NCCL's profiler", "not why it stands still")),
        ("one-gpu-rests-while-the-others-spin", "nvidia-smi.txt", ("the output of nvidia-smi",)),
        ("a-kernel-log-without-a-job", "dmesg.txt", ("the kernel's log", "not ranks")),
    ],
)
def test_evidence_of_one_kind_is_described_as_what_it_is(
    folder: str, files: str, phrases: tuple[str, ...], tmp_path: Path
) -> None:
    for path in (INCIDENTS / folder).glob(files):
        shutil.copy(path, tmp_path)

    found = as_object(analyze([str(tmp_path)]))["hang"]

    assert (found["verdict"], found["culprits"]) == ("undecidable", [])
    assert [phrase for phrase in phrases if phrase not in found["reason"]] == []
    assert any("ncclforensics collect" in step for step in found["collect_next"])


def test_kinds_of_evidence_without_ranks_are_named_together(tmp_path: Path) -> None:
    shutil.copy(INCIDENTS / "one-gpu-rests-while-the-others-spin" / "nvidia-smi.txt", tmp_path)
    shutil.copy(INCIDENTS / "a-kernel-log-without-a-job" / "dmesg.txt", tmp_path)

    found = as_object(analyze([str(tmp_path)]))["hang"]

    assert "these files hold the output of nvidia-smi and the kernel's log" in found["reason"]


def test_text_of_a_job_is_no_kernel_log(tmp_path: Path) -> None:
    """A job's own output beside a kernel log: its text is what shows no ranks."""
    shutil.copy(INCIDENTS / "a-kernel-log-without-a-job" / "dmesg.txt", tmp_path)
    (tmp_path / "vllm.log").write_text(
        "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:3384,"
        " unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.27.5\n"
    )

    found = as_object(analyze([str(tmp_path)]))["hang"]

    assert "the kernel's log" not in found["reason"]


def test_records_of_the_inspector_that_jq_spread_over_lines_are_the_same_records(tmp_path: Path) -> None:
    source = next((INCIDENTS / "the-inspector-counts-calls-that-a-log-lacks").glob("gpu-*.log"))
    records = [json.loads(line) for line in source.read_text().splitlines()]
    spread = tmp_path / "spread.json"
    spread.write_text("".join(json.dumps(record, indent=2) + "\n" for record in records))

    reports = [analyze([str(path)]) for path in (source, spread)]

    columns = ["form", "rank", "operation", "sequence", "bytes"]
    rows = [report.run["ended_operation"].select(columns).rows() for report in reports]
    assert rows[0] == rows[1] != []
    assert not reports[1].input_problems()
    line = reports[1].run["ended_operation"]["line"][-1]
    assert spread.read_text().splitlines()[line - 1] == "{"


def test_of_many_problems_of_one_input_the_first_are_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = {"header": {}, "metadata": {"inspector_output_format_version": "v4.0"}}
    (tmp_path / "inspector.log").write_text(json.dumps(record) + "\n" + "no JSON\n" * 100)

    main(["hang", str(tmp_path)])

    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == MOST_PROBLEMS + 1
    assert errors[-1].endswith("has 92 more problems: --format json lists them")


def _hang(folder: Path, text: str) -> tuple[str, dict[str, Any]]:
    (folder / "output.txt").write_text(text)
    report = analyze([str(folder / "output.txt")])
    return screen(report, width=120), as_object(report)["hang"]


def test_where_no_rank_is_shown_hang_tells_what_check_finds(tmp_path: Path) -> None:
    """A failed test of a link says nothing of a hang, but why both ends would hang."""
    text = (
        " Completion with error at client\n Failed status-transport retry counter exceeded (12): wr_id 0 syndrom 0x81\n"
    )

    shown, found = _hang(tmp_path, text)

    assert "ERROR  (certain)  a link test failed: transport retry counter exceeded" in shown
    assert "Not known: whether a job hangs" in shown
    assert (found["verdict"], found["collect_next"]) == ("undecidable", [])


def test_a_finding_that_says_what_to_do_is_not_followed_by_a_request_for_logs(tmp_path: Path) -> None:
    crash = "[2023-07-20 15:45:13,982] [ERROR] [launch.py:321:sigkill_handler] ['python3', 'main.py', '--local_rank=1']"

    shown, _ = _hang(tmp_path, f"{crash} exits with return code = -7\n")
    asked, _ = _hang(
        tmp_path, "RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)\n"
    )

    assert "WHAT TO DO\n  Start the container with --shm-size=1g" in shown
    assert "NCCL_DEBUG" not in shown.partition("WHAT TO DO")[2]
    assert asked.count("export NCCL_DEBUG=INFO") == 1


def test_fabric_manager_without_switches_is_no_error(tmp_path: Path) -> None:
    lines = (
        "Sep 18 03:19:01 gpu-a nvidia-fabricmanager-start.sh[4756]: request to query NVSwitch device information from "
        "NVSwitch driver failed with error:WARNING Nothing to do [NV_WARN_NOTHING_TO_DO]\n"
        "Sep 18 03:19:01 gpu-a systemd[1]: nvidia-fabricmanager.service: Control process exited, code=exited, "
        "status=1/FAILURE\n"
    )

    shown, _ = _hang(tmp_path, lines)
    failed, _ = _hang(tmp_path, "Job for nvidia-fabricmanager.service failed because the control process exited.\n")

    assert "INFO  (certain)  Fabric Manager on gpu-a: it found no NVSwitch to manage" in shown
    assert "ERROR  (certain)  Fabric Manager: it did not start" in failed


def test_a_persons_words_above_a_stack_name_its_rank(tmp_path: Path) -> None:
    stack = 'Thread 0x7FA6E7C01740 (idle): "MainThread"\n    wait (threading.py:302)\n    get (queue.py:170)\n'

    for words in ("The stack for rank0:", "Rank 0's stack trace:", "py-spy dump of rank 0"):
        assert "rank 0 stands in" in " ".join(_hang(tmp_path, f"{words}\n{stack}")[0].split()), words


def test_what_a_fault_asks_for_comes_before_what_would_decide_a_verdict(tmp_path: Path) -> None:
    full = (
        "gpu-a:100:200 [3] include/shm.h:28 NCCL WARN Call to posix_fallocate failed : No space left on device\n"
        "gpu-a:100:200 [3] NCCL INFO include/shm.h:41 -> 2\n"
    )
    no_device = (
        "gpu-a:100:200 [0] nccl_net_ofi_rdma_init:7978 NCCL WARN NET/OFI OFI fi_getinfo() call failed: No data\n"
    )

    ended, _ = _hang(tmp_path, full)
    open_yet, _ = _hang(tmp_path, no_device)

    assert "THEN\n  Start the container with --shm-size=1g" in ended
    assert "NCCL_DEBUG" not in ended  # which call it stopped does not matter
    advice = open_yet.partition("WHAT TO DO\n")[2]
    assert advice.startswith("  Check that the container has the EFA or CXI device")
    assert "export NCCL_DEBUG=INFO" in advice


def test_a_name_that_cannot_be_looked_up_comes_before_the_exception_that_follows(tmp_path: Path) -> None:
    text = (
        "nslookup: can't resolve 'job-master-0': Name does not resolve\nwaiting for master\n\n"
        "Traceback (most recent call last):\n"
        '  File "/opt/lib/python3.12/site-packages/torch/distributed/launcher/api.py", line 268, in launch_agent\n'
    )

    shown, _ = _hang(tmp_path, text)

    assert (
        "WARNING  (likely)  the name of a host could not be looked up: nslookup: can't resolve 'job-master-0'" in shown
    )


def test_a_gpu_whose_address_was_cut_out_still_failed(tmp_path: Path) -> None:
    shown, _ = _hang(tmp_path, "kernel: NVRM: Xid (PCI:...): 79, pid=4711, name=python3, GPU has fallen off the bus.\n")

    assert "Xid 79, it fell off the bus" in shown
