"""A card for chats and slides: what happened, where and when, the hosts, and what to run now, as one picture."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any

import polars as pl
import vl_convert
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ncclforensics import __version__
from ncclforensics.analyses.verdict.answer import Answer
from ncclforensics.data.names import INVISIBLE, certainty_text, known, printable
from ncclforensics.report.build import Report
from ncclforensics.views.author_note import Cover
from ncclforensics.views.headline import cause, shown_verdicts
from ncclforensics.views.rank_map import HostRanks, Part, RankMap, rank_map
from ncclforensics.views.text_coverage import coverage

TEMPLATES = Path(__file__).parent / "templates"
WIDTH, HEIGHT = 1200, 630  # pixels: what chats show as a preview without cutting it
TITLE_WIDTH, TITLE_LINES = 46, 3  # characters of a line, lines
CAUSE_WIDTH, CAUSE_LINES = 80, 2
COMMAND_WIDTH, COMMANDS = 86, 2
FOOT_WIDTH = 105  # characters
MAP_WIDTH, MAP_HEIGHT = 1080, 150  # pixels
LARGEST_CELL = 34  # pixels


@dataclass(frozen=True, slots=True)
class Cell:
    """A square of the map: a rank where these are few, otherwise a host."""

    x: float
    y: float
    size: float
    part: Part


def svg(report: Report, cover: Cover) -> bytes:
    """Return the card as an SVG picture without scripts or requests."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: printable(value.translate(INVISIBLE)) if type(value) is str else value,
    )
    return environment.get_template("card.svg.j2").render(_content(report, cover)).encode()


def png(report: Report, cover: Cover) -> bytes:
    """Return the card as a PNG picture of the same size."""
    drawn: bytes = vl_convert.svg_to_png(svg(report, cover).decode())
    return drawn


def _content(report: Report, cover: Cover) -> dict[str, Any]:
    rows = shown_verdicts(report)
    hosts = rank_map(report, rows[0]) if rows else RankMap([])
    commands = [f"on {step.where}: {step.line}" for step in report.run_now(rows[0])] if rows else _benchmarks(report)
    commands = commands or (report.other_steps(rows[0]) if rows else [])
    first = cause(report)
    return {
        "width": WIDTH,
        "height": HEIGHT,
        "verdict": rows[0].verdict if rows else "no verdict",
        "certainty": certainty_text(rows[0].verdict, rows[0].certainty).strip(" ()") if rows else "",
        "severity": report.severity_of(rows[0]) if rows else "info",
        "title": _lines(cover.title, TITLE_WIDTH, TITLE_LINES),
        "cause": _lines(f"{first.label(rows[0])}: {first.title}", CAUSE_WIDTH, CAUSE_LINES) if first else [],
        "coverage": _lines(coverage(report).plain, FOOT_WIDTH, 1)[0],
        "cells": list(_cells(hosts)),
        "legend": f"one square per {'host' if hosts.is_folded else 'rank'}" if hosts.hosts else "",
        "waiting": _waiting(rows[0]) if rows else "",
        "commands": [_lines(command, COMMAND_WIDTH, 1)[0] for command in commands[:COMMANDS]],
        "tool_version": __version__,
    }


def _benchmarks(report: Report) -> list[str]:
    """Return what each benchmark reached, where no job is judged."""
    rows = report.run["benchmark"].filter(pl.col("max_busbw").is_not_null()).to_dicts()
    return [
        f"{known(row['collective'])}, {known(row['nranks'])} ranks: best {row['max_busbw']:g} GB/s bus bandwidth"
        for row in rows
    ]


def _lines(text: str, width: int, most: int) -> list[str]:
    """Break a text into lines; what does not fit ends with an ellipsis."""
    return wrap(text, width, max_lines=most, placeholder=" …", break_on_hyphens=False) or [""]


def _waiting(answer: Answer) -> str:
    count = len(answer.victims)
    return f"{count} rank{'s' * (count != 1)} wait" + "s" * (count == 1) if count else ""


def _cells(ranks: RankMap) -> Iterator[Cell]:
    """Place one square per rank, host by host, or per host where the ranks are too many."""
    parts = [part for host in ranks.hosts for part in _parts(host, is_folded=ranks.is_folded)]
    size = LARGEST_CELL
    while size > 3 and -(-len(parts) // (MAP_WIDTH // size)) * size > MAP_HEIGHT:
        size -= 1
    columns = MAP_WIDTH // size
    gap = 1 if size < 10 else 4
    for number, part in enumerate(parts):
        yield Cell(number % columns * size, number // columns * size, size - gap, part)


def _parts(host: HostRanks, *, is_folded: bool) -> list[Part]:
    return [host.part] if is_folded else [part for _, part in host.ranks]
