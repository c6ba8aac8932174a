"""Find the ranks of ended processes where only PyTorch's and a launcher's text shows them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

import polars as pl

from ncclforensics.analyses.job.ends.exit_reports import ExitReport
from ncclforensics.analyses.job.ends.exit_rows import PYTHON_ERROR, RAISED, TORCHRUN
from ncclforensics.frames.columns import short_name


def with_ranks(
    reports: list[ExitReport],
    torch_source: pl.DataFrame,
    exception: pl.DataFrame,
    launched_rank: pl.DataFrame,
    elastic_failure: pl.DataFrame,
) -> list[ExitReport]:
    """Set the ranks of reports: by the file of a rank, a launcher's lists of processes, srun's task numbers.

    A launcher's task number is a rank where its label in front of lines equals the rank that PyTorch prints there. The
    only exception in the output of a torchrun, if it stands there as often as torchrun found processes to have ended
    with an error, is of each of them; not where tracebacks there name these ranks: it is of a thread or was caught.
    """
    named = exception.filter(form="traceback").select("source", "rank").drop_nulls()
    # PyTorch's hook puts the rank in front of every line of a traceback: one without it is of another process.
    of_file = torch_source.select("source", "rank").join(named, on=["source", "rank"], how="anti")
    rank_of_source = dict(of_file.drop_nulls().iter_rows())
    is_label_rank = labels_are_ranks(exception, elastic_failure)
    ranks_of_pid: dict[int, dict[str, int]] = defaultdict(dict)  # pid -> node -> rank
    for pid, node, rank in launched_rank.select("pid", "node", "rank").iter_rows():
        ranks_of_pid[pid][_short(node)] = rank
    for report in reports:
        if report.rank is not None and report.pid is not None:
            ranks_of_pid[report.pid][_short(report.node)] = report.rank
    for report in reports:
        if report.rank is not None:
            continue
        if report.child is not None:
            report.rank = report.child if is_label_rank and elastic_failure.is_empty() else None
        elif report.pid is not None:
            of_pid = ranks_of_pid.get(report.pid, {})
            same_pid = {rank for node, rank in of_pid.items() if _fits(node, report.node)}
            report.rank = same_pid.pop() if len(same_pid) == 1 else None
        elif report.node is None:
            label = report.row.get("launcher_rank")
            report.rank = label if is_label_rank and label is not None else rank_of_source.get(report.row["source"])
    unnamed = exception.filter(pl.col("rank").is_null()).group_by("source", "message").len()
    printed = {(source, message): count for source, message, count in unnamed.iter_rows()}
    others: list[ExitReport] = []
    for source, ranks in _ranks_of_errors(reports).items():
        if not ranks.isdisjoint(named.filter(source=source)["rank"]):
            continue
        found = [report for report in reports if report.row["source"] == source and _is_unnamed_exception(report)]
        # Of several processes that print the same one report is left.
        if len(found) == 1 and printed.get((source, found[0].message), 1) == len(ranks):
            found[0].rank, *more = sorted(ranks)
            others += [replace(found[0], rank=rank) for rank in more]
    return reports + others


def labels_are_ranks(exception: pl.DataFrame, elastic_failure: pl.DataFrame) -> bool:
    """Whether a launcher's label in front of lines equals the rank that PyTorch prints there, wherever both stand.

    Where torchrun, which starts the ranks, prints without a label, those that its ranks print tell them, too.
    """
    labels = exception.drop_nulls(["rank", "launcher_rank"])
    if not labels.is_empty():
        return bool((labels["rank"] == labels["launcher_rank"]).all())
    return not elastic_failure.is_empty() and elastic_failure["launcher_rank"].is_null().all()


def _ranks_of_errors(reports: Iterable[ExitReport]) -> dict[int, set[int]]:
    """Source -> the ranks whose processes torchrun found to have ended as Python's do at an exception."""
    ranks: dict[int, set[int]] = defaultdict(set)
    for report in reports:
        if report.reporter == TORCHRUN and report.code == PYTHON_ERROR and report.rank is not None:
            ranks[report.row["source"]].add(report.rank)
    return ranks


def _is_unnamed_exception(report: ExitReport) -> bool:
    return report.how in RAISED and not report.follows and report.rank is None and report.pid is None


def _short(node: str | None) -> str:
    return short_name(node or "")


def _fits(node: str, other: str | None) -> bool:
    """Whether two names may be of one host; a name that is not printed fits all."""
    return not node or not other or node == _short(other)
