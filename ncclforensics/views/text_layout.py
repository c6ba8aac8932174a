"""Building blocks of text reports: rendering, headings, tables and file locations."""

from __future__ import annotations

import io
import os
import textwrap
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from ncclforensics.data.names import INVISIBLE, known, printable
from ncclforensics.frames.columns import Row
from ncclforensics.report.build import Report

GAP = "read-subsystem-gap"
UNSEEN = (GAP, "bench-not-judged")  # notes on what is not shown, which the screen of no finding says in sentences
STYLE = {"error": "bold red", "warning": "bold yellow", "info": "cyan", "no-hang": "bold green"}
# Control characters, but for the ends of lines.
_CONTROLS = dict.fromkeys((*range(0x0A), *range(0x0B, 0x20), *range(0x7F, 0xA0), 0x2028, 0x2029), "?")
# As the first bytes of a pickled Flight Recorder dump are shown: a dictionary, or from torch 2.2 a list.
PICKLE_STARTS = ("\ufffd}", "\ufffd]")
ITEM_GAP, NO_BREAK = " · ", "\u00a0"
WIDEST = 28  # characters of a place in a file
_UNBROKEN = ("rank", "host", "GPU", "pid")  # columns whose words are not broken


def render_text(parts: Iterable[RenderableType], *, width: int, color: bool) -> str:
    """Render the parts as lines of text, with or without ANSI colours; invisible characters become escapes."""
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
    console.print(_WithoutControls(Group(*parts)), crop=False)
    text = out.getvalue().translate(INVISIBLE)
    return "\n".join(line.rstrip() for line in text.removesuffix("\n").split("\n")) + "\n"


class _WithoutControls:
    """What is rendered, before Rich adds colours: an escape sequence that stands in the text is not one of its own."""

    def __init__(self, part: RenderableType) -> None:
        self.part = part

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self.part, options):
            yield Segment(segment.text.translate(_CONTROLS), segment.style, segment.control)


def as_html(rendered: str) -> str:
    """Return coloured lines of text as an HTML element; everything in them is escaped."""
    console = Console(file=io.StringIO(), record=True, width=1000, _environ={})
    console.print(Text.from_ansi(rendered), soft_wrap=True)
    return console.export_html(inline_styles=True, code_format='<pre style="line-height:1.3">{code}</pre>')


def heading(title: str) -> Text:
    """Return a title with an empty line above it."""
    return Text(f"\n{title}", style="bold")


def indented(part: RenderableType) -> Padding:
    """Indent a part below a heading."""
    return Padding(part, (0, 0, 0, 2))


def wrapped_items(text: Text, width: int) -> Text:
    r"""Break a list of items between two of them where it is longer than a row.

    >>> wrapped_items(Text("8 files · 12 NCCL lines · 3 damaged"), 28).plain
    '8 files · 12 NCCL lines ·\n3 damaged'
    """
    unbroken = ITEM_GAP.replace(" ", NO_BREAK, 1).join(
        item.replace(" ", NO_BREAK) for item in text.plain.split(ITEM_GAP)
    )
    rows = textwrap.fill(unbroken, width, break_long_words=False, break_on_hyphens=False)
    return Text(rows.replace(NO_BREAK, " "), style=text.style)


def one_row(text: Text) -> Text:
    """Keep a text on one row of the terminal, cut with an ellipsis where it is too long."""
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def table_without_header() -> Table:
    """Return a table without a header; the caller adds the columns."""
    return Table(box=None, padding=(0, 2, 0, 0), show_header=False, show_edge=False, pad_edge=False)


def table_with_header(*columns: str, figures: bool = False) -> Table:
    """Return a table with a header; `figures` aligns all columns but the first to the right."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False, pad_edge=False, header_style="dim")
    for number, column in enumerate(columns):
        is_figure = figures and number > 0
        is_unbroken = column in _UNBROKEN
        table.add_column(column, justify="right" if is_figure else "left", overflow="fold", no_wrap=is_unbroken)
    return table


def quoted(line: Row) -> str:
    """Return the text of a cited line, with blanks for tabs; nothing of a pickle, which is no text."""
    text = str(line["text"])
    return "" if text.startswith(PICKLE_STARTS) else text.replace("\t", " ")


def file_name(report: Report, path: str) -> str:
    """Return the name of an input; with folders if two files have the same name."""
    file = Path(path)
    same = [Path(r.source.path).absolute() for r in report.run.inputs if r.source.path.endswith(file.name)]
    folders = {candidate.parent for candidate in same if candidate.name == file.name}
    return printable(os.path.relpath(file, os.path.commonpath(folders)) if len(folders) > 1 else file.name)


def place_of(report: Report, line: Row) -> str:
    """Return file and line; with folders if two files have the same name."""
    return f"{file_name(report, line['path'])}:{known(line['line'])}"


def without_middle(place: str) -> str:
    """Leave out the middle of the name of a file, which would leave no room for what stands beside it."""
    return place if len(place) <= WIDEST else f"{place[: WIDEST // 2 - 1]}…{place[-WIDEST // 2 :]}"
