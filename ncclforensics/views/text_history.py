"""A history as text: suspects, what is not decided, failed starts, bandwidths, and what came with a change."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl
from rich.console import RenderableType
from rich.text import Text

from ncclforensics.data.names import count_of, printable, shortened, some_of
from ncclforensics.history.bands import FEWEST, Measured, Series
from ncclforensics.history.overview import UNDECIDED, Overview
from ncclforensics.history.returning import ReturningPart
from ncclforensics.history.tables import HOST
from ncclforensics.views.markdown_syntax import section
from ncclforensics.views.text_layout import STYLE, heading, indented, render_text, table_with_header

MOST_SUSPECTS = 8
MOST_OPEN = 5
MOST_SERIES = 6
MOST_FIGURES = 5
MOST_CHANGES = 5
MOST_HOSTS = 3
LONGEST_VALUE = 60  # characters
LONGEST_STRIP = 60  # figures that are drawn, the latest


def text(overview: Overview, *, width: int = 100, color: bool = False, verbose: bool = False) -> str:
    """Return the history as lines of text, with or without ANSI colours; `verbose` adds all runs."""
    return render_text(_parts(overview, verbose), width=width, color=color)


def markdown(overview: Overview) -> str:
    """Return the history as Markdown, with all runs."""
    return section("ncclforensics history", text(overview, width=120, verbose=True))


def _parts(overview: Overview, verbose: bool) -> Iterator[RenderableType]:
    history = overview.history
    moments = history["run"]["moment"].sort()
    days = f" · {_day(moments[0])} to {_day(moments[-1])}" if len(moments) else ""
    hosts = history["part"].filter(pl.col("kind") == HOST)["host"].n_unique()
    yield Text(f"{count_of(len(moments), 'run')}{days} · {count_of(hosts, 'host')}", style="dim")
    named = _without_inner_parts([part for part in overview.returning if part.certainty])
    yield heading("SUSPECTS" if named else "NO SUSPECTS")
    for part in named[:MOST_SUSPECTS]:
        yield indented(_suspect(part, [inner for inner in overview.returning if inner.host == part.host]))
    yield from _more(len(named) - MOST_SUSPECTS)
    if named:
        yield indented(Text("To confirm: run without them, and test each alone (nccl-tests, dcgmi diag).", style="dim"))
    else:
        yield indented(Text("No host, GPU or port is named more often than chance explains."))
    is_shown = {part.host for part in named}
    still_open = [part for part in overview.returning if part.is_open and part.host not in is_shown]
    yield from _open(_without_inner_parts(still_open))
    yield from _usual([part for part in overview.returning if not part.certainty and not part.is_open])
    yield from _starts(overview)
    yield from _series(overview)
    yield from _changes(overview)
    if verbose:
        yield from _runs(overview)
    else:
        yield Text("\n-v: all runs with their numbers", style="dim")


def _without_inner_parts(parts: list[ReturningPart]) -> list[ReturningPart]:
    """Leave out GPUs and ports of hosts that are listed themselves."""
    hosts = {part.host for part in parts if part.kind == HOST}
    return [part for part in parts if part.kind == HOST or part.host not in hosts]


def _day(moment: str) -> str:
    return moment.partition("T")[0]


def _name(part: ReturningPart) -> str:
    return printable(f"{part.host} {part.kind} {part.name}" if part.name else part.host)


def _percent(share: float) -> str:
    return f"{share:.0%}".replace("%", " %")


def _suspect(part: ReturningPart, of_host: list[ReturningPart]) -> Text:
    """Describe a suspect; `of_host`: it and the other parts of its host that return."""
    low, high = part.share
    others = f"{part.others_named} of {part.others_runs}"
    rules = ", ".join(f"{rule} ({runs})" for rule, runs in part.rules.items())
    lines = Text.assemble(
        (_name(part), "bold"),
        (f"  ({part.certainty})  ", STYLE["warning"]),
        f"named in {part.named} of its {part.runs} runs ({_percent(low)} to {_percent(high)})\n",
        f"  the others: {others}; by chance {part.expected:.1f} of {part.runs}\n",
        (f"  {printable(rules)}; last in run {part.last_run}", "dim"),
    )
    if part.kind == HOST and (inner := [other for other in of_host if other.kind != HOST]):
        shown = ", ".join(f"{other.kind} {other.name} ({other.named})" for other in inner[:MOST_OPEN])
        lines.append(f"\n  on it: {printable(shown)}", style="dim")
    if part.rank is not None:
        lines.append(
            f"\n  It was rank {part.rank} each time: the program of that rank may be the cause as well. Give the "
            "rank to another host."
        )
    return lines


def _open(parts: list[ReturningPart]) -> Iterator[RenderableType]:
    if not parts:
        return
    yield heading("NOT DECIDABLE YET")
    table = table_with_header("what", "named", "the others", "further runs")
    for part in parts[:MOST_OPEN]:
        table.add_row(
            _name(part),
            f"{part.named} of {part.runs} runs",
            f"{part.others_named} of {part.others_runs}",
            str(part.further_runs),
        )
    yield indented(table)
    yield indented(Text("Further runs: so many would have to name it alone, to tell it from chance.", style="dim"))
    yield from _more(len(parts) - MOST_OPEN)


def _usual(parts: list[ReturningPart]) -> Iterator[RenderableType]:
    if parts:
        names = [f"{_name(part)} ({part.named} of {part.runs})" for part in parts]
        yield indented(Text(f"Named no more often than by chance: {some_of(names, MOST_OPEN)}.", style="dim"))


def _starts(overview: Overview) -> Iterator[RenderableType]:
    starts = overview.starts
    if not starts.decided:
        return
    yield heading("STARTS")
    low, high = starts.share
    kinds = ", ".join(f"{count} {verdict}" for verdict, count in starts.failed.items())
    undecided = f"; {starts.undecided} more undecided" if starts.undecided else ""
    yield indented(
        Text(
            f"{sum(starts.failed.values())} of {starts.decided} failed ({_percent(low)} to {_percent(high)})"
            f"{': ' * bool(kinds)}{kinds}{undecided}"
        )
    )


def _series(overview: Overview) -> Iterator[RenderableType]:
    if not overview.series:
        return
    yield heading("BUSBW")
    judged = [(test, test.band) for test in overview.series if test.band is not None]
    for test, band in judged[:MOST_SERIES]:
        yield indented(Text(printable(test.test), style="bold"))
        yield indented(indented(_figures(test, band)))
    yield from _more(len(judged) - MOST_SERIES)
    if rest := len(overview.series) - len(judged):
        fewest = f"the commonest needs {overview.series[0].missing} more" if not judged else f"each needs {FEWEST}"
        figures = f"{count_of(rest, 'other test' if judged else 'test')} with too few figures for a band; {fewest}"
        yield indented(Text(figures, style="dim"))


def _figures(test: Series, band: tuple[float, float]) -> Text:
    count = f"{count_of(len(test.figures), 'test')} in {count_of(len({row.run for row in test.figures}), 'run')}"
    low, high = band
    lines = Text(f"{count}, median {test.median:.4g} GB/s, expected {low:.4g} to {high:.4g}")
    lines.append(f"\n{_strip(test)}")
    for side, figures, style in (("below", test.below, STYLE["warning"]), ("above", test.above, STYLE["info"])):
        for figure in figures[-MOST_FIGURES:]:
            lines.append(f"\n{side}  ", style=style).append(_figure(figure))
        if len(figures) > MOST_FIGURES:
            lines.append(f"\nand {len(figures) - MOST_FIGURES} earlier {side}", style="dim")
    return lines


def _figure(figure: Measured) -> str:
    hosts = figure.hosts.split(", ") if figure.hosts else []
    place = f" on {printable(some_of(hosts, MOST_HOSTS))}" if hosts else ""
    return f"{figure.busbw:.4g} GB/s in run {figure.run}, {_day(figure.moment)}{place}"


def _strip(test: Series) -> str:
    """Draw the latest figures as marks: within the band, below it, above it."""
    below, above = set(map(id, test.below)), set(map(id, test.above))
    latest = test.figures[-LONGEST_STRIP:]
    return "".join("▼" if id(figure) in below else "▲" if id(figure) in above else "·" for figure in latest)


def _changes(overview: Overview) -> Iterator[RenderableType]:
    """Show the rules and the bandwidths that came with a change."""
    rows = [
        (first.rule, f"in {first.found} of {count_of(len(first.change.runs), 'run')}, in none before", first.change)
        for first in overview.first_seen
    ]
    rows += [
        (shift.test, f"median {shift.before:.4g} GB/s before, {shift.after:.4g} GB/s since", shift.change)
        for shift in overview.shifts
    ]
    if not rows:
        return
    yield heading("FIRST SEEN AFTER A CHANGE (possible: other things may have changed, too)")
    for name, counts, change in rows[:MOST_CHANGES]:
        facts = "; ".join(
            f"{fact} {shortened(before, LONGEST_VALUE)} → {shortened(after, LONGEST_VALUE)}"
            for fact, before, after in change.facts[:MOST_CHANGES]
        )
        since = f"since run {change.first_run}, {count_of(len(change.others), 'run')} with other values"
        lines = Text.assemble((printable(name), "bold"), f"\n  {counts}\n  {printable(facts)}\n  {since}")
        yield indented(lines)
    yield from _more(len(rows) - MOST_CHANGES)


def _runs(overview: Overview) -> Iterator[RenderableType]:
    yield heading("RUNS")
    history = overview.history
    verdicts: dict[int, list[str]] = {}
    for run, verdict in history["start"].select("run", "verdict").iter_rows():
        verdicts.setdefault(run, []).append(verdict)
    tested = {*history["measurement"]["run"]}
    table = table_with_header("run", "time", "verdict", "path")
    for row in history["run"].sort("moment", "run").to_dicts():
        is_test = row["run"] in tested and {*verdicts.get(row["run"], ())} <= {UNDECIDED}
        of_run = "benchmark" if is_test else ", ".join(dict.fromkeys(verdicts.get(row["run"], ())))
        table.add_row(str(row["run"]), row["moment"].replace("T", " "), printable(of_run), printable(row["path"]))
    yield indented(table)


def _more(count: int) -> Iterator[RenderableType]:
    if count > 0:
        yield indented(Text(f"and {count} more", style="dim"))
