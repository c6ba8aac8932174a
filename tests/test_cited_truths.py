"""What a first screen claims is what its lines show: the call, the rate, the process, the end of a job, its size."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from ncclforensics import analyze
from ncclforensics.simulate.fabric import FabricFault, simulated_fabric
from ncclforensics.simulate.fabric_text import write_fabric
from tests.test_first_screens import CUT_ABORTED, INIT, OTHER_LAYOUT, read, shown
from tests.test_flight_recorder import Recorder, one_passes_another_size, one_stops

LIBRARY = "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
GLOO = "[../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 15000ms for recv operation to "
LOST = "[rank{0}]: RuntimeError: [../gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.4.1]:1374.\n"
WORKER = "node-a:{0}:{0} [{1}] NCCL INFO {2}\n"
# Made up: the rings of four channels, two in each direction, and then the trees.
RINGS = ["Channel 00/0 : 6[6] -> 5[5] via P2P/CUMEM", "Channel 02/0 : 6[6] -> 5[5] via P2P/CUMEM"]
TREES = ["Channel 01/0 : 6[6] -> 5[5] via P2P/CUMEM", "Channel 03/0 : 6[6] -> 5[5] via P2P/CUMEM"]
CRASH = """\
Fatal Python error: Segmentation fault

Current thread 0x00007f0b8c1f4740 (most recent call first):
  File "/mnt/job/loader.py", line 77 in decode
  File "/mnt/job/train.py", line 160 in <module>
