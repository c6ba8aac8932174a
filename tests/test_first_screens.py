"""What a first screen says to a reader who is new to the program: who is meant, what is judged, what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclforensics import analyze
from ncclforensics.report.build import Report
from ncclforensics.views import json_report
from ncclforensics.views.text_screen import screen
from tests.incidents import INCIDENTS, Incident

WIDTH, HEIGHT = 80, 24
TCPX = "[ncclNet:2] tcpxResult_t tcpxGetRequest(...):705 NET/GPUDirectTCPX : unable to allocate requests\n"
NO_REQUEST = "node-a:77:330 [0] transport/{} NCCL WARN NET/{} : unable to allocate requests\n"
GIN = """\
NCCL WARN NET/OFI Failed to initialize GDRCopy: Failed to open gdr handle
NCCL INFO GIN/Plugin: Loaded gin plugin Libfabric_GDAKI (v14)
NCCL INFO GIN/Plugin: Failed to initialize any GIN plugin
"""
OTHER_LAYOUT = (
    "node-a:11420:11433 [0] bootstrap.cc:315 NCCL WARN Bootstrap Root : mismatch in info from procs, "
    "nranks 16 vs 16, nroots 1 vs 184615039, iroot 0 vs 769392642\n"
)
INIT = (
    "node-a:{0}:{0} [0] NCCL INFO NCCL version 2.27.7+cuda12.4\n"
    "node-a:{0}:{0} [{1}] NCCL INFO ncclCommInitRank comm 0x7f76fb515{0} rank {1} nranks 16 cudaDev {1} nvmlDev {1} "
    "busId {2} commId 0x1beda2705bc7a90 - Init START\n"
)
SAME_GPU = (
    "node-a:{0}:{0} [{1}] init.cc:795 NCCL WARN Duplicate GPU detected : rank {1} and rank {2} both on CUDA device "
    "9d000\n"
)
CUT_ABORTED = (
    "node-b:901:901 [0] misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to 10.0.4.11<43975> failed : "
    "Software caused connection abort\n"
)
PORT = "CA 'mlx5_{}'\n\tPort 1:\n\t\tState: {}\n\t\tPhysical state: {}\n\t\tRate: {}\n\t\tLink layer: InfiniBand\n"
SIZES = (
    "# nThread 1 nGpus 2 minBytes {0} maxBytes {0} step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 "
    "validation: 0 graph: 0\n#\n# Using devices\n"
    "#  Rank  0 Group  0 Pid   4711 on     node-a device  0 [0x1b] NVIDIA H800\n"
    "#  Rank  1 Group  0 Pid   4711 on     node-a device  1 [0x43] NVIDIA H800\n"
    "#\n"
    "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw "
    "#wrong\n"
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)\n"
    "{0} {1}     float     sum      -1   1000.0   10.0   {2}    N/A   1000.0   10.0   {2}    N/A\n"
    "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : {2}\n#\n"
)


def read(tmp_path: Path, *texts: str, everything: bool = True) -> Report:
    paths = [tmp_path / f"log{number}.txt" for number in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    return analyze([str(path) for path in paths], everything=everything)


def hang_of(name: str) -> Report:
    return Incident(INCIDENTS / name).answer().report


def shown(report: Report, *, everything: bool = True) -> str:
    """The first screen as one line, so that a sentence may be searched across its rows."""
    return " ".join(screen(report, width=WIDTH, height=HEIGHT, everything=everything).split())


def test_where_requests_ran_out_the_caller_is_looked_at_and_not_the_plugin(tmp_path: Path) -> None:
    first = shown(read(tmp_path, TCPX))

    assert "had all requests of a connection open at once" in first
    assert "tests each transfer to its end" in first
    for word in ("plugin failed", "rxdm"):
        assert word not in first


@pytest.mark.parametrize("place", [("net_ib.cc:400", "IB"), ("net_socket.cc:410", "Socket")])
def test_where_requests_ran_out_no_device_is_accused(tmp_path: Path, place: tuple[str, str]) -> None:
    (found,) = (f for f in read(tmp_path, NO_REQUEST.format(*place)).findings if f.rule == "warn-explained")

    assert "had all requests of a connection open at once" in found.detail
    assert "ibv_devinfo" not in found.remedy


def test_what_gin_lacks_stands_above_that_gin_is_missing(tmp_path: Path) -> None:
    report = read(tmp_path, GIN)
    first, second = report.findings[:2]

    assert first.title.startswith("GDRCopy could not be opened")
    assert "gdrdrv" in first.remedy
    assert "GIN" in second.title
    assert "not available" in second.title
    assert "unexplained" not in {first.rule, second.rule}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "main: stat of IB device 'mlx5_8' failed: No such file or directory",
            ("mlx5_8", "vanished", "dmesg", "lspci"),
        ),
        ("main: 'mlx5_8' IB device can't be found", ("mlx5_8", "no RDMA device of the name", "ibstat -l")),
        ("ibdebug: can't open UMAD port ((null):0)", ("local RDMA port", "/dev/infiniband/umad")),
    ],
)
def test_a_tool_that_fails_on_its_own_host_accuses_no_link(tmp_path: Path, line: str, words: tuple[str, ...]) -> None:
    first = shown(read(tmp_path, PORT.format(0, "Active", "LinkUp", 400) + f"ibpanic: [4711] {line}\n"))

    assert all(word in first for word in words), first
    assert "got no answer of a port" not in first


def test_a_driver_that_is_not_installed_is_no_fault_where_a_test_of_a_link_opened_its_device(tmp_path: Path) -> None:
    missing = "libibverbs: Warning: couldn't load driver 'libefa-rdmav34.so': libefa-rdmav34.so: cannot open\n"
    opened = "                    RDMA_Write BW Test\n Dual-port       : OFF\t\tDevice         : mlx5_0\n"

    assert [found.rule for found in read(tmp_path, missing).findings][:1] == ["stated-failure"]
    assert all(found.rule != "stated-failure" for found in read(tmp_path, missing + opened).findings)


def test_what_a_screen_of_a_hang_reads_of_an_unknown_format_is_quoted(tmp_path: Path) -> None:
    report = read(tmp_path, "PORT_0:\n    NETDEV: ens1\n    LINK_STATE: down\n", everything=False)

    assert "Not judged, with counts or states of a failure" in shown(report, everything=False)


def test_init_data_of_another_layout_asks_for_the_versions_of_all_hosts(tmp_path: Path) -> None:
    report = read(tmp_path, INIT.format(11420, 0, "1b000") + OTHER_LAYOUT, CUT_ABORTED, everything=False)
    first = shown(report, everything=False)

    assert "as another version of NCCL does" in first
    assert "2.27.7+cuda12.4" in first
    assert "compare the versions of NCCL of all hosts" in first
    assert "torch.cuda.nccl.version()" in first
    assert "Cause:" not in first  # the connection that was aborted follows from the refusal


def test_ranks_on_one_gpu_are_named_with_what_they_share(tmp_path: Path) -> None:
    texts = [INIT.format(8814 + n, 4 + n, "9d000") + SAME_GPU.format(8814 + n, 4 + n, 5 - n) for n in (0, 1)]
    first = shown(read(tmp_path, *texts, everything=False), everything=False)

    assert "use the same GPU (bus id 9d000; in nvidia-smi 0000:9D:00.0)" in first
    assert "pci.bus_id" in first  # nvidia-smi -L lists no bus ids


def test_a_process_that_reports_its_own_end_is_not_looked_at_while_it_runs() -> None:
    report = hang_of("ranks-pass-on-a-timeout")

    assert "py-spy" not in "".join(step.line for step in report.run_now(report.verdicts[0]))


def test_the_second_job_has_a_line_of_evidence_on_a_small_screen() -> None:
    report = hang_of("two-jobs-in-one-folder")
    rows = screen(report, width=WIDTH, height=HEIGHT).splitlines()

    place = next(number for number, row in enumerate(rows) if row.startswith("job 2 of 2: LAGGING-RANKS"))
    assert "nccl_rank5.log:" in rows[place + 1]
    assert len(rows) <= HEIGHT - 2


def test_lines_that_no_rule_judges_are_not_called_sound(tmp_path: Path) -> None:
    text = "sminfo: sm lid 2 sm guid 0x2c90200259201, activity count 6881 priority 0 state 3 SMINFO_MASTER\n"
    first = shown(read(tmp_path, text))

    assert "not judged Read: The subnet manager and the fabric's own tests: sminfo" in first
    assert "No rule judges such lines by themselves. Give them together with" in first
    assert "no findings" not in first


def test_a_port_that_is_down_beside_others_is_a_note(tmp_path: Path) -> None:
    first = shown(read(tmp_path, PORT.format(0, "Active", "LinkUp", 200) + PORT.format(1, "Down", "Polling", 10)))

    assert "looked at these lines and found no fault but what the notes below say" in first
    assert "info (certain) mlx5_1 port 1: down, beside active ports of the same host" in first


def test_runs_of_one_size_each_are_one_row_and_their_speed_is_not_judged(tmp_path: Path) -> None:
    sizes = [2**power for power in range(20, 32)]
    first = shown(read(tmp_path, "".join(SIZES.format(size, size // 4, 100 + n) for n, size in enumerate(sizes))))

    assert "2 1 12 111.0 GB/s 2 GiB" in first  # ranks, hosts, sizes, best busbw, its size
    assert "Not judged: how fast all_reduce should be there" in first
    assert "diff" in first


def test_a_port_of_nvlink_is_called_so(tmp_path: Path) -> None:
    text = (
        "mlxlink -d /dev/mst/netir10497_00.cc.00_gpu7\n\nOperational Info\n----------------\n"
        "State                              : Active\nPhysical state                     : N/A\n"
        "Speed                              : NVLink-XDR\nWidth                              : 2x\n"
    )
    first = shown(read(tmp_path, text))

    assert first.startswith("1 NVLink port")
    assert "1 active (NVLink)" in first


def test_gathers_that_nccl_counts_in_bytes_are_shown_in_bytes(tmp_path: Path) -> None:
    text = screen(hang_of("a-skipped-call-in-a-merged-log"), width=200)

    assert "AllGather #9 (524,288 bytes)" in text
    assert "x int8" not in text


def test_one_process_that_drives_all_ranks_is_named_as_such() -> None:
    report = hang_of("one-process-drives-all-gpus")

    assert " ranks of 1 process on 1 host" in shown(report, everything=False)


def test_where_nothing_hangs_the_screen_says_what_it_did_not_look_for() -> None:
    first = shown(hang_of("a-healthy-run"), everything=False)

    assert "NO-HANG" in first
    assert "Settings, network and speed: ncclforensics check" in first


def test_ranks_that_were_considered_where_nothing_is_decided_are_suspects_in_json() -> None:
    report = hang_of("buffered-stdout-lost-the-last-calls")
    found = json_report.as_object(report)["hang"]
    named = {rank for rival in found["explanations"] if not rival["is_answer"] for rank in rival["ranks"]}

    assert found["verdict"] == "undecidable"
    assert named
    assert named <= set(found["suspects"])


def test_two_runs_whose_plugin_failed_differently_are_two_findings(tmp_path: Path) -> None:
    end = "proxy.cc:1535 NCCL WARN [Proxy Service 5] Failed to execute operation Connect from rank 5, retcode 3\n"
    texts = (
        f"tcpxResult_t tcpxRegMr(...):800 NCCL WARN this does not work with that alone,\n{end}",
        f"tcpxResult_t gpu_tx_reg_mr(...):223 NCCL WARN gpu_tx_reg_mr failed -5\n{end}",
    )
    found = [f for f in read(tmp_path, *texts).findings if f.title.startswith("the network plugin failed")]

    assert [finding.title.partition(": ")[2] for finding in found] == [
        "this does not work with that alone …",
        "gpu_tx_reg_mr failed -5",
    ]


def test_a_host_whose_name_is_a_common_word_is_called_a_host(tmp_path: Path) -> None:
    text = "# Using devices\ngpu: Test CUDA failure common.cu:1030 'system not yet initialized'\n"

    assert "the NVLink fabric is not set up for host gpu" in shown(read(tmp_path, text))


def test_a_time_out_of_ascends_library_names_no_variables_of_nccl(tmp_path: Path) -> None:
    text = (
        "[rank1]:[E324 13:00:25.428029551 compiler_depend.ts:574] [Rank 1] Watchdog caught collective operation "
        "timeout: WorkHCCL(SeqNum=196, OpType=ALLREDUCE, Timeout(ms)=3600000) ran for 3600185 milliseconds before "
        "timing out.\n"
    )
    first = shown(read(tmp_path, text, everything=False), everything=False)

    assert "~/ascend/log" in first
    assert "NCCL_TRACE_BUFFER_SIZE" not in first


def test_the_culprits_that_a_short_table_leaves_out_are_named() -> None:
    report = hang_of("more-processes-than-gpus")
    text = screen(report, width=WIDTH, height=HEIGHT)

    assert "more" not in text.partition("CULPRITS")[2].partition("\n\n")[0]


def test_a_bandwidth_that_is_not_judged_is_said_so_once(tmp_path: Path) -> None:
    first = shown(read(tmp_path, SIZES.format(1 << 30, 1 << 28, "150.00").replace("H800", "H20")))

    assert first.count("ot judged") == 1
    assert "150.0 GB/s at 1 GiB. no findings" in first


def test_few_steps_and_a_kernels_log_without_a_fault_are_no_open_verdicts(tmp_path: Path) -> None:
    steps = "".join(f"iter {n} step {n + 1}: loss 5.1, LR: 0.000030, iter time: 2432.98ms\n" for n in range(3))
    first = shown(read(tmp_path, steps))
    of_kernel = shown(read(tmp_path, "6,3964,206764307,-;nvidia-nvswitch2: open (major=510)\n"))

    assert "UNDECIDABLE" not in first
    assert "Not judged: whether the steps are slow (ncclforensics slow)" in first
    assert "no findings The kernel's log: none of its lines reports a fault" in of_kernel


def test_a_port_that_is_down_is_surely_down(tmp_path: Path) -> None:
    assert "WARNING (certain) CA" not in shown(read(tmp_path, PORT.format(0, "Active", "LinkUp", 400)))
    first = shown(read(tmp_path, PORT.format(0, "Down", "Polling", 10)))

    assert "WARNING (certain) mlx5_0 port 1 is down (Polling)" in first
    assert "no other port is shown" in first


def test_a_failed_node_is_named_once_with_what_the_scheduler_knows_of_it(tmp_path: Path) -> None:
    first = shown(
        read(
            tmp_path,
            "srun: error: Node failure on node-7\nslurmstepd: error: *** STEP 47.0 ON node-3 CANCELLED AT "
            "2026-01-06T03:17:51 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***\n",
        )
    )

    assert "a node of the job failed: node-7" in first
    assert "scontrol show node" in first
    assert "FINDINGS" not in first


def test_a_peer_that_sends_no_address_is_not_looked_for_among_the_interfaces(tmp_path: Path) -> None:
    text = INIT.format(77, 0, "1b000").replace("START", "COMPLETE") + (
        "node-a:77:330 [0] misc/socket.cc:537 NCCL WARN ncclSocketInit: connecting to address  with family 1 is "
        "neither AF_INET(2) nor AF_INET6(10)\n"
    )
    first = shown(read(tmp_path, text, everything=False), everything=False)

    assert "between ncclGroupStart and ncclGroupEnd" in first
    assert "ip addr" not in first


def test_the_library_and_not_cuda_is_looked_at_where_hip_refuses_its_kernels(tmp_path: Path) -> None:
    line = "node-a:77:330 [1] /src/rccl/build/hipify/src/enqueue.cc:66 NCCL WARN Cuda failure 'invalid kernel file'\n"

    assert "built for another ROCm" in shown(read(tmp_path, line, everything=False), everything=False)


COMPLETE = (
    "node-a:{0}:{0} [{0}] NCCL INFO comm 0x7fe3d400198{0} rank {0} nranks {1} cudaDev {0} busId 1b000 - Init COMPLETE\n"
)


def test_output_behind_init_is_counted_and_its_last_line_is_quoted(tmp_path: Path) -> None:
    init = COMPLETE.format(0, 2) + COMPLETE.format(1, 2)
    first = shown(read(tmp_path, f"{init}Epoch 1\nerror rate 0.31\n", everything=False), everything=False)
    without = shown(read(tmp_path, init, everything=False), everything=False)

    assert "output goes on for 2 lines behind the last line of NCCL" in first
    assert "log0.txt:4 error rate 0.31" in first
    assert "do not show what happened after init" not in first
    assert "do not show what happened after init" in without


def test_of_one_rank_whose_program_goes_on_no_stacks_are_asked_for(tmp_path: Path) -> None:
    first = shown(read(tmp_path, COMPLETE.format(0, 1) + "Epoch 1\n", everything=False), everything=False)
    silent = shown(read(tmp_path, COMPLETE.format(0, 1), everything=False), everything=False)

    for text in (first, silent):
        assert "NO-HANG (likely)" in text
        assert "if all ranks hang" not in text
    assert ("py-spy" in first, "py-spy" in silent) == (False, True)


def test_a_crash_in_the_driver_is_no_fault_of_a_plugin(tmp_path: Path) -> None:
    frames = ["cuMemCreate", "ncclCuMemHostEnable()"]
    files = ['"<unknown>", line 0', '"misc/cudawrap.cc", line 92']
    stack = "".join(f"  File {file}, in {frame}\n" for file, frame in zip(files, frames, strict=True))
    text = f"!!!!!!! Segfault encountered !!!!!!!\n{stack}"
    first = shown(read(tmp_path, text, everything=False), everything=False)
    without = shown(read(tmp_path, text.replace("cuMemCreate", "malloc"), everything=False), everything=False)

    assert "in cuMemCreate of the CUDA driver" in " ".join(first.split())
    assert "NCCL_CUMEM_HOST_ENABLE=0" in first
    assert "NCCL_NET_PLUGIN=none" not in first
    assert "NCCL_NET_PLUGIN=none" in without


REBUILT = "INFO:root:Reducer buckets have been rebuilt in this iteration.\n"
LAUNCHED = "algo-1:79:1300 [0] NCCL INFO Launch mode Parallel\n"
TRAINED = "{{'loss': {0}, 'learning_rate': 5.2e-05, 'epoch': 0.03}}\n"
BEGAN = (
    "node-a:77:77 [0] NCCL INFO NET/Plugin: Loaded net plugin IBext_v8 (v8)\n"
    "node-a:77:77 [0] NCCL INFO Using network IBext_v8\n"
)
CRASHED = "Fatal Python error: Segmentation fault\n"


def test_a_check_that_finds_nothing_says_so_where_a_hang_is_undecided(tmp_path: Path) -> None:
    report = read(tmp_path, LAUNCHED + REBUILT)

    first = shown(report)
    assert "no findings" in first
    assert "Not known: whether the job hangs." in first
    assert "UNDECIDABLE" not in first
    assert "WHAT TO DO" not in first
    assert "UNDECIDABLE" in shown(report, everything=False)  # who asks for a hang gets the answer to that


def test_the_last_line_of_a_training_step_is_named_where_a_hang_is_undecided(tmp_path: Path) -> None:
    steps = TRAINED.format(10.9) + TRAINED.format(7.2)

    for text in (LAUNCHED + steps, "Traceback (most recent call last):\n" + steps):
        first = shown(read(tmp_path, text, everything=False), everything=False)
        assert "Last training step that was read: log0.txt:" in first


@pytest.mark.parametrize(("count", "goes_on"), [(2, False), (3, True)])
def test_steps_behind_the_error_that_leads_are_of_a_job_that_went_on(
    tmp_path: Path, count: int, *, goes_on: bool
) -> None:
    error = "Traceback (most recent call last):\ntorch.AcceleratorError: CUDA error: invalid device ordinal\n"
    text = error + "".join(f"step {number} loss 2.5\n" for number in range(count))

    first = shown(read(tmp_path, text, everything=False), everything=False)

    assert ("Steps stand behind the error above" in first) == goes_on


INTERRUPTED = (
    'Traceback (most recent call last):\n  File "train.py", line 7, in <module>\n    train()\n'
    '  File "train.py", line 5, in train\n    loss.backward()\nKeyboardInterrupt\n'
)
CAUGHT = "Traceback (most recent call last):\nModuleNotFoundError: No module named 'apex'\n"
TALK = "the learning rate is what it was\n"


@pytest.mark.parametrize(("lines", "is_now"), [(30, True), (600, False)])
def test_a_program_whose_file_goes_on_stands_nowhere_by_its_interruption(
    tmp_path: Path, lines: int, *, is_now: bool
) -> None:
    first = shown(read(tmp_path, INTERRUPTED + TALK * lines, everything=False), everything=False)

    assert ("INFO (certain) a process stood in train" in first) == is_now
    assert ("stands in" in first) == is_now


@pytest.mark.parametrize(("lines", "steps", "leads"), [(200, 0, True), (600, 0, False), (0, 120, False)])
def test_what_a_program_outlived_does_not_lead(tmp_path: Path, lines: int, steps: int, *, leads: bool) -> None:
    text = CAUGHT + TALK * lines + "".join(f"step {number} loss 2.5\n" for number in range(steps))

    first = shown(read(tmp_path, text, everything=False), everything=False)

    assert ("INFO (possible) a process raised ModuleNotFoundError" in first) == leads
    assert ("UNDECIDABLE" in first) != leads


def test_the_end_by_the_scheduler_leads_where_the_verdict_knows_no_rank(tmp_path: Path) -> None:
    limit = "slurmstepd: error: *** JOB 7 ON node-a CANCELLED AT 2026-03-02T11:04:57 DUE TO TIME LIMIT ***\n"

    first = shown(read(tmp_path, COMPLETE.format(0, 2) + TALK * 3 + limit, everything=False), everything=False)

    assert first.index("the scheduler ended the job: time limit") < first.index("WHAT TO DO")
    assert "ALSO FOUND" not in first


@pytest.mark.parametrize(("step", "is_over"), [(99, False), (100, True)])
def test_the_last_of_all_steps_ends_the_training(tmp_path: Path, step: int, *, is_over: bool) -> None:
    steps = "".join(f"step:{number}/100 loss:2.5 step_avg:62.4ms\n" for number in (98, step))

    first = shown(read(tmp_path, LAUNCHED + steps, everything=False), everything=False)

    assert ("A training loop had ended" in first) == is_over


@pytest.mark.parametrize(("before", "is_init"), [(BEGAN, True), ("", False)])
def test_a_crash_while_nccl_creates_a_communicator_leads(tmp_path: Path, before: str, *, is_init: bool) -> None:
    first = shown(read(tmp_path, before + CRASHED, everything=False), everything=False)

    assert ("crashed with SIGSEGV while NCCL created a communicator" in first) == is_init
    assert ("It had loaded IBext_v8." in first) == is_init
    assert "no communicator" not in first


LIMITS = [
    "Global timeout reached, terminating all processes.",
    "=>> PBS: job killed: walltime 3630 exceeded limit 3600",
    "TERM_RUNLIMIT: job killed after reaching LSF run time limit.",
]


@pytest.mark.parametrize("line", [*LIMITS, "epoch 3: the timeout of 120 s was not reached"])
def test_a_time_limit_ended_the_job_so_that_nothing_is_run_now(tmp_path: Path, line: str) -> None:
    (tmp_path / "launcher.log").write_text(line + "\n")
    logs = INCIDENTS / "one-rank-stops-before-an-allreduce"
    report = analyze([str(path) for path in (*sorted(logs.glob("*.log")), tmp_path / "launcher.log")])

    first = shown(report, everything=False)
    assert "rank 11 on gpu-node-01" in first
    assert ("ended at a time limit (launcher.log:1)" in first) == (line in LIMITS)
    assert ("RUN NOW" in first) == (line not in LIMITS)
