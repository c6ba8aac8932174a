"""Verdicts that few jobs end with: what is claimed, how surely, and which change of the logs silences the claim."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import pytest

from ncclforensics import analyze
from ncclforensics.views import json_report

Files = dict[str, str]


class Case(NamedTuple):
    """Files of a job, and the answer: `phrase` stands in its reason, `step` in what it says to run or to collect."""

    files: Files
    verdict: str
    certainty: str
    culprits: list[int]
    phrase: str
    step: str | None = None  # None: there is at most a traceback to read


def per_rank(outputs: Iterable[list[str]], name: str = "rank{}.log") -> Files:
    return {name.format(rank): "".join(f"{line}\n" for line in lines) for rank, lines in enumerate(outputs)}


def nccl(rank: int, text: str) -> str:
    return f"gpu-a:{100 + rank}:{100 + rank} [{rank}] {text}"


def started(rank: int, size: int, *, bus: int | None = None, done: bool = False) -> list[str]:
    """The lines of a rank that began, or completed, the init of a communicator."""
    place = f"comm 0xc{rank} rank {rank} nranks {size} cudaDev {rank} nvmlDev {rank} busId {bus or 10 * (rank + 1)}"
    ends = ("START", "COMPLETE") if done else ("START",)
    lines = [nccl(rank, f"NCCL INFO ncclCommInitRank {place} commId 0x1111 - Init {end}") for end in ends]
    return [nccl(0, "NCCL INFO NCCL version 2.25.1+cuda12.4"), *lines] if rank == 0 else lines


# NCCL refuses init

SHARED = "NCCL WARN Multiple Ranks are using the same GPU/Partition. Set NCCL_MULTI_RANK_GPU_ENABLE=1"
OTHER_SIZE = "NCCL WARN Bootstrap Root : mismatch in rank count from procs 4 : 8"


def all_warn_of_a_shared_gpu(buses: list[int]) -> Files:
    """Every rank compares all pairs of ranks, so each prints the warning."""
    return per_rank(
        [*started(rank, 3, bus=bus), nccl(rank, f"init.cc:1141 {SHARED}")] for rank, bus in enumerate(buses)
    )


def sizes(*numbers: int) -> Files:
    """The root of the bootstrap, rank 0, refuses ranks that were started with these numbers of ranks."""
    warning = nccl(0, f"bootstrap.cc:190 {OTHER_SIZE}")
    return per_rank(started(rank, size) + [warning] * (rank == 0) for rank, size in enumerate(numbers))


REFUSED = {
    "two ranks have one GPU": Case(
        all_warn_of_a_shared_gpu([10, 10, 30]),
        *("init-failed", "certain", [0, 1], "ranks 0, 1 use the same GPU", "nvidia-smi --query-gpu"),
    ),
    "no line shows the GPU of each rank": Case(
        all_warn_of_a_shared_gpu([10, 20, 30]),
        "init-failed",
        "likely",
        [],
        "unnamed ranks use the same GPU",
        "CUDA_VISIBLE_DEVICES",
    ),
    "one was started with another number of ranks": Case(
        sizes(4, 4, 4, 3), "init-failed", "certain", [3], "the minority: rank 3", "WORLD_SIZE"
    ),
    "ranks that were not seen may be the majority": Case(
        sizes(4, 4, 4, 8), "init-failed", "likely", [3], "different numbers of ranks, 4 and 8", "WORLD_SIZE"
    ),
    "half of the ranks are no minority": Case(
        sizes(4, 4, 8, 8), "init-failed", "likely", [], "different numbers of ranks, 4 and 8", "WORLD_SIZE"
    ),
}

# PyTorch compares models


def shapes(*differing: int, number: int, reference: int = 0) -> Files:
    """The outputs of a number of ranks, of which some find other shapes than on the reference."""
    text = "[rank{0}]: RuntimeError: [{0}]: params[0] in this process with sizes [8, 16] appears not to match sizes of "
    return per_rank(
        ([text.format(rank) + f"the same param in process {reference}."] if rank in differing else ["step 1"])
        for rank in range(number)
    )


MODELS = {
    "one rank differs from rank 0": Case(
        shapes(2, number=4), "collective-mismatch", "likely", [2], "built a model with parameters of other shapes"
    ),
    "all others differ from rank 0": Case(
        shapes(1, 2, 3, number=4), "collective-mismatch", "likely", [0], "built a model with parameters of other shapes"
    ),
    "half of the ranks differ from rank 0": Case(
        shapes(2, 3, number=4), "collective-mismatch", "likely", [], "ranks 2, 3 have other shapes than those of rank 0"
    ),
    "the output of a rank between is missing": Case(
        {name: text for name, text in shapes(2, number=4).items() if name == "rank2.log"},
        *("collective-mismatch", "likely", [], "rank 2 have other shapes than those of rank 0"),
    ),
}


# Stores and watchdogs of PyTorch

ADDRESS = "torch.distributed.DistNetworkError: The {} socket has failed to {} any{} network address"
TIMED_OUT = (
    "[rank3]:[E1122 09:00:24.907568527 ProcessGroupNCCL.cpp:632] [Rank 3] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=42, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600010 "
    "milliseconds before timing out."
)
AT_42 = (
    "[rank3]:[E1122 09:00:24.907568527 ProcessGroupNCCL.cpp:2271] [PG ID 0 PG GUID 0(default_pg) Rank 3]  failure "
    "detected by watchdog at work sequence id: 42 PG status: last enqueued work: 42, last completed work: 41"
)
NO_STORE = (
    "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has failed. "
    "See inner exception for details."
)
BARRIER = (
    "[rank4]:[E1122 09:08:01.806645921 ProcessGroupGloo.cpp:67] [Rank 0]: Rank 1 failed to pass monitoredBarrier in "
    "10000 ms\n"
)
REACHED = (
    "[rank6]:[E1122 09:08:01.803618696 ProcessGroupGloo.cpp:67] Rank 2 successfully reached monitoredBarrier, but "
    "received errors while waiting for send/recv from rank 0. Please check rank 0 logs for faulty rank.\n"
)
WRONG_SIZE = (
    "  what():  [enforce fail at /pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:454] op.preamble.length <= "
    "op.nbytes. 16384 vs 4096. Received data size doesn't match expected size. Is there a distributed collective "
    "mismatch in your code?"
)

CRASH = "Fatal Python error: Segmentation fault\n"

PYTORCH = {
    "no store at its address": Case(
        {"rank1.err": f"[rank1]: {ADDRESS.format('client', 'connect to', '')} of (gpu-a012, 29500).\n"},
        *("init-incomplete", "likely", [], "at gpu-a012:29500 did not answer", "ss -ltnp | grep 29500"),
    ),
    "the port of the store is taken": Case(
        {"rank0.err": f"{ADDRESS.format('server', 'listen on', ' local')}. port: 29500, code: -98, name: EADDRINUSE\n"},
        *("init-failed", "likely", [], "the port of the store is taken", "ss -ltnp"),
    ),
    "the store of the rendezvous does not answer": Case(
        {"rank0.err": f"{NO_STORE}\n", "rank1.err": f"{NO_STORE}\n"},
        *("init-incomplete", "likely", [], "the store of the rendezvous", "output"),
    ),
    "one rank alone reports a time-out": Case(
        {"rank3.err": f"{TIMED_OUT}\n{AT_42}\n"},
        *("undecidable", "likely", [], "waited, and is a victim", "the rank with a lower last enqueued work"),
    ),
    "a rank crashed, by the name of its file": Case(
        {"rank3.err": CRASH, "rank2.err": "step 12\n"}, "rank-died", "possible", [3], "ended by SIGSEGV", "dmesg"
    ),
    "a process crashed whose rank no name shows": Case(
        {"train.err": CRASH, "rank2.err": "step 12\n"},
        "undecidable",
        "certain",
        [],
        "no NCCL lines found in these files",
        "",  # what to do stands in the finding
    ),
    "a barrier names a rank of its process group, which is another one of the job": Case(
        {"rank4.log": BARRIER, "rank6.log": REACHED},
        *("lagging-ranks", "likely", [], "did not come to the barrier", ""),
    ),
    "gloo received a message of another size": Case(
        per_rank([["step 1"], ["terminate called after throwing an instance of 'gloo::EnforceNotMet'", WRONG_SIZE]]),
        *("collective-mismatch", "likely", [], "rank 1 received more bytes", "TORCH_DISTRIBUTED_DEBUG=DETAIL"),
    ),
}

# Ranks that are told to end

PACKAGES = "/usr/lib/python3.11/site-packages"
GLOO = "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/"
LATE = f"{GLOO}unbound_buffer.cc:81] Timed out waiting 60000ms for recv operation to complete"
LEFT = f"{GLOO}pair.cc:553] Connection closed by peer [10.0.0.1]:35492"


def raised(rank: int, error: str, *calls: tuple[str, str]) -> list[str]:
    """The traceback of a rank of torchrun: the functions that it was in, with their files, and the error."""
    frames = [f'  File "{file}", line 7, in {function}' for function, file in calls]
    return [f"[rank{rank}]: {line}" for line in ("Traceback (most recent call last):", *frames, error)]


STEP = ("training_step", "/mnt/job/model.py")
BACK = ("_engine_run_backward", f"{PACKAGES}/torch/autograd/graph.py")
TOLD = ("_sigterm_notifier_fn", f"{PACKAGES}/lightning/pytorch/trainer/connectors/signal_connector.py")
BROADCAST = ("broadcast", f"{PACKAGES}/torch/distributed/distributed_c10d.py")


def told_to_end(error_of_others: str) -> Files:
    """Rank 2 gets a signal in its own code; the handler of Lightning makes a call, which fails."""
    told = raised(2, LEFT, ("main", "/mnt/job/train.py"), STEP, TOLD, BROADCAST)
    others = [raised(rank, error_of_others, ("main", "/mnt/job/train.py"), BACK) for rank in (0, 1, 3)]
    return {"train.log": "".join(f"{line}\n" for lines in (*others, told) for line in lines)}


def one_reaches_an_end_of_file(error: str) -> Files:
    """Rank 1 raises an EOFError, and the others lose it."""
    loaded = raised(1, error, ("main", "/mnt/job/train.py"))
    others = [raised(rank, LEFT, ("main", "/mnt/job/train.py"), BACK) for rank in (0, 2, 3)]
    return {"train.log": "".join(f"{line}\n" for lines in (loaded, *others) for line in lines)}


SUMMARY = """\
Root Cause (first observed failure):
[0]:
  host      : gpu-a
  rank      : 1 (local_rank: 1)
  exitcode  : 1 (pid: 41887)
