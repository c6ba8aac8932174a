"""The README shows what the program really prints."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.text import Text

from ncclforensics import analyze
from ncclforensics.views import text_screen

ROOT = Path(__file__).parent.parent
INCIDENTS = ROOT / "fixtures" / "incidents"
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
