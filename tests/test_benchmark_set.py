"""The benchmark of the field: its cases hold what they say, and its scorer judges any tool alike."""

from __future__ import annotations

import ast
import json
import random
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmark import ras_reports, recorder_dumps
from benchmark.adapters import grep_baseline, nccl_doctor, nvrx, ray_ras, torchfrtrace
from benchmark.adapters.ncclforensics_cli import answer_of
from benchmark.case_files import FILES, QUESTIONS, BenchmarkCase, read_cases, write_case
from benchmark.judge import OPEN, Outcome, Truth, judge
from benchmark.make_cases import SLOW_VERDICTS, drawn_plan, make_cases, truth_of_plan
from benchmark.outside import gf_bench_runs, write_outside
from benchmark.recorded import write_recorded
from benchmark.score import MARK, score, table
from ncclforensics import analyze
from ncclforensics.simulate.fabric import FabricFault
from ncclforensics.simulate.generate import generate
from ncclforensics.simulate.plan import FaultKind, Plan
from ncclforensics.simulate.slow import SlowFault
from ncclforensics.views.explain_slow import OF_SLOW
from ncclforensics.views.json_report import as_object
from tests.incidents import ROOT

FOLDER = ROOT / "benchmark"
OF_OUR_OWN = {
    "make_cases.py",
    "ncclforensics_cli.py",
    "ras_reports.py",
    "recorder_dumps.py",
}  # the only modules that need this program
LAGGING = BenchmarkCase("hang/lagging/0", "hang", "lagging", Truth(frozenset({"lagging-ranks"}), (frozenset({5}),)), {})
SIMULATED = {
    "hang": len(FaultKind),
    "dumps": len(recorder_dumps.SHOWN),
    "ras": len(ras_reports.SHOWN),
    "slow": len(SlowFault) - 1,
    "fabric": len(FabricFault) - 1,
}  # faults of each question
HEALTHY = BenchmarkCase("hang/none/0", "hang", "none", Truth(frozenset({"no-hang"})), {})


def _flat(path: Path) -> str:
    return " ".join(path.read_text(encoding="utf-8").split())


def _outcomes(answers: dict[str, dict[str, object]]) -> list[Outcome]:
    return [row.judgement.outcome for row in score([LAGGING, HEALTHY], answers)]


def test_an_answer_is_scored_by_what_it_claims() -> None:
    right = {"verdict": "lagging-ranks", "culprits": [5], "certainty": "likely"}
    false_alarm = {"verdict": "rank-died", "culprits": [3], "certainty": "certain"}

    assert _outcomes({LAGGING.name: right}) == [Outcome.RIGHT, Outcome.WEAKER]
    assert _outcomes({LAGGING.name: {**right, "culprits": [5, 6]}})[0] is Outcome.WRONG
    assert _outcomes({LAGGING.name: {**right, "culprits": [6], "certainty": "possible"}})[0] is Outcome.WEAKER
    assert _outcomes({HEALTHY.name: false_alarm})[1] is Outcome.WRONG
    assert "| 1 of 1 |\n" in table({"a tool": score([LAGGING, HEALTHY], {HEALTHY.name: false_alarm})})


def test_an_answer_to_a_case_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="hang/other/0"):
        score([LAGGING], {"hang/other/0": {"verdict": "no-hang"}})


def test_a_case_is_read_as_it_was_written(tmp_path: Path) -> None:
    cases = []
    for case in (LAGGING, HEALTHY):
        (tmp_path / case.name).mkdir(parents=True)
        cases.append(write_case(case, tmp_path / case.name))
    assert list(read_cases(tmp_path)) == cases

    (tmp_path / LAGGING.name / "case.json").write_text("{}")
    with pytest.raises(ValueError, match="no case"):
        list(read_cases(tmp_path))


@pytest.mark.slow
def test_every_kind_has_cases_with_files_and_a_truth(tmp_path: Path) -> None:
    cases = list(make_cases(tmp_path, each=1))

    assert sum(case.source == "simulated" for case in cases) == len(SIMULATED) + sum(SIMULATED.values())
    assert any(case.source == "recorded" for case in cases)
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
        return case.truth, grep_baseline.ask(case, tmp_path / kind / "files")

    truth, answer = answered(FaultKind.LAGGING)
    assert (answer["verdict"], answer["culprits"]) == ("lagging-ranks", sorted(truth.guilty))
    truth, answer = answered(FaultKind.NETWORK_LOST)
    assert not set(answer["culprits"]) <= truth.guilty


def _plan(kind: FaultKind | None) -> Plan:
    return drawn_plan("2.30.7", kind, random.Random(str(kind)))


