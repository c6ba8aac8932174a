"""A plot of what missing logs cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from benchmark.judge import Outcome
from tests.accuracy.run import Result

PLOT = "accuracy.svg"
WIDTH, HEIGHT, MARGIN = 640, 320, 60
COLOURS = {Outcome.RIGHT: "#2e8b57", Outcome.WEAKER: "#b0b0b0", Outcome.WRONG: "#c0392b"}


def plot(results: Sequence[Result]) -> str:
    """The shares of right, weaker and wrong answers over the share of missing logs, as an SVG picture."""
    shares = sorted({result.trial.missing for result in results})
    counts = {share: Counter(r.outcome for r in results if r.trial.missing == share) for share in shares}

    def x(share: float) -> float:
        return MARGIN + share * (WIDTH - 2 * MARGIN)

    def y(part: float) -> float:
        return HEIGHT - MARGIN - part * (HEIGHT - 2 * MARGIN)

    parts = [f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>']
    below = dict.fromkeys(shares, 0.0)
    for outcome in (Outcome.WRONG, Outcome.WEAKER, Outcome.RIGHT):
        above = {share: below[share] + counts[share][outcome] / counts[share].total() for share in shares}
        edge = [(share, above[share]) for share in shares] + [(share, below[share]) for share in reversed(shares)]
        points = " ".join(f"{x(share):.1f},{y(part):.1f}" for share, part in edge)
        parts.append(f'<polygon points="{points}" fill="{COLOURS[outcome]}"/>')
        middle = (above[shares[-1]] + below[shares[-1]]) / 2
        parts.append(f'<text x="{x(shares[-1]) + 8:.1f}" y="{y(middle) + 4:.1f}">{outcome.value}</text>')
        below = above
    for part in (0.0, 0.5, 1.0):
        parts.append(f'<text x="{MARGIN - 6}" y="{y(part) + 4:.1f}" text-anchor="end">{part:.0%}</text>')
    for share in shares:
        place = f'x="{x(share):.1f}" y="{HEIGHT - MARGIN + 18}"'
        parts.append(f'<text {place} text-anchor="middle">{share:.0%}</text>')
    parts.append(f'<text x="{x(0.5):.1f}" y="{HEIGHT - 16}" text-anchor="middle">share of the logs missing</text>')
    box = f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12"'
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" {box}>', *parts, "</svg>\n"])
