"""What the author of a report puts in front of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cover:
    """The author's own words, and how the report was made."""

    title: str
    note: str  # Markdown; empty if there is none
    command: str
