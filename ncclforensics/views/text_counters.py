"""Ports and their counters, for a person: what states they are in, what grew from dump to dump, what is not zero."""

from __future__ import annotations

from math import log10

import polars as pl
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ncclforensics.data.counters import LINK_LIMITS
from ncclforensics.data.names import printable
from ncclforensics.report.build import Report, Row
from ncclforensics.rules.finding import Severity
from ncclforensics.rules.shared.port_text import port_name
from ncclforensics.views.text_layout import STYLE, headed, heading, indented

MOST = 12  # rows, unless all is asked for
LEVELS = "▁▂▃▄▅▆▇█"
DRAWN = 3  # dumps from which on growth is drawn over time
LONGEST = 16  # characters of a bar; and pairs of dumps in a line over time
TRAFFIC = ("bytes", "packets")
FIGURES = (3, 4, 5)  # columns of numbers


def counters(report: Report, verbose: bool) -> list[RenderableType]:
    """The ports by state and rate, and the counters of errors and waiting: first those that grew."""
    parts: list[RenderableType] = []
    if states := _states(report.run["port_state"]):
        parts += [heading("PORTS"), indented(Text(states))]
    if grew := grown(report):
        shown = grew if verbose else grew[:MOST]
        parts += [heading("COUNTERS THAT GREW"), indented(_grown(shown, report))]
        parts += _more(len(grew) - len(shown))
    return parts + _once(report, verbose)


def grown(report: Report) -> list[Row]:
    """What grew from the first dump of a port to the last, errors of links first (columns COUNTER_INCREASE)."""
    counters = _telling(report).filter(pl.col("increase") > 0)
    return counters.sort(~pl.col("name").is_in(list(LINK_LIMITS)), -pl.col("increase"), "key", "name").to_dicts()


def _telling(report: Report) -> pl.DataFrame:
    """All counters but those of traffic that arrived."""
    is_traffic = pl.col("unit").is_in(TRAFFIC) & (pl.col("name") != "port_xmit_discards")
    return report.run["counter_increase"].filter(~is_traffic)


def _once(report: Report, verbose: bool) -> list[RenderableType]:
    """The counters of ports that one dump tells of, the worst ports first."""
    old = _telling(report).filter((pl.col("dumps") == 1) & (pl.col("value") > 0)).sort("key", "name")
    if old.is_empty():
        return []
    ports = old.group_by("key", maintain_order=True).agg(
        pl.all().first(), told="name", values="value", stuck="is_saturated"
    )
    worst = old.filter(pl.col("name").is_in(list(LINK_LIMITS))).group_by("key").agg(worst=pl.col("value").max())
    ports = ports.join(worst, on="key", how="left").sort("worst", descending=True, nulls_last=True, maintain_order=True)
    rows = ports.to_dicts()
    shown = rows if verbose else rows[:MOST]
    title = heading("COUNTERS IN ONE DUMP (totals since they were cleared)")
    return [title, indented(_totals(shown)), *_more(len(rows) - len(shown))]


def _more(left: int) -> list[RenderableType]:
    return [indented(Text(f"and {left} more (-v shows all)", style="dim"))] if left > 0 else []


def _states(port_state: pl.DataFrame) -> str:
    """`38 active at 400 Gb/s, 3 down`: the last state of every port."""
    told = port_state.with_columns(
        key=pl.concat_str(["guid", "lid", "host", "device", "port"], separator=" ", ignore_nulls=True)
    ).unique("key", keep="last", maintain_order=True)
    kinds = told.group_by("state", "rate_Gbps", maintain_order=True).len()
    words = []
    for state, rate, many in kinds.sort("len", descending=True, maintain_order=True).iter_rows():
        at = f" at {rate:g} Gb/s" if rate is not None and state != "down" else ""
        words.append(f"{many} {state or 'linked'}{at}")
    return ", ".join(words)


def _grown(rows: list[Row], report: Report) -> Table:
    """A row for each counter; the bar is logarithmic, over time each pair of dumps is a level."""
    deltas, cited = report.run["counter_delta"], _cited(report)
    is_series = any(row["dumps"] >= DRAWN for row in rows)
    table = headed("", "port", "counter", "before", "after", "grew", "over time" if is_series else "")
    for number in FIGURES:
        table.columns[number].justify = "right"
    table.columns[-1].no_wrap = True
    most = max(row["increase"] for row in rows)
    for row in rows:
        steps = deltas.filter((pl.col("key") == row["key"]) & (pl.col("name") == row["name"]))
        least = "≥ " if row["is_lower_bound"] else ""
        drawn = _levels(steps["increase"].fill_null(0).to_list()) if is_series else _bar(row["increase"], most)
        severity = cited.get((row["source"], row["line"]), "")
        table.add_row(
            Text(severity, style=STYLE.get(severity, "")), port_name(row), printable(row["name"]),
            f"{steps['before'][0]:,}", f"{row['value']:,}", f"{least}{row['increase']:,}", Text(drawn, style="yellow"),
        )  # fmt: skip
    return table


def _cited(report: Report) -> dict[tuple[int, int], str]:
    """The severity of the worst finding that cites a line."""
    order = list(Severity)
    found = sorted(report.findings, key=lambda one: -order.index(one.severity or Severity.INFO))
    return {(line.source, line.line): str(one.severity) for one in found for line in one.evidence}


def _bar(value: int, most: int) -> str:
    """A bar whose length grows with the number of digits.

    >>> _bar(10, 1000), _bar(1000, 1000)
    ('█████', '████████████████')
    """
    return LEVELS[-1] * max(1, round(LONGEST * log10(max(value, 1)) / max(log10(max(most, 2)), 1e-9)))


def _levels(steps: list[int]) -> str:
    """Growth from dump to dump; where there are more than fit, the last ones.

    >>> _levels([0, 0, 1, 8])
    '▁▁▁█'
    """
    last = steps[-LONGEST:]
    most = max([*last, 1])
    return "".join(LEVELS[(len(LEVELS) - 1) * max(step, 0) // most] for step in last)


def _totals(rows: list[Row]) -> Table:
    table = headed("port", "not zero")
    for row in rows:
        told = zip(row["told"], row["values"], row["stuck"], strict=True)
        table.add_row(
            port_name(row), ", ".join(f"{printable(name)} {'≥ ' * stuck}{value:,}" for name, value, stuck in told)
        )
    return table
