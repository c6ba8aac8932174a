"""A part of the program that fails costs only what depends on it, is named, and is never a finding."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from ncclforensics import analyze, cli
from ncclforensics.data.variables import NOT_JUDGED, REPORT_DEFECT
from ncclforensics.diff import compare
from ncclforensics.frames import registry as analyses
from ncclforensics.parsing import parser, workers
from ncclforensics.rules import registry as rules
from ncclforensics.views import ci_formats, json_report, text_report
from tests.incidents import INCIDENTS

HUNG = INCIDENTS / "one-rank-stops-before-an-allreduce"
HEALTHY = INCIDENTS / "a-healthy-run"
FAILURE = "\x1b[31mon purpose"


@pytest.fixture(autouse=True)
def _let_parts_fail(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.undo()  # elsewhere, a test ends where a part of the program fails
    rules.all_rules()  # registers them
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # where the tracebacks are written


def _break(monkeypatch: pytest.MonkeyPatch, registered: dict[str, Any], name: str) -> None:
    """Let a registered rule or analysis raise an exception when it is called."""
    one = registered[name]

    @wraps(one.function)
    def fail(**frames: pl.DataFrame) -> None:
        raise KeyError(FAILURE)

    if isinstance(one, rules.Rule):
        monkeypatch.setitem(registered, name, one._replace(imported=fail))
    else:
        monkeypatch.setattr(one, "imported", fail)


def test_a_rule_that_fails_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    all_rules = rules.all_rules()
    _break(monkeypatch, rules._RULES, "coll-lagging-ranks")

    report = analyze([str(HUNG)], everything=True)

    assert [defect.part for defect in report.defects] == ["the rule coll-lagging-ranks"]
    assert report.verdicts[0].verdict == "lagging-ranks"
    assert len(report.rules) == len(all_rules)
    assert "coll-lagging-ranks" not in {finding.rule for finding in report.findings}


def test_what_needs_a_broken_analysis_is_left_out_and_the_analysis_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    _break(monkeypatch, analyses._ANALYSES, "wait")

    report = analyze([str(HUNG)], everything=True)

    assert [defect.part for defect in report.defects] == ["the analysis wait"]
    assert {"wait", "verdict"} <= report.run.broken
    assert report.verdicts == []  # an empty frame of waits would have said that nobody waits
    answer = json_report.as_object(report)["hang"]
    assert (answer["verdict"], answer["reason"]) == ("undecidable", NOT_JUDGED)
    assert answer["collect_next"] == REPORT_DEFECT
    assert "which rank printed it" not in text_report.text(report)


@pytest.mark.parametrize(
    ("folder", "code"), [(HEALTHY, cli.Exit.DEFECT), (HUNG, cli.Exit.FINDINGS)], ids=["healthy", "hung"]
)
def test_a_defect_is_no_finding(
    folder: Path,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    _break(monkeypatch, rules._RULES, "app-process-died")  # of which neither incident has any
    _always(monkeypatch, "app-process-died")

    assert cli.main(["hang", "--format", "json", str(folder)]) == code

    output = capsys.readouterr()
    answer = json.loads(output.out)
    assert [defect["part"] for defect in answer["defects"]] == ["the rule app-process-died"]
    assert "app-process-died" not in {finding["rule"] for finding in answer["findings"]}
    assert "\x1b" not in output.out + output.err
    (written,) = tmp_path.glob("ncclforensics-defect-*.txt")
    assert str(written) in output.err
    assert "Traceback" in written.read_text(encoding="utf-8")
    assert "Traceback" not in output.err


def test_a_topic_that_fails_does_not_stop_the_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    def versions(member: pl.DataFrame) -> None:
        raise KeyError(FAILURE)

    first, *others = compare.topics()
    monkeypatch.setattr(compare, "topics", lambda: [replace(first, function=versions), *others])
    good, bad = (analyze([str(folder)], everything=True) for folder in (HEALTHY, HUNG))

    comparison = compare.compare_reports(good, bad)

    assert [defect.part for defect in comparison.bad.defects] == ["the comparison of versions"]
    assert comparison.compared


def _always(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Let a rule run whatever the frames hold."""
    monkeypatch.setitem(rules._RULES, name, rules._RULES[name]._replace(of=()))


def test_every_view_names_a_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    _break(monkeypatch, rules._RULES, "coll-lagging-ranks")
    report = analyze([str(HUNG)])

    shown = {
        "text": text_report.text(report),
        "json": json_report.json(report).decode(),
        "junit": ci_formats.junit(report, ["error"]).decode(),
        "sarif": ci_formats.sarif(report).decode(),
    }

    assert [name for name, text in shown.items() if "the rule coll-lagging-ranks" not in text] == []
    assert json.loads(shown["sarif"])["runs"][0]["invocations"][0]["executionSuccessful"] is False


