"""What PyTorch's watchdogs say: which work a rank timed out at, and how far it had come.

A rank that reports a time-out is a victim: the culprit called less, or nothing. The numbers count per process group,
from 1 on; what a group's monitor prints belongs to that group, whichever timed out (formats: pytorch.md, section 3).
"""

from __future__ import annotations

from collections import Counter, defaultdict

import polars as pl

from ncclforensics.analyses.hang.job import Case, Diagnosis, Row
from ncclforensics.data.names import ranks_text
from ncclforensics.frames.columns import text_of
from ncclforensics.frames.registry import analysis

WORK = {
    "rank": pl.Int32(),  # in the job
    "guid": pl.String(),  # the group, by the name that its members share; empty where none is printed
    "group": pl.String(),
    "group_rank": pl.Int64(),
    "sequence": pl.Int64(),  # of the work that timed out
    "enqueued": pl.Int64(),
    "completed": pl.Int64(),
    "operation": pl.String(),
    "numel": pl.Int64(),  # going in
    "source": pl.Int32(),
    "line": pl.Int32(),
}

WORLD = ("", "0")  # guids of the group of all ranks; up to 2.2 no group is named
UNSET = 1 << 40  # counters beyond it were never written
SIZED = ("ALLREDUCE", "BROADCAST", "REDUCE")  # all members pass equally many elements
NAMES = {
    "ALLREDUCE": "AllReduce",
    "BROADCAST": "Broadcast",
    "REDUCE": "Reduce",
    "_ALLGATHER_BASE": "AllGather",
    "ALLGATHER": "AllGather",
    "_REDUCE_SCATTER_BASE": "ReduceScatter",
    "REDUCE_SCATTER": "ReduceScatter",
    "ALLTOALL": "AlltoAll",
    "ALLTOALL_BASE": "AlltoAll",
    "SEND": "Send",
    "RECV": "Recv",
}


@analysis(WORK, of=("work_timeout", "work_status"))
def work(work_timeout: pl.DataFrame, work_status: pl.DataFrame) -> pl.DataFrame:
    """One row per rank and group that reports a time-out; the same message comes up to four times."""
    own = work_status.filter(pl.col("enqueued").is_not_null())
    known = ["global_rank", "launcher_rank", "guid", "group", "group_rank", "sequence"]
    both = pl.concat(
        [
            work_timeout.select(*known, "pos", "source", "line", "operation", numel="numel_in"),
            own.select(*known, "pos", "source", "line", "enqueued", "completed"),
        ],
        how="diagonal",
    )
    named = both.with_columns(
        guid=text_of("guid").fill_null(""),
        rank=pl.coalesce("global_rank", "launcher_rank").cast(pl.Int32),
    ).sort("pos")
    # Where no line names the global rank and no group is named either, there is one group, and its ranks are the job's.
    alone = pl.col("guid").is_in(WORLD).all()
    rank = pl.coalesce("rank", pl.when(alone).then(pl.col("group_rank").cast(pl.Int32)))
    first = [pl.col(name).drop_nulls().first() for name in WORK if name not in ("rank", "guid")]
    return (
        named.with_columns(rank=rank)
        .filter(pl.col("rank").is_not_null())
        .with_columns(_merged_guid())
        .group_by("rank", "guid", maintain_order=True)
        .agg(first)
        .with_columns(
            pl.when(pl.col(name).is_between(-1, UNSET)).then(name).alias(name) for name in ("enqueued", "completed")
        )
    )


def _merged_guid() -> pl.Expr:
    """The time-out itself names no group; the line of the same rank that tells how far it came does."""
    told = pl.col("guid").filter(pl.col("guid") != "").first().over("rank", "sequence")
    return pl.when(pl.col("guid") == "").then(told.fill_null("")).otherwise("guid").alias("guid")


def _groups(case: Case) -> list[tuple[str, list[Row]]]:
    """The groups that timed out, the one with most reports first."""
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in case.works:
        groups[row["guid"]].append(row)
    return sorted(groups.items(), key=lambda item: -len(item[1]))


