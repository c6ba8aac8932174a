"""The README shows what the program really prints."""

from __future__ import annotations

import io
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest
from rich.console import Console
from rich.text import Text

from ncclforensics import analyze
from ncclforensics.data.names import VERDICTS
from ncclforensics.views import text_screen

ROOT = Path(__file__).parent.parent
INCIDENTS = ROOT / "fixtures" / "incidents"
README = (ROOT / "README.md").read_text(encoding="utf-8")
Golden = Callable[[Path, str], None]


def test_the_screenshot_is_what_demo_prints(golden: Golden) -> None:
    report = analyze([str(INCIDENTS / "one-rank-stops-before-an-allreduce" / "*.log")])
    console = Console(record=True, width=100, file=io.StringIO(), force_terminal=True, color_system="standard")
    console.print(Text.from_ansi(text_screen.screen(report, width=100, color=True)))

    svg = console.export_svg(title="ncclforensics demo", unique_id="screen")

    golden(ROOT / "docs" / "screen.svg", svg)


def test_the_report_in_the_readme_is_what_hang_prints(golden: Golden) -> None:
    report = analyze([str(INCIDENTS / "another-broadcast-root" / "*.log")])
    shown = "".join(f"    {line}".rstrip() + "\n" for line in text_screen.screen(report, width=96).splitlines())
    before, _, rest = (
        (ROOT / "README.md").read_text(encoding="utf-8").partition("<!-- report: another-broadcast-root -->\n")
    )
    _, _, after = rest.partition("<!-- end -->\n")

    golden(ROOT / "README.md", f"{before}<!-- report: another-broadcast-root -->\n\n{shown}\n<!-- end -->\n{after}")


def test_the_wheel_and_the_extras_that_the_readme_names_are_those_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wheels = re.findall(r"(ncclforensics-[\w.]+-py3-none-any\.whl)(?:\[([\w,]+)\])?", README)

    assert {name for name, _ in wheels} == {f"ncclforensics-{project['version']}-py3-none-any.whl"}
    assert {extra for _, extras in wheels for extra in extras.split(",")} - {""} <= set(
        project["optional-dependencies"]
    )


def test_every_target_of_make_in_the_readme_exists() -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)

    assert set(re.findall(r"\bmake ([a-z-]+)(?=  |`)", README)) <= set(targets)


def test_the_readme_lists_the_verdicts_that_there_are() -> None:
    rows = re.findall(r"^\| `([\w-]+)` \|", README.partition("## The verdicts")[2], re.MULTILINE)

    assert sorted(rows) == sorted(VERDICTS)


def test_the_program_in_the_readme_runs(capsys: pytest.CaptureFixture[str]) -> None:
    program = README.partition("From Python:\n\n")[2].partition("\n\n`report.frames`")[0]
    logs = str(INCIDENTS / "one-rank-stops-before-an-allreduce")

    exec(dedent(program).replace('"logs/"', repr(logs)), {})

    assert capsys.readouterr().out.endswith("lagging-ranks likely [11]\n")
