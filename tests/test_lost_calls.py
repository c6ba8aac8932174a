"""Lines of calls that a collector lost accuse no rank: they make no call that no other rank made."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from benchmark.make_cases import drawn_plan
from ncclforensics import analyze
from ncclforensics.simulate.generate import generate
from ncclforensics.simulate.plan import Fault, FaultKind, Finish, Layout, Plan
from tests.incidents import INCIDENTS
from tests.test_incomplete_logs import Logs, calls_in, hang_of

VERSIONS = ("2.27.7", "2.30.7")  # their counters do not count every call


def logs_of(folder: Path, version: str, fault: Fault | None, *, finish: Finish = Finish.KILLED, seed: int = 0) -> Logs:
    is_blocking = fault is not None and fault.kind is FaultKind.SWAPPED_ORDER
    plan = Plan(
        nodes=4 if is_blocking else 2, gpus_per_node=4, tp=4, version=version, steps=2, seed=seed, fault=fault,
        finish=finish, network="Socket", blocking=is_blocking,
    )  # fmt: skip
    generate(plan, folder)
    return {path.name: path.read_bytes().splitlines(keepends=True) for path in sorted(folder.glob("*.log"))}


def without_call(logs: Logs, rank: int, place: int) -> Logs:
    """The log of a rank without the line of one of its calls; negative places count from its end."""
    name = f"nccl_rank{rank}.log"
    number = calls_in(logs[name])[place]
    return {**logs, name: logs[name][:number] + logs[name][number + 1 :]}


@pytest.mark.parametrize("version", VERSIONS)
def test_lines_lost_at_several_places_of_a_healthy_job_accuse_no_rank(version: str, tmp_path: Path) -> None:
    logs = logs_of(tmp_path / "job", version, None)
    for rank, place in ((1, 9), (2, 20), (6, 5), (7, -4)):
        logs = without_call(logs, rank, place)

    hang = hang_of(logs, tmp_path / "logs")

    assert hang["verdict"] in {"undecidable", "no-hang"}
    assert not hang["culprits"]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_skipped_call_is_named_where_all_other_logs_are_whole(version: str, tmp_path: Path) -> None:
    logs = logs_of(tmp_path / "job", version, Fault(FaultKind.SKIPPED_CALL, (6,), "tp"))

    hang = hang_of(logs, tmp_path / "logs")

    assert (hang["verdict"], hang["culprits"]) == ("collective-mismatch", [6])


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", [FaultKind.OTHER_COUNT, FaultKind.OTHER_ROOT])
def test_a_call_that_no_other_rank_made_is_named_among_lost_lines(
    version: str, kind: FaultKind, tmp_path: Path
) -> None:
    logs = logs_of(tmp_path / "job", version, Fault(kind, (6,), "tp"))
    for rank, place in ((1, 9), (2, 20)):
        logs = without_call(logs, rank, place)

    hang = hang_of(logs, tmp_path / "logs")

    assert (hang["verdict"], hang["culprits"]) == ("collective-mismatch", [6])


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("group", "place"), [("tp", 48), ("tp", 51), ("dp", 57)])
def test_a_rank_that_differs_and_lost_a_line_makes_no_other_one_a_culprit(
    version: str, group: str, place: int, tmp_path: Path
) -> None:
    """A line lost a few calls before, and the line of the very call in which it differs from a single other rank."""
    logs = logs_of(tmp_path / "job", version, Fault(FaultKind.OTHER_DATATYPE, (6,), group))

    hang = hang_of(without_call(logs, 6, place), tmp_path / "logs")

    is_named = group == "tp"
    assert (hang["verdict"], hang["certainty"]) == ("collective-mismatch" if is_named else "undecidable", "likely")
    assert hang["culprits"] == [6] * is_named


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("place", [-1, -2, -3])
def test_a_line_lost_beside_a_swapped_order_accuses_no_other_rank(version: str, place: int, tmp_path: Path) -> None:
    logs = logs_of(tmp_path / "job", version, Fault(FaultKind.SWAPPED_ORDER, (1,), "dp"))

    assert hang_of(logs, tmp_path / "whole")["culprits"] == [1]
    for rank in (0, 5, 13):
        hang = hang_of(without_call(logs, rank, place), tmp_path / f"without_{rank}")
        assert rank not in hang["culprits"]


@pytest.mark.parametrize("rank", [0, 3, 7])
def test_a_lost_line_that_looks_like_another_order_leaves_open_which_rank_left_it(rank: int, tmp_path: Path) -> None:
    """Rank 1 left the order of its own calls in its last one, and this rank by the lost line in the one before."""
    paths = (INCIDENTS / "communicators-in-opposite-order").glob("*.log")
    logs = {path.name: path.read_bytes().splitlines(keepends=True) for path in paths}

    hang = hang_of(without_call(logs, rank, -2), tmp_path / "logs")

    assert (hang["verdict"], hang["culprits"]) == ("undecidable", [])
    assert f"either rank {rank} " in hang["reason"].casefold()
    assert hang["reason"].endswith("the others wait for rank 1")


@pytest.mark.parametrize("version", ["2.21.5", "2.30.7"])  # the counter of the first counts every call
@pytest.mark.parametrize(("rank", "place"), [(1, -2), (6, -5), (7, -3)])
def test_a_line_delivered_twice_makes_no_culprit_beside_a_rank_that_stopped(
    version: str, rank: int, place: int, tmp_path: Path
) -> None:
    logs = logs_of(tmp_path / "job", version, Fault(FaultKind.LAGGING, (3,), "tp"))
    lines = logs[f"nccl_rank{rank}.log"]
    number = calls_in(lines)[place]

    hang = hang_of(
        {**logs, f"nccl_rank{rank}.log": [*lines[:number], lines[number], *lines[number:]]}, tmp_path / "logs"
    )

    assert hang_of(logs, tmp_path / "whole")["culprits"] == [3]
    assert hang["culprits"] in ([], [3])
    assert hang["culprits"] == [3] or version != "2.21.5"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("rank", "is_beside_it"), [(1, True), (6, False)])
def test_a_few_lines_that_one_log_lost_in_a_row_do_not_hide_the_rank_that_stopped(
    version: str, rank: int, is_beside_it: bool, tmp_path: Path
) -> None:
    logs = logs_of(tmp_path / "job", version, Fault(FaultKind.LAGGING, (3,), "tp"))
    hang = hang_of(without_call(without_call(logs, rank, -5), rank, -5), tmp_path / "logs")

    assert hang["culprits"] == [3] or (is_beside_it and hang["certainty"] != "certain")


def test_sorted_lines_do_not_show_which_process_stopped_printing(tmp_path: Path) -> None:
    generate(drawn_plan("2.30.7", FaultKind.KILLED, random.Random("killed 2.30.7 0")), tmp_path / "job")
    logs = {
        path.name: sorted({*path.read_bytes().splitlines(keepends=True)}) for path in (tmp_path / "job").glob("*.log")
    }

    assert not hang_of(logs, tmp_path / "logs")["culprits"]


@pytest.mark.parametrize("version", VERSIONS)
def test_lines_that_changed_places_make_no_culprit_beside_a_rank_that_stopped(version: str, tmp_path: Path) -> None:
    logs = logs_of(tmp_path / "job", version, Fault(FaultKind.LAGGING, (3,), "tp"))
    for rank, place in ((1, -3), (6, -6)):
        lines = [*logs[f"nccl_rank{rank}.log"]]
        number, later = calls_in(lines)[place], calls_in(lines)[place + 1]
        lines[number], lines[later] = lines[later], lines[number]
        hang = hang_of({**logs, f"nccl_rank{rank}.log": lines}, tmp_path / f"of_{rank}")

        assert hang["culprits"] in ([], [3])


def test_a_job_that_came_to_its_end_has_no_rank_that_skipped_a_call(tmp_path: Path) -> None:
    logs = without_call(logs_of(tmp_path / "job", "2.27.7", None, finish=Finish.CLEAN), 6, 12)

    hang = hang_of(logs, tmp_path / "logs")

    assert hang["verdict"] == "no-hang"
    assert not hang["culprits"]


def test_logs_without_equal_lines_do_not_show_how_many_calls_a_rank_made(tmp_path: Path) -> None:
    logs = logs_of(tmp_path / "job", "2.27.7", Fault(FaultKind.LAGGING, (3,), "tp"))
    distinct = {name: list(dict.fromkeys(lines)) for name, lines in logs.items()}

    assert hang_of(logs, tmp_path / "whole")["culprits"] == [3]
    hang = hang_of(distinct, tmp_path / "distinct")

    assert hang["culprits"] in ([], [3])


@pytest.mark.parametrize("seed", range(3))
def test_a_collector_that_loses_some_lines_of_all_ranks_accuses_no_innocent(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    fault = Fault(FaultKind.LAGGING, (3,), "tp")
    logs = logs_of(tmp_path / "job", draw.choice(VERSIONS), fault, seed=seed)
    logs = {name: [line for line in lines if draw.random() > 0.02] for name, lines in logs.items()}

    hang = hang_of(logs, tmp_path / "logs")

    assert set(hang["culprits"]) <= {3}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("call", [b" AllReduce: opCount ", b" Send: opCount ", b" Recv: opCount "])
def test_one_of_many_equal_calls_that_a_log_lost_does_not_make_its_rank_late(
    version: str, call: bytes, tmp_path: Path
) -> None:
    """All calls on the communicator of all ranks are equal, and so are all messages: no difference shows the gap."""
    generate(Plan(nodes=2, gpus_per_node=4, tp=2, pp=2, version=version, steps=40), tmp_path / "job")
    logs = {path.name: path.read_bytes().splitlines(keepends=True) for path in (tmp_path / "job").glob("*.log")}
    log = logs["nccl_rank2.log"]
    world = b"[nranks=8]" if b"AllReduce" in call else b"[nranks=2]"
    lines = [number for number, line in enumerate(log) if call in line and world in line]
    logs["nccl_rank2.log"] = log[: lines[12]] + log[lines[12] + 1 :]

    hang = hang_of(logs, tmp_path / "logs")

    assert (hang["verdict"], hang["culprits"]) == ("no-hang", [])


def test_a_rank_that_makes_one_of_many_equal_calls_less_is_late(tmp_path: Path) -> None:
    fault = Fault(FaultKind.LAGGING, (2,), "world")
    plan = Plan(
        nodes=2, gpus_per_node=4, tp=2, pp=2, version="2.30.7", steps=40, fault=fault, finish=Finish.KILLED
    )  # fmt: skip
    generate(plan, tmp_path / "job")
    logs = {path.name: path.read_bytes().splitlines(keepends=True) for path in (tmp_path / "job").glob("*.log")}

    hang = hang_of(logs, tmp_path / "logs")

    assert (hang["verdict"], hang["culprits"]) == ("lagging-ranks", [2])


def test_of_a_group_that_stopped_together_the_rank_that_lacks_a_call_is_named(tmp_path: Path) -> None:
    plan = Plan(nodes=3, gpus_per_node=4, tp=4, version="2.30.7", steps=2, seed=502443, finish=Finish.ABORTED,
                fault=Fault(FaultKind.SKIPPED_CALL, (9,), "tp", index=0))  # fmt: skip
    generate(plan, tmp_path / "job")
    logs = {path.name: path.read_bytes().splitlines(keepends=True) for path in sorted((tmp_path / "job").glob("*.log"))}

    hang = hang_of(logs, tmp_path / "logs")

    assert (hang["verdict"], hang["culprits"], hang["certainty"]) == ("collective-mismatch", [9], "possible")
    assert "ranks 8-11 stopped behind it" in hang["reason"]


def test_two_equal_logs_of_four_show_which_line_a_third_lost(tmp_path: Path) -> None:
    plan = Plan(nodes=1, gpus_per_node=4, tp=4, version="2.30.7", steps=2, finish=Finish.KILLED,
                fault=Fault(FaultKind.OTHER_COUNT, (3,), "tp", index=14))  # fmt: skip
    generate(plan, tmp_path / "job")
    logs = {path.name: path.read_bytes().splitlines(keepends=True) for path in sorted((tmp_path / "job").glob("*.log"))}

    hang = hang_of(without_call(logs, 0, 7), tmp_path / "logs")

    assert (hang["verdict"], hang["culprits"]) == ("collective-mismatch", [3])


def test_a_difference_above_the_window_of_a_log_that_many_ranks_share_is_found(tmp_path: Path) -> None:
    plan = Plan(nodes=2, gpus_per_node=8, tp=2, version="2.21.5", steps=30, seed=512182, finish=Finish.KILLED,
                layout=Layout.MERGED, fault=Fault(FaultKind.OTHER_COUNT, (0,), "tp", index=13))  # fmt: skip
    generate(plan, tmp_path)

    report = analyze(str(tmp_path))

    verdict = report.verdicts[0]
    assert verdict.verdict == "collective-mismatch"
    assert {report.run["rank"].filter(rank_id=rank_id)["rank"][0] for rank_id in verdict.culprits} <= {0, 1}


PREFIX = "h0:10{rank}:10{rank} [{rank}] NCCL INFO "
MEMBER = (
    "ncclCommInitRank comm 0x55d{rank} rank {rank} nranks 6 cudaDev {rank} nvmlDev {rank} busId {rank}b000 "
    "commId 0xabc - Init COMPLETE\n"
)
CALL = (
    "{name}: opCount 0 sendbuff (nil) recvbuff 0x7f00 count 4096 datatype 7 op 0 root {root} comm 0x55d{rank} "
    "[nranks=6] stream 0x55e{rank}\n"
)


def pipeline_log(rank: int, rounds: int) -> list[bytes]:
    """The log of one of six ranks of a pipeline with a collective behind every round, on one communicator."""
    received = [CALL.format(name="Recv", root=rank - 1, rank=rank)] if rank > 0 else []
    sent = [CALL.format(name="Send", root=rank + 1, rank=rank)] if rank < 5 else []
    calls = [*received, *sent, CALL.format(name="AllReduce", root=0, rank=rank)] * rounds
    lines = ["NCCL version 2.27.7+cuda12.4\n", MEMBER.format(rank=rank), *calls]
    return [(PREFIX.format(rank=rank) + line).encode() for line in lines]


def without_message(log: list[bytes], *names: str) -> list[bytes]:
    """The log of a rank without the lines of its last messages of these names."""
    last = [max(number for number, line in enumerate(log) if f"{name}: opCount".encode() in line) for name in names]
    return [line for number, line in enumerate(log) if number not in last]


def named_by(hang: dict[str, Any]) -> set[tuple[str, ...]]:
    return {(rival["fault"], *rival["ranks"]) for rival in hang["explanations"] if rival["ranks"]}


@pytest.mark.parametrize("losing", [0, 1, 5])
def test_a_lost_collective_does_not_hide_who_left_out_a_message(losing: int, tmp_path: Path) -> None:
    logs = {f"nccl_rank{rank}.log": pipeline_log(rank, rounds=3) for rank in range(6)}
    logs["nccl_rank3.log"] = without_message(logs["nccl_rank3.log"], "Send")
    whole = hang_of(logs, tmp_path / "whole")
    log = logs[f"nccl_rank{losing}.log"]
    collective = [number for number, line in enumerate(log) if b"AllReduce" in line][1]

    hang = hang_of({**logs, f"nccl_rank{losing}.log": log[:collective] + log[collective + 1 :]}, tmp_path / "lost")

    assert (whole["verdict"], whole["culprits"], whole["certainty"]) == ("p2p-unmatched", [3], "likely")
    assert ["the line of that call, and no other, was lost from its log"] in [
        rival["assumes"] for rival in whole["explanations"]
    ]
    assert (hang["verdict"], hang["culprits"]) == ("undecidable", [])
    assert named_by(hang) == {("lagging-ranks", losing), ("p2p-unmatched", 3)}


@pytest.mark.parametrize(("losing", "name"), [(0, "Send"), (1, "Recv"), (1, "Send"), (5, "Recv")])
def test_the_rank_that_lacks_two_messages_is_named_beside_one_that_lost_a_line(
    losing: int, name: str, tmp_path: Path
) -> None:
    """Both went on, and either lost its lines or left the calls out: one lost line is cheaper than two."""
    logs = {f"nccl_rank{rank}.log": pipeline_log(rank, rounds=3) for rank in range(6)}
    logs["nccl_rank3.log"] = without_message(logs["nccl_rank3.log"], "Recv", "Send")
    logs[f"nccl_rank{losing}.log"] = without_message(logs[f"nccl_rank{losing}.log"], name)

    hang = hang_of(logs, tmp_path / "logs")

    assert (hang["verdict"], hang["culprits"], hang["certainty"]) == ("p2p-unmatched", [3], "likely")
    assert ["another rank is at fault by itself at the same time"] in [
        rival["assumes"] for rival in hang["explanations"]
    ]


@pytest.mark.parametrize("losing", [0, 1, 2])
def test_of_two_ranks_that_lack_one_message_each_none_is_named(losing: int, tmp_path: Path) -> None:
    """Rank 2 waits for rank 3 besides; it went on, too, so that this explains nothing."""
    logs = {f"nccl_rank{rank}.log": pipeline_log(rank, rounds=3) for rank in range(6)}
    for rank in (losing, 3):
        logs[f"nccl_rank{rank}.log"] = without_message(logs[f"nccl_rank{rank}.log"], "Send")

    hang = hang_of(logs, tmp_path / "logs")

    assert (hang["verdict"], hang["culprits"]) == ("undecidable", [])
    assert named_by(hang) == {("p2p-unmatched", losing), ("p2p-unmatched", 3)}


def replica_log(rank: int, messages: Iterable[str]) -> list[bytes]:
    """The log of a rank of two pipelines of two stages, which make collectives of all four behind every message."""
    world = f"comm 0x55d{rank} rank {rank} nranks 4 cudaDev {rank} nvmlDev {rank} busId {rank}b000 commId 0xabc"
    stage = f"comm 0x66d{rank} rank {rank % 2} nranks 2 cudaDev {rank} nvmlDev {rank} busId {rank}b000 commId "
    lines = ["NCCL version 2.27.7+cuda12.4\n"]
    lines += [f"ncclCommInitRank {comm} - Init COMPLETE\n" for comm in (world, f"{stage}0xde{rank // 2}")]
    for message in messages:
        if message:
            line = CALL.format(name=message, root=1 - rank % 2, rank=rank)
            lines.append(line.replace("0x55d", "0x66d").replace("nranks=6", "nranks=2"))
        lines.append(CALL.format(name="AllReduce", root=0, rank=rank).replace("nranks=6", "nranks=4"))
    return [(PREFIX.format(rank=rank) + line).encode() for line in lines]


def test_ranks_of_the_same_stage_that_left_out_the_same_message_are_all_named(tmp_path: Path) -> None:
    """One fault of the program explains both, which a lost line does not."""
    logs = {
        f"nccl_rank{rank}.log": replica_log(rank, ["Recv"] * 3 if rank % 2 else ["Send", "Send", ""])
        for rank in range(4)
    }

    hang = hang_of(logs, tmp_path / "logs")

    assert (hang["verdict"], hang["culprits"]) == ("p2p-unmatched", [0, 2])
