"""The cover of a report: title, author's note, command and time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cover:
    """The title, the author's note, the command that made the report, and when it did."""

    title: str
    note: str  # Markdown; empty if there is none
    command: str
    made: str = ""  # empty: not shown
