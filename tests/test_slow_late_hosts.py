"""`slow` on times of hosts: Flight Recorder dumps, and NCCL's lines with times."""

from __future__ import annotations

import json
import random
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from ncclforensics import analyze
from ncclforensics.analyses.slow.answer import SlowAnswer

STEPS = 24
STEP, LATE = 0.1, 0.03  # seconds
BEGAN = datetime(2026, 3, 2, 11, 4, 57)


def made_calls(ranks: int, late: int | None, calls: int = 1) -> list[list[float]]:
    """The seconds at which each rank makes each call: all begin to work when the last has made the call before."""
    drawn, now, made = random.Random(ranks), 2.0, []
    for number in range(STEPS * calls):
        work = [STEP / calls * (1 + drawn.gauss(0, 0.01)) for _ in range(ranks)]
        if late is not None and number % calls == 0:
            work[late] += LATE
        made.append([now + seconds for seconds in work])
        now += max(work)
    return made


def dumps(folder: Path, late: int | None, groups: tuple[str, ...] = ("0",), without: int | None = None) -> Path:
    """Flight Recorder dumps of four ranks; the calls take turns in the groups."""
    for rank in range(4):
        entries = [
            {
                "collective_seq_id": number // len(groups) + 1,
                "input_sizes": [[1024]],
                "is_p2p": False,
                "process_group": [groups[number % len(groups)], "undefined"],
                "profiling_name": "nccl:all_reduce",
                "state": "completed",
                "time_created_ns": 1795650576 * 10**9 + round(times[rank] * 1e9),
            }
            for number, times in enumerate(made_calls(4, late, len(groups)))
        ]
        config = {name: {"name": name, "desc": "undefined", "ranks": "[0, 1, 2, 3]"} for name in groups}
        dump = {"version": "2.10", "pg_config": config, "pg_status": {}, "entries": entries}
        if rank != without:
            (folder / f"nccl_trace_rank_{rank}.json").write_text(json.dumps(dump))
    return folder


def logs(folder: Path, late: int | None, calls: int = 1, clock_ahead: float = 0.0) -> Path:
    """NCCL's logs with times, of two hosts with four ranks each; the clock of the second one may be ahead."""
    made = made_calls(8, late, calls)
    for rank in range(8):
        host, gpu = divmod(rank, 4)

        def line(seconds: float, text: str, host: int = host, gpu: int = gpu) -> str:
            time = BEGAN + timedelta(seconds=seconds + clock_ahead * host)
            return f"[{time:%Y-%m-%d %H:%M:%S.%f}] gpu-a00{host}:{100 + gpu}:{100 + gpu} [{gpu}] NCCL INFO {text}\n"

        init = f"ncclCommInitRank comm 0x55d0{rank} rank {rank} nranks 8 cudaDev {gpu} busId 1b000 commId 0x9f15 - Init"
        lines = [line(0, f"{init} START"), line(1, f"{init} COMPLETE")]
        lines += [
            line(
                times[rank],
                f"AllReduce: opCount {number:x} sendbuff 0x7f00 recvbuff 0x7f00 count {64 + number % calls} datatype 7 "
                f"op 0 root 0 comm 0x55d0{rank} [nranks=8] stream 0x55d",
            )
            for number, times in enumerate(made)
        ]
        (folder / f"rank{rank}.log").write_text("".join(lines))
    return folder


def answer_of(folder: Path) -> SlowAnswer:
    """What `slow` answers on a folder."""
    answer = SlowAnswer.of(analyze(str(folder), full=True).run["slow_answer"])
    assert answer is not None
    return answer


def test_a_late_host_is_named_as_possible_by_flight_recorder_dumps(tmp_path: Path) -> None:
    answer = answer_of(dumps(tmp_path, late=2))

    assert (answer.verdict, answer.certainty, answer.ranks) == ("slow-rank", "possible", (2,))
    assert "traces of torch.profiler" in answer.collect[0]


@pytest.mark.parametrize("calls", [1, 3])
def test_a_late_host_is_named_as_possible_by_lines_with_times_whatever_the_clocks(tmp_path: Path, calls: int) -> None:
    answer = answer_of(logs(tmp_path, late=5, calls=calls, clock_ahead=7.5))

    assert (answer.verdict, answer.certainty, answer.ranks) == ("slow-rank", "possible", (5,))
    assert answer.hosts == ("gpu-a001",)


def test_no_rank_is_named_where_none_is_late(tmp_path: Path) -> None:
    of_lines, of_dumps = tmp_path / "logs", tmp_path / "dumps"
    of_lines.mkdir()
    of_dumps.mkdir()

    for answer in (answer_of(logs(of_lines, late=None, clock_ahead=0.05)), answer_of(dumps(of_dumps, late=None))):
        assert (answer.verdict, answer.ranks) == ("undecidable", ())
        assert "none is late" in answer.claim


def test_no_rank_is_named_where_ranks_wait_in_several_groups(tmp_path: Path) -> None:
    answer = answer_of(dumps(tmp_path, late=2, groups=("0", "1")))

    assert (answer.verdict, answer.ranks) == ("undecidable", ())
    assert "in other groups" in answer.claim


def test_no_rank_is_named_where_the_dump_of_one_is_missing(tmp_path: Path) -> None:
    answer = answer_of(dumps(tmp_path, late=2, without=2))

    assert (answer.verdict, answer.ranks) == ("undecidable", ())
    assert "rank 2, of which there are none" in answer.claim
