"""What a line names, its finding names: ranks, builds, interfaces and files, and no more than the line shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclforensics import analyze
from ncclforensics.cli.options import FailOn
from ncclforensics.cli.output import exit_code_of
from ncclforensics.report.build import Report
from ncclforensics.rules.finding import Finding, Severity

PORT = "CA 'mlx5_0'\n\tPort 1:\n\t\tState: Active\n\t\tPhysical state: LinkUp\n\t\tRate: 400"
PREFIX = "gpu-a012:41887:42107 [0] NCCL INFO "
GRAPH_FILE = "NCCL_GRAPH_FILE set by environment to /etc/nccl/graph.xml"
TOPOLOGY_FILE = "NCCL_TOPO_FILE set by environment to /etc/nccl/topo.xml"
MACHINE_CHECK = "[12345.678901] mce: [Hardware Error]: "
FINGERPRINT = (
    "[rank1]: RuntimeError: Detected mismatch between collectives on ranks. Rank 1 is running collective: "
    "CollectiveFingerPrint(SequenceNumber=12, OpType=BARRIER), but Rank 0 is running collective: "
    "CollectiveFingerPrint(SequenceNumber={sequence}, OpType={operation})."
)


def report_of(folder: Path, *lines: str) -> Report:
    log = folder / "job.log"
    log.write_text("".join(f"{line}\n" for line in lines))
    return analyze(str(log), everything=True)


def found(report: Report, rule: str) -> list[Finding]:
    return [finding for finding in report.findings if finding.rule == rule]


@pytest.mark.parametrize(
    ("settings", "warning", "is_of_graphs"),
    [
        ([], "Could not open XML graph file /etc/nccl/graph.xml : No such file or directory", True),
        ([], "XML Graph has wrong version 2, 1 needed", True),
        ([GRAPH_FILE], "XML Parse error : expecting '<', got 'x'", True),
        ([GRAPH_FILE, TOPOLOGY_FILE], "XML Parse error : expecting '<', got 'x'", False),
        ([TOPOLOGY_FILE], "XML Parse error : expecting '<', got 'x'", False),
        ([], "XML Topology has wrong version 2, 1 needed", False),
    ],
)
def test_an_error_of_the_graph_file_leads_to_the_variable_that_names_it(
    settings: list[str], warning: str, is_of_graphs: bool, tmp_path: Path
) -> None:
    lines = [PREFIX + setting for setting in settings]

    (finding,) = found(
        report_of(tmp_path, *lines, f"gpu-a012:41887:42107 [0] graph/xml.cc:900 NCCL WARN {warning}"), "topo-file-bad"
    )

    assert ("NCCL_GRAPH_FILE" in finding.remedy) == is_of_graphs
    assert ("NCCL_TOPO_FILE" in finding.remedy) == (not is_of_graphs)


def test_different_builds_of_nccl_are_named_with_their_ranks_and_hosts(tmp_path: Path) -> None:
    mismatch = "Mismatched NCCL git versions detected: rank 0 fingerprint 0x8f3bd2a4, rank 3 fingerprint 0x1c5b6a7f"
    builds = [
        f"{PREFIX}NCCL git version v2.32.1-1 3ac1bd2",
        "gpu-a013:51887:52107 [3] NCCL INFO NCCL git version HEAD 77ac0d2",
    ]

    report = report_of(tmp_path, *builds, f"gpu-a012:41887:42390 [0] init.cc:1500 (commCheck) NCCL ATTN {mismatch}")

    (finding,) = found(report, "nccl-builds-differ")
    assert finding.title == "ranks 0, 3 of a communicator run different builds of NCCL"
    assert "v2.32.1-1 3ac1bd2 on gpu-a012" in finding.detail
    assert "HEAD 77ac0d2 on gpu-a013" in finding.detail
    assert found(report_of(tmp_path, *builds), "nccl-builds-differ") == []


@pytest.mark.parametrize(
    ("devices", "names"),
    [
        ("[0]eth0:10.0.4.12<0>", []),
        ("[0]eth0:10.0.4.12<0> [1]usb0:169.254.3.1<0>", ["usb0"]),
        ("[0]eth0:10.0.4.12<0> [1]eth1:fe80::1%eth1<0>", ["eth1"]),
        ("[0]docker0:172.17.0.1<0> [1]veth12ab:10.1.2.3<0>", ["docker0, veth12ab"]),
    ],
)
def test_interfaces_that_other_hosts_may_not_reach_are_named(devices: str, names: list[str], tmp_path: Path) -> None:
    findings = found(report_of(tmp_path, f"{PREFIX}NET/Socket : Using {devices}"), "net-local-interface")

    assert [finding.title.partition(" uses ")[2].partition(", an interface")[0] for finding in findings] == names
    assert all(finding.hosts == ["gpu-a012"] for finding in findings)


def test_an_interface_over_which_a_communicator_was_set_up_is_no_condition(tmp_path: Path) -> None:
    completed = "comm 0x55d1c3e0a2b0 rank 0 nranks 2 cudaDev 0 busId 1a000 - Init COMPLETE"

    report = report_of(tmp_path, f"{PREFIX}NET/Socket : Using [0]usb0:169.254.3.1<0>", PREFIX + completed)

    assert found(report, "net-local-interface") == []


@pytest.mark.parametrize(
    ("lines", "severity", "word"),
    [
        (["Machine check events logged", "CPU 31: Machine Check: 0 Bank 7: 8c00004000010093"], Severity.INFO, " corr"),
        (["Machine check events logged", "CPU 31: Machine Check: 0 Bank 7: be00000000800400"], Severity.ERROR, "uncor"),
        (["Machine check events logged"], Severity.WARNING, "do not show whether they were corrected"),
    ],
)
def test_a_corrected_machine_check_is_no_failure(
    lines: list[str], severity: Severity, word: str, tmp_path: Path
) -> None:
    report = report_of(tmp_path, *(MACHINE_CHECK + line for line in lines))

    checks = [finding for finding in report.findings if "machine check" in finding.title]

    assert [finding.severity for finding in checks] == [severity]
    assert word in checks[0].title
    assert all(finding.severity == severity for finding in report.findings if finding.evidence)


def test_a_desync_report_without_its_first_line_names_the_ranks_of_the_group(tmp_path: Path) -> None:
    report = report_of(tmp_path, "  - [1] finished collective #412, but didn't join collective #413 (count from 1)")

    (finding,) = found(report, "torch-desync-report")

    assert "rank 1 of a process group did not join collective 413, and ended 412" in finding.title
    assert finding.ranks == []  # which ranks of the job these are, the report does not say


@pytest.mark.parametrize(
    ("sequence", "operation", "is_empty"), [(0, "BROADCAST", True), (0, "BARRIER", False), (7, "BROADCAST", False)]
)
def test_a_fingerprint_of_zeros_is_no_call(sequence: int, operation: str, is_empty: bool, tmp_path: Path) -> None:
    report = report_of(tmp_path, FINGERPRINT.format(sequence=sequence, operation=operation))

    text = " ".join(f"{finding.title} {finding.detail}" for finding in report.findings)

    assert ("rank 0: an empty fingerprint" in text) == is_empty
    assert (f"{operation} as number {sequence}" in text) == (not is_empty)


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        ([PORT], 0),
        (["Job succeeded"], 0),
        (["Successfully completed."], 0),
        (["2026-03-02 11:40:08 Completed - Training job completed"], 0),
        ([MACHINE_CHECK + "CPU 31: Machine Check: 0 Bank 7: 8c00004000010093"], 0),
        (["loss 2.1"], 3),
    ],
    ids=[
        "a port",
        "a success",
        "a success of LSF",
        "a success of SageMaker",
        "a corrected error",
        "nothing that is judged",
    ],
)
def test_check_ends_alike_for_healthy_inputs_of_any_format(lines: list[str], code: int, tmp_path: Path) -> None:
    report = report_of(tmp_path, *lines)

    assert exit_code_of(report, FailOn.WARNING) == code
