"""Hold a verdict by NCCL's lines against the numbers of calls that the Inspector, a profiler's trace or RAS show.

The last lines of a log may be lost in a buffer. A number that NCCL counted in memory shows that the rank made the call,
so where the log lacks a call that was counted, the count decides. That a source shows no later call proves nothing.
"""

from __future__ import annotations

from collections import defaultdict

import polars as pl

from ncclforensics.analyses.hang.job import Job, Row
from ncclforensics.analyses.job.counted_calls import INSPECTOR, PROFILER, RAS
from ncclforensics.analyses.verdict.doubts import Doubt
from ncclforensics.analyses.verdict.explanation import Explanation
from ncclforensics.analyses.verdict.vocabulary import Kind
from ncclforensics.data.names import count_of, ranks_text
from ncclforensics.data.variables import STACKS_OF_HOST

SOURCES = {INSPECTOR: "NCCL's Inspector", PROFILER: "the trace of NCCL's profiler", RAS: "the RAS report"}
# No member completes one of these before all have called it.
SYMMETRIC = ("AllReduce", "AllGather", "ReduceScatter")


def weigh_counts(job: Job, diagnosis: Explanation) -> Explanation:
    """Return the diagnosis of ranks that did not make a call, with what the counts add; undecidable if they made it."""
    if diagnosis.verdict != Kind.LAGGING or not job.counted_calls:
        return diagnosis
    for shown_by in SOURCES:
        is_supported = False
        for key, nth, lagging in _missing_calls(job, diagnosis):
            counts = _counts(job, key, shown_by)
            if not _fit_logs(job, key, counts, lagging):
                continue
            made = [rank_id for rank_id in lagging if sum(counts[rank_id].values()) > nth]
            if made:
                return _contradicted(job, diagnosis, made, key, shown_by, counts)
            is_supported = is_supported or _add_support(job, diagnosis, lagging, key, nth, shown_by)
    return diagnosis


def _missing_calls(job: Job, diagnosis: Explanation) -> list[tuple[str, int, list[int]]]:
    """The first collective of each communicator that culprits did not make: key, number, culprits."""
    first: dict[str, tuple[int, list[int]]] = {}
    for edge in job.awaited_calls:
        lagging = [rank_id for rank_id in diagnosis.culprits if rank_id in edge["waits_for"]]
        if lagging and edge["kind"] == "collective" and edge["nth"] < first.get(edge["key"], (edge["nth"] + 1,))[0]:
            first[edge["key"]] = (edge["nth"], lagging)
    found = [(key, nth, lagging) for key, (nth, lagging) in first.items()]
    return sorted(found, key=lambda missing: missing[0] != diagnosis.key)  # that of the verdict first


def _counts(job: Job, key: str, shown_by: str) -> dict[int, dict[str, int]]:
    """Rank id -> operation -> the calls that it made at least; a completed one was made by all members."""
    counts: dict[int, dict[str, int]] = defaultdict(dict)
    rows = [row for row in job.counted_calls if (row["key"], row["shown_by"]) == (key, shown_by)]
    for row in rows:
        by_all = shown_by == INSPECTOR and row["operation"] in SYMMETRIC
        for rank_id in job.seen_members(key) if by_all else [row["rank_id"]]:
            counts[rank_id][row["operation"]] = max(row["calls"], counts[rank_id].get(row["operation"], 0))
    return counts


def _fit_logs(job: Job, key: str, counts: dict[int, dict[str, int]], lagging: list[int]) -> bool:
    """Whether the logs of the other members show as many calls: else these are of another moment, or of CUDA graphs."""
    others = [rank_id for rank_id in counts if rank_id not in lagging]
    return bool(others) and all(sum(counts[rank_id].values()) <= _logged(job, rank_id, key) for rank_id in others)


def _contradicted(
    job: Job, diagnosis: Explanation, made: list[int], key: str, shown_by: str, counts: dict[int, dict[str, int]]
) -> Explanation:
    """Drop the culprits that made the call; undecidable if none is left."""
    ranks, first = ranks_text(job.rank_numbers(made)) or "a rank", made[0]
    verb = "completed" if shown_by == INSPECTOR else "launched"
    text = (
        f"{SOURCES[shown_by]} shows that {ranks} {verb} {count_of(sum(counts[first].values()), 'collective')} of {key},"
        f" and the log shows {_logged(job, first, key)}: it lacks lines, and NCCL's own count decides"
    )
    left = [rank_id for rank_id in diagnosis.culprits if rank_id not in made]
    cited = _rows(job, key, shown_by, made) or _rows(job, key, shown_by, job.seen_members(key))
    if left:
        diagnosis.culprits = left
        diagnosis.victims = sorted({*diagnosis.victims, *made})
        diagnosis.remark(f"{text}")
        diagnosis.add_evidence("context", cited[:2])
        return diagnosis
    answer = Explanation(
        Kind.UNDECIDABLE, f"by the logs {ranks} did not make the call that others are in, but {text}", [Doubt.OPEN]
    )
    answer.key, answer.call, answer.victims = key, diagnosis.call, sorted(job.rank_ids)
    answer.collect = [f"collect the whole log of {ranks}", f"take the stacks on each host: `{STACKS_OF_HOST}`"]
    answer.add_evidence("context", cited[:2])
    answer.evidence_lines += [{**line, "what": "context"} for line in diagnosis.evidence_lines]
    return answer


def _add_support(job: Job, diagnosis: Explanation, lagging: list[int], key: str, nth: int, shown_by: str) -> bool:
    """Add that a source shows the call on others, and none later on the culprits; or that no member completed it."""
    rows = _rows(job, key, shown_by, job.seen_members(key))
    totals: dict[int, int] = defaultdict(int)
    for row in rows:
        totals[row["rank_id"]] += row["calls"]
    beyond = [rank_id for rank_id, total in totals.items() if total > nth]
    others = ranks_text(job.rank_numbers(beyond))
    if beyond and set(lagging) <= set(totals):
        these = ranks_text(job.rank_numbers(lagging)) or "these"
        diagnosis.remark(f"{SOURCES[shown_by]} shows this call on {others}, too, and not on {these}")
    elif not beyond and shown_by == INSPECTOR and max(totals.values(), default=0) == nth:
        diagnosis.remark(
            f"{SOURCES[shown_by]} shows that {count_of(nth, 'collective')} of this communicator completed, and not"
            " this one"
        )
    else:
        return False
    diagnosis.add_evidence("context", _rows(job, key, shown_by, lagging)[:1] or rows[:1])
    return True


def _logged(job: Job, rank_id: int, key: str) -> int:
    """The number of collectives of a rank on a communicator, as the logs show it."""
    made = job.last_calls.filter((pl.col("rank_id") == rank_id) & (pl.col("key").cast(pl.String) == key))
    return int(made["calls"].sum())


def _rows(job: Job, key: str, shown_by: str, rank_ids: list[int]) -> list[Row]:
    return [
        row
        for row in job.counted_calls
        if (row["key"], row["shown_by"]) == (key, shown_by) and row["rank_id"] in rank_ids
    ]
