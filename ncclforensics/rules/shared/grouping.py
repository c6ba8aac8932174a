"""Group equal lines of many processes into one finding with their ranks, hosts and lines of evidence."""

from __future__ import annotations

from typing import Any

import polars as pl

from ncclforensics.data.names import ranks_text
from ncclforensics.frames.columns import OWNER, text_of
from ncclforensics.rules.finding import Finding, Line

SHOWN = 4  # lines of evidence; first one of each host


def together(rows: pl.DataFrame, rank: pl.DataFrame, title: str, detail: str, certainty: str, **more: Any) -> Finding:
    """Return one finding on all rows of a parsed frame (columns `host`, `pid`, `source`, `line`).

    `{who}` in the title becomes the ranks, or the hosts if no rank is known; `more`: further fields of the finding.
    """
    if "host" in rows:
        reporting = rank.join(rows.select("host", "pid").unique(), on=OWNER, how="semi")
        ranks = sorted(reporting["rank"].drop_nulls().unique().to_list())
        hosts = sorted(rows["host"].cast(pl.String).drop_nulls().unique().to_list())
    else:
        ranks, hosts = sorted(rows["launcher_rank"].drop_nulls().unique().to_list()), []
    return Finding(
        title=title.replace("{who}", who(ranks, hosts, rank)),
        detail=detail,
        certainty=certainty,
        ranks=ranks,
        hosts=hosts,
        evidence=shown(rows),
        **more,
    )


def error_finding(rows: pl.DataFrame, rank: pl.DataFrame, title: str, detail: str, certainty: str) -> Finding:
    """Return one finding on all processes that report the same error (columns `rank`, `host`, `source`, `line`).

    `{who}` in the title becomes the ranks, or the hosts if no rank is known.
    """
    ranks = sorted(rows["rank"].drop_nulls().unique().to_list())
    hosts = sorted(rows["host"].cast(pl.String).drop_nulls().unique().to_list())
    title = title.replace("{who}", who(ranks, hosts, rank))
    return Finding(title, detail, certainty, ranks=ranks, hosts=hosts, evidence=shown(rows))


def shown(rows: pl.DataFrame, what: str = "") -> list[Line]:
    """Return up to SHOWN distinct lines of the rows, from as many hosts as possible, labelled `what`."""
    ordered = rows.sort("source", "line")
    if "host" in rows:  # sorted by name: independent of the order of files
        ordered = rows.with_columns(_host=text_of("host")).sort("_host", "pid" if "pid" in rows else "source", "line")
        first = pl.int_range(pl.len()).over("_host")
        ordered = ordered.with_columns(_nth=first).sort("_nth", "_host", maintain_order=True)
    places = ordered.select("source", "line").unique(maintain_order=True).head(SHOWN)
    return [Line(source, line, what) for source, line in places.iter_rows()]


def first(column: pl.Series) -> Any:
    """Return the first value that is not null, or None."""
    return column.first(ignore_nulls=True)


def who(ranks: list[int], hosts: list[str], rank: pl.DataFrame) -> str:
    """Format ranks and hosts: `all ranks`, `ranks 0-7 on node1`, `3 hosts (a, b, c)`."""
    where = (
        f"on {hosts[0]}" if len(hosts) == 1 else f"on {len(hosts)} hosts ({', '.join(hosts[:SHOWN])})" if hosts else ""
    )
    if not ranks:
        return where.removeprefix("on ") or "a process"
    ranks_of_job = rank["rank"].drop_nulls().unique().to_list()
    if len(ranks_of_job) > 1 and set(ranks) == set(ranks_of_job):
        return "all ranks"
    return f"{ranks_text(ranks)} {where}".strip()