def _judged(case: Case, verdict: str, reason: str, certainty: str, rows: list[Row], ranks: list[int]) -> Diagnosis:
    by_rank = {rank_id["rank"]: number for number, rank_id in case.rank_ids.items()}
    diagnosis = Diagnosis(verdict, reason, certainty)
    diagnosis.culprits = sorted(by_rank[rank] for rank in ranks if rank in by_rank)
    diagnosis.missing = sorted(rank for rank in ranks if rank not in by_rank)
    diagnosis.victims = sorted(rank_id for rank_id in case.rank_ids if rank_id not in diagnosis.culprits)
    accused = [row for row in rows if row["rank"] in ranks]
    waiting = [row for row in rows if row["rank"] not in ranks]
    call = next((row for row in waiting if row["operation"]), None)
    if call:
        diagnosis.call = {"name": NAMES.get(call["operation"], call["operation"].strip("_").title())}
    for what, lines in (("culprit", accused[:4]), ("waiting", waiting[:3])):
        diagnosis.show(what, [{**row, "rank_id": by_rank.get(row["rank"])} for row in lines])
    return diagnosis


def desynchronised(case: Case) -> Diagnosis | None:
    """A rank called less than the others wait for, or something else."""
    for guid, rows in _groups(case):
        at = max((row["sequence"] for row in rows if row["sequence"] is not None), default=0)
        name = f"process group {guid}" if guid else "its process group"
        # A rank that has work of its own outstanding waits itself.
        behind = sorted(
            row["rank"] for row in rows if row["enqueued"] is not None and _is_idle(row) and row["enqueued"] < at
        )
        if behind and len(behind) < len(rows):
            reason = f"had not enqueued work {at} of {name} when the watchdogs of the others timed out at it"
            return _judged(case, "lagging-ranks", reason, "likely", rows, behind)
        same = [row for row in rows if row["sequence"] == at and row["operation"]]
        calls = Counter((row["operation"], row["numel"] if row["operation"] in SIZED else None) for row in same)
        if len(calls) > 1:
            most = calls.most_common(1)[0][0]
            odd = [r["rank"] for r in same if (r["operation"], r["numel"] if r["operation"] in SIZED else None) != most]
            few = odd if len(odd) < len(same) / 2 else [row["rank"] for row in same]
            reason = f"called something else than the others as work {at} of {name}"
            return _judged(case, "collective-mismatch", reason, "likely", rows, few)
    lagging = sorted({rank for row in case.desyncs for rank in row["ranks"]})
    if lagging and len(lagging) < len(case.rank_ids):
        diagnosis = _judged(
            case, "lagging-ranks", "PyTorch's desync report names them as lagging", "likely", case.works, lagging
        )
        diagnosis.show("culprit", [{**row, "rank_id": None} for row in case.desyncs[:2]])
        return diagnosis
    return None


def _is_idle(row: Row) -> bool:
    return row["completed"] is not None and bool(row["completed"] >= row["enqueued"])


def timed_out(case: Case) -> Diagnosis | None:
    """Watchdogs timed out, and no counter tells of a rank that called less.

    A rank that printed nothing is not accused: the launcher takes the others down once the first watchdog has fired.
    """
    if not case.works:
        return None
    guid, rows = _groups(case)[0]
    stuck = [row for row in rows if row["sequence"] is not None]
    seen = {row["rank"] for row in rows}
    numbers = {*(rank_id["rank"] for rank_id in case.rank_ids.values()), *case.absent} - {None}
    numbers |= set(range(max(seen, default=0)))  # who has the number 3 is not alone
    silent = ranks_text(sorted(numbers - seen)) if guid in WORLD else ""
    if not stuck or any(row["enqueued"] is None for row in rows):
        reason = "watchdogs timed out, and nothing tells how far each rank had come"
        answer = _judged(case, "undecidable", reason, "likely", rows, [])
        answer.collect = ["TORCH_NCCL_TRACE_BUFFER_SIZE=20000 and TORCH_NCCL_DUMP_ON_TIMEOUT=1", "every rank's stderr"]
        return answer
    at = min((row["sequence"] for row in stuck), default=0)
    ahead = ranks_text(sorted(row["rank"] for row in rows if (row["completed"] or 0) >= at))
    reason = f"enqueued work {at} and did not complete it: a transport, a GPU or a size, not a missing call"
    if ahead:
        reason += f"; {ahead} completed it, which makes the links of the others suspect"
    answer = _judged(case, "stuck-together", reason, "possible" if silent or ahead else "likely", rows, [])
    if silent:
        answer.collect = [f"the end of the log of {silent}, which printed nothing"]
    return answer