"""


def all_time_out(end: str = "") -> Files:
    """All ranks in this text time out in a call."""
    calls = (("main", "/mnt/job/train.py"), ("all_reduce", f"{PACKAGES}/torch/distributed/distributed_c10d.py"))
    lines = [line for rank in range(3) for line in raised(rank, LATE, *calls)]
    return {"train.log": "".join(f"{line}\n" for line in lines) + end}


ABORTED = SUMMARY.replace("exitcode  : 1 ", "exitcode  : -6 ")


def one_aborts(*said: str) -> Files:
    """Torchrun reports that rank 1 aborted, and the others lose it; `said`: what its process prints."""
    calls = (("main", "/mnt/job/train.py"), BACK)
    lines = [*said, *(line for rank in (0, 2) for line in raised(rank, LEFT, *calls))]
    return {"train.log": "".join(f"{line}\n" for line in lines) + ABORTED}


ENDED = {
    "a rank aborts and no line says why": Case(
        one_aborts(), *("rank-died", "possible", [1], "no line that was read says why it aborted", "end of its stderr")
    ),
    "a rank aborts over its own memory": Case(
        one_aborts("[rank1]: free(): invalid pointer"), *("rank-died", "certain", [1], "", "end of its stderr")
    ),
    "all ranks time out, as far as the highest number shows": Case(
        all_time_out(), *("stuck-together", "possible", [], "all of which lines were read", "WORLD_SIZE")
    ),
    "all ranks of a host time out, by torchrun's table": Case(
        all_time_out(SUMMARY), *("stuck-together", "possible", [], "all of which lines were read", "WORLD_SIZE")
    ),
    "a file of one rank was cut short": Case(
        one_reaches_an_end_of_file("EOFError: Ran out of input"),
        *("rank-died", "certain", [1], "raised EOFError and ended"),
    ),
    "the pipe to another process was closed": Case(
        one_reaches_an_end_of_file("EOFError"),
        *("undecidable", "likely", [], "no error of rank 1 was read", "exit code"),
    ),
    "a handler made a call where a rank stood in its own code": Case(
        told_to_end(LATE),
        *("lagging-ranks", "likely", [2], "stood in training_step (model.py:7) when", "read the code at the line"),
    ),
    "the others lost a rank before, and none timed out": Case(
        told_to_end(LEFT), *("undecidable", "likely", [], "lost a connection", "exit code")
    ),
}

# Messages and collectives that wait for each other


def call(rank: int, name: str, size: int, *, comm: str = "0xc", host: str = "gpu-a") -> str:
    """A line of a call; the peer of a message is the other rank of a pair."""
    peer = rank ^ 1 if name in ("Send", "Recv") else 0
    text = nccl(rank, f"NCCL INFO {name}: opCount 0 sendbuff 0x7f00 recvbuff 0x7f10 count 1024 datatype 7 op 0 root ")
    return f"{text}{peer} comm {comm}{rank} [nranks={size}] stream 0x55".replace("gpu-a", host, 1)


def pairs(*last: str, rounds: int) -> Files:
    """In each round even ranks send to the odd ones and all make a collective; `last` has the last calls of each."""
    usual = [[("Recv" if rank % 2 else "Send"), "AllReduce"] * rounds for rank in range(len(last))]
    return per_rank(
        started(rank, len(last), done=True) + [call(rank, name, len(last)) for name in [*usual[rank], *names.split()]]
        for rank, names in enumerate(last)
    )


def without_init(*names: str) -> Files:
    """Four ranks, each in two communicators of two; no line shows their members."""
    return per_rank([call(rank, "AllReduce", 2, comm=f"0x{name}") for name in names[rank % 2]] for rank in range(4))


def connections_lost(*reporting: int, given: int = 4) -> Files:
    """Ranks 2 and 3 run on gpu-b; the reporting ranks lost their connection to it behind equal calls."""
    files = []
    for rank in range(given):
        host = "gpu-a" if rank < 2 else "gpu-b"
        lines = [line.replace("gpu-a", host) for line in started(rank, 4, done=True)]
        lines += [call(rank, "AllReduce", 4, host=host)] * 3
        if rank in reporting:
            warning = (
                "socket.cc:58 (socketProgress) NCCL WARN socketProgress: Connection closed by remote peer gpu-b<45210>"
            )
            lines.append(nccl(rank, f"misc/{warning}").replace("gpu-a", host, 1))
        files.append(lines)
    return per_rank(files)


def errors_returned(**code_of_rank: int) -> Files:
    """Four ranks make equal calls, and behind them NCCL returns errors to some; `r2` is rank 2."""
    outputs = [started(rank, 4, done=True) + [call(rank, "AllReduce", 4)] * 3 for rank in range(4)]
    for name, code in code_of_rank.items():
        outputs[int(name[1:])].append(nccl(int(name[1:]), f"NCCL INFO transport/net.cc:1394 -> {code}"))
    return per_rank(outputs)


WAITING = {
    "NCCL returns an error of its own to one rank and a remote error to another": Case(
        errors_returned(r1=6, r3=2),
        *("undecidable", "likely", [], "error 2 (system error: a system call or another library failed) to rank 3 and"),
        "the program output of ranks 1, 3",
    ),
    "a rank leaves out a Recv that it made in every round": Case(
        pairs("Send", "AllReduce", rounds=3), "p2p-unmatched", "likely", [1], "skipped a call", "py-spy"
    ),
    "no round shows that a Recv belongs before the collective": Case(
        pairs("Send", "AllReduce", rounds=0), "p2p-unmatched", "possible", [1], "or these made one too many", "py-spy"
    ),
    "one of two ranks makes a call that the other does not": Case(
        pairs("AllGather Broadcast ReduceScatter AllReduce", "Broadcast ReduceScatter AllReduce", rounds=3),
        *("collective-mismatch", "likely", [0, 1], "one skipped it, or the other made one more", "py-spy"),
    ),
    "a Recv was made and the sender stops behind it": Case(
        pairs("Send", "Recv AllReduce", rounds=3), "lagging-ranks", "likely", [0], "did not make the call", "py-spy"
    ),
    "the lines that name members are missing": Case(
        without_init("aba", "abb"), "undecidable", "likely", [], "which rank waits for which is not known", "Init lines"
    ),
    "the others lost their connections to a host": Case(
        connections_lost(0, 1), "undecidable", "likely", [], "to the host of ranks 2, 3", "exit codes of ranks 2, 3"
    ),
    "the host that the connections led to has no log": Case(
        connections_lost(0, 1, given=2), "undecidable", "likely", [], "no log of ranks 2, 3", "the log of ranks 2, 3"
    ),
}

# Stacks


def stacks(**frames_of_rank: tuple[str, ...]) -> Files:
    """Stacks of py-spy; `r2` is rank 2."""
    dumps = {}
    for name, frames in frames_of_rank.items():
        pid = 10 + int(name[1:])
        lines = "".join(f"    {frame}\n" for frame in (*frames, "<module> (train.py:99)"))
        head = f"Process {pid}: python train.py\nPython v3.11.7 (/usr/bin/python3)\n\n"
        dumps[f"pyspy.rank{name[1:]}.txt"] = f'{head}Thread {pid} (idle): "MainThread"\n{lines}'
    return dumps


def timed_out(*ranks: int) -> Files:
    lines = f"{TIMED_OUT}\n{AT_42}\n"
    return {
        f"rank{rank}.err": lines.replace("rank3", f"rank{rank}").replace("Rank 3", f"Rank {rank}") for rank in ranks
    }


REDUCE = ("all_reduce (torch/distributed/distributed_c10d.py:2506)", "train (train.py:88)")
GATHER = ("all_gather (torch/distributed/distributed_c10d.py:3506)", "gather (train.py:60)")
BACKWARD = ("backward (torch/autograd/__init__.py:347)", "train (train.py:70)")
LOCK = ("acquire (filelock/_api.py:200)", "load_index (data/dataset.py:212)")

STACKS = {
    "most ranks stand outside of collectives": Case(
        stacks(r0=REDUCE, r1=LOCK, r2=LOCK),
        "undecidable",
        "likely",
        [],
        "most ranks stand outside",
        "again in a minute",
    ),
    "a rank without a stack may be the one": Case(
        stacks(r0=REDUCE, r1=REDUCE, r3=LOCK),
        "lagging-ranks",
        "possible",
        [3],
        "no stack of rank 2",
        "stacks of rank 2",
    ),
    "the others may compute": Case(
        stacks(r0=BACKWARD, r1=BACKWARD, r2=LOCK),
        *("lagging-ranks", "possible", [2], "may wait for other ranks, or compute", "nvidia-smi"),
    ),
    "one stands outside of the call in which the watchdogs of the others time out": Case(
        stacks(r0=REDUCE, r1=REDUCE, r2=LOCK, r3=REDUCE) | timed_out(0, 1, 3),
        *("lagging-ranks", "likely", [2], "no time-out of rank 2 was read", "py-spy"),
    ),
    "one is in another collective": Case(
        stacks(r0=REDUCE, r1=REDUCE, r2=GATHER),
        *("collective-mismatch", "possible", [2], "another call, or one of another group", "Flight Recorder"),
    ),
    "one is in another collective and may wait for a rank without a stack": Case(
        stacks(r0=REDUCE, r1=REDUCE, r3=GATHER), "undecidable", "likely", [], "there is no stack of rank 2", "Recorder"
    ),
}

# Kernel logs beside the logs of a job

FATAL = "[12345.678901] mlx5_core 0000:5d:00.0: poll_health:800:(pid 0): Fatal error 1 detected\n"


@pytest.mark.parametrize("has_failed", [True, False])
def test_a_fatal_error_of_a_nic_explains_failed_transfers_only(tmp_path: Path, *, has_failed: bool) -> None:
    for name, text in {**connections_lost(*[0, 1] * has_failed), "dmesg.txt": FATAL}.items():
        (tmp_path / name).write_text(text)

    found = [
        finding for finding in analyze([str(tmp_path)], everything=True).findings if finding.rule == "kernel-link-event"
    ]

    assert [finding.certainty for finding in found] == ["possible"] * has_failed
    assert all("reported a fatal error on a host that the line does not name" in finding.title for finding in found)
    assert all("on this host or on another" in finding.detail for finding in found)


CASES = REFUSED | MODELS | PYTORCH | ENDED | WAITING | STACKS


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in CASES.items()])
def test_a_rare_verdict(tmp_path: Path, case: Case) -> None:
    for name, text in case.files.items():
        (tmp_path / name).write_text(text)

    hang = json_report.as_object(analyze([str(tmp_path)], everything=False))["hang"]

    assert (hang["verdict"], hang["certainty"], hang["culprits"]) == (case.verdict, case.certainty, case.culprits)
    assert case.phrase in hang["reason"]
    steps = "; ".join(step for step in hang["collect_next"] if case.step or "traceback" not in step)
    assert case.step in steps if case.step else not steps


def test_ranks_that_share_different_gpus_are_told_apart(tmp_path: Path) -> None:
    pairs = [(6, 4, "31000"), (7, 5, "4b000"), (5, 7, "4b000"), (4, 6, "31000")]
    (tmp_path / "job.log").write_text(
        "".join(
            f"node1:{rank}:{rank} [0] init.cc:795 NCCL WARN Duplicate GPU detected : rank {rank} and"
            f" rank {other} both on CUDA device {bus}\n"
            for rank, other, bus in pairs
        )
    )

    reason = json_report.as_object(analyze(tmp_path / "job.log"))["hang"]["reason"]

    assert "ranks 4 and 6 of one communicator use the same GPU (bus id 31000" in reason
    assert "ranks 5 and 7 use the same GPU (bus id 4b000" in reason
