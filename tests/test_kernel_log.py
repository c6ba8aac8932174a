"""Kernel logs: which faults of machines count for a run, by process, GPU and time."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclforensics import analyze
from ncclforensics.rules.finding import Category

INCIDENT = Path(__file__).parents[1] / "fixtures/incidents/a-gpu-falls-off-the-bus/job.log"
RUN = "[2026-03-02 11:00:00] "  # NCCL_DEBUG_TIMESTAMP_FORMAT, 2.26 and later
GPU_OF_RANK_2 = "NVRM: Xid (PCI:0000:52:00): "
ANOTHER_DAY = "[Sat Feb 28 23:00:11 2026] "
JOURNAL = '{"__REALTIME_TIMESTAMP":"%d000000","_HOSTNAME":"gpu-a012","SYSLOG_IDENTIFIER":"kernel","MESSAGE":"'
THAT_DAY = "[Mon Mar  2 03:04:57 2026] "  # in a zone eight hours off, or eight hours before: likely at most


def found(tmp_path: Path, kernel_line: str) -> set[tuple[str, str, tuple[int, ...]]]:
    """Findings on GPUs and links of the run with this line in its kernel log: rule, certainty, ranks."""
    lines = INCIDENT.read_text().splitlines()
    stamped = [RUN + line if line.startswith("gpu-a012:") else line for line in lines]
    (tmp_path / "job.log").write_text("\n".join(stamped) + "\n")
    (tmp_path / "dmesg.log").write_text(kernel_line + "\n")
    rules = ("cuda-gpu-fault", "kernel-link-event")
    report = analyze([str(tmp_path)], everything=True)
    return {(f.rule, f.certainty, tuple(f.ranks)) for f in report.findings if f.rule in rules}


@pytest.mark.parametrize(
    ("kernel_line", "expected"),
    [
        (THAT_DAY + GPU_OF_RANK_2 + "79, pid=41882, GPU has fallen off the bus.", ("cuda-gpu-fault", "likely", (2,))),
        (ANOTHER_DAY + GPU_OF_RANK_2 + "79, pid=41882, GPU has fallen off the bus.", None),
        (THAT_DAY + GPU_OF_RANK_2 + "31, pid=41882, Ch 00000008, intr 00000000. MMU Fault", None),
        (
            THAT_DAY + GPU_OF_RANK_2 + "149, pid=41882, NETIR_LINK_EVT Fatal   XC0 i0 Link 00 (0x4)",
            ("cuda-gpu-fault", "likely", (2,)),
        ),
        (THAT_DAY + "NVRM: Xid (PCI:0000:52:00): 145, RLW_REMAP Nonfatal XC0 i0 Link 05 (0x4)", None),
        (THAT_DAY + GPU_OF_RANK_2 + "167, pid=41882, PCIE_FATAL_TIMEOUT", ("cuda-gpu-fault", "likely", (2,))),
        (THAT_DAY + GPU_OF_RANK_2 + "121, pid=41882, C2C Link corrected error", None),
        (THAT_DAY + GPU_OF_RANK_2 + "63, pid=41882, Row Remapper: New row marked for remapping", None),
        (
            THAT_DAY + GPU_OF_RANK_2 + "154, GPU recovery action changed from 0x2 (Node Reboot Required) to 0x0 (None)",
            None,
        ),
        (
            THAT_DAY + GPU_OF_RANK_2 + "154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
            ("cuda-gpu-fault", "possible", ()),
        ),
        (
            THAT_DAY + "nvidia 0000:52:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, x",
            ("kernel-link-event", "possible", ()),
        ),
        (THAT_DAY + "pcieport 0000:16:02.0: AER: Corrected error message received from 0000:52:00.0", None),
        (ANOTHER_DAY + "pcieport 0000:16:02.0: pciehp: Slot(3): Link Down", None),
        (JOURNAL % 1772449497 + GPU_OF_RANK_2 + '79, pid=41882, GPU is lost."}', ("cuda-gpu-fault", "certain", (2,))),
        (JOURNAL % 1772244011 + GPU_OF_RANK_2 + '79, pid=41882, GPU is lost."}', None),
    ],
)
def test_a_fault_counts_by_its_process_gpu_and_time(
    tmp_path: Path, kernel_line: str, expected: tuple[str, str, tuple[int, ...]] | None
) -> None:
    findings = found(tmp_path, kernel_line)

    assert {(rule, certainty) for rule, certainty, _ in findings} == ({expected[:2]} if expected else set())
    if expected and expected[2]:
        assert {ranks for _, _, ranks in findings} == {expected[2]}


@pytest.mark.parametrize("day", [2, 23])
def test_a_fault_counts_by_its_day_in_the_formats_of_dmesg_and_journalctl(tmp_path: Path, day: int) -> None:
    prefixes = [
        f"[Mon Mar {day:2d} 03:04:57 2026] ",  # dmesg -T
        f"kern  :warn  : [Mon Mar {day:2d} 03:04:57 2026] ",  # dmesg -T -x
        f"2026-03-{day:02d}T03:04:57,034512+00:00 ",  # dmesg --time-format iso
        f"kern  :err   : 2026-03-{day:02d}T03:04:57,034512+00:00 ",
        f"[Mar{day:2d} 03:04] ",  # dmesg -e
        f"Mar {day:02d} 03:04:57 gpu-a012 kernel: ",  # journalctl
        f"Mar {day:02d} 03:04:57.034512 gpu-a012 kernel: ",  # journalctl -o short-precise
        f"2026-03-{day:02d}T03:04:57+0000 gpu-a012 kernel: ",  # journalctl -o short-iso
    ]
    faults = [prefix + GPU_OF_RANK_2 + "79, pid=41882, GPU has fallen off the bus." for prefix in prefixes]

    assert {certainty for _, certainty, _ in found(tmp_path, "\n".join(faults))} == ({"likely"} if day == 2 else set())


@pytest.mark.parametrize(
    "kernel_line",
    [
        (
            "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=a,mems_allowed=0-1,oom_memcg=/a,task_memcg=/a,"
            "task=python3,pid=41882,uid=0"
        ),
        "Memory cgroup out of memory: Kill process 41882 (python3) score 1000 or sacrifice child",
        "oom_reaper: reaped process 41882 (python3), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB",
    ],
)
def test_every_form_of_an_out_of_memory_kill_names_its_process(tmp_path: Path, kernel_line: str) -> None:
    kept = [line for line in INCIDENT.read_text().splitlines() if "41882" not in line.split("[")[0] or "Init" in line]
    kept = [line for line in kept if not line.startswith("[rank2]")]
    (tmp_path / "job.log").write_text("\n".join(kept) + "\n")
    (tmp_path / "dmesg.log").write_text(f"[ 1234.5] {kernel_line}\n")
    report = analyze([str(tmp_path)])

    row = report.verdicts[0]
    assert (row.verdict, report.numbers(row.culprits)) == ("rank-died", [2])
    assert any(finding.category == Category.OOM for finding in report.findings)


@pytest.mark.parametrize(("library", "is_found"), [("libnccl.so.2", True), ("libopenblas.so.0", False)])
def test_a_crash_inside_nccl_is_found_in_a_kernel_log_alone(tmp_path: Path, library: str, is_found: bool) -> None:
    crash = f"pt_main_thread[41882]: segfault at 7f79 ip 00007f7c sp 00007f7d error 4 in {library}[7f7c00+d3d300]"
    (tmp_path / "dmesg.log").write_text(f"[12345.678901] {crash}\n")

    found = [(f.rule, f.certainty) for f in analyze([str(tmp_path)]).findings if f.rule == "segfault-in-libnccl"]

    assert found == [("segfault-in-libnccl", "possible")] * is_found


@pytest.mark.parametrize(
    "head",
    ["[gfxhub0] retry page fault (src_id:0 ring:0 vmid:3 pasid:32850)", "GCVM_L2_PROTECTION_FAULT_STATUS:0x00341051"],
)
def test_a_page_fault_of_amd_names_the_process_and_its_details_are_no_faults(head: str, tmp_path: Path) -> None:
    lines = [
        head,
        " for process train.py pid 41887 thread train.py pid 41890)",
        "  in page starting at address 0x00007ed344600000 from IH client 0x1b (UTCL2)",
        "  cookie node_id 2 fault from die AID0.XCD1",
        "         WALKER_ERROR: 0x1",
    ]
    text = "".join(f"[5615152.198606] amdgpu 0000:5d:00.0: amdgpu: {line}\n" for line in lines)
    (tmp_path / "dmesg.log").write_text(text)
    [finding] = analyze([str(tmp_path)]).findings
    assert finding.rule == "kernel-driver-reports"
    assert "0000:5d:00.0" in finding.title
    assert "train.py (pid 41887)" in finding.detail
