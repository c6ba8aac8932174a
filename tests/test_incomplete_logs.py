"""What is missing from the logs may lower the certainty or widen the suspects, never accuse an innocent rank."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclforensics import analyze
from ncclforensics.simulate.generate import generate
from ncclforensics.simulate.plan import Fault, FaultKind, Finish, Layout, Plan
from ncclforensics.views import json_report
from tests.budget import examples
from tests.incidents import ROOT

INCIDENTS = ROOT / "fixtures" / "incidents"
HANG, HEALTHY, MISMATCH = "one-rank-stops-before-an-allreduce", "a-healthy-run", "one-rank-calls-allgather-instead"
CALL = re.compile(rb"NCCL INFO (AllReduce|AllGather|ReduceScatter|Broadcast|Reduce|Send|Recv): opCount")
Logs = dict[str, list[bytes]]
ACCUSING = {"lagging-ranks", "collective-mismatch", "p2p-unmatched", "cross-communicator-deadlock", "rank-missing"}


def logs_of(name: str) -> Logs:
    return {path.name: path.read_bytes().splitlines(keepends=True) for path in sorted((INCIDENTS / name).glob("*.log"))}


def hang_of(logs: Logs, folder: Path, *, check: bool = False) -> dict[str, Any]:
    folder.mkdir()
    for name, lines in logs.items():
        (folder / name).write_bytes(b"".join(lines))
    report = analyze([str(folder)], everything=check)
    found: dict[str, Any] = json.loads(json_report.json(report))["hang"]
    return found


def calls_in(lines: list[bytes]) -> list[int]:
    return [number for number, line in enumerate(lines) if CALL.search(line)]


@pytest.mark.parametrize(("name", "culprits"), [(HANG, [11]), (MISMATCH, [3])])
def test_calls_without_init_lines_give_the_verdict_of_the_whole_log(
    name: str, culprits: list[int], tmp_path: Path
) -> None:
    verdict = json.loads((INCIDENTS / name / "case.json").read_text())["truth"]["verdict"]

    hang = hang_of(
        {file: [line for line in lines if CALL.search(line)] for file, lines in logs_of(name).items()},
        tmp_path / "logs",
    )

    assert (hang["verdict"], hang["culprits"]) == (verdict, culprits)
    assert hang["certainty"] != "certain"


@given(data=st.data())
@examples(6, with_fixtures=True)
def test_a_lost_call_line_accuses_no_innocent_rank(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    logs = logs_of(HANG)
    name = data.draw(st.sampled_from(sorted(set(logs) - {"nccl_rank11.log"})))
    calls = calls_in(logs[name])
    del logs[name][data.draw(st.sampled_from(calls[:-1]))]  # without its last line a rank looks like the culprit

    hang = hang_of(logs, tmp_path_factory.mktemp("lost") / "logs")

    assert set(hang["culprits"]) <= {11}


@given(data=st.data())
@examples(6, with_fixtures=True)
def test_a_lost_call_line_does_not_make_a_finished_run_a_hang(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    logs = logs_of(HEALTHY)
    name = data.draw(st.sampled_from(sorted(logs)))
    del logs[name][data.draw(st.sampled_from(calls_in(logs[name])))]

    hang = hang_of(logs, tmp_path_factory.mktemp("lost") / "logs")

    assert (hang["verdict"], hang["culprits"]) == ("no-hang", [])


@given(data=st.data())
@examples(4, with_fixtures=True)
def test_logs_copied_from_a_running_job_prove_no_hang(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    logs = logs_of(HEALTHY)
    places = {name: calls_in(lines) for name, lines in logs.items()}
    middle = min(map(len, places.values())) // 2
    cut = {name: lines[: places[name][middle - data.draw(st.integers(0, 3))] + 1] for name, lines in logs.items()}

    folder = tmp_path_factory.mktemp("running")
    hang, checked = hang_of(cut, folder / "hang"), hang_of(cut, folder / "check", check=True)

    assert hang["certainty"] != "certain" or hang["verdict"] not in ACCUSING
    assert all(checked[name] == hang[name] for name in ("verdict", "certainty", "culprits", "suspects", "standstill"))
    assert hang["standstill"] == {"shown": False, "by": []}


@given(absent=st.sets(st.integers(0, 15), min_size=1, max_size=12))
@examples(4, with_fixtures=True)
def test_absent_logs_name_no_rank_that_is_not_to_blame(
    absent: set[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    logs = {name: lines for name, lines in logs_of(HANG).items() if int(name[9:-4]) not in absent}

    hang = hang_of(logs, tmp_path_factory.mktemp("absent") / "logs")

    assert set(hang["culprits"]) <= {11}
    assert hang["heard"] == {"ranks": 16 - len(absent), "of": 16}
    assert set(hang["suspects"]) <= {11, *absent}


@pytest.mark.parametrize("length", [1, 9, 30])
def test_lines_delivered_twice_are_no_calls(length: int, tmp_path: Path) -> None:
    logs = logs_of(HANG)
    lines = logs["nccl_rank4.log"]
    end = calls_in(lines)[20] + 1
    logs["nccl_rank4.log"] = lines[:end] + lines[end - length : end] + lines[end:]

    hang = hang_of(logs, tmp_path / "logs")

    assert (hang["verdict"], hang["culprits"]) == ("lagging-ranks", [11])


def test_lines_that_changed_places_are_no_mismatch(tmp_path: Path) -> None:
    logs = logs_of(HANG)
    lines = logs["nccl_rank4.log"]
    first, second = next(
        (at, at + 1)
        for at in calls_in(lines)[8:]
        if b"AllReduce" in lines[at] and b"AllReduce" in lines[at + 1] and lines[at][-99:-60] != lines[at + 1][-99:-60]
    )
    lines[first], lines[second] = lines[second], lines[first]

    hang = hang_of(logs, tmp_path / "logs")

    assert (hang["verdict"], hang["culprits"]) == ("lagging-ranks", [11])


def test_a_log_that_ends_early_is_no_hang_where_most_ranks_destroyed_their_communicators(tmp_path: Path) -> None:
    logs = logs_of(HEALTHY)
    for name in ("nccl_rank0.log", "nccl_rank1.log"):
        logs[name] = logs[name][: calls_in(logs[name])[-3]]

    hang = hang_of(logs, tmp_path / "logs")

    assert (hang["verdict"], hang["certainty"]) == ("no-hang", "likely")


def test_a_log_that_ends_inside_a_line_makes_its_rank_no_culprit(tmp_path: Path) -> None:
    logs = logs_of(HANG)
    lines = logs["nccl_rank4.log"]
    end = calls_in(lines)[-6]
    logs["nccl_rank4.log"] = [*lines[:end], lines[end][:40]]

    hang = hang_of(logs, tmp_path / "logs")

    assert set(hang["culprits"]) <= {11}


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_complete_files_in_utf_16_are_not_taken_for_cut(line_end: str, tmp_path: Path) -> None:
    logs = {
        name: [b"".join(lines).decode().replace("\n", line_end).encode("utf-16")]
        for name, lines in logs_of(HANG).items()
    }

    hang = hang_of(logs, tmp_path / "logs")

    assert (hang["verdict"], hang["culprits"]) == ("lagging-ranks", [11])


@pytest.mark.parametrize("mark", ["[...]", "…", "(34 lines omitted)", "-- snip --"])
def test_nobody_is_accused_for_calls_that_may_stand_in_lines_left_out(mark: str, tmp_path: Path) -> None:
    logs = logs_of(HANG)
    own = logs["nccl_rank11.log"]
    calls = calls_in(own)
    logs["nccl_rank11.log"] = [*own[: calls[-6]], f"{mark}\n".encode()]

    hang = hang_of(logs, tmp_path / "logs")

    assert (hang["verdict"], hang["culprits"]) == ("undecidable", [])
    assert any("rank 11" in step for step in hang["collect_next"])


def test_the_counter_shows_the_place_of_calls_behind_lines_left_out_in_the_init(tmp_path: Path) -> None:
    logs = simulated(Fault(FaultKind.OTHER_COUNT, (9,)), tmp_path / "whole")

    hang = hang_of({name: without_init(lines, 0) for name, lines in logs.items()}, tmp_path / "logs")

    assert (hang["verdict"], hang["culprits"]) == ("collective-mismatch", [9])
    assert hang["certainty"] == "possible"


def test_of_a_stage_of_a_pipeline_one_rank_differs_in_the_ends_of_all_logs(tmp_path: Path) -> None:
    """Whose stages make different calls: what the ranks of a group have in common shows who differs there."""
    plan = Plan(
        version="2.27.7", nodes=1, gpus_per_node=8, tp=4, pp=2, steps=1, finish=Finish.KILLED,
        fault=Fault(FaultKind.OTHER_DATATYPE, (6,), "tp"),
    )  # fmt: skip
    generate(plan, tmp_path / "whole")
    logs = {path.name: path.read_bytes().splitlines(keepends=True) for path in (tmp_path / "whole").glob("*.log")}

    hang = hang_of({name: [*lines[:150], b"[...]\n", *lines[-8:]] for name, lines in logs.items()}, tmp_path / "ends")

    assert (hang["verdict"], hang["culprits"], hang["certainty"]) == ("collective-mismatch", [6], "possible")


@pytest.mark.parametrize("calls", [1, 2, 7])
def test_a_whole_log_is_not_accused_of_calls_that_were_left_out_of_the_others(calls: int, tmp_path: Path) -> None:
    logs = simulated(None, tmp_path / "whole")
    whole = logs.pop("nccl_rank7.log")

    hang = hang_of(
        {"nccl_rank7.log": whole} | {name: without_init(lines, calls) for name, lines in logs.items()},
        tmp_path / "logs",
    )

    assert hang["culprits"] == []


def test_of_a_missing_rank_and_a_log_that_is_not_given_none_is_accused(tmp_path: Path) -> None:
    logs = simulated(Fault(FaultKind.RANK_MISSING, (6,)), tmp_path / "whole", version="2.27.7")

    alone = hang_of(logs, tmp_path / "alone")
    del logs["nccl_rank1.log"]
    beside = hang_of(logs, tmp_path / "beside")

    assert (alone["verdict"], alone["culprits"]) == ("rank-missing", [6])
    assert (beside["verdict"], beside["culprits"], beside["suspects"]) == ("undecidable", [], [1, 6])


def test_of_two_members_that_differ_none_is_accused_while_the_others_have_no_log(tmp_path: Path) -> None:
    logs = logs_of(MISMATCH)

    hang = hang_of({name: logs[name] for name in ("nccl_rank2.log", "nccl_rank3.log")}, tmp_path / "logs")

    assert (hang["verdict"], hang["culprits"]) == ("collective-mismatch", [])
    assert hang["collect_next"]


@pytest.mark.parametrize("calls", [1, 6, 20])
def test_of_a_dead_rank_and_one_whose_log_is_shorter_none_is_accused_as_likely(calls: int, tmp_path: Path) -> None:
    logs = logs_of("a-rank-is-killed")
    lines = logs["nccl_rank3.log"]
    logs["nccl_rank3.log"] = lines[: calls_in(lines)[-calls]]

    hang = hang_of(logs, tmp_path / "logs")

    assert set(hang["culprits"]) <= {12} or hang["certainty"] == "possible"


def simulated(fault: Fault | None, folder: Path, *, version: str = "2.21.5", steps: int = 1) -> Logs:
    """The logs of a job, before NCCL 2.27 with an `opCount` that counts calls, of which no log shows the end."""
    generate(Plan(version=version, steps=steps, finish=Finish.KILLED, fault=fault), folder)
    return {path.name: path.read_bytes().splitlines(keepends=True) for path in sorted(folder.glob("*.log"))}


def without_init(lines: list[bytes], calls: int) -> list[bytes]:
    """A log whose lines between the first `Init START` and so many calls are left out."""
    return [*lines[:20], b"[...]\n", *lines[calls_in(lines)[calls] :]]


def test_callers_of_two_calls_are_not_one_communicator_where_as_many_made_each(tmp_path: Path) -> None:
    """One call of each of eight processes, on eight ranks: halves of two communicators, or one; no line shows it."""
    (paste := tmp_path / "paste.log").write_text(
        "".join(
            f"node1:{4000 + rank}:{4100 + rank} [{rank}] NCCL INFO "
            f"{'AllGather' if rank < 4 else 'AllReduce'}: opCount 0 "
            f"sendbuff 0x7f{rank}000 recvbuff 0x7f{rank}000 count 1024 datatype 7 op 0 root 0 comm 0x55{rank}000 "
            f"[nranks=8] stream 0x66{rank}000\n"
            for rank in range(8)
        )
    )

    hang = json_report.as_object(analyze([paste]))["hang"]

    assert (hang["verdict"], hang["culprits"]) == ("undecidable", [])


@pytest.mark.parametrize("calls", [4, 10])
def test_a_few_calls_of_each_rank_accuse_nobody_of_a_running_job(calls: int, tmp_path: Path) -> None:
    logs = {name: [lines[at] for at in calls_in(lines)[-calls:]] for name, lines in logs_of(HEALTHY).items()}

    hang = hang_of(logs, tmp_path / "logs")

    assert hang["certainty"] == "possible" or hang["verdict"] not in ACCUSING


def test_an_id_that_stands_in_one_log_only_names_the_communicator_of_all(tmp_path: Path) -> None:
    logs = logs_of("a-rank-is-killed")
    later = {name: lines[calls_in(lines)[-1] + 1 :] for name, lines in logs.items() if name != "nccl_rank12.log"}

    hang = hang_of({**logs, **later}, tmp_path / "logs")

    assert hang["heard"] == {"ranks": 16, "of": 16}
    assert set(hang["culprits"]) <= {12}


def test_a_log_that_ends_within_a_probe_that_nccl_survives_is_no_failed_init(tmp_path: Path) -> None:
    logs = logs_of("a-rank-never-starts")
    lines = logs["nccl_rank1.log"]
    probe = next(number for number, line in enumerate(lines) if b"(ncclIbInit) -> 3" in line)

    hang = hang_of({**logs, "nccl_rank1.log": lines[: probe + 1]}, tmp_path / "logs")

    assert (hang["verdict"], hang["certainty"]) != ("init-failed", "likely")


def test_a_log_that_ends_within_an_init_that_the_others_completed_is_not_accused_as_likely(tmp_path: Path) -> None:
    logs = logs_of("the-network-fails-for-all")
    lines = logs["ib-n01.rank0.log"]
    connected = next(number for number, line in enumerate(lines) if b" via NET/IB" in line)

    hang = hang_of({**logs, "ib-n01.rank0.log": lines[: connected + 1]}, tmp_path / "logs")

    assert not hang["culprits"] or hang["certainty"] == "possible"


def test_a_log_that_ends_before_the_network_fails_for_others_is_not_accused_as_likely(tmp_path: Path) -> None:
    logs = logs_of("the-network-fails-for-all")
    calls = [number for number, line in enumerate(logs["ib-n01.rank1.log"]) if b" opCount " in line]
    logs["ib-n01.rank1.log"] = logs["ib-n01.rank1.log"][: calls[len(calls) // 2]]

    hang = hang_of(logs, tmp_path / "logs")

    assert (hang["verdict"], hang["culprits"], hang["certainty"]) == ("lagging-ranks", [1], "possible")
    assert "the network may have stopped the job later" in hang["reason"]


def test_two_ranks_that_stand_at_different_places_are_not_both_accused(tmp_path: Path) -> None:
    logs = logs_of(HANG)
    lines = logs["nccl_rank2.log"]

    hang = hang_of({**logs, "nccl_rank2.log": lines[: calls_in(lines)[-3] + 1]}, tmp_path / "logs")

    assert not (2 in hang["culprits"] and hang["certainty"] != "possible")


def test_calls_that_grep_left_out_of_all_logs_may_be_those_that_ranks_wait_in(tmp_path: Path) -> None:
    plan = Plan(nodes=1, gpus_per_node=8, tp=4, version="2.21.5", fault=Fault(FaultKind.SKIPPED_CALL, (3,), "dp"))
    generate(plan, tmp_path / "whole")
    logs = {path.name: path.read_bytes().splitlines(keepends=True) for path in (tmp_path / "whole").iterdir()}

    hang = hang_of(
        {name: [line for line in lines if b"AllReduce: opCount" in line] for name, lines in logs.items()},
        tmp_path / "logs",
    )

    assert hang["verdict"] in ("undecidable", "no-hang")
    assert not hang["culprits"]


@pytest.mark.parametrize("kept", [1, 2])  # with the second, a counter jumps; the first is later in the program
def test_the_calls_behind_a_hole_show_that_calls_on_other_communicators_may_be_lost(kept: int, tmp_path: Path) -> None:
    logs = simulated(None, tmp_path / "whole", steps=3)
    own = logs["nccl_rank3.log"]
    calls = calls_in(own)
    logs["nccl_rank3.log"] = own[: calls[-9]] + own[calls[-kept] :]

    hang = hang_of(logs, tmp_path / "logs")

    assert 3 not in hang["culprits"] or hang["certainty"] == "possible"


def test_lost_connections_do_not_show_what_ranks_called_whose_lines_show_no_call(tmp_path: Path) -> None:
    prefix = "node-{0}:{1}:{1} [{2}] NCCL INFO "
    lines = [
        f"{prefix.format(rank // 8, 100 + rank, rank % 8)}comm 0x5599{rank:x} rank {rank} nranks 16 cudaDev {rank % 8} "
        "busId 1b000 - Abort COMPLETE\n"
        for rank in range(16)
    ]
    lost = f"{prefix.format(0, 101, 1)}[Service thread] Connection closed by localRank 2\n"
    call = (
        f"{prefix.format(0, 102, 2)}AllReduce: opCount 8 sendbuff 0x7f1b recvbuff 0x7f0b count 1048576 datatype 9 op 0 "
        "root 0 comm 0x55fd [nranks=8] stream 0x55fe\n"
    )

    found = hang_of({"post.txt": [line.encode() for line in (lost, *lines, call)]}, tmp_path / "post")

    assert found["verdict"] == "undecidable"
    assert found["suspects"] == [rank for rank in range(16) if rank != 2]


@pytest.mark.parametrize(
    ("first", "nranks", "closed", "by"),
    [
        (0, 8, 1, []),
        (0, 8, 2, ["lost-connection"]),
        (0, 16, 1, []),  # no log of the other host, whose ranks do not change the number
        (8, 16, 1, ["lost-connection"]),  # this host may have ranks before these
    ],
)
def test_a_process_that_closes_its_own_connection_lost_none(
    first: int, nranks: int, closed: int, by: list[str], tmp_path: Path
) -> None:
    """PyTorch aborts its communicators at the end of a run that went well; rank 1 is the local rank 1."""
    prefix = "node-a:{0}:{0} [{1}] NCCL INFO "
    states = {
        state: [
            f"{prefix.format(100 + rank, rank)}comm 0x5599{rank:x} rank {first + rank} nranks {nranks} cudaDev {rank} "
            f"busId 1b000 - {state} COMPLETE\n"
            for rank in range(8)
        ]
        for state in ("Init", "Abort")
    }
    lost = f"{prefix.format(101, 1)}[Service thread] Connection closed by localRank {closed}\n"
    lines = [*states["Init"], lost, *states["Abort"]]

    found = hang_of({"job.log": [line.encode() for line in lines]}, tmp_path / "job")

    assert found["verdict"] == "undecidable"
    assert [kind for kind in found["standstill"]["by"] if kind == "lost-connection"] == by
    if nranks > 8 and not by:
        assert "collect the log of ranks 8-15" in found["collect_next"]


@pytest.mark.parametrize(("host", "culprits"), [("node-a", [0, 1]), ("localhost", [])])
def test_only_a_host_with_a_name_shows_which_ranks_share_a_gpu(host: str, culprits: list[int], tmp_path: Path) -> None:
    advice = "Set NCCL_MULTI_RANK_GPU_ENABLE=1 to enable this configuration."
    refusal = f"Multiple Ranks are using the same GPU/Partition. {advice}"
    logs = {}
    for rank in (0, 1):
        process = f"{host}:{100 + rank}:{100 + rank} [0]"
        created = (
            f"ncclCommInitRank comm 0x5599{rank} rank {rank} nranks 2 cudaDev 0 nvmlDev 0 busId 1b000 commId 0xec8d"
        )
        lines = [
            f"{process} NCCL INFO NCCL version 2.30.7+cuda12.4",
            f"{process} NCCL INFO [Rank {rank}] {created} - Init START",
            f"{process} init.cc:1057 (initTransportsRank) NCCL WARN {refusal}",
            f"{process} NCCL INFO init.cc:1921 (ncclCommInitRankFunc) -> 5",
        ]
        logs[f"rank{rank}.log"] = [f"{line}\n".encode() for line in lines]

    found = hang_of(logs, tmp_path / "logs")

    assert (found["verdict"], found["culprits"]) == ("init-failed", culprits)


def test_splits_of_different_colours_in_an_excerpt_are_no_inits_in_different_order(tmp_path: Path) -> None:
    lines = [
        f"node-b:{pid}:{pid} [0] NCCL INFO ncclCommSplit comm 0x55d{dev} rank {rank} nranks 4 cudaDev {dev} nvmlDev 0 "
        f"busId {dev}2000 parent 0x55e{dev} color {color} key {key} commId 0xacc647c2d6dbc8c{color} - Init START\n"
        for pid, dev, rank, color, key in ((71, 2, 2, 2, 10), (74, 4, 0, 3, 12), (72, 1, 1, 2, 9))
    ]

    found = hang_of({"post.txt": [line.encode() for line in lines]}, tmp_path / "post")

    assert found["verdict"] == "undecidable"
    assert not found["culprits"]


@pytest.mark.parametrize(("peer", "verdict"), [("node-b", "undecidable"), ("node-a", "rank-died")])
def test_a_lost_connection_to_a_host_without_logs_accuses_no_rank_of_another(
    peer: str, verdict: str, tmp_path: Path
) -> None:
    logs = {}
    for rank in range(4):
        process = f"node-a:{100 + rank}:{100 + rank} [{rank}]"
        created = f"ncclCommInitRank comm 0x5599{rank} rank {rank} nranks 4 cudaDev {rank} busId 1b000 commId 0xec8d"
        call = f"{process} NCCL INFO AllReduce: opCount {{}} sendbuff 0x1 recvbuff 0x2 count 8 datatype 7 op 0 root 0"
        lines = [
            f"{process} NCCL INFO {created} - Init COMPLETE",
            *(f"{call.format(number)} comm 0x5599{rank} [nranks=4] stream 0x3" for number in range(3 if rank else 2)),
        ]
        if rank:
            lost = f"socketProgress: Connection closed by remote peer {peer}<40008>"
            lines.append(f"{process} misc/socket.cc:58 (socketProgress) NCCL WARN {lost}")
        logs[f"rank{rank}.log"] = [f"{line}\n".encode() for line in lines]

    found = hang_of(logs, tmp_path / "logs")

    assert (found["verdict"], found["culprits"]) == (verdict, [0] if verdict == "rank-died" else [])


@pytest.mark.parametrize("begun", [9, 12, 15])
def test_a_log_that_begins_at_its_last_calls_accuses_no_rank_of_dying(begun: int, tmp_path: Path) -> None:
    """From NCCL 2.27 on, no counter shows how many calls were made before the first line."""
    plan = Plan(nodes=2, tp=4, version="2.30.7", bytes_per_rank=20_000, fault=Fault(FaultKind.KILLED, (8,), "world"))
    generate(plan, tmp_path / "whole")
    logs = {path.name: path.read_bytes().splitlines(keepends=True) for path in (tmp_path / "whole").glob("*.log")}
    late = f"nccl_rank{begun}.log"
    logs[late] = logs[late][calls_in(logs[late])[-6] :]

    hang = hang_of(logs, tmp_path / "logs")

    assert (hang["verdict"], hang["culprits"]) == ("rank-died", [8])


@pytest.mark.parametrize(("given", "suspected"), [((1, 3, 7, *range(8, 16)), set()), (range(16), {2})])
def test_no_host_is_said_to_have_died_of_which_only_some_logs_are_there(
    given: Iterable[int], suspected: set[int], tmp_path: Path
) -> None:
    plan = Plan(nodes=2, tp=4, version="2.30.7", bytes_per_rank=20_000, fault=Fault(FaultKind.KILLED, (2,), "tp"))
    generate(plan, tmp_path / "whole")
    logs = {
        f"nccl_rank{rank}.log": (tmp_path / "whole" / f"nccl_rank{rank}.log").read_bytes().splitlines(keepends=True)
        for rank in given
    }

    hang = hang_of(logs, tmp_path / "logs")

    assert set(hang["culprits"]) == suspected


def test_a_log_of_all_ranks_that_begins_in_the_middle_accuses_no_rank_of_which_it_shows_no_line(
    tmp_path: Path,
) -> None:
    fault = Fault(FaultKind.INIT_STOPPED, (5,))
    plan = Plan(
        nodes=1, gpus_per_node=8, tp=1, version="2.30.7", layout=Layout.MERGED, finish=Finish.ABORTED, fault=fault
    )
    generate(plan, tmp_path)
    log = tmp_path / "job.log"
    lines = log.read_bytes().splitlines(keepends=True)
    pid_of = {
        int(found[2]): found[1] for line in lines if (found := re.search(rb":([0-9]+):.* rank ([0-9]+) nranks", line))
    }
    others = [line for line in lines if b":" + pid_of[4] + b":" not in line]
    first = next(number for number, line in enumerate(others) if b"Init START" in line)
    log.write_bytes(b"".join(others[first:]))

    hang = json.loads(json_report.json(analyze([str(tmp_path)])))["hang"]

    assert hang["verdict"] != "rank-missing"
    assert not hang["culprits"]
    log.write_bytes(b"".join(others))
    assert json.loads(json_report.json(analyze([str(tmp_path)])))["hang"]["verdict"] == "rank-missing"


def test_of_two_that_differ_where_the_logs_of_the_others_end_none_is_accused(tmp_path: Path) -> None:
    plan = Plan(nodes=2, gpus_per_node=4, tp=2, version="2.30.7", steps=8, seed=895642, finish=Finish.ABORTED,
                fault=Fault(FaultKind.OTHER_KIND, (0,), "dp"))  # fmt: skip
    generate(plan, tmp_path)
    assert json.loads(json_report.json(analyze([str(tmp_path)])))["hang"]["culprits"] == [0]
    for rank, first, last in ((0, 0.2, 1), (2, 0, 0.6), (4, 0, 0.6)):
        path = tmp_path / f"nccl_rank{rank}.log"
        size = path.stat().st_size
        path.write_bytes(path.read_bytes()[int(size * first) : int(size * last)])

    hang = json.loads(json_report.json(analyze([str(tmp_path)])))["hang"]

    assert hang["culprits"] in ([], [0])


@pytest.mark.parametrize(
    ("output", "verdict"), [("all tests passed\n", "no-hang"), ("", "undecidable")], ids=["with output", "NCCL alone"]
)
def test_communicators_that_all_ranks_abort_at_exit_are_no_hang_where_the_output_shows_no_time_out(
    output: str, verdict: str, tmp_path: Path
) -> None:
    """PyTorch aborts them at an orderly end and after a time-out: NCCL's lines alone do not tell which."""
    comm = "node1:10{0}:10{0} [{0}] NCCL INFO comm 0x5599{0} rank {0} nranks 2 cudaDev {0} busId 1b000 - {1} COMPLETE\n"
    begun, ended = ("".join(comm.format(rank, event) for rank in range(2)) for event in ("Init", "Abort"))

    found = hang_of({"job.log": [begun.encode(), output.encode(), ended.encode()]}, tmp_path / "log")

    assert found["verdict"] == verdict
    assert "NCCL_DEBUG=" not in str(found)


