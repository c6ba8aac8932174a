"""Many runs in one file: what returns, what is merely everywhere, what changed, and a file that cannot be trusted."""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
import pytest

from ncclforensics import analyze, cli
from ncclforensics.errors import NoInputError
from ncclforensics.history import store
from ncclforensics.history.overview import Overview, within
from ncclforensics.history.parts import namings, parts
from ncclforensics.history.redaction import redact
from ncclforensics.history.tables import MOMENT, TABLES, Record, frame_of
from ncclforensics.simulate.generate import generate
from ncclforensics.simulate.plan import Fault, FaultKind, Finish, Plan
from ncclforensics.views import json_history, text_history
from tests.incidents import INCIDENTS
from tests.json_schemas import violations

HOSTS = ["gpu-a000", "gpu-a001", "gpu-a002", "gpu-a003"]
FAMILY_A = [2, 14, 28, 31, 32]  # seeds whose jobs run on the hosts gpu-a000, gpu-a001, …
Named = Iterable[tuple[str, int]]  # host, rank
Rows = list[dict[str, object]]


def record(
    number: int,
    *,
    hosts: list[str] = HOSTS,
    named: Named = (),
    certainty: str = "likely",
    verdict: str = "no-hang",
    rules: Iterable[str] = (),
    busbw: float | None = None,
    commid: str | None = None,
    lines: int = 100,
    **facts: str,
) -> Record:
    """A run of a job with four ranks on each host, one a day."""
    moment = (datetime(2026, 3, 1) + timedelta(days=number)).strftime(MOMENT)
    rows: dict[str, Rows] = {table: [] for table in TABLES}
    rows["run"] = [
        {"identity": f"{number}/{lines}", "path": f"/jobs/{number}", "moment": moment, "clock": "file"}
        | {"added": moment, "lines": lines}
    ]
    rows["communicator"] = [{"commid": commid or f"0x{number:x}"}]
    rows["start"] = [{"job": 0, "verdict": verdict, "certainty": certainty, "ranks": 4 * len(hosts)}]
    rows["fact"] = [{"what": what.replace("_", " "), "value": value} for what, value in facts.items()]
    ranks_of = {host: ",".join(str(4 * node + device) for device in range(4)) for node, host in enumerate(hosts)}
    rows["part"] = [{"kind": "host", "host": host, "name": "", "ranks": ranks} for host, ranks in ranks_of.items()]
    rows["naming"] = [
        {"kind": "host", "host": host, "name": "", "rule": "coll-lagging-ranks", "certainty": certainty}
        | {"ranks": str(rank)}
        for host, rank in named
    ]
    rows["finding"] = [{"rule": rule, "severity": "warning"} for rule in rules]
    if busbw is not None:
        rows["measurement"] = [{"benchmark": 0, "series": "all_reduce, 8 GiB", "hosts": hosts[0], "busbw": busbw}]
    return Record({table: frame_of(table, of_table) for table, of_table in rows.items()})


def overview(file: Path, records: Iterable[Record]) -> Overview:
    for one_run in records:
        store.add(file, one_run)
    answer = Overview(store.read(file))
    assert violations("history.schema.json", json.loads(json_history.json(answer))) == []
    return answer


def counts(answer: Overview) -> dict[str, tuple[int, int, str | None]]:
    return {part.host: (part.named, part.runs, part.certainty) for part in answer.returning}


def test_a_host_that_returns_is_named_with_its_counts(tmp_path: Path) -> None:
    faults = {1: ("gpu-a002", 9), 3: ("gpu-a002", 10), 4: ("gpu-a000", 3), 5: ("gpu-a002", 8), 7: ("gpu-a002", 11)}
    faults |= {8: ("gpu-a002", 9)}
    answer = overview(tmp_path / "db", (record(day, named=[faults[day]] if day in faults else []) for day in range(10)))

    assert counts(answer) == {"gpu-a002": (5, 10, "likely")}
    assert (answer.returning[0].others_named, answer.returning[0].others_runs) == (1, 30)
    shown = text_history.text(answer, width=80)
    assert "gpu-a002  (likely)  named in 5 of its 10 runs (24 % to 76 %)" in shown
    assert "the others: 1 of 30" in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert answer.is_alarming


