"""The comparison of two runs as text: results, differences that may explain them, and what was not compared."""

from __future__ import annotations

from itertools import groupby

from rich.console import RenderableType
from rich.text import Text

from ncclforensics.data.names import printable, sentence, shortened
from ncclforensics.diff import Comparison, Curve, Difference, Kind, NotCompared, Side
from ncclforensics.diff.result import FINDINGS
from ncclforensics.frames.columns import Row
from ncclforensics.report.build import Report
from ncclforensics.views.markdown_syntax import section
from ncclforensics.views.plots import MIN_SIZES, plot
from ncclforensics.views.text_coverage import coverage
from ncclforensics.views.text_layout import STYLE, heading, indented, place_of, render_text, table_without_header

MOST_VALUES = 3
MOST_ALIKE = 6
MOST_CURVES = 2
MOST_CONTEXT = 8
MOST_OTHER_VALUES = 3
LONGEST = 160  # characters of a value
TITLES = {Kind.SYMPTOM: "RESULTS", Kind.DIFFERENCE: "DIFFERENCES (most relevant first)"}


def text(comparison: Comparison, *, width: int = 100, color: bool = False) -> str:
    """Return the comparison as lines of text, with or without ANSI colours."""
    return render_text(_parts(comparison), width=width, color=color)


def markdown(comparison: Comparison) -> str:
    """Return the comparison as Markdown."""
    return section(f"ncclforensics diff: {headline(comparison)}", text(comparison, width=120))


def headline(comparison: Comparison) -> str:
    """Return the result in a few words."""
    if not comparison.is_enough:
        return "UNDECIDABLE  too little in common to compare"
    if not comparison.matters:
        return "ALIKE  no relevant differences"
    symptoms, reasons = len(comparison.of(Kind.SYMPTOM)), len(comparison.of(Kind.DIFFERENCE))
    causes = f"{reasons} {plural('possible cause', reasons)}"
    counts = [f"{symptoms} in the results"] * bool(symptoms) + [causes] * bool(reasons)
    return f"DIFFERENT  {', '.join(counts)}"


def _parts(comparison: Comparison) -> list[RenderableType]:
    parts: list[RenderableType] = [
        Text.assemble(("GOOD  ", "bold green"), coverage(comparison.good)),
        Text.assemble(("BAD   ", "bold red"), coverage(comparison.bad)),
    ]
    style = STYLE["error"] if comparison.matters else STYLE["no-hang"] if comparison.is_enough else STYLE["warning"]
    parts.append(Text(f"\n{headline(comparison)}", style=style))
    for kind, title in TITLES.items():
        rows = comparison.of(kind)
        parts += [heading(title)] if rows else []
        for alike in _by_topic(rows):
            parts += _differences(comparison, alike)
        parts += _curves(comparison.curves) if kind is Kind.SYMPTOM and rows else []
    return [*parts, *_context(comparison), *_not_compared(comparison.not_compared), *_compared(comparison)]


def _by_topic(rows: list[Difference]) -> list[list[Difference]]:
    """Group neighbouring differences of one topic; every finding is a group of its own."""
    groups = groupby(enumerate(rows), lambda item: (item[1].topic, item[0] if item[1].topic == FINDINGS else None))
    return [[difference for _, difference in group] for _, group in groups]


def _differences(comparison: Comparison, alike: list[Difference]) -> list[RenderableType]:
    """Show the first difference with its lines, and the others of its topic in one line each."""
    difference, *others = alike
    parts: list[RenderableType] = [
        Text.assemble(
            ("\n  ", ""),
            (printable(difference.what), "bold"),
            (f"  ({difference.topic}, {difference.certainty})", "dim"),
        )
    ]
    table = table_without_header()
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold", ratio=1)
    cited = comparison.evidence(difference)
    for name, style, side, report, lines in (
        ("GOOD", "green", difference.good, comparison.good, cited[0]),
        ("BAD", "red", difference.bad, comparison.bad, cited[1]),
    ):
        table.add_row(Text(name, style=style), Text(side_text(side, difference.unit)))
        for line in lines:
            table.add_row("", _cited(report, line))
    for other in others[:MOST_ALIKE]:
        table.add_row("also", _line_of(other))
    if len(others) > MOST_ALIKE:
        table.add_row("", Text(f"and {len(others) - MOST_ALIKE} more of this kind", style="dim"))
    parts.append(indented(indented(table)))
    parts.append(indented(indented(Text(sentence(difference.means)))))
    if difference.follows:
        parts.append(
            indented(indented(Text(f"May follow from: {printable(', '.join(difference.follows))}.", style="dim")))
        )
    return parts