@pytest.mark.parametrize("hidden", [(1,), (1, 4, 6)])
def test_ranks_whose_logs_show_no_calls_are_not_accused_as_likely(hidden: tuple[int, ...], tmp_path: Path) -> None:
    plan = Plan(
        gpus_per_node=4, tp=2, layers=2, steps=3, finish=Finish.ABORTED, fault=Fault(FaultKind.NETWORK_LOST, (5,))
    )
    generate(plan, tmp_path)
    for rank in hidden:  # they ran with NCCL_DEBUG_SUBSYS=INIT
        log = tmp_path / f"nccl_rank{rank}.log"
        log.write_text("".join(line for line in log.read_text().splitlines(keepends=True) if " opCount " not in line))

    found = json_report.as_object(analyze([str(tmp_path)]))["hang"]

    assert not found["culprits"] or found["certainty"] == "possible"


@pytest.mark.parametrize(("layers", "certainty"), [(1, "likely"), (4, "possible")])
def test_a_rank_without_a_call_is_behind_a_few_calls_of_the_others(layers: int, certainty: str, tmp_path: Path) -> None:
    fault = Fault(FaultKind.LAGGING, (5,), "tp", 0)
    generate(Plan(gpus_per_node=4, tp=2, layers=layers, steps=0, finish=Finish.ABORTED, fault=fault), tmp_path)

    found = json_report.as_object(analyze([str(tmp_path)]))["hang"]

    assert (found["verdict"], found["certainty"], found["culprits"]) == ("lagging-ranks", certainty, [5])