def test_a_host_that_is_merely_everywhere_is_no_suspect(tmp_path: Path) -> None:
    # Every run uses the login node's neighbour and three others; a run names one of its four hosts, all equally often.
    order = random.Random(4)
    runs = []
    for day in range(40):
        hosts = ["always", *(f"n{(3 * day + node) % 30:02d}" for node in range(3))]
        runs.append(record(day, hosts=hosts, named=[(order.choice(hosts), order.randrange(16))]))
    answer = overview(tmp_path / "db", runs)

    everywhere = next(part for part in answer.returning if part.host == "always")
    assert everywhere.named >= 5
    assert everywhere.runs == 40
    assert not any(part.certainty for part in answer.returning)


def test_too_few_runs_say_how_many_more_would_decide(tmp_path: Path) -> None:
    answer = overview(tmp_path / "db", (record(day, named=[("gpu-a002", 8 + day)]) for day in range(3)))

    assert counts(answer) == {"gpu-a002": (3, 3, None)}
    assert answer.returning[0].further_runs == 1  # 4 hosts: (1/4) ** 4 * 4 is below 1 in 20
    assert not answer.is_enough
    assert "gpu-a002 3 of 3 runs 0 of 9 1 Further runs" in " ".join(text_history.text(answer, width=100).split())


@pytest.mark.parametrize(("moves", "rank", "certainty"), [(False, 9, "possible"), (True, None, "likely")])
def test_a_host_with_always_the_same_rank_may_not_be_the_cause(
    tmp_path: Path, moves: bool, rank: int | None, certainty: str
) -> None:
    turned = [*HOSTS[2:], *HOSTS[:2]]
    runs = [record(day, named=[("gpu-a002", 9)]) for day in range(6)]
    runs += [record(day, hosts=turned if moves else HOSTS) for day in range(6, 12)]
    suspect = overview(tmp_path / "db", runs).returning[0]

    assert (suspect.rank, suspect.certainty) == (rank, certainty)


def test_verdicts_that_are_only_possible_make_a_possible_suspect(tmp_path: Path) -> None:
    runs = (record(day, named=[("gpu-a002", 8 + day % 4)], certainty="possible") for day in range(6))

    assert counts(overview(tmp_path / "db", runs)) == {"gpu-a002": (6, 6, "possible")}


def test_hosts_tested_one_at_a_time_are_compared_over_runs(tmp_path: Path) -> None:
    tests = [HOSTS[number % 4] for number in range(40)]
    runs = (record(day, hosts=[host], named=[(host, 0)] * (host == "gpu-a003")) for day, host in enumerate(tests))

    assert counts(overview(tmp_path / "db", runs)) == {"gpu-a003": (10, 10, "likely")}


def test_the_same_run_counts_once_and_more_lines_replace_it(tmp_path: Path) -> None:
    file = tmp_path / "db"
    outcomes = [
        store.add(file, record(1)),
        store.add(file, record(1)),
        store.add(file, record(2, commid="0x1", lines=50)),  # a part of the same job
        store.add(file, record(3, commid="0x1", lines=500, verdict="rank-died")),
        store.add(file, record(4)),
    ]

    assert [(added.run, added.outcome.value) for added in outcomes] == [
        (1, "added"), (1, "known"), (1, "known"), (1, "updated"), (2, "added"),
    ]  # fmt: skip
    assert store.read(file)["start"]["verdict"].to_list() == ["rank-died", "no-hang"]
    assert store.read(file)["part"].height == 2 * len(HOSTS)


def test_failed_starts_are_counted_without_undecided_ones(tmp_path: Path) -> None:
    verdicts = ["no-hang", "init-failed", "undecidable", "rank-missing", "lagging-ranks"]
    starts = overview(tmp_path / "db", (record(day, verdict=name) for day, name in enumerate(verdicts))).starts

    assert (starts.failed, starts.decided, starts.undecided) == ({"init-failed": 1, "rank-missing": 1}, 4, 1)


