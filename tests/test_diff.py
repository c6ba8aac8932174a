"""Two runs compared: what matters is found and stands in the order of what it explains; all else is silent."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import chdir
from functools import cache
from pathlib import Path
from typing import Any

import orjson
import polars as pl
import pytest

from ncclforensics import analyze, cli
from ncclforensics.data.difference_weights import FOLLOWS, FOLLOWS_VARIABLE, WEIGHT
from ncclforensics.diff import FACT, FIGURE, Comparison, Difference, Kind, compare, figures, topics
from ncclforensics.diff.compare import compare_reports
from ncclforensics.frames.columns import with_all_columns
from ncclforensics.frames.protocol import call_with
from ncclforensics.report.build import Report
from ncclforensics.report.redacted_run import redact_reports
from ncclforensics.report.selection import Selection
from ncclforensics.simulate.generate import generate
from ncclforensics.simulate.plan import Fault, FaultKind, Plan
from ncclforensics.views import json_difference, text_difference
from tests.incidents import ROOT
from tests.json_schemas import violations

FIXTURES = ROOT / "fixtures"
PAIRS = sorted(path.parent for path in FIXTURES.glob("pairs/*/case.json"))
NOTHING_SELECTED = Selection()
Golden = Callable[[Path, str], None]
every_pair = pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)


def case_of(pair: Path) -> dict[str, Any]:
    case: dict[str, Any] = json.loads((pair / "case.json").read_text(encoding="utf-8"))
    return case


@cache
def read(paths: str, selection: Selection = NOTHING_SELECTED) -> Report:
    with chdir(FIXTURES):
        return analyze([paths], everything=True, selection=selection)


@cache
def answer(pair: Path, *, backwards: bool = False) -> Comparison:
    case = case_of(pair)
    sides = [case["bad"], case["good"]] if backwards else [case["good"], case["bad"]]
    with chdir(FIXTURES):
        return compare_reports(*map(read, sides))


def reported(comparison: Comparison) -> list[list[str]]:
    return [[one.kind, one.topic, one.what] for one in comparison.differences if one.kind is not Kind.CONTEXT]


@every_pair
def test_differences_are_those_of_the_case_in_that_order(pair: Path) -> None:
    assert reported(answer(pair)) == case_of(pair)["differences"]


@every_pair
def test_the_exit_code_shows_whether_a_difference_matters(
    pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ncclforensics.cli.analysis.analyze", lambda paths, **_: read(*paths))
    case, output = case_of(pair), tmp_path / "answer.json"

    with chdir(FIXTURES):
        code = cli.main(["diff", case["good"], case["bad"], "--format", "json", "-q", "-o", str(output)])

    assert code == case["exit_code"]
    written = orjson.loads(output.read_bytes())
    assert written["differs"] == {0: False, 1: True, 3: None}[code]
    assert violations("difference.schema.json", written) == []


@every_pair
def test_the_text_of_a_difference_is_as_recorded(pair: Path, golden: Golden) -> None:
    text = text_difference.text(answer(pair))

    golden(pair / "report.md", f"# {pair.name}\n\n{case_of(pair)['what_happened']}\n\n```text\n{text}```\n")


@every_pair
def test_swapping_the_runs_gives_the_same_differences(pair: Path) -> None:
    forth = {(one.topic, one.what.partition(" at ")[0]) for one in answer(pair).differences}
    back = {(one.topic, one.what.partition(" at ")[0]) for one in answer(pair, backwards=True).differences}

    assert forth == back


@every_pair
def test_redacted_runs_differ_in_the_same_and_name_no_host(pair: Path) -> None:
    plain = answer(pair)

    with chdir(FIXTURES):
        redacted = compare_reports(*redact_reports([plain.good, plain.bad], None)[0])
    texts = (
        text_difference.text(redacted),
        text_difference.markdown(redacted),
        json_difference.json(redacted).decode(),
    )

    assert [one[:2] for one in reported(redacted)] == [one[:2] for one in reported(plain)]
    hosts = {str(name) for report in (plain.good, plain.bad) for name in report.run["process"]["host"].drop_nulls()}
    paths = {Path(given.source.path).name for report in (plain.good, plain.bad) for given in report.run.inputs}
    assert [name for name in hosts | paths for text in texts if name in text] == []


def test_the_command_redacts_both_runs_and_keeps_the_map(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case, mapping = case_of(PAIRS[0]), tmp_path / "map.json"

    with chdir(FIXTURES):
        code = cli.main(["diff", case["good"], case["bad"], "-q", "--redact-map", str(mapping)])

    names = json.loads(mapping.read_bytes())["names"]
    output = capsys.readouterr().out
    assert code == 1
    assert any(pseudonym.startswith("host-") for pseudonym in names.values())
    assert [
        name for name, pseudonym in names.items() if pseudonym.startswith(("host-", "file-")) and name in output
    ] == []


@every_pair
def test_a_run_does_not_differ_from_itself(pair: Path) -> None:
    with chdir(FIXTURES):
        report = read(case_of(pair)["bad"])

        assert compare_reports(report, report).differences == []


@every_pair
def test_evidence_is_quoted_from_its_file_and_line(pair: Path) -> None:
    comparison = answer(pair)

    for one in comparison.differences:
        for line in [line for side in comparison.evidence(one) for line in side]:
            lines = (FIXTURES / line["path"]).read_text(encoding="utf-8").split("\n")
            assert lines[line["line"] - 1].strip().startswith(line["text"].strip()[:500]), (one.what, line)
            assert line["text"]


def test_a_topic_of_only_one_run_is_listed_as_not_compared() -> None:
    comparison = answer(FIXTURES / "pairs" / "a-log-and-a-benchmark")

    assert not comparison.matters
    assert {(one.topic, one.absent) for one in comparison.not_compared} >= {("bandwidth", "good")}
    assert all(one.needs for one in comparison.not_compared)


def test_tests_of_different_collectives_have_nothing_in_common(tmp_path: Path) -> None:
    table = (FIXTURES / "pairs/a-benchmark-is-slower-at-large-sizes/good/all_reduce.log").read_text(encoding="utf-8")
    (tmp_path / "good.log").write_text(table, encoding="utf-8")
    (tmp_path / "bad.log").write_text(table.replace("all_reduce", "broadcast"), encoding="utf-8")
    comparison = compare_reports(read(str(tmp_path / "good.log")), read(str(tmp_path / "bad.log")))

    assert not comparison.is_enough
    assert {(one.topic, one.absent) for one in comparison.not_compared} == {
        ("bandwidth", "common"),
        ("shape", "common"),
    }


def test_a_changed_variable_explains_the_differences_it_causes() -> None:
    moved = [one for one in answer(FIXTURES / "pairs" / "a-variable-was-left-over").differences if one.follows]

    assert {one.topic for one in moved} == {"channels"}
    assert {name for one in moved for name in one.follows} == {"NCCL_MAX_NCHANNELS"}


def test_only_the_selected_ranks_are_compared() -> None:
    case = case_of(FIXTURES / "pairs" / "a-variable-was-left-over")
    with chdir(FIXTURES):
        good, bad = (read(case[side], Selection(frozenset({3}))) for side in ("good", "bad"))
        channels = next(one for one in compare_reports(good, bad).differences if one.topic == "channels")

    assert (channels.good.values, channels.bad.values) == ([("8", 1)], [("2", 1)])


def test_a_selected_communicator_is_matched_in_the_other_run() -> None:
    case = case_of(FIXTURES / "pairs" / "the-same-job-on-other-hosts")
    with chdir(FIXTURES):
        key = read(case["good"]).run["member"]["key"][0]
        good, bad = (read(case[side], Selection(communicator=key)) for side in ("good", "bad"))

        assert "channels" in compare_reports(good, bad).compared


# --- facts and figures by themselves ---


def facts_of(*rows: tuple[str, str, int | None]) -> pl.DataFrame:
    reported = [{"what": what, "value": value, "size": size, "source": 0, "line": n + 1} for n, (what, value, size) in
            enumerate(rows)]  # fmt: skip
    return with_all_columns(pl.DataFrame(reported, schema_overrides={"size": pl.Int64}), FACT)


def differences(topic: str, good: pl.DataFrame, bad: pl.DataFrame) -> list[Difference]:
    asked = next(each for each in topics() if each.name == topic)
    compared = compare.fact_differences if asked.unit else figures.figure_differences
    return list(compared(asked, good, bad))


def test_a_rank_whose_lines_are_absent_is_no_difference() -> None:
    good = facts_of(*[("channels", "16", None)] * 8)
    bad = facts_of(*[("channels", "16", None)] * 5)

    assert differences("channels", good, bad) == []


def test_one_rank_of_many_that_differs_is_a_difference() -> None:
    good = facts_of(*[("network", "IB", None)] * 32)
    bad = facts_of(*[("network", "IB", None)] * 31, ("network", "Socket", None))

    assert [one.bad.values for one in differences("network", good, bad)] == [[("IB", 31), ("Socket", 1)]]


def test_another_share_of_ranks_is_a_difference_beyond_a_tenth() -> None:
    half = facts_of(*[("receives", "direct", None)] * 8, *[("receives", "host", None)] * 8)
    nearly = facts_of(*[("receives", "direct", None)] * 9, *[("receives", "host", None)] * 8)
    most = facts_of(*[("receives", "direct", None)] * 2, *[("receives", "host", None)] * 14)

    assert differences("gpudirect", half, nearly) == []
    assert len(differences("gpudirect", half, most)) == 1


def test_a_fact_that_one_run_lacks_is_a_difference_of_variables_alone() -> None:
    good = facts_of(("NCCL_IB_TIMEOUT", "22", None))
    bad = facts_of(("NCCL_IB_TIMEOUT", "22", None), ("NCCL_ALGO", "Tree", None))

    assert [one.what for one in differences("environment", good, bad)] == ["NCCL_ALGO"]
    assert differences("channels", good, bad) == []


def test_consecutive_sizes_with_one_difference_are_grouped() -> None:
    good = facts_of(*[("AllReduce", "RING LL", 1 << n) for n in range(10, 14)])
    bad = facts_of(*[("AllReduce", "TREE LL", 1 << n) for n in range(10, 13)], ("AllReduce", "RING SIMPLE", 1 << 13))

    reported = differences("algorithms", good, bad)

    assert [one.what for one in reported] == ["AllReduce of 1 KiB to 4 KiB", "AllReduce of 8 KiB"]


def figures_of(values: list[float], *, unit: str = "GB/s", side: str = "out-of-place") -> pl.DataFrame:
    rows = [
        {"what": "all_reduce", "side": side, "size": 1 << 20 + n, "value": value, "unit": unit, "source": 0, "line": n}
        for n, value in enumerate(values)
    ]
    return with_all_columns(pl.DataFrame(rows), FIGURE)


GOOD = [100.0, 150.0, 200.0, 250.0]


@pytest.mark.parametrize(
    ("bad", "sizes"),
    [
        ([96.0, 144.0, 205.0, 240.0], None),  # a tenth is noise
        ([100.0, 120.0, 200.0, 250.0], None),  # one size alone is an accident
        ([100.0, 70.0, 200.0, 250.0], "2 MiB (1 of 4"),  # unless it falls far
        ([100.0, 150.0, 200.0, 200.0], "8 MiB (1 of 4"),  # or is the largest
        ([100.0, 120.0, 160.0, 250.0], "2 MiB to 4 MiB (2 of 4"),
        ([80.0, 150.0, 160.0, 250.0], None),  # two that are no neighbours
    ],
)
def test_a_bandwidth_differs_beyond_noise_and_outliers(bad: list[float], sizes: str | None) -> None:
    reported = differences("bandwidth", figures_of(GOOD), figures_of(bad))

    assert [one.what for one in reported] == ([f"bandwidth of all_reduce at {sizes} sizes)"] if sizes else [])


def test_variation_within_a_run_is_noise() -> None:
    good = pl.concat([figures_of([100.0, 100.0]), figures_of([70.0, 70.0]), figures_of([101.0, 99.0])])

    assert differences("bandwidth", good, figures_of([72.0, 75.0])) == []
    assert len(differences("bandwidth", good, figures_of([60.0, 60.0]))) == 1


def test_latency_differs_from_twice_on() -> None:
    good = figures_of([20.0, 20.0], unit="us")

    assert differences("bandwidth", good, figures_of([35.0, 38.0], unit="us")) == []
    assert [one.bad.values[0][0] for one in differences("bandwidth", good, figures_of([45.0, 48.0], unit="us"))] == [
        "45.0 us at 1 MiB, 225%"
    ]


def test_an_idle_pcie_link_is_no_difference(tmp_path: Path) -> None:
    query = (FIXTURES / "incidents/healthy-machines-with-unusual-links/h100.nvidia-smi.log").read_text(encoding="utf-8")
    (tmp_path / "good.log").write_text(query, encoding="utf-8")
    (tmp_path / "bad.log").write_text(query.replace("Current                   : 5", "Current                   : 1"))
    good, bad = (read(str(tmp_path / f"{side}.log")) for side in ("good", "bad"))

    assert compare_reports(good, bad).compared == ["machine"]
    assert compare_reports(good, bad).differences == []


@pytest.mark.parametrize(("rank", "expected"), [(5, [("culprits", "rank 2", "rank 5")]), (2, [])])
def test_equal_verdicts_on_other_ranks_differ(rank: int, expected: list[tuple[str, str, str]], tmp_path: Path) -> None:
    for side, culprit in (("good", 2), ("bad", rank)):
        generate(Plan(nodes=1, gpus_per_node=8, tp=8, fault=Fault(FaultKind.LAGGING, (culprit,))), tmp_path / side)

    found = compare_reports(read(str(tmp_path / "good")), read(str(tmp_path / "bad"))).differences

    verdicts = [one for one in found if one.topic == "verdict"]
    assert [(one.what, one.good.values[0][0], one.bad.values[0][0]) for one in verdicts] == expected


# --- the tables behind it ---


def test_every_topic_has_a_weight_and_explanations_name_topics() -> None:
    names = {each.name for each in topics() if each.kind is not Kind.CONTEXT} | {"findings", "verdict"}

    assert names == set(WEIGHT)
    assert {each for followers in (*FOLLOWS.values(), *FOLLOWS_VARIABLE.values()) for each in followers} <= names
    assert set(FOLLOWS) <= names


def test_every_topic_documents_its_meaning_and_inputs() -> None:
    assert [each.name for each in topics() if not each.means or not each.needs] == []


def test_no_column_of_a_topic_is_dropped() -> None:
    run = read("incidents/infiniband-runs-well/*.log").run

    for each in topics():
        assert set(call_with(run, each.function).columns) <= set(FACT if each.unit else FIGURE), each.name


def test_the_page_on_comparing_lists_every_topic_in_its_order() -> None:
    page = (ROOT / "docs" / "comparing-runs.md").read_text(encoding="utf-8")
    rows = [line.split("`")[1] for line in page.splitlines() if line.startswith("| `")]

    in_order = sorted(WEIGHT, key=lambda name: -WEIGHT[name])
    assert [name for name in rows if name in WEIGHT] == in_order
    assert {each.name for each in topics()} <= set(rows)


def test_the_report_on_the_page_is_what_diff_prints(golden: Golden) -> None:
    path = ROOT / "docs" / "comparing-runs.md"
    shown = text_difference.text(answer(FIXTURES / "pairs" / "a-variable-was-left-over"), width=96)
    before, _, rest = path.read_text(encoding="utf-8").partition("<!-- report -->\n")
    _, _, after = rest.partition("<!-- end -->\n")

    golden(path, f"{before}<!-- report -->\n```text\n{shown}```\n<!-- end -->\n{after}")


def test_control_characters_in_names_are_not_printed(tmp_path: Path) -> None:
    log = (FIXTURES / "incidents/infiniband-runs-well/node-a.rank0.log").read_text(encoding="utf-8")
    (tmp_path / "good.log").write_text(log, encoding="utf-8")
    (tmp_path / "bad.log").write_text(log.replace("Using network IB", "Using network \x1b[2JIB\x9b"), encoding="utf-8")
    good, bad = (analyze([str(tmp_path / f"{side}.log")], everything=True) for side in ("good", "bad"))
    comparison = compare_reports(good, bad)

    for printed in (text_difference.text(comparison), json_difference.json(comparison).decode()):
        assert not any(character in printed for character in ("\x1b", "\x9b", "\x7f"))


@pytest.mark.parametrize(("before", "after", "differs"), [(2805, 45068, True), (2805, 2911, False), (0, 45068, True)])
def test_totals_of_nvlink_errors_that_grew_by_a_magnitude_differ(
    before: int, after: int, differs: bool, tmp_path: Path
) -> None:
    for side, count in (("good", before), ("bad", after)):
        (tmp_path / side).mkdir()
        (tmp_path / side / "nvlink.txt").write_text(
            "GPU 3: NVIDIA H100 80GB HBM3 (UUID: GPU-00000000-0000-0000-0000-000000000000)\n"
            f"\t Link 5: Replay Errors: {count}\n\t Link 5: Recovery Errors: 0\n\t Link 5: CRC Errors: 0\n"
        )

    found = compare_reports(*(analyze(str(tmp_path / side), everything=True) for side in ("good", "bad")))

    assert ["nvlink_replay_errors" in difference.what for difference in found.differences] == [True] * differs
