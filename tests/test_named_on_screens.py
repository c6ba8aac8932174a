"""What a first screen says of switches, benchmarks, crashes and code: one truth of each, by its name and place."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from ncclforensics.views.text_screen import screen
from tests.test_first_screens import PORT, SIZES, read, shown

COMPLETION = (
    "node-a:4711:4790 [3] transport/net_ib/p2p.cc:811 NCCL WARN NET/IB: Got completion from peer 10.0.0.12<41000> with "
    "status=12 opcode=0 len=0 vendor err 129 (Send) localGid fe80::a288:c2ff:fe00:1 "
    "remoteGidsfe80::a288:c2ff:fe00:2 hca mlx5_3"
)
CRASH = """\
Fatal Python error: Segmentation fault

Thread 0x00007f0a4bfff700 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 324 in wait

Current thread 0x00007f0b8c1f4740 (most recent call first):
  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 2806 in all_reduce
  File "/mnt/job/train.py", line 77 in sync_grads
  File "/mnt/job/train.py", line 160 in <module>
"""
RAISED = """\
[rank0]: Traceback (most recent call last):
[rank0]:   File "/mnt/job/train.py", line 144, in main
[rank0]:     batch = next(loader)
[rank0]:   File "/mnt/job/loader.py", line 55, in __next__
[rank0]:     item = self.read(index)
[rank0]:   File "/opt/venv/lib/python3.11/site-packages/webdataset/tar.py", line 120, in read
[rank0]:     raise ValueError("bad sample")
[rank0]: ValueError: bad sample
[rank1]: Traceback (most recent call last):
[rank1]:   File "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 2806, in all_reduce
[rank1]: torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:268, remote \
process exited or there was a network error, NCCL version 2.21.5
"""


def fabric_with_a_director() -> Iterator[str]:
    """A map: 2 leaves with 2 hosts each, and a director of 2 line chips and 1 spine chip above them."""
    hosts = {f"H-{number}": f"L-{number % 2}" for number in range(4)}
    cables = [*hosts.items(), ("L-0", "D-0"), ("L-0", "D-1"), ("L-1", "D-0"), ("L-1", "D-1")]
    cables += [("D-0", "D-2"), ("D-1", "D-2")]
    nodes = dict.fromkeys(node for cable in cables for node in cable)
    guids = {node: f"b8599f03000000{number:02x}" for number, node in enumerate(nodes, 1)}
    ends: dict[str, list[tuple[str, int]]] = {node: [] for node in nodes}
    for near, far in cables:
        places = len(ends[near]) + 1, len(ends[far]) + 1
        ends[near].append((far, places[1]))
        ends[far].append((near, places[0]))
    for node in nodes:
        system = guids["D-0"] if node.startswith("D") else guids[node]
        kind, word, device = ("ca", "Ca", "1021") if node in hosts else ("switch", "Switch", "d2f0")
        yield f"\nvendid=0x2c9\ndevid=0x{device}\nsysimgguid=0x{system}\n{kind}guid=0x{guids[node]}\n"
        name = f"gpu-{node.lower()} mlx5_0" if node in hosts else f"MF0;{node.lower()}:MQM8700/U1"
        yield f'{word}\t40 "{"H" if node in hosts else "S"}-{guids[node]}"\t\t# "{name}"\n'
        for port, (far, far_port) in enumerate(ends[node], 1):
            own = f"({guids[node]}) " if node in hosts else ""
            far_mark = "H" if far in hosts else "S"
            yield f'[{port}]{own}\t"{far_mark}-{guids[far]}"[{far_port}]\t\t# "{far}" lid {port} 4xHDR\n'


def test_a_director_is_drawn_as_one_switch_and_the_levels_add_up_to_the_header(tmp_path: Path) -> None:
    text = screen(read(tmp_path, "".join(fabric_with_a_director())), width=120, everything=True)
    header = next(row for row in text.splitlines() if " levels, " in row)
    levels = [row.split() for row in text.splitlines() if row.split()[:1] in (["spine"], ["leaf"])]
    links = [int(row.split()[1].replace(",", "")) for row in text.splitlines() if "│" in row and "link" in row]

    assert sum(int(words[1]) for words in levels) == int(header.split()[0])
    assert f"{sum(links):,} links" in header


@pytest.mark.parametrize("width", [60, 80, 100])
def test_a_line_that_was_wrapped_is_cited_with_its_rest(tmp_path: Path, width: int) -> None:
    folded = [COMPLETION[start : start + width] for start in range(0, len(COMPLETION), width)]
    for rows in (folded, textwrap.wrap(COMPLETION, width)):
        assert "with status=12 opcode=0" in shown(read(tmp_path, "\n".join([*rows, ""])))


def test_processes_whose_ranks_no_line_shows_are_not_counted_as_ranks(tmp_path: Path) -> None:
    report = read(tmp_path, SIZES.format(1024, 256, 1) + "node-a:4711:4711 [0] NCCL INFO NET/IB : No device found.\n")

    assert "1 benchmark · 1 process on 1 host" in shown(report)


def test_lines_that_no_rule_judges_are_named_by_what_they_are(tmp_path: Path) -> None:
    text = (
        "Module Info\n-----------\nIdentifier                         : OSFP\nVendor Name                        : A\n"
    )
    first = shown(read(tmp_path, text))

    assert "Read: One link as the firmware of its port reports it: mlxlink, mstlink." in first


@pytest.mark.parametrize(("ends", "words"), [(2, "reports that it came to its end"), (1, "Init completed, but")])
def test_an_end_that_every_rank_reports_needs_no_more_output(tmp_path: Path, ends: int, words: str) -> None:
    init = (
        "node-a:471{0}:471{0} [{0}] NCCL INFO ncclCommInitRank comm 0x7f76fb515{0} rank {0} nranks 2 cudaDev {0} "
        "nvmlDev {0} busId {0}b000 commId 0x1beda2705bc7a90 - Init COMPLETE\n"
    )
    output = "".join(f"Rank {rank}: End of workload.\n" for rank in range(ends))
    first = shown(read(tmp_path, init.format(0) + init.format(1), output, everything=False), everything=False)

    assert words in first
    assert ("WHAT TO DO" in first) == (ends < 2)


def test_ports_for_management_are_not_counted(tmp_path: Path) -> None:
    ports = PORT.format(0, "Active", "LinkUp", 800) + PORT.replace("mlx5_", "smi").format(0, "Down", "Polling", 10)
    first = shown(read(tmp_path, ports))

    assert first.startswith("1 port ·")
    assert "not counted: smi0 port 1, for management alone" in first
    assert "should be up" not in first


def test_runs_of_one_size_each_are_one_benchmark_whose_smallest_sizes_show_no_collective(tmp_path: Path) -> None:
    sizes = [2**power for power in range(6, 20)]
    first = shown(read(tmp_path, "".join(SIZES.format(size, size // 4, size / 1000) for size in sizes)))

    assert first.startswith("1 benchmark ·")


@pytest.mark.parametrize(
    "line",
    [
        "6,3964,206764307,-;nvidia-nvswitch2: open (major=510)",
        "[  206.764307] nvidia-nvswitch2: open (major=510)",
        "[Mon Mar  2 11:04:57 2026] nvidia-nvswitch2: open (major=510)",
    ],
)
def test_a_kernel_log_without_a_fault_is_known_as_one(tmp_path: Path, line: str) -> None:
    first = shown(read(tmp_path, f"{line}\n"))

    assert "The kernel's log: none of its lines reports a fault that a rule knows" in first
    assert "format not known" not in first


def test_a_crash_says_where_in_the_program_and_its_stack_does_not_stand(tmp_path: Path) -> None:
    first = shown(read(tmp_path, CRASH, everything=False), everything=False)

    assert "In all_reduce (distributed_c10d.py:2806), called from sync_grads (train.py:77)" in first
    assert "stands in" not in first


def test_of_stacks_that_several_processes_print_at_once_none_is_of_a_crash(tmp_path: Path) -> None:
    heads = CRASH.splitlines(keepends=True)[:1] * 2
    first = shown(read(tmp_path, "".join([*heads, *CRASH.splitlines(keepends=True)[1:]]), everything=False))

    assert "crashed with SIGSEGV" in first
    assert "all_reduce (" not in first


def test_the_only_process_with_stacks_is_not_called_the_only_stack(tmp_path: Path) -> None:
    stack = (
        'Process {0}: python train.py\nThread {0} (active): "MainThread"\n'
        "    all_reduce (torch/distributed/distributed_c10d.py:2806)\n    main (train.py:144)\n\n"
    )
    first = shown(read(tmp_path, stack.format(4711) * 2, everything=False), everything=False)

    assert "2 stacks · 1 process" in first
    assert "The stacks of one process were read" in first


def test_the_cause_names_the_place_in_the_program(tmp_path: Path) -> None:
    first = shown(read(tmp_path, RAISED, everything=False), everything=False)

    assert "raised ValueError: bad sample. In read (tar.py:120), called from __next__ (loader.py:55)." in first


@pytest.mark.parametrize("tag", ["", "[rank3]: "])
def test_code_that_a_traceback_shows_is_no_error(tmp_path: Path, tag: str) -> None:
    rows = [
        "Traceback (most recent call last):",
        '  File "/mnt/job/train.py", line 144, in main',
        '    raise RuntimeError("CUDA error: an illegal memory access was encountered")',
        "RuntimeError: stopped by the test",
    ]
    report = read(tmp_path, "".join(f"{tag}{row}\n" for row in rows))

    assert not any("CUDA" in finding.title for finding in report.findings)
    assert any("stopped by the test" in finding.title for finding in report.findings)


HEAD = (
    "# nThread 1 nGpus 1 minBytes 1024 maxBytes 1024 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 "
    "validation: 1 graph: 0\n#\n# Using devices\n"
)
DEVICE = "#  Rank  {0} Group  0 Pid   4711 on     node-{0} device  0 [0x1b] NVIDIA H800\n"
LOST = "node-1: Test NCCL failure alltoall.cu:274 'remote process exited or there was a network error / '\n"
COLUMNS = (
    "{0:>5}  size         count      type   redop     time   algbw   busbw  error     time   algbw   busbw  error\n"
    "        (B)    (elements)                      (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)\n"
)
ROW = "{0:>5}  1073741824  268435456  float  sum  {1}  20.00  {2}  2e-07  {1}  20.00  {2}  2e-07\n"


@pytest.mark.parametrize(("hosts", "words"), [(2, "The other host of the test is node-0"), (3, "do not show which")])
def test_the_only_other_host_of_a_test_is_named(hosts: int, words: str, tmp_path: Path) -> None:
    text = HEAD + "".join(map(DEVICE.format, range(hosts))) + LOST

    assert words in shown(read(tmp_path, text))


def test_a_size_that_stands_in_several_rows_shows_what_each_of_them_reached(tmp_path: Path) -> None:
    rows = "".join(ROW.format(nodes, 9000 * nodes, 200 // nodes**2) for nodes in (1, 2, 4))
    first = shown(read(tmp_path, COLUMNS.format("nodes") + rows))
    of_one = shown(read(tmp_path, COLUMNS.format("#") + ROW.format("", 9000, 200)))

    assert "at 1 GiB reaches, by the column nodes, 1: 200.0 GB/s, 2: 50.0 GB/s, 4: 12.0 GB/s." in first
    assert "reaches 200.0 GB/s at 1 GiB" in of_one


def test_rows_without_figures_are_not_called_free_of_faults_alone(tmp_path: Path) -> None:
    template = "  268435456  4194304  float  none  -1  XXXXX  XXX.XX  XXX.XX  N/A  XXXXXX  XXX.XX  XXX.XX  0\n"
    head = SIZES.partition("{0} {1}")[0].format(1024)
    words = "Not judged: 1 row of nccl-tests with no figure of a bandwidth"

    assert words in shown(read(tmp_path, head + template))
    assert "with no figure" not in shown(read(tmp_path, SIZES.format(1024, 256, 1)))


def test_an_error_without_a_warning_is_told_from_its_deepest_place(tmp_path: Path) -> None:
    step = "node-a:{0}:{0} [0] NCCL INFO {1} -> 3\n"
    places = ["transport/net.cc:450", "transport.cc:216", "group.cc:460"]
    text = step.format(8, places[-1]) + "".join(step.format(7, place) for place in places)

    assert "over the network, and came through transport/net.cc:450, transport.cc:216, group.cc:460" in shown(
        read(tmp_path, text)
    )
    assert "It came through group.cc:460;" in shown(read(tmp_path, step.format(8, places[-1])))


AT_BARRIER = """\
[rank{0}]: Traceback (most recent call last):
[rank{0}]:   File "/mnt/job/train.py", line 144, in loop
[rank{0}]:     dist.{1}()
[rank{0}]:   File "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 4174, in {1}
[rank{0}]:     work = group.{1}([tensor], opts)
[rank{0}]: RuntimeError: {2}
"""
NAMED = "[Rank 0]: Ranks 1 failed to pass monitoredBarrier in 12000 ms"
CAME = (
    "Rank 2 successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0. "
    "Please check rank 0 logs for faulty rank."
)


@pytest.mark.parametrize("call", ["all_reduce", "monitored_barrier"])
def test_the_call_behind_the_barrier_of_pytorchs_checks_is_named(tmp_path: Path, call: str) -> None:
    report = read(tmp_path, AT_BARRIER.format(0, call, NAMED) + AT_BARRIER.format(2, call, CAME), everything=False)

    first = shown(report, everything=False)

    assert f"rank 1 never called {call} " in first
    assert ("(DETAIL)" in first) == (call == "all_reduce")


SET_UP = 'node-a:{0}:{0} [0] NCCL INFO NET/OFI Setting NCCL_PROTO to "simple"\n'
NOT_STARTED = (
    "node-a:72:90 [1] nccl_net_ofi_create_plugin:259 NCCL WARN NET/OFI aws-ofi-nccl initialization failed\n"
    "node-a:72:90 [1] NCCL INFO Using network Socket\n"
)


@pytest.mark.parametrize("is_mixed", [True, False])
def test_ranks_that_differ_in_their_network_are_named_below_a_plugin_that_failed(
    tmp_path: Path, *, is_mixed: bool
) -> None:
    first = shown(read(tmp_path, NOT_STARTED + SET_UP.format(71) * is_mixed))

    named = "process 72 on node-a" if is_mixed else "(certain) node-a"  # the only process that is known there
    assert f"{named}: the Libfabric plugin failed to start" in first
    assert ("pid 71 set up the plugin, pid 72 chose TCP sockets" in first) == is_mixed


def test_a_contained_memory_error_stands_behind_a_fatal_error_of_nvlink(tmp_path: Path) -> None:
    lines = [
        "NVRM: Xid (PCI:0000:9b:00): 94, pid=1234, name=python3, Contained ECC error",
        "NVRM: Xid (PCI:0019:01:00): 149, NETIR Fatal XC0 i0 Link -1 (0x000fe406 0x00000000)",
    ]
    first = shown(read(tmp_path, "\n".join([*lines, ""])))

    assert first.index("Xid 149, NVLink error") < first.index("Xid 94, contained memory error")


@pytest.mark.parametrize(
    ("place", "words"), [("transport/net.cc:450", "sets up a connection over the network"), ("enqueue.cc:2299", "")]
)
def test_what_nccl_was_setting_up_is_named_by_the_deepest_place_of_an_error(
    tmp_path: Path, place: str, words: str
) -> None:
    lines = "".join(f"node-a:12:{24} [0] NCCL INFO {step} -> 3\n" for step in (place, "group.cc:460", "group.cc:581"))
    first = shown(read(tmp_path, lines))

    assert "NCCL returned an error" in first
    assert ("began where NCCL " in first) == bool(words)
    assert words in first


DUPLICATE = (
    "node-a:{0}:{1} [0] init.cc:738 NCCL WARN Duplicate GPU detected : rank {2} and rank {3} both on CUDA device 1000\n"
)


@pytest.mark.parametrize("pids", [(7, 7), (7, 8)])
def test_threads_of_one_process_on_one_gpu_are_told_from_processes(tmp_path: Path, pids: tuple[int, int]) -> None:
    lines = DUPLICATE.format(pids[0], 20, 0, 1) + DUPLICATE.format(pids[1], 21, 1, 0)
    first = shown(read(tmp_path, lines, everything=False), everything=False)

    assert ("let each thread choose a GPU of its own" in first) == (pids[0] == pids[1])
    assert ("env | grep -E" in first) == (pids[0] != pids[1])
