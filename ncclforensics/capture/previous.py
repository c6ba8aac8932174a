"""Compare a capture with the last one of the same hosts that lies beside it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

Row = dict[str, Any]
NOTABLE = 0.10  # a change below this share is within the noise of repeated measurements
COMPARED_PLAN = ("backend", "nranks", "ranks_per_gpu", "program")


def find_previous(folder: Path, record: str) -> Path | None:
    """Return the folder of the last complete capture beside this one that had the same hosts, ranks and backend."""
    own = _load(folder / record)
    if own is None:
        return None
    found = [*folder.parent.glob(f"*/{record}"), *folder.parent.glob(f"*/turn-*/{record}")]
    earlier = [(row["began"], path.parent) for path in found if (row := _load(path)) and _is_comparable(row, own)]
    return max(earlier)[1] if earlier else None


def _load(path: Path) -> Row | None:
    """Return the record of a complete capture that measured something."""
    try:
        row = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    is_usable = isinstance(row, dict) and row.get("complete") and row.get("measured") and row.get("hosts")
    return row if is_usable else None


def _is_comparable(row: Row, own: Row) -> bool:
    is_same = all(row["plan"].get(name) == own["plan"].get(name) for name in COMPARED_PLAN)
    return bool(is_same and row["hosts"] == own["hosts"] and row["began"] < own["began"])


def comparison(folder: Path, previous: Path, record: str) -> Iterator[str]:
    """Yield lines with what changed notably since the previous capture."""
    now, before = (json.loads((path / record).read_bytes()) for path in (folder, previous))
    yield f"Compared with {previous} of {before['began']}:"
    changes = [*_collectives(now["measured"], before["measured"]), *_pairs(now["pairs"], before.get("pairs", []))]
    notable = [f"  {text}" for text, share in changes if abs(share) >= NOTABLE]
    yield from notable or [f"  no figure differs by {NOTABLE:.0%} or more"]


def _collectives(now: Sequence[Row], before: Sequence[Row]) -> Iterator[tuple[str, float]]:
    old = {(row["collective"], row["size"]): row["busbw_GBps"] for row in before}
    largest: dict[str, Row] = {}
    for row in now:
        if (row["collective"], row["size"]) in old and row["size"] >= largest.get(row["collective"], row)["size"]:
            largest[row["collective"]] = row
    for name, row in largest.items():
        yield _change(f"{name} of {row['size']} bytes", row["busbw_GBps"], old[name, row["size"]])


def _pairs(now: Sequence[Row], before: Sequence[Row]) -> Iterator[tuple[str, float]]:
    old = {tuple(row["ranks"]): row for row in before}
    both = [row for row in now if (past := old.get(tuple(row["ranks"]))) and past["size"] == row["size"]]
    if both:
        values = [old[tuple(row["ranks"])]["busbw_GBps"] for row in both]
        yield _change("median of all pairs", median(row["busbw_GBps"] for row in both), median(values))
        worst = min(both, key=lambda row: row["busbw_GBps"] / old[tuple(row["ranks"])]["busbw_GBps"])
        a, b = worst["ranks"]
        yield _change(f"ranks {a}-{b}", worst["busbw_GBps"], old[a, b]["busbw_GBps"])


def _change(what: str, now: float, before: float) -> tuple[str, float]:
    share = now / before - 1 if before else 0.0
    return f"{what}: {before:.2f} -> {now:.2f} GB/s ({share:+.0%})", share
