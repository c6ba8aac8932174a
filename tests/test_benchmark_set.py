"""The benchmark of the field: its cases hold what they say, and its scorer judges any tool alike."""

from __future__ import annotations

import ast
import random
import sys
from pathlib import Path

import pytest

from benchmark.adapters import grep_baseline
from benchmark.adapters.ncclforensics_cli import answer_of
from benchmark.case_files import FILES, BenchmarkCase, read_cases, write_case
from benchmark.judge import Outcome, Truth
from benchmark.make_cases import SLOW_VERDICTS, drawn_plan, make_cases, truth_of_plan
from benchmark.score import score, table
from ncclforensics import analyze
from ncclforensics.simulate.fabric import FabricFault
from ncclforensics.simulate.generate import generate
from ncclforensics.simulate.plan import FaultKind
from ncclforensics.simulate.slow import SlowFault
from ncclforensics.views.explain_slow import OF_SLOW
from ncclforensics.views.json_report import as_object
from tests.incidents import ROOT

FOLDER = ROOT / "benchmark"
OF_OUR_OWN = {"make_cases.py", "ncclforensics_cli.py"}  # the only modules that need this program
LAGGING = BenchmarkCase("hang/lagging/0", "hang", "lagging", Truth(frozenset({"lagging-ranks"}), (frozenset({5}),)), {})
HEALTHY = BenchmarkCase("hang/none/0", "hang", "none", Truth(frozenset({"no-hang"})), {})


def _outcomes(answers: dict[str, dict[str, object]]) -> list[Outcome]:
    return [row.judgement.outcome for row in score([LAGGING, HEALTHY], answers)]


def test_an_answer_is_scored_by_what_it_claims() -> None:
    right = {"verdict": "lagging-ranks", "culprits": [5], "certainty": "likely"}
    false_alarm = {"verdict": "rank-died", "culprits": [3], "certainty": "certain"}

    assert _outcomes({LAGGING.name: right}) == [Outcome.RIGHT, Outcome.WEAKER]
    assert _outcomes({LAGGING.name: {**right, "culprits": [5, 6]}})[0] is Outcome.WRONG
    assert _outcomes({LAGGING.name: {**right, "culprits": [6], "certainty": "possible"}})[0] is Outcome.WEAKER
    assert _outcomes({HEALTHY.name: false_alarm})[1] is Outcome.WRONG
    assert "| 1 of 1 |" in table({"a tool": score([LAGGING, HEALTHY], {HEALTHY.name: false_alarm})})


def test_an_answer_to_a_case_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="hang/other/0"):
        score([LAGGING], {"hang/other/0": {"verdict": "no-hang"}})


def test_a_case_is_read_as_it_was_written(tmp_path: Path) -> None:
    for case in (LAGGING, HEALTHY):
        (tmp_path / case.name).mkdir(parents=True)
        write_case(case, tmp_path / case.name)
    assert {case.name: case for case in read_cases(tmp_path)} == {case.name: case for case in (LAGGING, HEALTHY)}

    (tmp_path / LAGGING.name / "case.json").write_text("{}")
    with pytest.raises(ValueError, match="no case"):
        list(read_cases(tmp_path))


@pytest.mark.slow
def test_every_kind_has_cases_with_files_and_a_truth(tmp_path: Path) -> None:
    cases = list(make_cases(tmp_path, each=1))

    assert len(cases) == 1 + len(FaultKind) + len(SlowFault) + len(FabricFault)
    assert sum(not case.is_healthy for case in cases) >= 40
    assert all(any((tmp_path / case.name / FILES).iterdir()) for case in cases)
    assert all(case.truth.guilty for case in cases if case.kind in {"lagging", "rank", "bad-cable"})
    assert {case.name: case.truth.guilty for case in read_cases(tmp_path)} == {
        case.name: case.truth.guilty for case in cases
    }


def test_verdicts_of_the_set_are_those_that_are_explained() -> None:
    assert set(SLOW_VERDICTS.values()) <= set(OF_SLOW)


def test_grep_names_the_rank_with_fewest_calls_and_is_fooled_by_whoever_complains(tmp_path: Path) -> None:
    def answered(kind: FaultKind) -> tuple[Truth, dict[str, object]]:
        plan = drawn_plan("2.27.7", kind, random.Random(str(kind)))
        generate(plan, tmp_path / kind / "files")
        case = BenchmarkCase(str(kind), "hang", str(kind), truth_of_plan(plan), {})
        return case.truth, grep_baseline.ask(tmp_path, case)

    truth, answer = answered(FaultKind.LAGGING)
    assert (answer["verdict"], answer["culprits"]) == ("lagging-ranks", sorted(truth.guilty))
    truth, answer = answered(FaultKind.NETWORK_LOST)
    assert not set(answer["culprits"]) <= truth.guilty


def test_the_answer_of_the_program_is_taken_from_its_report(tmp_path: Path) -> None:
    plan = drawn_plan("2.27.7", FaultKind.LAGGING, random.Random(3))
    generate(plan, tmp_path)

    answer = answer_of("hang", as_object(analyze([str(tmp_path)])))

    case = BenchmarkCase("x", "hang", "lagging", truth_of_plan(plan), {})
    assert score([case], {"x": answer})[0].judgement.outcome is Outcome.RIGHT


def test_the_scorer_and_the_adapters_need_nothing_but_python() -> None:
    for path in FOLDER.rglob("*.py"):
        imported = {
            name.split(".")[0]
            for node in ast.walk(ast.parse(path.read_text()))
            for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else
                         [alias.name for alias in node.names] if isinstance(node, ast.Import) else [])
        }  # fmt: skip
        foreign = imported - set(sys.stdlib_module_names) - {"benchmark"}
        assert foreign <= ({"ncclforensics"} if path.name in OF_OUR_OWN else set()), path


def test_the_datasheet_counts_the_kinds() -> None:
    text = (FOLDER / "DATASHEET.md").read_text()

    assert f"{1 + len(FaultKind) + len(SlowFault) + len(FabricFault)} kinds" in text
    assert f"{len(FaultKind)} faults, 1 healthy" in text
    assert f"{len(SlowFault) - 1} faults, 1 healthy" in text
    assert f"{len(FabricFault) - 1} faults, 1 healthy" in text


def test_the_readme_tells_the_figures_of_the_results() -> None:
    (row,) = (line for line in (FOLDER / "RESULTS.md").read_text().splitlines() if line.startswith("| ncclforensics "))
    _, _, cases, *_, right, wrong, _, _ = map(str.strip, row.split("|"))
    share, low, _, high = right.replace("(", "").replace(")", "").split()
    readme = " ".join((ROOT / "README.md").read_text().split())

    assert f"Of the {cases} simulated jobs and fabrics" in readme
    assert f"it answers {share} right (95% interval: {low} to {high}) and {wrong.split()[0]} wrong" in readme