"""


def timed_out(rank: int, call: str, line: int) -> str:
    return (
        f"[rank{rank}]: Traceback (most recent call last):\n"
        f'[rank{rank}]:   File "/mnt/job/train.py", line {line}, in step\n'
        f"[rank{rank}]:     dist.{call}(grads)\n"
        f'[rank{rank}]:   File "{LIBRARY}", line 2806, in {call}\n'
        f"[rank{rank}]:     work.wait()\n"
        f"[rank{rank}]: RuntimeError: {GLOO}complete\n"
    )


def failed_table(rank: int, local_rank: int, pid: int, exit_code: int, name: str) -> str:
    return (
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
        f"{'=' * 55}\ntrain.py FAILED\n{'-' * 55}\nFailures:\n  <NO_OTHER_FAILURES>\n{'-' * 55}\n"
        f"Root Cause (first observed failure):\n[0]:\n  time      : 2026-01-05_09:01:18\n  host      : node-{rank // 2}"
        f"\n  rank      : {rank} (local_rank: {local_rank})\n  exitcode  : {exit_code} (pid: {pid})  ({name})\n"
        f"  error_file: <N/A>\n  traceback : Signal {-exit_code} ({name}) received by PID {pid}\n{'=' * 55}\n"
    )


def write_dumps(folder: Path, ranks: list[Recorder]) -> None:
    for recorder in ranks:
        path = folder / f"comm_lib_trace_rank_{recorder.rank}"
        path.write_bytes(pickle.dumps(recorder.document(), protocol=2))


def test_ranks_in_different_calls_are_cited_where_their_tracebacks_show_the_calls(tmp_path: Path) -> None:
    texts = [timed_out(rank, "broadcast" if rank == 1 else "all_reduce", 134 + 10 * (rank != 1)) for rank in range(3)]
    report = read(tmp_path, "".join(texts))
    first = shown(report, everything=False)

    assert "was in broadcast called from step (train.py:134)" in first
    assert "in all_reduce called from step (train.py:144)" in first
    cited = [line["text"] for line in report.evidence(report.findings[0])]
    assert cited[0].endswith("in broadcast")
    assert cited[1].endswith("in all_reduce")


def test_a_job_whose_ranks_stopped_with_errors_does_not_stand_still(tmp_path: Path) -> None:
    write_dumps(tmp_path, one_passes_another_size())
    for rank in range(3):
        (tmp_path / f"rank{rank}.log").write_text(LOST.format(rank))
    first = shown(analyze([str(tmp_path)]), everything=False)

    assert "COLLECTIVE-MISMATCH" in first
    assert "Failed: yes; ranks stopped with an error." in first


def test_ranks_without_a_dump_count_where_the_dumps_list_them(tmp_path: Path) -> None:
    write_dumps(tmp_path, one_stops()[:3])

    assert "3 of at least 4 ranks" in shown(analyze([str(tmp_path)]), everything=False)


def test_the_cited_line_of_a_slow_adapter_shows_its_rate(tmp_path: Path) -> None:
    write_fabric(simulated_fabric(24, 4, FabricFault.SLOW_NIC, seed=7), FabricFault.SLOW_NIC, tmp_path)
    report = analyze([str(tmp_path)], full=True, everything=True)
    (found,) = (finding for finding in report.findings if finding.rule == "fabric-slow-nic")

    assert "2xNDR" in report.evidence(found)[0]["text"]


@pytest.mark.parametrize(("others", "named"), [(1, "process 4711 on node-a: the"), (0, "node-a: the")])
def test_one_of_several_processes_of_a_host_is_named(tmp_path: Path, others: int, named: str) -> None:
    failed = (
        "node-a:4711:4790 [1] nccl_net_ofi_create_plugin:259 NCCL WARN NET/OFI aws-ofi-nccl initialization failed\n"
    )
    first = shown(read(tmp_path, failed + WORKER.format(4712, 0, "Using network Socket") * others, everything=False))

    assert f"(certain) {named} Libfabric plugin failed to start" in first


@pytest.mark.parametrize(
    ("lines", "faults"), [([*RINGS, "Connected all rings", *TREES], []), ([*RINGS, *TREES], ["moved"])]
)
def test_connections_of_trees_behind_those_of_rings_were_not_moved(
    tmp_path: Path, lines: list[str], faults: list[str]
) -> None:
    report = read(tmp_path, "".join(WORKER.format(4711, 6, line) for line in lines))

    assert report.run["line_fault"]["kind"].to_list() == faults


def test_a_crash_in_the_folder_of_a_worker_is_that_of_the_only_rank_that_ended_so(tmp_path: Path) -> None:
    for node, text in enumerate(["", CRASH]):
        folder = tmp_path / f"node-{node}/4711_a/attempt_0/1"
        folder.mkdir(parents=True)
        (folder / "stderr.log").write_text(text or timed_out(1, "all_reduce", 144))
    (tmp_path / "torchrun.log").write_text(failed_table(3, 1, 10863, -11, "SIGSEGV"))
    first = shown(analyze([str(tmp_path)]), everything=False)

    assert "rank 3 on node-1 (pid 10863) crashed with SIGSEGV. In decode (loader.py:77)" in first
    assert "'oom|xid|segfault|10863'" in first


def test_a_process_that_aborted_is_not_searched_in_the_kernels_log(tmp_path: Path) -> None:
    first = shown(
        read(tmp_path, LOST.format(0) + failed_table(1, 1, 4711, -6, "SIGABRT"), everything=False), everything=False
    )

    assert "ended by SIGABRT" in first
    assert "dmesg" not in first
    assert "read the end of its stderr" in first


def test_hosts_that_show_no_version_are_named_where_versions_seem_to_differ(tmp_path: Path) -> None:
    report = read(tmp_path, INIT.format(11420, 0, "1b000") + OTHER_LAYOUT, CUT_ABORTED, everything=False)

    assert "2.27.7+cuda12.4; no line of node-b that was read shows one" in shown(report, everything=False)


def test_files_that_no_format_fits_are_not_said_to_hold_nothing(tmp_path: Path) -> None:
    table = tmp_path / "steps.csv"
    table.write_text("run,train_step_time_s,step\na,0.386,31\na,0.392,63\n")

    assert "were recognised in these files" in analyze([str(table)], full=True).run["slow_answer"]["claim"][0]


def test_a_kernels_log_without_a_fault_is_said_to_show_none(tmp_path: Path) -> None:
    line = "[    4.711] mlx5_core 0000:1a:00.0 eth0: Link up\n"
    first = shown(read(tmp_path, "[    4.700] Linux version 6.8.0\n" + line, everything=False), everything=False)

    assert "these files hold the kernel's log" in first
    assert "nothing that stops a job was found in them" in first


def test_lines_of_another_message_are_cited_before_one_that_is_repeated(tmp_path: Path) -> None:
    node = "node-a:77:33{0} [{0}] /src/rccl/src/misc/alt_rsmi.cc:653 NCCL WARN Could not read node # {1}\n"
    first = shown(read(tmp_path, node.format(1, 5) + node.format(2, 5) + node.format(3, 6)))

    assert "Could not read node # 5" in first
    assert "Could not read node # 6" in first
    assert "Give every process all GPUs of its host" in first


def test_processes_whose_connections_were_closed_are_not_waited_for(tmp_path: Path) -> None:
    first = shown(read(tmp_path, LOST.format(0) + LOST.format(1) + LOST.format(2), everything=False), everything=False)

    assert "collect the exit code and the end of the output of the processes at 10.0.4.1" in first
    assert "py-spy" not in first


def test_errors_of_a_subnet_manager_are_named_by_their_codes(tmp_path: Path) -> None:
    line = "Mar 10 21:28:55 67224{0} [C31CA700] 0x01 -> osm_vendor_send: ERR 5430: Send p_madw = 0x7f{0} failed -5\n"
    first = shown(read(tmp_path, line.format(1) + line.format(2)))

    assert "reports an error: 5430: Send p_madw 2 lines" in first