def test_one_line_that_breaks_the_parser_costs_only_itself(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail_on_it(rows: pl.DataFrame, *rest: Any, **options: Any) -> parser.Parsed:
        if rows["text"].str.contains("breaks the parser").any():
            raise pl.exceptions.PanicException(FAILURE)
        return parser.parse(rows, *rest, **options)

    logs = sorted(HUNG.glob("*.log"))
    for log in logs:
        lines = log.read_text(encoding="utf-8").splitlines(keepends=True)
        broken = [*lines[:40], "this line breaks the parser\n", *lines[40:]] if log == logs[0] else lines
        (tmp_path / log.name).write_text("".join(broken), encoding="utf-8")
    whole = json_report.as_object(analyze([str(HUNG)]))
    monkeypatch.setattr(workers, "parse", fail_on_it)

    report = analyze([str(tmp_path)])

    answer = json_report.as_object(report)
    assert [entry["damaged"] for entry in answer["inputs"]] == [1] + [0] * (len(logs) - 1)
    assert "at line 41, 1 lines are left out" in answer["inputs"][0]["problems"][0]
    assert all(entry["lines"] == sum(entry[kind] for kind in parser.COUNTS) for entry in answer["inputs"])
    assert answer["hang"]["culprits"] == whole["hang"]["culprits"]
    assert len(report.defects) == 1


@pytest.mark.parametrize("stage", ["sample", "start"])
def test_an_input_that_cannot_be_read_costs_only_itself(
    stage: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from ncclforensics.inputs.windows import InputReader

    original: Callable[..., Any] = getattr(InputReader, stage)

    def fail_on_it(reader: InputReader, *given: object) -> Any:
        if reader.source.path.endswith("extra.log"):
            raise ValueError(FAILURE)
        return original(reader, *given)

    def fail_while_reading(reader: InputReader) -> Iterator[pl.DataFrame]:
        yield from fail_on_it(reader)

    for log in HUNG.glob("*.log"):
        (tmp_path / log.name).write_bytes(log.read_bytes())
    (tmp_path / "extra.log").write_text("a line\n" * 10, encoding="utf-8")
    monkeypatch.setattr(InputReader, stage, fail_while_reading if stage == "start" else fail_on_it)

    report = analyze([str(tmp_path)])

    assert report.verdicts[0].verdict == "lagging-ranks"
    problems = {Path(path).name: problem for path, problem in report.input_problems()}
    assert "the program failed (ValueError" in problems["extra.log"]


def test_a_saved_run_holds_nothing_that_a_broken_analysis_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    saved = tmp_path / "run.ncclf"
    with monkeypatch.context() as patch:
        _break(patch, analyses._ANALYSES, "wait")
        assert cli.main(["save", str(HUNG), "-o", str(saved), "-q"]) == cli.Exit.DEFECT

    assert analyze([str(saved)]).verdicts[0].verdict == "lagging-ranks"


def test_a_crash_of_the_program_has_its_own_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def crash(*_: object, **__: object) -> None:
        raise RuntimeError(FAILURE)

    monkeypatch.setattr("ncclforensics.report.build.build_report", crash)

    assert cli.main(["hang", str(HUNG)]) == cli.Exit.DEFECT
    error = capsys.readouterr().err
    assert "a defect of the program, not of the job" in error
    assert "Traceback" not in error
    assert "\x1b" not in error


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't start new thread")])
def test_what_the_system_refuses_is_no_defect_to_report(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("ncclforensics.cli.option_groups.load_report", refuse)

    assert cli.main(["hang", str(HUNG)]) == cli.Exit.DEFECT
    (line,) = capsys.readouterr().err.splitlines()
    assert line in (
        "ncclforensics: not enough memory",
        "ncclforensics: no thread can be started: see `ulimit -u` and `ulimit -v`",
    )


def test_a_failure_that_cannot_be_reported_is_no_finding(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise SystemError("returned NULL without setting an exception")

    monkeypatch.setattr(cli, "app", fail)
    monkeypatch.setattr("importlib.metadata.version", fail)

    assert cli.main(["hang", str(HUNG)]) == cli.Exit.DEFECT
    assert capsys.readouterr().err.endswith(
        "ncclforensics: the program failed (SystemError): is there enough memory?\n"
    )


def test_a_gzip_that_breaks_the_reader_is_a_problem_of_the_input(tmp_path: Path) -> None:
    """Damage of the input itself is no defect of the program."""
    data = gzip.compress(b"a line\n" * 10_000)
    (tmp_path / "cut.log.gz").write_bytes(data[: len(data) // 2])

    assert analyze([str(tmp_path)]).defects == []


@pytest.mark.parametrize(
    ("variable", "value"),
    [("COLUMNS", "abc"), ("COLUMNS", "0"), ("POLARS_MAX_THREADS", "0"), ("POLARS_MAX_THREADS", "99999999")],
)
def test_an_odd_environment_does_no_harm(variable: str, value: str) -> None:
    environment = {**os.environ, variable: value}

    ended = subprocess.run(_COMMAND, env=environment, capture_output=True, text=True, timeout=60)

    assert ended.returncode == cli.Exit.FINDINGS
    assert "rank 11 on gpu-node-01 never called" in ended.stdout
    assert ended.stderr == ""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not limit addresses")
def test_few_addresses_suffice_under_a_limit() -> None:
    """Each thread's heap would reserve 128 MB of them: an allocation failed although memory was free."""
    limited = ["sh", "-c", 'ulimit -v 600000; exec "$@"', "sh", *_COMMAND]

    ended = subprocess.run(
        limited, env={**os.environ, "POLARS_MAX_THREADS": "4"}, capture_output=True, text=True, timeout=60
    )

    assert (ended.returncode, ended.stderr) == (cli.Exit.FINDINGS, "")


@pytest.mark.parametrize("closed", [">&-", "2>&-"])
def test_a_closed_stream_does_no_harm(closed: str) -> None:
    ended = subprocess.run(["sh", "-c", f'"$@" {closed}', "sh", *_COMMAND], capture_output=True, text=True, timeout=60)

    assert ended.returncode == cli.Exit.FINDINGS
    assert "Traceback" not in ended.stdout + ended.stderr


_COMMAND = [sys.executable, "-m", "ncclforensics", "demo"]
