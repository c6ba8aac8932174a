"""The cover of a report: title, author's note and command."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cover:
    """The title, the author's note, and the command that made the report."""

    title: str
    note: str  # Markdown; empty if there is none
    command: str