def test_a_rule_first_seen_after_an_upgrade_is_possible_only(tmp_path: Path) -> None:
    def run(day: int) -> Record:
        is_new = day >= 8
        rules = ["tune-forced-algo", *["net-socket-fallback"] * (is_new and day != 9)]
        return record(day, rules=rules, NCCL="2.28.3" if is_new else "2.27.7", CUDA_driver="12040")

    answer = overview(tmp_path / "db", map(run, range(12)))

    (first,) = answer.first_seen
    assert (first.rule, first.found) == ("net-socket-fallback", 3)
    assert (len(first.change.runs), len(first.change.others), first.change.first_run) == (4, 8, 9)
    assert first.change.facts == [("NCCL", "2.27.7", "2.28.3")]
    shown = text_history.text(answer, width=80)
    assert "possible" in shown.partition("FIRST SEEN")[2].splitlines()[0]
    assert not answer.is_alarming


def test_a_rule_that_was_seen_before_the_upgrade_did_not_come_with_it(tmp_path: Path) -> None:
    runs = (
        record(day, rules=["oom"] * (day in (2, 9, 10)), NCCL="2.28.3" if day >= 8 else "2.27.7") for day in range(12)
    )

    assert overview(tmp_path / "db", runs).first_seen == []


def test_a_benchmark_that_lists_no_hosts_names_none(tmp_path: Path) -> None:
    answer = overview(tmp_path / "db", (record(day, hosts=[""], busbw=300.0 if day else 100.0) for day in range(12)))
    without_parts = Overview({**answer.history, "part": answer.history["part"].clear()})

    assert len(without_parts.series[0].below) == 1
    assert without_parts.returning == []


@pytest.mark.parametrize(("after", "is_shown"), [(310.0, True), (360.0, False)])
def test_a_test_that_is_slower_since_an_upgrade_is_shown(tmp_path: Path, after: float, is_shown: bool) -> None:
    noise = random.Random(3)
    runs = [
        record(day, busbw=noise.gauss(after if day >= 8 else 361, 2), NCCL="2.28.3" if day >= 8 else "2.27.7")
        for day in range(14)
    ]
    answer = overview(tmp_path / "db", runs)

    assert len(answer.shifts) == is_shown
    for shift in answer.shifts:
        assert (round(shift.before), round(shift.after), shift.change.first_run) == (361, 311, 9)


def test_a_slow_benchmark_is_outside_the_band_of_its_cluster(tmp_path: Path) -> None:
    noise = random.Random(1)
    answer = overview(
        tmp_path / "db", (record(day, busbw=301.5 if day == 7 else noise.gauss(361, 2)) for day in range(14))
    )

    (test,) = answer.series
    assert [(figure.run, figure.busbw) for figure in test.below] == [(8, 301.5)]
    assert test.above == []
    assert test.band is not None
    assert 330 < test.band[0] < 358 < 364 < test.band[1] < 390
    assert "below  301.5 GB/s in run 8, 2026-03-08 on gpu-a000" in text_history.text(answer, width=80)


def test_a_host_whose_own_tests_are_slow_returns(tmp_path: Path) -> None:
    noise = random.Random(2)
    runs = []
    for day in range(24):
        host = HOSTS[day % 4]
        runs.append(record(day, hosts=[host], busbw=noise.gauss(361, 2) * (0.8 if host == "gpu-a001" else 1)))
    answer = overview(tmp_path / "db", runs)

    assert counts(answer) == {"gpu-a001": (6, 6, "likely")}
    assert answer.returning[0].rules == {"busbw below its band": 6}


@pytest.mark.parametrize(("runs", "missing"), [(9, 1), (10, 0)])
def test_a_band_needs_enough_figures(tmp_path: Path, runs: int, missing: int) -> None:
    (test,) = overview(tmp_path / "db", (record(day, busbw=361.0 if day else 100.0) for day in range(runs))).series

    assert test.missing == missing
    assert len(test.below) == (missing == 0)


