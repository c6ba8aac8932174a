"""What all text for a person is made of: a sheet of a given width, headings, tables without lines, places in files."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ncclforensics.data.names import known, printable
from ncclforensics.report.build import Report, Row

STYLE = {"error": "bold red", "warning": "bold yellow", "info": "cyan", "no-hang": "bold green"}
_WHOLE = ("rank", "host", "GPU", "pid")  # columns whose words are never broken


def drawn(parts: Iterable[RenderableType], *, width: int, color: bool) -> str:
    """Lines of text, with ANSI colours or without."""
    out = io.StringIO()
    console = Console(
        file=out,
        width=width,
        color_system="standard" if color else None,
        force_terminal=color,
        highlight=False,
        emoji=False,
        markup=False,
        _environ={},
    )
    console.print(Group(*parts))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def heading(title: str) -> Text:
    """A title with an empty line above it."""
    return Text(f"\n{title}", style="bold")


def indented(part: RenderableType) -> Padding:
    """What stands below a heading."""
    return Padding(part, (0, 0, 0, 2))


def bare() -> Table:
    """A table without a head; its columns are to be added."""
    return Table(box=None, padding=(0, 2, 0, 0), show_header=False, show_edge=False, pad_edge=False)


def headed(*columns: str, figures: bool = False) -> Table:
    """A table with a head; `figures`: all columns but the first stand to the right."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False, pad_edge=False, header_style="dim")
    for number, column in enumerate(columns):
        is_figure = figures and number > 0
        is_whole = column in _WHOLE
        table.add_column(column, justify="right" if is_figure else "left", overflow="fold", no_wrap=is_whole)
    return table


def place_of(report: Report, line: Row) -> str:
    """File and line; the folders too, where two files have one name."""
    path = Path(line["path"])
    same = [Path(r.source.path).absolute() for r in report.run.inputs if r.source.path.endswith(path.name)]
    folders = {one.parent for one in same if one.name == path.name}
    name = os.path.relpath(path, os.path.commonpath(folders)) if len(folders) > 1 else path.name
    return printable(f"{name}:{known(line['line'])}")
