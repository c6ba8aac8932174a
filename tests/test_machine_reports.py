"""Kernel logs and tools of GPUs: from where on a line is worth a finding, and what a job beside it changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclforensics import analyze
from ncclforensics.data.kernel_faults import XIDS, XIDS_OF_HARDWARE
from ncclforensics.rules.benchmark.link_tests import bench_peer_access_slower
from ncclforensics.rules.fabric.pci_errors import kernel_nvswitch_errors, kernel_pcie_errors, kernel_port_reports
from ncclforensics.rules.finding import Finding
from ncclforensics.rules.host.gpu_use import gpus_spin
from ncclforensics.rules.host.kernel_reports import kernel_xid
from ncclforensics.rules.host.memory_errors import kernel_memory_errors
from tests.rule_rows import Row, findings_of

RANK = {"job": 0, "rank_id": 0, "rank": 0, "host": "node-a", "pid": 100}
ENDED_WELL = [{"job": 0, "verdict": "no-hang", "culprits": []}]


def warnings_on(folder: Path) -> list[Finding]:
    """What the report on a folder says beside notes."""
    return [finding for finding in analyze([str(folder)], everything=True).findings if finding.severity != "info"]


def severities(findings: list[Finding]) -> list[str]:
    return [str(finding.severity) for finding in findings]


@pytest.mark.parametrize(
    ("number", "severity", "found"),
    [
        (9, "Corrected", ["info"]),
        (10, "Correctable", ["warning"]),
        (1, "Uncorrected (Non-Fatal)", ["warning"]),
        (1, "Uncorrectable (Fatal)", ["error"]),
    ],
)
def test_pcie_errors_count_by_severity_and_number(number: int, severity: str, found: list[str]) -> None:
    rows = [{"form": "bus_error", "busid": "31", "pci_severity": severity, "node": "node-a"}] * number

    findings = findings_of(kernel_pcie_errors, kernel_event=rows)
    assert severities(findings) == found
    assert f"reported {number} " in findings[0].title
    assert "0000:00:03.1 on node-a" in findings[0].title
    # Beside a job it is a note, and what is harmless is left out; a job that ended well noticed only what is fatal.
    beside = findings_of(kernel_pcie_errors, kernel_event=rows, rank=[RANK])
    assert severities(beside) == ["info"] * (found != ["info"])
    after = findings_of(kernel_pcie_errors, kernel_event=rows, rank=[RANK], verdict=ENDED_WELL)
    assert severities(after) == ["info"] * (found == ["error"])


@pytest.mark.parametrize(
    ("xid", "pid", "ranks", "found"),
    [
        (13, 100, [RANK], ["info"]),
        (13, 101, [RANK], []),  # of a process that is no rank of this job
        (13, 101, [], ["warning"]),
        (63, None, [], ["info"]),
        (79, 100, [], []),  # of the hardware: another rule's
        (999, None, [], ["warning"]),  # a number that the catalogue lacks
    ],
)
def test_an_xid_is_reported_with_its_meaning(xid: int, pid: int | None, ranks: list[Row], found: list[str]) -> None:
    event = {"form": "xid", "xid": xid, "busid": "5d000", "pid": pid}

    assert severities(findings_of(kernel_xid, kernel_event=[event], rank=ranks)) == found


def test_every_xid_of_the_hardware_has_a_meaning_and_a_remedy() -> None:
    assert {13, 31, 43, 45, 109}.isdisjoint(XIDS_OF_HARDWARE)
    assert {48, 74, 79, 94, 95, 119, 149} <= set(XIDS_OF_HARDWARE)
    assert all(xid.meaning and xid.remedy for xid in XIDS.values())


@pytest.mark.parametrize(
    ("sxid", "severity", "found"),
    [
        (20034, "Fatal", ["error"]),
        (20034, None, ["error"]),
        (12028, None, ["warning"]),
        (12028, "Non-fatal", ["warning"]),
        (22013, None, ["info"]),
    ],
)
def test_an_sxid_is_fatal_by_its_line_or_by_the_tables(sxid: int, severity: str | None, found: list[str]) -> None:
    event = {"form": "sxid" if severity else "sxid_details", "xid": sxid, "busid": "c1000", "switch": 3}

    assert severities(findings_of(kernel_nvswitch_errors, kernel_event=[event | {"severity": severity}])) == found


@pytest.mark.parametrize(
    ("kind", "errors", "found"), [("CE", 9, ["info"]), ("CE", 10, ["warning"]), ("UE", 1, ["error"])]
)
def test_memory_errors_count_by_kind_and_number(kind: str, errors: int, found: list[str]) -> None:
    event = {
        "form": "memory",
        "memory_error": kind,
        "memory_fault": "memory read error on DIMM#0 (x)",
        "errors": errors,
    }

    assert severities(findings_of(kernel_memory_errors, kernel_event=[event])) == found


@pytest.mark.parametrize(
    ("states", "found"), [("Down", 1), ("Down Up", 0), ("Down Up Down Up", 0), ("Down Up Down Up Down Up", 1)]
)
def test_a_link_counts_that_stays_down_or_goes_down_often(states: str, found: int) -> None:
    rows = [{"form": "link", "netdev": "ens1", "state": state} for state in states.split()]

    assert len(findings_of(kernel_port_reports, kernel_event=rows)) == found


def pairs(access: bool, rate: float) -> list[Row]:
    test = f"Unidirectional P2P={'Enabled' if access else 'Disabled'}"
    return [
        {"kind": "bandwidth", "test": test, "has_peer_access": access, "row": a, "column": b, "value": rate}
        for a in range(3)
        for b in range(3)
    ]


@pytest.mark.parametrize(("peer", "found"), [(15.9, 1), (16.0, 0), (250.0, 0)])
def test_peer_access_is_slower_below_four_fifths(peer: float, found: int) -> None:
    assert len(findings_of(bench_peer_access_slower, gpu_pair=[*pairs(False, 20.0), *pairs(True, peer)])) == found
    assert findings_of(bench_peer_access_slower, gpu_pair=pairs(True, peer)) == []


def gpu(number: int, **fields: object) -> Row:
    row = {"source": 0, "gpu": str(number), "utilization": 100.0, "power": 200.0, "power_limit": 700.0, "memory": 9e3}
    return row | fields


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        ([gpu(0), gpu(1, power=209.0)], ["GPUs 0, 1"]),
        ([gpu(0), gpu(1, power=210.0)], ["GPU 0"]),
        ([gpu(0), gpu(0, power=500.0)], []),  # it drew more at another moment
        ([gpu(0, utilization=90.0)], []),
        ([gpu(0), gpu(1, slowdown="hw slowdown")], []),
        ([gpu(0), gpu(1, utilization=0.0)], []),  # one that is used is at rest
        ([gpu(0), gpu(1, utilization=0.0, memory=10.0)], ["GPU 0"]),
    ],
)
def test_gpus_spin_at_little_power(rows: list[Row], found: list[str]) -> None:
    titles = [finding.title.partition(": ")[0] for finding in findings_of(gpus_spin, gpu_use=rows)]

    assert titles == found


QUEUE = "[12345.678901] amdgpu 0000:5d:00.0: amdgpu: MES failed to respond to msg=REMOVE_QUEUE\n"
RESET = "[12346.678901] amdgpu 0000:5d:00.0: amdgpu: GPU reset begin!\n"


@pytest.mark.parametrize(
    ("lines", "titles"),
    [
        (QUEUE, ["AMD GPU 0000:5d:00.0 did not give back a queue of a program"]),
        (QUEUE + RESET, ["the driver reset AMD GPU 0000:5d:00.0"]),
    ],
)
def test_a_queue_that_an_amd_gpu_keeps_is_a_finding_unless_a_reset_follows(
    tmp_path: Path, lines: str, titles: list[str]
) -> None:
    (tmp_path / "dmesg.txt").write_text(lines)

    assert [finding.title for finding in analyze([str(tmp_path)], everything=True).findings] == titles


@pytest.mark.parametrize(
    "line",
    [
        "slurmstepd: error: StepId=4711.0 exceeded memory limit (65536000 > 62914560), being killed",
        "slurmstepd: error: Exceeded job memory limit at some point.",
    ],
)
def test_slurms_sentences_on_a_memory_limit_are_an_end_for_want_of_memory(tmp_path: Path, line: str) -> None:
    (tmp_path / "slurm.err").write_text(line + "\n")

    (finding,) = analyze([str(tmp_path)], everything=True).findings
    assert finding.rule == "oom-host"


DESCRIBED = "Name:      train-3\nNamespace: team\nStatus:    Failed\nReason:    Evicted\nMessage:   {}\n"


@pytest.mark.parametrize(
    ("message", "title"),
    [
        (
            "The node was low on resource: memory.",
            "train-3: a pod was evicted: memory ran out on the node",
        ),
        ("The node had condition: [DiskPressure].", "train-3: a pod was evicted"),
    ],
)
def test_an_evicted_pod_is_named_with_what_ran_out(tmp_path: Path, message: str, title: str) -> None:
    (tmp_path / "pod.txt").write_text(DESCRIBED.format(message))

    (finding,) = warnings_on(tmp_path)
    assert finding.title == title
    assert finding.remedy.startswith("see what filled the node")


SLURMCTLD = "[2026-03-02T11:04:57.034] {}\n"


@pytest.mark.parametrize(
    ("line", "title"),
    [
        (
            "_job_complete: JobId=4711_3(4714) WTERMSIG 9",
            "Slurm's controller logged that a signal ended the script of a job: JobId=4711_3(4714)",
        ),
        (
            "_job_complete: JobId=4711 OOM failure",
            "Slurm's controller logged that the memory of a job ran out: JobId=4711",
        ),
        (
            "requeue job JobId=4711 due to failure of node gpu-a012",
            "gpu-a012: Slurm ended a job because a node of it failed",
        ),
        ("_job_complete: JobId=4711 WEXITSTATUS 0", None),
        ("Time limit exhausted for JobId=4711", None),
        ("node gpu-a012 returned to service", None),
    ],
)
def test_the_log_of_slurms_controller_tells_how_jobs_ended(tmp_path: Path, line: str, title: str | None) -> None:
    (tmp_path / "slurmctld.log").write_text(SLURMCTLD.format(line))

    assert [finding.title for finding in warnings_on(tmp_path)] == [title] * bool(title)


@pytest.mark.parametrize(
    ("line", "title"),
    [
        (
            "4711          train   gpu   team   64  NODE_FAIL   1:0",
            "Slurm recorded that a job ended because a node of it failed: 4711",
        ),
        (
            "4711.0        python        team   64  OUT_OF_ME+   0:125",
            "Slurm recorded that the memory of a job ran out: 4711.0",
        ),
        (
            "   JobState=TIMEOUT Reason=TimeLimit Dependency=(null)",
            "Slurm recorded that a job reached its time limit: TimeLimit",
        ),
        ("4711          train   gpu   team   64  COMPLETED   0:0", None),
        ("4711.batch    batch         team   64  FAILED   1:0", None),
        ("12 tests run, 3 FAILED in 10:22", None),
    ],
)
def test_what_slurm_recorded_of_a_job_is_told(tmp_path: Path, line: str, title: str | None) -> None:
    (tmp_path / "sacct.txt").write_text(f"{line}\n")

    findings = analyze([str(tmp_path)], everything=True).findings
    of_slurm = [finding.title for finding in findings if finding.title.startswith("Slurm")]
    assert of_slurm == [title] * bool(title)


CORE_DUMP = """\
Mar 02 11:04:57 gpu-a012 systemd-coredump[41999]: Process 41887 (python3) of user 1001 dumped core.

                Stack trace of thread 41890:
                #0  0x00007fa0a76a365c __pthread_kill_implementation (libc.so.6 + 0xa365c)
                #1  0x00007fa0a7654d06 raise (libc.so.6 + 0x54d06)
                #2  0x00007fa0a5425cc8 {} + 0x25cc8)
