"""What the first screen denies: nothing that stands in lines which no rule, or another rule, reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclforensics import analyze
from ncclforensics.views.text_screen import screen

TIMED_OUT = (
    "[rank{0}]:[E723 01:58:45.510486595 ProcessGroupNCCL.cpp:632] [Rank {0}] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600061 milliseconds before timing out.\n"
)
TORCHRUN = (
    "W0409 07:28:49.530000 1359 torch/distributed/elastic/agent/server/api.py:719] Received {} death signal, shutting "
    "down workers\n"
)
ELASTIC = """\
Root Cause (first observed failure):
[0]:
  time      : 2026-03-02_11:04:57
  host      : gpu-a012
  rank      : 3 (local_rank: 3)
  exitcode  : 1 (pid: 41887)
"""
REACHED = (
    "[rank1]:[E ProcessGroupGloo.cpp:144] Rank 1 successfully reached monitoredBarrier, but received errors while "
    "waiting for send/recv from rank 0. Please check rank 0 logs for faulty rank.\n"
)
GLOO = (
    "[rank1]: RuntimeError: [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:133] Timed out waiting 1800000ms "
    "for send operation to complete\n"
)
CLOSED = "torch.distributed.elastic.rendezvous.api.RendezvousClosedError\n"
TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 9, in <module>\n    main()\n'
BAR = "steps:   2%|▏         | 77/5000 [57:02<60:46:54, 44.45s/it, avr_loss=0.0462]"
MPIRUN = "ORTE was unable to reliably start one or more daemons.\n"
GAVE_UP = (
    "[rank1]:[E723 01:59:00.278313932 ProcessGroupNCCL.cpp:744] [Rank 1] Some NCCL operations have failed or timed "
    "out. Due to the asynchronous nature of CUDA kernels, subsequent GPU operations m\n"
)
MPI_ABORT = """\
Abort(3712399) on node 0 (rank 0 in comm 0): Fatal error in PMPI_Init: Other MPI error, error stack:
# nThread 1 nGpus 2 minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 5 iters: 20 validation: 1
#
# Using devices
node1: Test CUDA failure common.cu:963 'invalid device ordinal'
 .. node1 pid 198671: Test failure common.cu:925
"""
INIT = (
    "node-a:267:270 [{0}] NCCL INFO comm 0x7fdcec000e2{0} rank {0} nranks 4 cudaDev {0} busId {0}0000 - Init COMPLETE\n"
)
LATER = "[rank2] 14:03:49 the scheduler of the site evicts this node\n"

# The text, and words that the first screen must not hold, for the text shows what they deny.
DENIED = {
    "a time-out of a rank in the program's own words": (
        TIMED_OUT.format(0) + "[rank1] ERROR: gave up waiting for the gradients\n",
        ["rank 1 printed no", "nothing"],
    ),
    "a later time in a line that is not read": (TIMED_OUT.format(0) + LATER, ["Last timed line", "last line"]),
    "progress in front of the line that is cited": (BAR + TORCHRUN.format(1), ["how far"]),
    "the other process of which a launcher tells": (
        TRACEBACK + CLOSED + TORCHRUN.format(15),
        ["another process did", "not read", "not in these"],
    ),
    "the rank that a barrier waited for": (REACHED + GLOO, ["for which", "which rank failed"]),
    "a reason of the launcher": ("ssh gateway: node quarantined by the health check\n" + MPIRUN, ["says why"]),
    "why a process ended, in words of no rule": (
        "the license server revoked the token of this worker\n" + ELASTIC,
        ["shows why", "no traceback"],
    ),
    "a rank that gave up, whose time-out is cut": (TIMED_OUT.format(0) + GAVE_UP, ["no time-out of rank 1"]),
    "an abort of MPI above a test": (MPI_ABORT, ["alone"]),
    "a part of the ranks that completed init": (
        INIT.format(0) + INIT.format(2),
        ["Init completed,", "init completed,"],
    ),
    "ranks beyond those that are read": (
        ELASTIC + "rank 4 of 64: loading shard 12\n",
        ["all ranks ended", "every rank that"],
    ),
}


def first_screen(tmp_path: Path, text: str) -> str:
    (tmp_path / "paste.txt").write_text(text)
    report = analyze([str(tmp_path / "paste.txt")], everything=False)
    return " ".join(screen(report, width=100).split())


@pytest.mark.parametrize(("text", "denials"), DENIED.values(), ids=DENIED)
def test_the_first_screen_denies_nothing_that_stands_in_the_text(text: str, denials: list[str], tmp_path: Path) -> None:
    first = first_screen(tmp_path, text)

    for words in denials:
        assert words not in first


def test_words_of_a_failure_that_no_finding_cites_are_quoted_beside_a_denial(tmp_path: Path) -> None:
    own = "2026-03-02 11:04:57 DEBUG endpoint of node-b: Destination is unreachable"

    first = first_screen(tmp_path, f"{own}\n{TIMED_OUT.format(0)}{TIMED_OUT.format(2)}")
    assert (
        "Not judged, with words of a failure: paste.txt:1 “DEBUG endpoint of node-b: Destination is unreachable”"
        in first
    )
    assert "no time-out of rank 1 was read" in first
    assert "Not judged" not in first_screen(tmp_path, TIMED_OUT.format(0) + TIMED_OUT.format(2))


def test_that_an_agent_was_told_to_end_leads_where_an_exception_only_follows_from_it(tmp_path: Path) -> None:
    first = first_screen(tmp_path, TRACEBACK + CLOSED + TORCHRUN.format(15))

    assert "torchrun was told to end by SIGTERM" in first


def test_a_barrier_that_stops_at_the_first_absent_rank_does_not_say_that_the_others_came(tmp_path: Path) -> None:
    first = first_screen(tmp_path, "RuntimeError: Rank 1 failed to pass monitoredBarrier in 30000 ms\n")

    assert "It names the first absent rank alone" in first
    assert "others" not in first
    both = first_screen(tmp_path, "RuntimeError: Ranks 1, 3 failed to pass monitoredBarrier in 30000 ms\n")
    assert "ranks 1, 3 of a process group did not come" in both
    assert "alone" not in both


def test_ranks_that_came_to_a_barrier_are_told_from_the_one_that_did_not_answer(tmp_path: Path) -> None:
    first = first_screen(tmp_path, REACHED.removeprefix("[rank1]:"))

    assert "rank 1 of a process group came to a barrier, and rank 0 did not answer there" in first
    assert "unless it was late itself" in first


def test_a_client_that_did_not_reach_the_store_is_told_where_nothing_else_is(tmp_path: Path) -> None:
    refused = (
        "[W427 01:04:16.149509694 socket.cpp:752] [c10d] The client socket has failed to connect to [10.0.4.11]:3254 "
        "(errno: 110 - Connection timed out).\n"
    )
    step = "iteration 3/100 | elapsed time per iteration (ms): 310.2 | loss: 1.2\n"

    assert "a process could not connect to PyTorch's store yet" in first_screen(tmp_path, refused)
    assert "could not connect" not in first_screen(tmp_path, refused + step + step)
