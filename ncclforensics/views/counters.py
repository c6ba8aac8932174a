"""Ports and their counters, for a person: what states they are in, what grew from dump to dump, what is not zero."""

from __future__ import annotations

from math import log10

import polars as pl
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ncclforensics.data.counters import LINK_LIMITS
from ncclforensics.data.names import printable
from ncclforensics.report import Report, Row
from ncclforensics.rules.links import port_name

MOST = 12  # rows, unless all is asked for
LEVELS = "▁▂▃▄▅▆▇█"
DRAWN = 3  # dumps from which on growth is drawn over time
LONGEST = 16  # characters of a bar; and pairs of dumps in a line over time
TRAFFIC = ("bytes", "packets")


def counters(report: Report, verbose: bool) -> list[RenderableType]:
    """The ports by state and rate, and the counters of errors and waiting: first those that grew."""
    growth = report.run["counter_growth"].filter(
        ~pl.col("unit").is_in(TRAFFIC) | (pl.col("name") == "port_xmit_discards")
    )
    is_of_link = pl.col("name").is_in(list(LINK_LIMITS))
    parts: list[RenderableType] = []
    if states := _states(report.run["port_state"]):
        parts += [Text("\nPORTS", style="bold"), Padding(Text(states), (0, 0, 0, 2))]
    grew = growth.filter(pl.col("growth") > 0).sort(~is_of_link, -pl.col("growth"), "key", "name").to_dicts()
    if grew:
        shown = grew if verbose else grew[:MOST]
        deltas = report.run["counter_delta"]
        parts += [Text("\nCOUNTERS THAT GREW", style="bold"), Padding(_grown(shown, deltas), (0, 0, 0, 2))]
        parts += _more(len(grew) - len(shown))
    old = growth.filter((pl.col("dumps") == 1) & (pl.col("value") > 0)).sort("key", "name")
    if old.height:
        parts += [Text("\nCOUNTERS IN ONE DUMP (totals since they were cleared)", style="bold")]
        ports = old.group_by("key", maintain_order=True).agg(
            pl.all().first(), told="name", values="value", stuck="is_saturated"
        )
        worst = old.filter(is_of_link).group_by("key").agg(worst=pl.col("value").max())
        ports = ports.join(worst, on="key", how="left").sort(
            "worst", descending=True, nulls_last=True, maintain_order=True
        )
        rows = ports.to_dicts()
        shown = rows if verbose else rows[:MOST]
        parts += [Padding(_totals(shown), (0, 0, 0, 2)), *_more(len(rows) - len(shown))]
    return parts


def _more(left: int) -> list[RenderableType]:
    return [Padding(Text(f"and {left} more (-v shows all)", style="dim"), (0, 0, 0, 2))] if left > 0 else []


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


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False, pad_edge=False, header_style="dim")
    for column in columns:
        is_number = column in ("before", "after", "grew")
        table.add_column(column, overflow="fold", justify="right" if is_number else "left", no_wrap=not column)
    return table


def _grown(rows: list[Row], deltas: pl.DataFrame) -> Table:
    """A row for each counter; the bar is logarithmic, over time each pair of dumps is a level."""
    is_series = any(row["dumps"] >= DRAWN for row in rows)
    table = _table("port", "counter", "before", "after", "grew", "over time" if is_series else "")
    most = max(row["growth"] for row in rows)
    for row in rows:
        steps = deltas.filter((pl.col("key") == row["key"]) & (pl.col("name") == row["name"]))
        least = "≥ " if row["is_least"] else ""
        drawn = _levels(steps["growth"].fill_null(0).to_list()) if is_series else _bar(row["growth"], most)
        table.add_row(
            port_name(row), printable(row["name"]), f"{steps['before'][0]:,}", f"{row['value']:,}",
            f"{least}{row['growth']:,}", Text(drawn, style="yellow"),
        )  # fmt: skip
    return table


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
    table = _table("port", "not zero")
    for row in rows:
        told = zip(row["told"], row["values"], row["stuck"], strict=True)
        table.add_row(
            port_name(row), ", ".join(f"{printable(name)} {'≥ ' * stuck}{value:,}" for name, value, stuck in told)
        )
    return table
