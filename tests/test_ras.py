"""What RAS reports say: text and JSON alike, cut short or repeated, alone or beside logs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclforensics import analyze
from ncclforensics.grammar import grammar_file
from ncclforensics.views.json_report import as_object
from tests.budget import examples
from tests.incidents import INCIDENTS

HASH = "8f3bd2a4c1e07755"
OPERATIONS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")
Json = dict[str, Any]


def member(rank: int, calls: int = 41, gathers: int = 7, **status: Any) -> Json:
    return {
        "rank": rank,
        "host": "10.0.4.12",
        "pid": 41887 + rank,
        "cuda_dev": rank,
        "nvml_dev": rank,
        "status": {
            "init_state": 0,
            "async_error": 0,
            "finalize_called": False,
            "destroy_flag": False,
            "abort_flag": False,
            **status,
        },
        "collective_counts": {**dict.fromkeys(OPERATIONS, 0), "AllGather": gathers, "AllReduce": calls},
    }


def lost(rank: int, *, dead: bool) -> Json:
    place = {"rank": rank, "host": "10.0.4.12", "pid": 41887 + rank, "cuda_dev": rank, "nvml_dev": rank}
    return {**place, "status": {"unresponsive": True, "considered_dead": dead}}


def printed(ranks: list[Json], missing: list[Json] | None = None, time: str = "11:04:57") -> str:
    """A report as `ncclras -f json` prints it: two blanks for a step, a key on a line."""
    missing = missing or []
    world = {
        "hash": f"0x{HASH}",
        "secondary_hash": "0xb7e7187447156001:0xb8242ed28a71381e",
        "size": len(ranks) + len(missing),
        "ranks_count": len(ranks),
        "missing_ranks_count": len(missing),
        "ranks": ranks,
        "missing_ranks": missing,
    }
    report = {
        "nccl_version": "2.29.2",
        "cuda_runtime_version": 13000,
        "cuda_driver_version": 13000,
        "timestamp": f"2026-03-02 {time}",
        "communicators_count": 1,
        "communicators": [world],
        "ras": {"collection_time_sec": 0.002, "timeouts_count": 0},
    }
    return json.dumps(report, indent=2) + "\n"


def table(nranks: int, errors: str) -> str:
    return (
        "NCCL version 2.29.2 compiled with CUDA 13.0\n"
        "CUDA runtime version 13000, driver version 13000\n\nJob summary\n===========\n\n"
        "Communicators... (0.002s)\n=============\n\n"
        "Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors\n"
        "    #  in group  per comm  per node  per comm  in group\n"
        f"    0         1         1  {nranks:8}  {nranks:8}  {nranks:8}   RUNNING  {errors:>6}\n\n"
    )


def result(tmp_path: Path, *reports: str) -> tuple[Any, Json]:
    paths = []
    for number, report in enumerate(reports):
        paths.append(tmp_path / f"ras-{number}.txt")
        paths[-1].write_text(report)
    report = analyze([str(path) for path in paths])
    return report, as_object(report)["hang"]


def test_text_and_json_give_the_same_lagging_rank(tmp_path: Path) -> None:
    text = (
        f"{table(8, 'MISMATCH')}Warnings\n========\n\n#0-0 ({HASH}) MISMATCH\n"
        "  Communicator ranks have different AllReduce operation counts\n"
        "  7 ranks have launched up to operation 41\n"
        "  Rank 5 has launched up to operation 40 -- GPU 5 managed by process 41892 on node 10.0.4.12\n\n"
    )
    ranks = [member(rank, 41 - (rank == 5)) for rank in range(8)]
    (tmp_path / "text").mkdir()

    by_text, hang_by_text = result(tmp_path / "text", text)
    by_json, hang_by_json = result(tmp_path, printed(ranks))

    behind = (pl.col("rank") == 5) & (pl.col("operation") == "AllReduce")
    columns = [
        "report",
        "communicator",
        "nranks",
        "rank",
        "node",
        "process",
        "gpu",
        "state_kind",
        "operation",
        "launched",
    ]
    assert (
        by_text.run["ras_state"]
        .filter(behind)
        .select(columns)
        .equals(by_json.run["ras_state"].filter(behind).select(columns))
    )
    for hang in (hang_by_text, hang_by_json):
        assert (hang["verdict"], hang["culprits"]) == ("lagging-ranks", [5])
        assert hang["victims"] == [0, 1, 2, 3, 4, 6, 7]
        assert any("second RAS report" in step for step in hang["collect_next"])
    assert by_json.run["verdict"]["certainty"].to_list() == ["possible"]


@pytest.mark.parametrize(("behind", "certainty"), [(1, "possible"), (2, "likely")])
def test_two_reports_distinguish_a_stuck_rank_from_a_running_job(behind: int, certainty: str, tmp_path: Path) -> None:
    """A host that launched one call fewer may wait for the same as the others, which launch ahead of their GPUs."""
    first = printed([member(rank, 41 - behind * (rank == 5)) for rank in range(8)])
    later = printed([member(rank, 61 - behind * (rank == 5)) for rank in range(8)], time="11:14:57")

    standing, hang = result(tmp_path, first, first.replace("11:04:57", "11:14:57"))
    assert (hang["verdict"], hang["culprits"]) == ("lagging-ranks", [5])
    assert standing.run["verdict"]["certainty"].to_list() == [certainty]

    running, hang = result(tmp_path, first, later)
    assert hang["verdict"] == "no-hang"
    assert running.run["verdict"]["certainty"].to_list() == ["likely"]


def text_of(counts: list[int]) -> str:
    """A report as text on ranks that launched so many calls: it names the few that differ from most."""
    usual = max(set(counts), key=counts.count)
    if set(counts) == {usual}:
        return table(len(counts), "OK")
    named = "".join(
        f"  Rank {rank} has launched up to operation {calls} -- GPU {rank} managed by process {41887 + rank} on node"
        " 10.0.4.12\n"
        for rank, calls in enumerate(counts)
        if calls != usual
    )
    return (
        f"{table(len(counts), 'MISMATCH')}Warnings\n========\n\n#0-0 ({HASH}) MISMATCH\n"
        "  Communicator ranks have different AllReduce operation counts\n"
        f"  {counts.count(usual)} ranks have launched up to operation {usual}\n{named}\n"
    )


ONE_BEHIND, SEVERAL_BEHIND = [41, 41, 41, 40, 41, 41], [40, 45, 45, 44, 45, 45]
AGREEING = [41] * 6


@pytest.mark.parametrize(
    ("looks", "expected", "phrase"),
    [
        (
            [ONE_BEHIND],
            ("lagging-ranks", "possible", [3]),
            "had launched 40 AllReduce on 0x8f3bd2a4c1e07755, the others 41;",
        ),
        ([ONE_BEHIND] * 2, ("lagging-ranks", "possible", [3]), "neither count changed"),
        ([SEVERAL_BEHIND], ("lagging-ranks", "possible", [0]), "the others 44 to 45, most of them (4 of 5) 45"),
        ([SEVERAL_BEHIND] * 2, ("lagging-ranks", "likely", [0]), "the others 44 to 45, most of them (4 of 5) 45"),
        (
            [[41, 41, 44, 41, 41, 41]],
            ("undecidable", "likely", []),
            "launched 41 AllReduce, rank 2 launched 44",
        ),
        ([AGREEING], ("no-hang", "possible", []), "agree"),
        ([AGREEING] * 2, ("undecidable", "likely", []), "all ranks"),
        ([ONE_BEHIND, AGREEING], ("no-hang", "likely", []), "the job was running"),
    ],
)
def test_text_and_json_of_the_same_reports_answer_alike(
    looks: list[list[int]], expected: tuple[str, str, list[int]], phrase: str, tmp_path: Path
) -> None:
    as_text = [text_of(counts) for counts in looks]
    as_json = [
        printed([member(rank, calls) for rank, calls in enumerate(counts)], time=f"11:{look}4:57")
        for look, counts in enumerate(looks)
    ]

    for name, reports in (("text", as_text), ("json", as_json)):
        (tmp_path / name).mkdir()
        _, hang = result(tmp_path / name, *reports)
        assert (hang["verdict"], hang["certainty"], hang["culprits"]) == expected
        assert phrase in hang["reason"]


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_report_in_which_all_agree_makes_a_rank_that_the_lines_name_doubtful(form: str, tmp_path: Path) -> None:
    logs = sorted((INCIDENTS / "one-rank-stops-before-an-allreduce").rglob("*.log"))
    reports = {"text": text_of([1] * 16), "json": printed([member(rank, 1) for rank in range(16)])}
    world = logs[0].read_text().partition(" commId 0x")[2].partition(" ")[0]
    (tmp_path / "ras.txt").write_text(reports[form].replace(HASH, world))

    hang = as_object(analyze([*map(str, logs), str(tmp_path)]))["hang"]

    assert (hang["certainty"], hang["culprits"]) == ("possible", [11])
    assert "the RAS report shows no mismatch" in hang["reason"]


@pytest.mark.parametrize(("outside", "certainty"), [(3, "likely"), (None, "possible")])
def test_stacks_confirm_the_rank_that_reports_find_one_call_behind(
    outside: int | None, certainty: str, tmp_path: Path
) -> None:
    for look in range(2):
        for rank in range(6):
            place = (
                "read_next (dataset.py:212)"
                if rank == outside
                else "all_reduce (torch/distributed/distributed_c10d.py:2900)"
            )
            (tmp_path / f"look{look}.rank{rank}.txt").write_text(
                f"Process {41887 + rank}: python3 train.py\nPython v3.11.7 (/usr/bin/python3.11)\n\n"
                f'Thread {41887 + rank} (idle): "MainThread"\n    {place}\n    train_step (train.py:88)\n'
            )
    (tmp_path / "ras-1.json").write_text(printed([member(rank, calls) for rank, calls in enumerate(ONE_BEHIND)]))

    hang = as_object(analyze([str(tmp_path)]))["hang"]

    assert (hang["verdict"], hang["certainty"], hang["culprits"]) == ("lagging-ranks", certainty, [3])


def test_the_time_of_the_reports_counts_not_the_order_of_the_files(tmp_path: Path) -> None:
    earlier = printed([member(rank) for rank in range(4)])
    later = printed([member(0), member(1)], [lost(2, dead=True), lost(3, dead=True)], time="11:14:57")

    _, hang = result(tmp_path, later, earlier)

    assert (hang["verdict"], hang["culprits"]) == ("rank-died", [2, 3])


@pytest.mark.parametrize(("dead", "certainty"), [(False, "possible"), (True, "likely")])
def test_a_process_that_does_not_answer_is_reported(tmp_path: Path, dead: bool, certainty: str) -> None:
    report, hang = result(tmp_path, printed([member(rank) for rank in range(7)], [lost(7, dead=dead)]))

    assert (hang["verdict"], hang["culprits"]) == ("rank-died", [7])
    assert report.run["verdict"]["certainty"].to_list() == [certainty]


def test_a_rank_that_called_something_else_is_no_laggard(tmp_path: Path) -> None:
    ranks = [member(rank, 41 - (rank == 5), 7 + (rank == 5)) for rank in range(8)]

    _, hang = result(tmp_path, printed(ranks))

    assert (hang["verdict"], hang["culprits"]) == ("collective-mismatch", [5])


def test_one_rank_ahead_of_the_others_gives_no_culprit(tmp_path: Path) -> None:
    _, hang = result(tmp_path, printed([member(rank, 41 + (rank == 5)) for rank in range(8)]))

    assert (hang["verdict"], hang["culprits"]) == ("undecidable", [])


def test_counts_that_agree_and_do_not_move_are_no_proof_of_health(tmp_path: Path) -> None:
    report = printed([member(rank) for rank in range(4)])

    _, hang = result(tmp_path, report, report.replace("11:04:57", "11:14:57"))

    assert hang["verdict"] == "undecidable"


def test_an_error_of_a_rank_counts_more_than_what_its_peers_say(tmp_path: Path) -> None:
    ranks = [member(rank, async_error=1 if rank == 2 else 6 if rank < 2 else 0) for rank in range(8)]

    _, hang = result(tmp_path, printed(ranks))

    assert (hang["verdict"], hang["culprits"]) == ("stuck-together", [2])


def test_an_error_in_init_is_reported(tmp_path: Path) -> None:
    text = (
        f"{table(8, 'ERROR')}Errors\n======\n\n#0-0 ({HASH}) ERROR\n  Initialization error on 1 rank\n"
        "  Rank 3 reported System error -- GPU 3 managed by process 41890 on node 10.0.4.12\n\nWarnings\n========\n\n"
    )

    _, hang = result(tmp_path, text)

    assert (hang["verdict"], hang["culprits"]) == ("init-failed", [3])


def test_up_to_225_the_missing_process_and_the_missing_rank_stand_apart(tmp_path: Path) -> None:
    text = (
        f"{table(32, 'INCOMPLETE')}Errors\n======\n\n"
        "INCOMPLETE\n  Missing communicator data from 1 job process\n"
        "  Process 41908 on node 10.0.4.13 managing GPU 5\n\n"
        f"#0-0 ({HASH}) INCOMPLETE\n  Missing communicator data from 1 rank\n  The missing rank: 21\n\n"
    )

    report, hang = result(tmp_path, text)

    assert (hang["verdict"], hang["culprits"]) == ("rank-died", [21])
    assert report.run["rank"].filter(pl.col("rank") == 21).select("host", "pid").row(0) == ("10.0.4.13", 41908)


def test_truncated_json_gives_the_ranks_before_the_cut(tmp_path: Path) -> None:
    whole = printed([member(rank) for rank in range(7)], [lost(7, dead=True)])
    at_last = whole.index('"missing_ranks": [')

    report, _ = result(tmp_path, whole[:at_last])

    assert report.run["ras_state"]["rank"].n_unique() == 7
    assert report.run["ras_member"]["nranks"].unique().to_list() == [8]


def test_a_rank_whose_counts_are_cut_is_not_behind(tmp_path: Path) -> None:
    whole = printed([member(rank) for rank in range(4)])
    cut = whole[: whole.rindex('"AllGather"')]  # of the last rank, the counts of two operations are left

    _, found = result(tmp_path, cut, cut.replace("11:04:57", "11:14:57"))

    assert found["culprits"] == []


def test_other_json_is_not_taken_for_a_report(tmp_path: Path) -> None:
    report, _ = result(tmp_path, json.dumps({"rank": 3, "size": 8, "pid": 41, "host": "a", "timestamp": "1"}, indent=2))

    assert report.run["ras_snapshot"].is_empty()
    assert report.run["ras_state"].is_empty()
    assert report.run.kinds == {}


EVENT = """{
  "timestamp": "2026-03-02 11:04:57",
  "group": "LIFECYCLE",
  "event": "PEER_DEAD",
  "peer": {
    "host": "10.0.4.12",
    "pid": 41890,
    "cuda_devs": [3],
    "nvml_devs": [3]
  },
  "details": ""
}
"""


@pytest.mark.parametrize(
    "event", ["[2026-03-02 11:04:57] PEER_DEAD: Process 41890 on node 10.0.4.12 managing GPU 3 \n", EVENT]
)
def test_a_process_exit_reported_by_the_monitor_is_found(tmp_path: Path, event: str) -> None:
    _, hang = result(tmp_path, printed([member(rank) for rank in range(8)]), event)

    assert (hang["verdict"], hang["culprits"]) == ("rank-died", [3])


def test_groups_without_a_communicator_of_all_have_ranks_without_numbers(tmp_path: Path) -> None:
    text = table(4, "OK").replace("    0         1 ", "    0         2 ").replace("4   RUNNING", "8   RUNNING")

    report, hang = result(tmp_path, text)

    assert report.run["rank"].height == 8
    assert hang["verdict"] == "no-hang"


def test_a_report_of_the_same_ranks_confirms_the_logs(tmp_path: Path) -> None:
    folder = INCIDENTS / "one-rank-stops-before-an-allreduce"
    logs = sorted(str(path) for path in folder.rglob("*.log"))
    alone = as_object(analyze(logs))
    (culprit,) = alone["hang"]["culprits"]
    size = alone["run"]["world_size"]
    ras = tmp_path / "ras.txt"
    ras.write_text(printed([member(rank, 41 - (rank == culprit)) for rank in range(size)]))

    both = as_object(analyze([*logs, str(ras)]))

    assert both["hang"]["verdict"] == alone["hang"]["verdict"]
    assert both["hang"]["culprits"] == alone["hang"]["culprits"]
    assert both["run"]["ranks_seen"] == alone["run"]["ranks_seen"]


def test_a_clean_end_in_the_logs_outweighs_an_earlier_report(tmp_path: Path) -> None:
    logs = sorted(str(path) for path in (INCIDENTS / "a-healthy-run").rglob("*.log"))
    size = as_object(analyze(logs))["run"]["world_size"]
    ras = tmp_path / "ras.txt"
    ras.write_text(printed([member(rank, 41 - (rank == 1)) for rank in range(size)]))

    assert as_object(analyze([*logs, str(ras)]))["hang"]["verdict"] == "no-hang"


EVERY_TEXT = [
    line
    for folder in sorted(INCIDENTS.glob("ras-*"))
    for log in sorted(folder.glob("*.log"))
    for line in log.read_text().splitlines()
] + [example for name in ("ras", "inspector") for shape in grammar_file.load(name).shapes for example in shape.examples]


@examples(12, with_fixtures=True)
@given(
    st.lists(
        st.tuples(st.sampled_from(EVERY_TEXT), st.sampled_from(["", "99999999999999999999"])).map(
            lambda pair: pair[0].replace("1", pair[1] or "1")
        ),
        max_size=60,
    )
)
def test_lines_in_any_order_with_any_numbers_raise_no_error(tmp_path: Path, torn: list[str]) -> None:
    _, hang = result(tmp_path, "\n".join(torn))

    assert hang["verdict"]


def text_report(*communicators: tuple[str, int, int, tuple[tuple[int, int], ...]]) -> str:
    """A report on 8 ranks: hash, size, calls of most ranks, and (rank, process) of those with a call less."""
    rows = "".join(
        f"    {group}         1         1  {size:8}  {size:8}  {size:8}   RUNNING  MISMATCH\n"
        for group, (_, size, _, _) in enumerate(communicators)
    )
    head = table(8, "MISMATCH").rpartition("    0  ")[0] + rows + "\n"
    blocks = "".join(
        f"#{group}-0 ({name}) MISMATCH\n  Communicator ranks have different AllReduce operation counts\n"
        f"  {size - len(behind)} ranks have launched up to operation {calls}\n"
        + "".join(
            f"  Rank {rank} has launched up to operation {calls - 1} -- GPU {process % 10} managed by process {process}"
            " on node 10.0.4.12\n"
            for rank, process in behind
        )
        + "\n"
        for group, (name, size, calls, behind) in enumerate(communicators)
    )
    return f"{head}Warnings\n========\n\n{blocks}"


def test_of_nested_sets_of_ranks_behind_the_smallest_is_waited_for(tmp_path: Path) -> None:
    """Ranks 4 and 6 are behind on the world because they wait for rank 5 on another communicator."""
    world = (HASH, 8, 41, ((4, 41894), (5, 41895), (6, 41896)))
    report = text_report(world, ("1b2d3f405162738", 4, 12, ((1, 41895),)))

    _, found = result(tmp_path, report, report)

    assert (found["verdict"], found["certainty"], found["culprits"]) == ("lagging-ranks", "possible", [5])


def test_ranks_behind_on_different_communicators_are_not_accused(tmp_path: Path) -> None:
    """Text names only the ranks behind: ranks 4 and 6 may wait for process 41892, and that one for them."""
    world = (HASH, 8, 41, ((4, 41894), (6, 41896)))
    report = text_report(world, ("1b2d3f405162738", 4, 12, ((1, 41892),)))

    _, found = result(tmp_path, report, report)

    assert (found["verdict"], found["culprits"]) == ("undecidable", [])
    assert "the ranks differ, and none is behind all others" in found["reason"]


def test_of_several_ranks_behind_one_may_wait_for_another_in_a_message(tmp_path: Path) -> None:
    report = text_report((HASH, 8, 41, ((0, 41890), (4, 41894))))

    _, found = result(tmp_path, report, report)

    assert (found["certainty"], found["culprits"]) == ("possible", [0, 4])
    assert "may wait for another in a message" in found["reason"]