def test_only_runs_of_a_time_range_count(tmp_path: Path) -> None:
    answer = overview(tmp_path / "db", map(record, range(5)))

    later = within(answer.history, datetime(2026, 3, 3), datetime(2026, 3, 4))

    assert later["run"]["run"].to_list() == [3, 4]
    assert {run for rows in later.values() for run in rows["run"]} == {3, 4}


def test_a_redacted_history_names_no_host_and_keeps_its_counts(tmp_path: Path) -> None:
    runs = [record(day, named=[("gpu-a002", 8 + day % 4)], TOPO="/home/quagga/topo.xml") for day in range(5)]
    original = overview(tmp_path / "db", runs)
    redacted = Overview(redact(original.history, tmp_path / "map.json"))

    shown = text_history.text(redacted, width=80, verbose=True) + json_history.json(redacted).decode()
    assert "gpu-a" not in shown
    assert "quagga" not in repr({name: rows.to_dicts() for name, rows in redacted.history.items()})
    assert "host-03" in shown
    again = Overview(redact(original.history, tmp_path / "map.json"))
    assert [part.host for part in again.returning] == [part.host for part in redacted.returning] == ["host-03"]
    assert (redacted.returning[0].named, redacted.returning[0].runs) == (5, 5)


def test_processes_that_add_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    file = tmp_path / "db"
    with ThreadPoolExecutor(8) as pool:
        added = list(pool.map(lambda day: store.add(file, record(day)), range(40)))

    assert sorted(one_run.run for one_run in added) == list(range(1, 41))
    assert store.read(file)["part"].height == 40 * len(HOSTS)


def execute(file: Path, *statements: str) -> None:
    with sqlite3.connect(file) as database:
        for statement in statements:
            database.execute(statement)
    database.close()


def cut(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    file.write_bytes(content)


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "text": (lambda file: file.write_text("a log\n" * 500), "damaged"),
    "cut": (cut, "damaged|malformed"),
    "another program": (lambda file: execute(file, "PRAGMA application_id = 7"), "no history"),
    "a trigger": (lambda file: execute(file, "CREATE TRIGGER t AFTER INSERT ON run BEGIN DELETE FROM run; END"), "no "),
    "a view": (lambda file: execute(file, "CREATE VIEW v AS SELECT 1"), "no history"),
    "a later version": (lambda file: execute(file, "PRAGMA user_version = 9"), "later version"),
    "text for a number": (lambda file: execute(file, "UPDATE run SET lines = 'many'"), "another type"),
    "bytes for text": (lambda file: execute(file, "UPDATE part SET host = x'ff00'"), "another type|decode"),
    "no time": (lambda file: execute(file, "UPDATE run SET moment = 'now'"), "another type"),
}