def _line_of(difference: Difference) -> Text:
    good, bad = side_text(difference.good, difference.unit), side_text(difference.bad, difference.unit)
    return Text.assemble((printable(difference.what), ""), (": ", ""), (good, "green"), (" → ", "dim"), (bad, "red"))


def side_text(side: Side, unit: str) -> str:
    """Return the values of a side with their counts: `IB (15 processes), Socket (1 process)`."""
    shown = side.values[:MOST_VALUES]
    texts = [
        shortened(printable(value), LONGEST)
        + (f" ({many} {plural(unit, many)})" if unit not in ("", "run", "job") and many else "")
        for value, many in shown
    ]
    more = len(side.values) - len(shown)
    return ", ".join(texts) + (f" and {more} more" if more else "")


def plural(unit: str, many: int) -> str:
    """Return the unit in singular or plural: `rank`, `ranks`, `pairs of ranks`."""
    first, of, rest = unit.partition(" of ")
    return unit if many == 1 else f"{first}{'es' if first.endswith('s') else 's'}{of}{rest}"


def _cited(report: Report, line: Row) -> Text:
    place = Text(place_of(report, line), style="cyan")
    return place.append("  " + " ".join(line["text"].split()), style="dim") if line["text"] else place


def _curves(curves: list[Curve]) -> list[RenderableType]:
    """Plot both runs over size."""
    parts: list[RenderableType] = []
    for curve in [curve for curve in curves if len(curve.points) >= MIN_SIZES][:MOST_CURVES]:
        good = [(size, value) for size, value, _ in curve.points]
        bad = [(size, value) for size, _, value in curve.points]
        drawing = plot({f"GOOD, {curve.unit}": good, f"BAD, {curve.unit}": bad})
        parts += [indented(Text(f"\n{printable(curve.title)}", style="dim")), indented(Text(drawing))]
    return parts


def _context(comparison: Comparison) -> list[RenderableType]:
    rows = comparison.of(Kind.CONTEXT)
    if not rows:
        return []
    table = table_without_header()
    table.add_column(style="dim", overflow="fold")
    table.add_column(overflow="fold", ratio=1)
    for difference in rows[:MOST_CONTEXT]:
        table.add_row(
            printable(difference.what),
            f"GOOD: {side_text(difference.good, difference.unit)}; BAD: {side_text(difference.bad, difference.unit)}",
        )
    more = len(rows) - MOST_CONTEXT
    rest = [indented(Text(f"and {more} more", style="dim"))] if more > 0 else []
    return [heading("CONTEXT (not a cause by itself)"), indented(table), *rest]


def _not_compared(absent: list[NotCompared]) -> list[RenderableType]:
    if not absent:
        return []
    table = table_without_header()
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold", ratio=1)
    for topic in absent:
        begin = {
            "good": "not in GOOD; BAD: ",
            "bad": "not in BAD; GOOD: ",
            "common": "nothing in common; ",
        }[topic.absent]
        shown = [shortened(printable(value), LONGEST) for value in topic.other_values[:MOST_OTHER_VALUES]]
        more = len(topic.other_values) - len(shown)
        rest = f" and {more} more" if more > 0 else ""
        table.add_row(topic.topic, f"{begin}{'; '.join(shown)}{rest}")
        table.add_row("", Text(f"to compare it: {topic.needs}", style="dim"))
    return [heading("NOT COMPARED"), indented(table)]


def _compared(comparison: Comparison) -> list[RenderableType]:
    if not comparison.compared:
        return []
    return [Text(f"\nCompared: {', '.join(comparison.compared)}.", style="dim")]