"""


@pytest.mark.parametrize(
    ("frame", "title", "rule"),
    [
        ("ncclProxyService (libnccl.so.2", "python3 crashed inside libnccl (ncclProxyService)", "segfault-in-libnccl"),
        ("wait (libtorch_cuda.so", "python3 crashed inside wait (libtorch_cuda.so)", "app-process-died"),
    ],
)
def test_a_core_dump_that_systemd_logged_is_a_possible_crash_of_the_job(
    tmp_path: Path, frame: str, title: str, rule: str
) -> None:
    (tmp_path / "journal.txt").write_text(CORE_DUMP.format(frame))

    (finding,) = analyze([str(tmp_path)], everything=True).findings
    assert (finding.title, finding.rule, finding.certainty) == (title, rule, "possible")
    assert "for pid 41887 on gpu-a012" in finding.detail


def test_a_core_dump_of_a_program_that_is_no_rank_is_a_note(tmp_path: Path) -> None:
    (tmp_path / "journal.txt").write_text(CORE_DUMP.format("g_main_loop (libglib-2.0.so.0").replace("python3", "geany"))

    (finding,) = analyze([str(tmp_path)], everything=True).findings
    assert (finding.title, finding.severity) == ("geany crashed inside g_main_loop (libglib-2.0.so.0)", "info")


@pytest.mark.parametrize(
    ("lines", "rule", "title"),
    [
        ("Exited with exit code 1.\n", "app-process-died", "a process ended with exit code 1"),
        (
            "TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.\nExited with exit code 137.\n",
            "oom-host",
            "a process killed: the memory of the host, the container or the job ran out",
        ),
        (
            "TERM_OWNER: job killed by owner.\nExited with exit code 130.\n",
            "job-ended-by-scheduler",
            "the job was ended by its owner or an administrator (bhist -l: by whom)",
        ),
        (
            "TERM_THREADLIMIT: job killed after reaching LSF thread limit.\nExited with exit code 143.\n",
            "stated-failure",
            "LSF ended the job at a limit of its processes or threads: job killed after reaching LSF thread limit.",
        ),
    ],
)
def test_lsfs_report_of_a_job_tells_how_it_ended(tmp_path: Path, lines: str, rule: str, title: str) -> None:
    (tmp_path / "lsf.out").write_text(f"iteration 100 loss 3.2\n\n{lines}")

    assert [(found.rule, found.title) for found in warnings_on(tmp_path)] == [(rule, title)]


EVENT = "2m   Warning   {0}   pod/train-2   {1}\n"


@pytest.mark.parametrize(
    ("reason", "message", "title"),
    [
        (
            "Evicted",
            "The node was low on resource: memory.",
            "Kubernetes evicted a pod, and with it its ranks: train-2: memory.",
        ),
        ("NodeNotReady", "Node is not ready", "a node of Kubernetes reports a problem: train-2"),
        ("BackOff", "Back-off pulling image", None),
    ],
)
def test_an_event_of_kubernetes_is_named_with_its_pod(
    tmp_path: Path, reason: str, message: str, title: str | None
) -> None:
    (tmp_path / "events.txt").write_text(EVENT.format(reason, message))

    assert [finding.title for finding in warnings_on(tmp_path)] == [title] * bool(title)


@pytest.mark.parametrize(
    ("line", "title"),
    [
        (
            "-E- Link: leaf-4/P20<-->gpu-a012/P1 - Unexpected actual link speed 2.5 (should be 10)",
            "ibdiagnet found a fault of the fabric: Link: leaf-4/P20<-->gpu-a012/P1 - Unexpected actual link speed 2.5",
        ),
        ("mlx5: gpu-a012: got completion with error:", "gpu-a012: an RDMA transfer failed, and not by a time-out"),
        (
            "gpu-a012:41887:42107 [3] net_fastsocket.cc:736 NCCL WARN Maximum retry reached for connect 3.",
            "process 41887 on gpu-a012: Google's FastSocket could not choose the queue of the NIC for a connection",
        ),
        ("-E- Failed to open device", "ibdiagnet, or a tool of MFT, could not do what it was asked for"),
    ],
)
def test_a_title_says_what_the_line_of_a_tool_names(tmp_path: Path, line: str, title: str) -> None:
    (tmp_path / "tool.log").write_text(line + "\n")

    titles = [finding.title for finding in warnings_on(tmp_path)]
    assert [stated.startswith(title) for stated in titles] == [True] * bool(title)


def test_a_connection_that_is_lost_in_the_bootstrap_is_said_to_be(tmp_path: Path) -> None:
    prefix = "gpu-a012:41887:42107 [3]"
    (tmp_path / "job.log").write_text(
        f"{prefix} misc/socket.cc:46 NCCL WARN socketProgressOpt: Call to send to 10.0.4.13<52905> failed : "
        "Connection reset by peer\n"
        f"{prefix} NCCL INFO misc/socket.cc:64 -> 6\n{prefix} NCCL INFO bootstrap.cc:868 -> 6\n"
    )
    (verdict,) = analyze([str(tmp_path)]).verdicts

    assert "communication of gpu-a012 with 10.0.4.13<52905> failed, in the bootstrap" in verdict.reason
