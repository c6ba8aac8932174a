"""Ranks in a few rows of a small terminal: culprits by host, and the ranks that wait, failed, or lag as well."""

from __future__ import annotations

import polars as pl
from rich.console import RenderableType
from rich.text import Text

from ncclforensics.analyses.verdict.answer import Answer
from ncclforensics.analyses.verdict.vocabulary import Kind
from ncclforensics.data.names import ranks_text
from ncclforensics.report.build import Report
from ncclforensics.report.failed_ranks import failed_ranks, share_of_job
from ncclforensics.views.text_layout import indented, one_row

MOST_PLACES = 3
WITHOUT_LOG = "read-missing-log-is-evidence"


def culprits_by_host(report: Report, answer: Answer) -> list[RenderableType]:
    """Name the culprits of each host in one line."""
    ranks = (
        report.run["rank"].filter(pl.col("rank_id").is_in(answer.culprits)).drop_nulls(["rank", "host"]).sort("rank")
    )
    hosts = ranks.group_by(pl.col("host").cast(pl.String), maintain_order=True).agg("rank")
    named = [f"{ranks_text(numbers)} on {host}" for host, numbers in hosts.iter_rows()]
    more = [f"{len(named) - MOST_PLACES} more hosts"] if len(named) > MOST_PLACES else []
    return [indented(one_row(Text(f"culprits: {'; '.join([*named[:MOST_PLACES], *more])}")))] if named else []


def waiting(report: Report, answer: Answer) -> list[RenderableType]:
    """Say which ranks wait and which reported an error, then which are behind, too, and which have no log."""
    if not answer.victims or not answer.culprits:
        return []
    stopped = failed_ranks(report.run, answer)
    failed = [rank_id for rank_id in answer.victims if rank_id in stopped]
    still = [rank_id for rank_id in answer.victims if rank_id not in stopped]

    def counted(rank_ids: list[int]) -> str:
        share, numbers = share_of_job(report.run, answer, rank_ids), ranks_text(report.numbers(rank_ids))
        return f"{numbers} ({share})" if numbers else share

    states = (("waiting", still), ("also stopped with an error", failed))
    parts = [f"{state}: {counted(rank_ids)}" for state, rank_ids in states if rank_ids]
    if answer.verdict == Kind.DEADLOCK and still and answer.key:  # culprits stand in a call of another communicator
        parts[0] += f" in {answer.operation.text} on {report.groups.text(answer.key)}"
    lagging = _other_lagging_ranks(report, answer)
    places = [f"{ranks_text(report.numbers(rank_ids))} at {where}" for rank_ids, where in lagging[:MOST_PLACES]]
    places += [f"{len(lagging) - MOST_PLACES} more places"] if len(lagging) > MOST_PLACES else []
    also = [f"also behind: {'; '.join(places)}"] if places else []
    also += [finding.title for finding in report.findings if finding.rule == WITHOUT_LOG]
    return [indented(Text("; ".join(parts))), *(indented(one_row(Text(line))) for line in also)]


def _other_lagging_ranks(report: Report, answer: Answer) -> list[tuple[list[int], str]]:
    """Rank ids that wait for nothing, for which others wait, and where: as far as the verdict is not about them.

    A job may have a second fault, which the first one does not explain.
    """
    waits = report.job(answer.job).waits
    concerned = set(report.run["member"].filter(pl.col("key") == pl.lit(answer.key, pl.String))["rank_id"])
    concerned |= {wait.waiter for wait in waits} | set(answer.culprits)
    lagging: list[tuple[list[int], str]] = []
    distinct = {id(wait.waits_for): wait for wait in waits}  # ranks that wait in one call share the tuple
    for wait in sorted(distinct.values(), key=lambda wait: len(wait.waits_for)):
        if lacking := set(wait.waits_for) - concerned:
            concerned |= lacking
            lagging.append((sorted(lacking), wait.text(report.groups.text(wait.key))))
    return lagging