@pytest.mark.parametrize(("damage", "message"), DAMAGE.values(), ids=list(DAMAGE))
def test_a_file_that_cannot_be_trusted_is_refused_in_a_sentence(
    tmp_path: Path, damage: Callable[[Path], object], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "db"
    store.add(file, record(1))
    damage(file)

    with pytest.raises(NoInputError, match=message):
        store.read(file)
    assert cli.main(["history", "show", "--db", str(file)]) == 2
    assert capfd.readouterr().err.count("\n") == 1


def test_a_file_that_is_not_there_is_2(tmp_path: Path) -> None:
    assert cli.main(["history", "show", "--db", str(tmp_path / "db")]) == 2
    assert not (tmp_path / "db").exists()


def test_hostile_text_reaches_no_terminal(tmp_path: Path) -> None:
    evil = "\x1b]0;x\x07\x1b[2J\u202e"
    runs = [
        record(
            day, hosts=[*HOSTS[:3], evil], named=[(evil, 8 + day % 4)], rules=[evil] * (day > 8), NCCL=evil * (day > 8)
        )
        for day in range(14)
    ]
    answer = overview(tmp_path / "db", [*runs, record(20, busbw=1.0)])

    shown = text_history.text(answer, width=80, verbose=True) + json_history.json(answer).decode()

    assert answer.returning[0].host == evil
    assert not {"\x1b", "\x07", "\u202e"} & set(shown)


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five runs of a small job on the same four hosts; ranks of gpu-a002 lag in four of them."""
    folder = tmp_path_factory.mktemp("runs")
    for number, seed in enumerate(FAMILY_A):
        fault = Fault(FaultKind.LAGGING, (4 + number % 2,), "world", None) if number < 4 else None
        finish = Finish.ABORTED if fault else Finish.CLEAN
        plan = Plan(
            nodes=4, gpus_per_node=2, tp=2, layers=1, steps=1, channels=1, seed=seed, fault=fault, finish=finish
        )
        generate(plan, folder / f"job{number}")
    return folder


def test_runs_are_recorded_and_shown_by_the_command(
    simulated: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file, paths = str(tmp_path / "runs.db"), [str(path) for path in sorted(simulated.iterdir())]

    assert cli.main(["history", "add", *paths, "--db", file, "-q"]) == 0
    assert cli.main(["history", "add", str(simulated / "job3" / "*.log"), "--db", file]) == 0
    assert "run 4  known" in capfd.readouterr().out
    assert cli.main(["history", "show", "--db", file, "--format", "json", "-o", str(tmp_path / "out.json")]) == 1
    answer = orjson.loads((tmp_path / "out.json").read_bytes())
    assert len(answer["runs"]) == 5
    host = answer["returning"][0]
    assert (host["kind"], host["host"], host["named"], host["runs"]) == ("host", "gpu-a002", 4, 5)
    assert host["certainty"] == "likely"
    gpus = {(part["host"], part["name"]): part["named"] for part in answer["returning"] if part["kind"] == "GPU"}
    assert sorted(gpus.values()) == [2, 2]
    assert cli.main(["history", "show", "--db", file, "--fail-on", "never"]) != 1
    assert cli.main(["history", "forget", "1", "2", "--db", file]) == 0
    assert store.read(Path(file))["run"]["run"].to_list() == [3, 4, 5]


def test_parts_of_one_job_are_not_recorded_as_several_runs(
    simulated: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    logs = sorted((simulated / "job4").iterdir())[:2]

    assert cli.main(["history", "add", *map(str, logs), "--db", str(tmp_path / "db")]) == 2
    assert "are logs of the same job" in capfd.readouterr().err
    assert not (tmp_path / "db").exists()


def test_what_holds_nothing_to_judge_is_not_recorded(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").write_text("nothing here\n")

    assert cli.main(["history", "add", str(tmp_path / "notes.txt"), "--db", str(tmp_path / "db"), "-q"]) == 2
    assert "holds no communicator and no benchmark" in capfd.readouterr().err


def test_the_columns_of_json_are_documented(tmp_path: Path) -> None:
    page = (Path(__file__).parents[1] / "docs" / "history.md").read_text(encoding="utf-8")
    runs = [record(day, named=[("gpu-a002", 8)], busbw=1.0) for day in range(4)]
    answer: dict[str, Any] = json_history.as_object(overview(tmp_path / "db", runs))

    keys = {*answer, *answer["runs"][0], *answer["returning"][0], *answer["busbw"][0], *answer["starts"]}
    assert {key for key in keys if f"`{key}`" not in page} == set()


@pytest.mark.parametrize(
    ("name", "rule", "ports"),
    [
        ("the-switch-of-one-rail-fails", "ib-timeout-mid-run", {("node-a", "mlx5_1:1"), ("node-c", "mlx5_1:1")}),
        ("a-port-goes-down", "ib-port-event", {("node-b", "mlx5_0:1")}),
        ("the-kernel-sees-a-link-go-down", "kernel-link-event", set()),  # it cites a transfer that failed elsewhere
        ("roce-loses-packets-on-all-hosts", "ctr-roce-loss", set()),  # all ports, so none in particular
    ],
)
def test_the_ports_that_a_finding_is_about_are_named(name: str, rule: str, ports: set[tuple[str, str]]) -> None:
    report = analyze([INCIDENTS / name], everything=True)

    named = {
        (row["host"], row["name"])
        for row in namings(report, parts(report.run))
        if (row["kind"], row["rule"]) == ("port", rule)
    }

    assert ports <= named if ports else not named
