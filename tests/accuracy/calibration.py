"""How often answers were true, by verdict and certainty, and a plot of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmark.intervals import wilson
from ncclforensics.data.names import CERTAINTIES
from tests.accuracy.run import Result

CALIBRATION = "calibration.svg"
FAMILIES = {
    **dict.fromkeys(("collective-mismatch", "cross-communicator-deadlock"), "calls that differ"),
    **dict.fromkeys(("lagging-ranks", "p2p-unmatched"), "calls that are missing"),
    **dict.fromkeys(("rank-died", "rank-missing"), "processes that ended or never came"),
    **dict.fromkeys(("init-failed", "init-incomplete"), "init"),
    "stuck-together": "all in one call",
}
ALL = "all"
WIDTH, LEFT, RIGHT, ROW, GAP, TOP = 740, 300, 640, 16, 14, 34
COLOURS = dict(zip(CERTAINTIES, ("#1f4e79", "#2e8b57", "#d68910"), strict=True))
TICKS = (0.0, 0.25, 0.5, 0.75, 1.0)


@dataclass(slots=True)
class Worth:
    """Answers of one family and certainty, and how many of them were true."""

    answers: int = 0
    true: int = 0


def worth(results: Sequence[Result]) -> dict[tuple[str, str], Worth]:
    """Count the answers that name a fault, by family and certainty, and those of all families."""
    found: dict[tuple[str, str], Worth] = {}
    for result in results:
        if (judged := result.judgement) and judged.verdict in FAMILIES:
            for family in (FAMILIES[judged.verdict], ALL):
                cell = found.setdefault((family, judged.certainty), Worth())
                cell.answers += 1
                cell.true += judged.is_true
    return found


def plot(counts: Mapping[tuple[str, str], Worth]) -> str:
    """A dot for the share of true answers and a line for its interval, as an SVG picture."""
    families = [*dict.fromkeys(FAMILIES.values()), ALL]
    parts, y = [], TOP
    for family in families:
        rows = [(sure, counts[family, sure]) for sure in CERTAINTIES if (family, sure) in counts]
        if rows:
            parts.append(_text(8, y + ROW * len(rows) / 2, family))
        for sure, cell in rows:
            parts += _row(y + ROW / 2, sure, cell)
            y += ROW
        y += GAP if rows else 0
    grid = [
        f'<line x1="{_x(at):.1f}" x2="{_x(at):.1f}" y1="{TOP - 6}" y2="{y - GAP}" stroke="#dddddd"/>' for at in TICKS
    ]
    ticks = [_text(_x(at), TOP - 14, f"{at:.0%}", "middle") for at in TICKS]
    box = f'viewBox="0 0 {WIDTH} {y}" font-family="sans-serif" font-size="12"'
    ground = f'<rect width="{WIDTH}" height="{y}" fill="white"/>'
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" {box}>', ground, *grid, *ticks, *parts, "</svg>\n"])


def _row(y: float, sure: str, cell: Worth) -> list[str]:
    low, high = wilson(cell.true, cell.answers)
    share, colour = cell.true / cell.answers, COLOURS[sure]
    return [
        _text(LEFT - 10, y + 4, sure, "end"),
        f'<line x1="{_x(low):.1f}" x2="{_x(high):.1f}" y1="{y:.1f}" y2="{y:.1f}" stroke="{colour}" stroke-width="2"/>',
        f'<circle cx="{_x(share):.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>',
        _text(RIGHT + 12, y + 4, f"{cell.true} of {cell.answers}"),
    ]


def _x(share: float) -> float:
    return LEFT + share * (RIGHT - LEFT)


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>'
