"""What grows with ranks: `hang` beside what people use instead, on 512, 2,048 and 10,000 logs, as a table and a plot.

    python -m tests.benchmarks.curve [--ranks 512 2048 10000] [--cmd ncclforensics] [--page docs/performance.md]

Run from the root of the repository. All sides read the same files, in turn; the plot lies beside the page.
"""

from __future__ import annotations

import argparse
import math
import shlex
import shutil
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ncclforensics.simulate.generate import Fault, FaultKind, Plan, generate
from tests.benchmarks.bench import AWK, MB, Run, disagreements, repeat, run, warm
from tests.benchmarks.conventional import parse
from tests.benchmarks.page import renew

BEGIN, END = "<!-- curve written by tests/benchmarks -->", "<!-- end of the curve -->"
HANG, PARSER = "hang", "regex parser"
PARSED = 64  # files that the regex parser reads; its time is that share of all
WIDTH, HEIGHT, MARGIN = 640, 360, 60
COLOURS = ("#c0392b", "#2c6fbb", "#2e8b57", "#8e6bbf", "#7f7f7f")


@dataclass(frozen=True, slots=True)
class Point:
    """What the sides took on one run: CPU seconds by name, and the peak of `hang` in bytes."""

    ranks: int
    size: int
    seconds: dict[str, float]
    peak: int


def one_liners(folder: Path) -> dict[str, list[str]]:
    """The commands that are there; files reach them through xargs, for a command line holds no 10,000 names."""
    commands = {"wc -l": ["wc", "-l"], "rg -c": ["rg", "-c", "opCount"], "grep -c": ["grep", "-c", "opCount"]}
    commands["awk"] = ["awk", AWK]
    found = {name: command for name, command in commands.items() if shutil.which(command[0])}
    files = f"find {shlex.quote(str(folder))} -type f -print0 | xargs -0"
    return {name: ["sh", "-c", f"{files} {shlex.join(command)}"] for name, command in found.items()}


def measure(command: list[str], ranks: int, size: int, repetitions: int) -> Point:
    """Generate a job in which one rank lags, and let every side read it. Raises ValueError for a wrong verdict."""
    with tempfile.TemporaryDirectory(prefix="ncclforensics-curve-") as name:
        folder = Path(name) / "run"
        fault = Fault(FaultKind.LAGGING, (ranks // 2 + 3,), "tp")
        truth = generate(Plan(nodes=ranks // 8, tp=8, bytes_per_rank=size, fault=fault), folder)
        warm(folder)
        files = sorted(folder.iterdir())

        def parser() -> Run:
            some = files[:: max(len(files) // PARSED, 1)]
            return Run(parse(some).seconds * len(files) / len(some), 0, 0, "")

        sides = {HANG: lambda: run([*command, HANG, str(folder), "--format", "json"])}
        sides |= {side: lambda call=call: run(call) for side, call in one_liners(folder).items()}
        runs = repeat({**sides, PARSER: parser}, repetitions)
        if wrong := disagreements(runs[HANG][-1], truth):
            raise ValueError(f"{ranks} ranks: {'; '.join(wrong)}")
        total = sum(path.stat().st_size for path in files)
    seconds = {side: statistics.median(each.seconds for each in taken) for side, taken in runs.items()}
    return Point(ranks, total, seconds, max(each.peak_bytes for each in runs[HANG]))


def table(points: list[Point], plot: str) -> str:
    """The points as a table of Markdown: seconds of `hang`, and how many times as long it takes as the others."""
    others = [side for side in points[0].seconds if side != HANG]
    head = ["ranks", "logs", "hang", "a rank", "peak", *(f"hang / {side}" for side in others)]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for point in points:
        taken = point.seconds[HANG]
        cells = [f"{point.ranks:,}", f"{point.size / MB:,.0f} MB", f"{taken:.2f} s"]
        cells += [f"{1000 * taken / point.ranks:.2f} ms", f"{point.peak / MB:,.0f} MB"]
        cells += [f"{taken / point.seconds[side]:.1f}" for side in others]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", f"![CPU time of each side over the number of ranks]({plot})"])


def plot(points: list[Point]) -> str:
    """CPU seconds over ranks as an SVG picture, both axes logarithmic."""
    every = [taken for point in points for taken in point.seconds.values()]
    left, right = math.log10(points[0].ranks), math.log10(points[-1].ranks)
    low, high = math.floor(math.log10(min(every))), math.ceil(math.log10(max(every)))

    def x(ranks: int) -> float:
        return MARGIN + (math.log10(ranks) - left) / ((right - left) or 1) * (WIDTH - 3 * MARGIN)

    def y(taken: float) -> float:
        return HEIGHT - MARGIN - (math.log10(taken) - low) / ((high - low) or 1) * (HEIGHT - 2 * MARGIN)

    parts = [f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>']
    for power in range(low, high + 1):
        at = y(10**power)
        parts.append(f'<path d="M{MARGIN} {at:.1f}H{WIDTH - 2 * MARGIN}" stroke="#ddd"/>')
        parts.append(f'<text x="{MARGIN - 6}" y="{at + 4:.1f}" text-anchor="end">{10.0**power:g} s</text>')
    for point in points:
        place = f'x="{x(point.ranks):.1f}" y="{HEIGHT - MARGIN + 18}"'
        parts.append(f'<text {place} text-anchor="middle">{point.ranks:,} ranks</text>')
    names = sorted(points[-1].seconds, key=lambda side: points[-1].seconds[side])
    lowest = float(HEIGHT)
    for colour, side in zip(COLOURS * 2, names, strict=False):
        line = " ".join(f"{x(point.ranks):.1f},{y(point.seconds[side]):.1f}" for point in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        lowest = min(y(points[-1].seconds[side]) + 4, lowest - 14)  # names stand apart
        parts.append(f'<text x="{x(points[-1].ranks) + 8:.1f}" y="{lowest:.1f}" fill="{colour}">{side}</text>')
    box = f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12"'
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" {box}>', *parts, "</svg>\n"])


def main() -> None:
    """Measure, print the table, and write it and the plot into a page."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--cmd", default="ncclforensics", help="the command to time")
    parser.add_argument("--ranks", type=int, nargs="+", default=[512, 2048, 10_000], help="8 a node")
    parser.add_argument("--rank-bytes", type=int, default=100_000)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--page", type=Path, metavar="FILE")
    wanted = parser.parse_args()
    points = []
    for ranks in wanted.ranks:
        points.append(measure(shlex.split(wanted.cmd), ranks, wanted.rank_bytes, wanted.repetitions))
        print(points[-1], file=sys.stderr)
    picture = "performance.svg"
    text = table(points, picture)
    print(text)
    if wanted.page:
        renew(wanted.page, text, BEGIN, END)
        (wanted.page.parent / picture).write_text(plot(points), encoding="utf-8")


if __name__ == "__main__":
    main()
