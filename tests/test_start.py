"""What a start imports: only the analyses and rules whose input exists."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from ncclforensics import analyze
from ncclforensics.frames import declarations
from ncclforensics.frames import run as runs
from ncclforensics.frames.protocol import Frames, Registered, call, call_with
from ncclforensics.frames.registry import analyses
from tests.incidents import INCIDENTS
from tests.source import PACKAGE

HUNG = INCIDENTS / "one-rank-stops-before-an-allreduce"
ALL_DECLARATIONS = """
import sys
from ncclforensics.data import user_cache
user_cache.SHIPPED /= "nothing"
import ncclforensics.analyses
from ncclforensics.frames.registry import analyses
from ncclforensics.rules.registry import all_rules
for one in analyses().values():
    print(one.name, one.module, dict(one.columns), one.of, one.is_step)
for rule in all_rules():
    print(rule.name, rule.module, repr((rule.category, rule.severity, rule.of, rule.hang, rule.fallback, rule.verdict)))
declared = {one.module for one in (*analyses().values(), *all_rules())}
print(len(declared), len(declared & set(sys.modules)), file=sys.stderr)
"""
OF_A_JOB = {
    "call_line", "communicator_lifetime", "communicator_placement", "duplicate_source", "earlier_run", "job_member",
    "line_fault", "logged_call", "member", "process", "rank", "torch_rank",
}  # fmt: skip
MODULES_OF = """
import sys
from ncclforensics.cli import main
main(sys.argv[1:])
print(*(name for name in sys.modules if name.startswith("ncclforensics.")), file=sys.stderr)
"""


def run(code: str, *arguments: str | Path, **variables: str) -> tuple[list[str], list[str]]:
    """The lines that a program prints, and the words that it prints to stderr."""
    ran = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        cwd=PACKAGE.parent,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    return ran.stdout.splitlines(), ran.stderr.split()


def test_declarations_from_the_cache_are_those_of_the_modules(tmp_path: Path) -> None:
    written, (modules, imported) = run(ALL_DECLARATIONS, XDG_CACHE_HOME=str(tmp_path))
    read, (known, later) = run(ALL_DECLARATIONS, XDG_CACHE_HOME=str(tmp_path))

    assert read == written
    assert known == modules == imported
    assert int(later) < int(known) // 4  # those that the registries themselves need


def test_a_start_imports_no_rule_and_no_analysis_whose_input_is_absent() -> None:
    analyze(HUNG)  # declarations are kept now, and grammars compiled

    printed, modules = run(MODULES_OF, "hang", HUNG)
    topics = {".".join(name.split(".")[1:3]) for name in modules}

    assert any("LAGGING-RANKS" in line for line in printed)
    assert topics & {"analyses.job", "rules.hang"} == {"analyses.job", "rules.hang"}
    assert topics & {"analyses.benchmark", "analyses.host", "rules.benchmark", "rules.fabric", "rules.host"} == set()


def test_modules_are_imported_again_once_one_of_them_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = tmp_path / "acme" / "rules"
    rules.mkdir(parents=True)
    (rules / "one.py").write_text("")
    monkeypatch.setattr(declarations, "PROGRAM", tmp_path / "acme")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(str(tmp_path))
    described: list[list[str]] = []

    def describe() -> list[str]:
        described.append(sorted(name for name in sys.modules if name.startswith("acme.rules.")))
        return described[-1]

    def declared() -> list[str]:
        declarations._state_of_program.cache_clear()
        declarations._digest_of_program.cache_clear()
        return declarations.declarations("acme.rules", describe)

    first, again = declared(), declared()
    (rules / "two.py").write_text("")
    after = declared()
    declarations._state_of_program.cache_clear()
    declarations._digest_of_program.cache_clear()

    assert first == again == ["acme.rules.one"]
    assert after == ["acme.rules.one", "acme.rules.two"]
    assert described == [first, after]


@pytest.mark.parametrize(
    "name",
    [
        HUNG.name,
        "a-desync-report-shows-all-ranks-in-the-call",
        "a-rank-sleeps-and-stacks-name-no-rank",
        "a-sound-fabric-under-load",
        "flight-recorders-show-a-rank-that-stopped",
        "ras-shows-a-rank-that-stands-still",
    ],
)
def test_what_is_not_computed_of_a_job_would_have_no_rows(name: str) -> None:
    run = analyze([str(INCIDENTS / name)], everything=True).run
    skipped = [frame for frame in sorted(OF_A_JOB) if call(run, analyses()[frame]) is None]

    assert [frame for frame in skipped if call_with(run, analyses()[frame].function).height] == []
    assert ("rank" in skipped) == run["rank"].is_empty()


def test_counters_of_ports_alone_need_no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    called = set()

    def recorded(frames: Frames, registered: Registered) -> pl.DataFrame | None:
        rows: pl.DataFrame | None = call(frames, registered)
        called.update([registered.function.__name__] if rows is not None else [])
        return rows

    monkeypatch.setattr(runs, "call", recorded)

    report = analyze([str(INCIDENTS / "a-sound-fabric-under-load" / "after.log")], everything=True)

    assert report.run["counter"].height
    assert "counter" in called
    assert called & OF_A_JOB == set()
