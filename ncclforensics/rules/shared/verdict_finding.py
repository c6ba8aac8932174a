"""Turn a verdict into a finding: culprits, hosts, the call, and the lines of evidence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import polars as pl

from ncclforensics.data.names import operation_text, ranks_text
from ncclforensics.rules.finding import Finding, Line

Row = dict[str, Any]
LONGEST_GROUP = 40  # characters of the ranks of a communicator in a title
WITHOUT_SUBJECT = ("init-failed", "undecidable", "stuck-together")  # verdicts whose reason is no predicate of ranks


def verdicts_of(verdict: pl.DataFrame, *names: str) -> Iterator[Row]:
    """Yield the rows of `verdict` with one of these verdicts."""
    yield from verdict.filter(pl.col("verdict").is_in(names)).to_dicts()


def ranks_with_output(row: Row, rank: pl.DataFrame, source: pl.DataFrame) -> set[int]:
    """Return the ranks that lines name, or the name of a file; not those that the verdict finds without a log."""
    return {*rank["rank"], *source["hint"]} - {*row["absent"]}


def verdict_finding(row: Row, verdict_evidence: pl.DataFrame, rank: pl.DataFrame, title: str) -> Finding:
    """Return the finding on one job; `{ranks}` and `{call}` in the title become the culprits and the call."""
    culprits = rank.filter(pl.col("rank_id").is_in(row["culprits"]))
    numbers = sorted({*culprits["rank"].drop_nulls().to_list(), *row["missing"]})
    hosts = sorted(culprits["host"].cast(pl.String).drop_nulls().unique().to_list())
    places = culprits.filter(pl.col("rank").is_null()).select("host", "pid").iter_rows()
    processes = ", ".join(_process_text(host, pid) for host, pid in places)
    culprits_text = ranks_text(numbers) or processes or "no rank in particular"
    where = f" on {hosts[0]}" if len(hosts) == 1 and numbers else ""
    lines = verdict_evidence.filter(pl.col("job") == row["job"])
    evidence = [Line(line["source"], line["line"], line["what"]) for line in lines.to_dicts()]
    is_of_ranks = row["verdict"] not in WITHOUT_SUBJECT
    subject = (ranks_text(numbers) or processes) if is_of_ranks else ""
    members = row["call_ranks"] or []  # culprits may lack calls of several communicators, of which the row names one
    group = ranks_text(members) if set(numbers) <= set(members) else ""
    of_group = f" of {group}" if row["name"] and row["caller"] is None and 0 < len(group) <= LONGEST_GROUP else ""
    return Finding(
        title=title.format(ranks=culprits_text + where, call=operation_text(row) + of_group),
        detail=f"{subject} {row['reason']}".strip(),
        certainty=row["certainty"],
        ranks=numbers,
        hosts=hosts,
        communicator=row["key"],
        evidence=evidence,
        job=row["job"],
    )


def _process_text(host: str | None, pid: int | None) -> str:
    """Name a process whose rank is unknown."""
    process = "a process" if pid is None else f"process {pid}"
    return f"{process} on {host}" if host else process