@pytest.mark.parametrize("kind", [FaultKind.LAGGING, FaultKind.OTHER_COUNT, FaultKind.SWAPPED_ORDER])
def test_simulated_dumps_show_the_fault_to_the_program(kind: FaultKind, tmp_path: Path) -> None:
    plan = _plan(kind)
    recorder_dumps.write_dumps(plan, tmp_path)

    answer = answer_of("dumps", as_object(analyze([str(tmp_path)])))

    assert judge(answer, truth_of_plan(plan)).outcome is Outcome.RIGHT


def test_a_rank_that_died_leaves_no_dump(tmp_path: Path) -> None:
    plan = _plan(FaultKind.KILLED)
    recorder_dumps.write_dumps(plan, tmp_path)

    assert plan.fault
    absent = {rank for rank in range(plan.ranks) if not (tmp_path / f"nccl_trace_rank_{rank}").exists()}
    assert absent == set(plan.fault.ranks)


@pytest.mark.parametrize("kind", [None, FaultKind.LAGGING])
def test_simulated_ras_reports_count_the_calls_of_each_rank(kind: FaultKind | None, tmp_path: Path) -> None:
    ras_reports.write_reports(_plan(kind), tmp_path)

    hang = as_object(analyze([str(tmp_path)]))["hang"]

    assert hang["verdict"] == ("lagging-ranks" if kind else "undecidable")
    assert not kind or hang["culprits"] == [*_plan(kind).fault.ranks]  # type: ignore[union-attr]


def test_the_first_error_of_torchfrtrace_is_its_answer() -> None:
    missing = "Not all ranks joining collective, sequence number: 5\nmissing ranks: {3}\ncollective state: scheduled\n"
    culprit = "error msg: Culprit rank 9; Error type: SIZE_OR_SYNTAX_MISMATCH, Expected input sizes: '[[1]]' does not\n"

    assert torchfrtrace.answer_of(missing) == {"verdict": "lagging-ranks", "culprits": [3], "certainty": "likely"}
    assert torchfrtrace.answer_of(culprit + missing) == {
        "verdict": "collective-mismatch", "culprits": [9], "certainty": "possible",
    }  # fmt: skip
    assert torchfrtrace.answer_of("")["verdict"] == OPEN


def test_the_ranks_that_nvrx_lists_are_its_answer() -> None:
    head = "PGID   | Process Group Desc | Op Type | Size | Dtype | Missing Ranks\n"
    rows = ["0 | default_pg,0 | nccl:all_reduce | 1 | Float | 2,6\n", "1 | TP,0 | nccl:all_reduce | 8 | Long | 2\n"]

    assert nvrx.answer_of(head + rows[0])["certainty"] == "likely"
    assert nvrx.answer_of(head + "".join(rows)) == {
        "verdict": "lagging-ranks", "culprits": [2, 6], "certainty": "possible",
    }  # fmt: skip
    assert nvrx.answer_of("")["verdict"] == OPEN


def test_nccl_doctor_accuses_the_network_or_ranks_or_leaves_it_open() -> None:
    def answered(verdict: str, **origin: object) -> str:
        report = {"error_analysis": {"verdict": verdict, "confidence": 0.8, "origin": origin}}
        return str(nccl_doctor.answer_of(report)["verdict"])

    assert answered("TRANSIENT_FABRIC_LOSS") == "stuck-together"
    assert answered("STRAGGLER_NODE", true_origin_ranks=[3]) == "lagging-ranks"
    assert answered("MISCONFIGURED_TRANSPORT") == OPEN


@pytest.mark.parametrize(("moved", "seen"), [(0, True), (4, False)])
def test_ray_sees_a_hang_where_different_counts_stand_still(moved: int, seen: bool) -> None:
    reports = iter([SimpleNamespace(), SimpleNamespace(mismatched_comms={"0x1"})])
    rule = SimpleNamespace(
        parse_ras_schema=lambda _: next(reports), compute_report_op_diff=lambda *_: {"0x1": {0: {"AllReduce": moved}}}
    )

    assert ray_ras.hangs(rule, ["{}", "{}"]) is seen
    case = BenchmarkCase("ras/lagging/0", "ras", "lagging", LAGGING.truth, {})
    (row,) = score([case], {case.name: {"sees_fault": seen}})
    assert row.sees_fault is seen
    assert row.judgement.outcome is Outcome.WEAKER


def test_an_answer_to_other_files_and_to_unasked_questions_is_not_counted() -> None:
    answer = {"verdict": "lagging-ranks", "culprits": [5], "certainty": "likely"}
    of_dumps = BenchmarkCase("dumps/lagging/0", "dumps", "lagging", LAGGING.truth, {})
    stale = replace(of_dumps, name="dumps/lagging/1", digest="11111111")
    cases = [LAGGING, of_dumps, stale]

    rows = score(cases, {case.name: {**answer, "digest": "22222222"} for case in (stale,)} | {of_dumps.name: answer})

    assert [row.case.name for row in rows] == [of_dumps.name]
    assert rows[0].names_exactly


