"""Writes the figures of the benchmark into a page of the documentation."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

BEGIN, END = "<!-- written by tests/benchmarks -->", "<!-- end of what tests/benchmarks wrote -->"


class Figure(Protocol):
    """What a figure has to say of itself."""

    name: str
    minimum: float
    median: float
    unit: str
    target: float | None
    wants: str


def table(figures: Iterable[Figure], head: str) -> str:
    """The figures as a table of Markdown below a sentence."""
    rows = [f"| {one.name} | {_number(one.minimum)} | {_number(one.median)} | {one.unit} | {_wanted(one)} |"
            for one in figures]  # fmt: skip
    return "\n".join([head, "", "| figure | best | median | unit | wanted |", "|---|---|---|---|---|", *rows])


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _wanted(figure: Figure) -> str:
    return "" if figure.target in (None, float("inf")) else f"{figure.wants} {figure.target:g}"


def renew(page: Path, text: str, begin: str = BEGIN, end: str = END) -> None:
    """Put a text between two marks of a page. Raises ValueError if they are missing."""
    before, found_begin, rest = page.read_text(encoding="utf-8").partition(begin)
    _, found_end, after = rest.partition(end)
    if not (found_begin and found_end):
        raise ValueError(f"{page}: no {begin} … {end}")
    page.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")