def test_a_silent_rank_did_not_die_for_sure_where_ranks_that_it_waits_for_have_no_log(tmp_path: Path) -> None:
    killed = Fault(FaultKind.KILLED, (0,))
    generate(Plan(gpus_per_node=4, tp=2, version="2.27.7", finish=Finish.ABORTED, fault=killed), tmp_path)
    for log in tmp_path.glob("nccl_rank*.log"):  # all but rank 1 ran with NCCL_DEBUG=WARN
        if log.stem != "nccl_rank1":
            log.write_text("".join(line for line in log.read_text().splitlines(keepends=True) if " WARN " in line))

    found = json_report.as_object(analyze([str(tmp_path)]))["hang"]

    assert (found["verdict"], found["culprits"]) == ("undecidable", [])


def test_a_log_that_ends_inside_an_init_which_others_completed_lacks_lines(tmp_path: Path) -> None:
    logs = simulated(None, tmp_path / "whole")
    own = logs["nccl_rank0.log"]
    ended = max(number for number, line in enumerate(own) if b"Init COMPLETE" in line)
    logs["nccl_rank0.log"] = own[:ended]

    found = hang_of(logs, tmp_path / "logs")

    assert not found["culprits"] or found["certainty"] == "possible"


def test_splits_of_one_id_are_no_proof_where_logs_begin_at_different_lines(tmp_path: Path) -> None:
    # 2.21 gives splits of one colour one commId, and only their position tells them apart.
    fault = Fault(FaultKind.SWAPPED_ORDER, (11,), "tp")
    plan = Plan(2, 8, tp=4, pp=1, version="2.21.5", layers=1, steps=2, blocking=True, finish=Finish.KILLED, fault=fault)
    generate(plan, tmp_path / "whole")
    logs = {path.name: path.read_bytes().splitlines(keepends=True) for path in (tmp_path / "whole").glob("*.log")}
    hang = hang_of({name: lines[-64:] for name, lines in logs.items()}, tmp_path / "ends")
    assert hang["verdict"] != "collective-mismatch" or hang["certainty"] == "possible"


@pytest.mark.parametrize(
    ("mark", "verdict"), [("", "rank-missing"), (" [repeated 2x across cluster]", "undecidable")], ids=["all", "folded"]
)
def test_a_rank_whose_equal_lines_ray_left_out_is_not_missing(mark: str, verdict: str, tmp_path: Path) -> None:
    lines = []
    for rank in range(3):
        worker = f"(TrainWorker pid=410{rank}, ip=10.0.4.12) gpu-a012:410{rank}:420{rank} [{rank}] NCCL INFO"
        lines += [f"{worker} Bootstrap : Using eth0:10.0.4.12<0>", f"{worker} Using network Socket"]
        init = f"rank {rank} nranks 4 cudaDev {rank} nvmlDev {rank} busId {rank}1000 commId 0xb28cabf3135b26f2"
        lines += [f"{worker} comm 0x55d1c3e0a2b{rank} {init} - Init START"]
    text = "\n".join(lines) + f"{mark}\n"

    hang = hang_of({"driver.log": [text.encode()]}, tmp_path / "logs")

    assert (hang["verdict"], hang["culprits"] == []) == (verdict, bool(mark))
    assert ("RAY_DEDUP_LOGS=0" in str(hang["collect_next"])) == bool(mark)