def test_outside_sets_are_read_where_there_is_a_clone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sources = tmp_path / "sources"
    traces = sources / "nvidia-resiliency-ext" / "tests/attribution/unit/fr_traces/gpu_error"
    capture = sources / "ray" / "python/ray/train/v2/tests/test_nccl_ras_callback.py"
    for folder in (traces, capture.parent):
        folder.mkdir(parents=True)
    (traces / "fault_injection.log").write_text("Fault ranks: [12, 14]\nFault delay: 180.0\n")
    (traces / "_dump_0").write_bytes(b"")
    capture.write_text('import json\nHEALTHY_RAS_JSON = """{}"""\n')

    cases = {case.kind: case for case in write_outside(sources, tmp_path / "cases")}

    assert set(cases) == {"lagging-ranks", "none"}
    assert cases["lagging-ranks"].truth.culprits == (frozenset({12, 14}),)
    assert [path.name for path in (tmp_path / "cases" / cases["lagging-ranks"].name / FILES).iterdir()] == ["_dump_0"]
    assert cases["none"].source == "ray"
    assert "nccl_log_rca_bench checkout" in capsys.readouterr().err


def test_runs_of_gf_bench_are_labelled_by_their_names(tmp_path: Path) -> None:
    for run in ("phase1_runs/normal_trial_1_iter10", "phase2_runs/oom_trial_1_1_2_x", "phase2_runs/slow_trial_1_0_6_x"):
        (tmp_path / "dataset" / run).mkdir(parents=True)
        (tmp_path / "dataset" / run / "stdout.log").write_text("")

    cases = {case.kind: case.truth for case in gf_bench_runs(tmp_path, tmp_path / "set")}

    assert {kind: (*truth.verdicts, *truth.guilty) for kind, truth in cases.items()} == {
        "none": ("no-hang",), "oom": ("rank-died", 1), "slow": ("lagging-ranks", 0),
    }  # fmt: skip


def test_a_page_keeps_what_stands_above_its_mark() -> None:
    for name in ("RESULTS.md", "OUTSIDE.md"):
        head, mark, figures = (FOLDER / name).read_text(encoding="utf-8").partition(MARK)
        assert mark, name
        assert "| tool |" in figures
        assert "| tool |" not in head


def test_the_answers_of_other_tools_are_to_cases_of_the_set(tmp_path: Path) -> None:
    recorded = {case.name for case in write_recorded(tmp_path, QUESTIONS)}
    for path in (FOLDER / "answers").glob("*.json"):
        given = json.loads(path.read_text(encoding="utf-8"))
        assert given["version"], path
        assert {name for name in given["answers"] if name.startswith("recorded/")} <= recorded, path
        assert all(
            {"verdict", "culprits", "certainty", "digest"} <= set(answer) for answer in given["answers"].values()
        )


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

    assert f"{len(SIMULATED) + sum(SIMULATED.values())} kinds of simulated cases" in text
    assert all(f"| `{question}` | {faults} faults, 1 healthy" in text for question, faults in SIMULATED.items())


@pytest.mark.parametrize("name", ["RESULTS.md", "OUTSIDE.md"])
def test_side_by_side_has_the_first_table_of_each_page(name: str, request: pytest.FixtureRequest) -> None:
    path = ROOT / "docs" / "side-by-side.md"
    figures = (FOLDER / name).read_text(encoding="utf-8").partition(MARK)[2].partition("\n### ")[0].strip()
    head, mark, rest = path.read_text(encoding="utf-8").partition(f"<!-- from benchmark/{name} -->\n")
    shown, end, tail = rest.partition("<!-- end -->")
    if request.config.getoption("--update"):
        path.write_text(f"{head}{mark}\n{figures}\n\n{end}{tail}", encoding="utf-8")
        shown = figures

    assert shown.strip() == figures


def test_the_readme_tells_the_figures_of_the_results() -> None:
    (row,) = (line for line in (FOLDER / "RESULTS.md").read_text().splitlines() if line.startswith("| ncclforensics "))
    _, _, cases, _, _, _, right, wrong, *_ = map(str.strip, row.split("|"))
    share, low, _, high = right.replace("(", "").replace(")", "").split()
    readme = _flat(ROOT / "README.md")

    assert f"Of the {cases} simulated and recorded cases" in readme
    assert f"it answers {share} right (95% interval: {low} to {high}) and {wrong.split()[0]} wrong" in readme
