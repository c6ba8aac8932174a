"""Join what Flight Recorder dumps show with NCCL's lines on the same job.

A process group with the same members as one communicator is that communicator; both count its collectives. Where the
log of a rank shows more calls than its dump, the dump was written before.
"""

from __future__ import annotations

import polars as pl

from ncclforensics.analyses.hang import waiting
from ncclforensics.analyses.hang.equal_counts import DUMPS
from ncclforensics.analyses.hang.job import Job, Row
from ncclforensics.analyses.hang.recorder_diagnosis import recordings_of
from ncclforensics.analyses.verdict.doubts import Doubt
from ncclforensics.analyses.verdict.explanation import Explanation
from ncclforensics.analyses.verdict.vocabulary import Certainty, Kind
from ncclforensics.data.names import ranks_text


def weigh_against_lines(job: Job, recorded: Explanation | None) -> Explanation | None:
    """Return the diagnosis of the dumps, or that of NCCL's lines where these are surer or newer."""
    if recorded is None or job.recordings is None:
        return recorded
    recorded.key = _communicator(job, recorded)
    logged, outdated = waiting.find_waited_for_ranks(job), is_older_than_log(job, recorded)
    if logged is None or not logged.culprits or logged.verdict == Kind.UNDECIDABLE:
        return recorded if outdated is None else None
    in_logs, in_dumps = (ranks_text(job.numbers_blamed(diagnosis)) for diagnosis in (logged, recorded))
    if in_logs == in_dumps:
        if logged.certainty is Certainty.CERTAIN:
            return logged  # it names the call and its line
        recorded.remark(f"NCCL's lines name {in_logs}, too")
        recorded.add_evidence("culprit", logged.evidence_lines[:2])
        return recorded
    if outdated is not None:
        rank, made, dumped = outdated
        logged.doubt(
            Doubt.SOURCES_DISAGREE,
            f"the Flight Recorder dumps name {in_dumps} instead, but the log of rank {rank} shows {made} collectives"
            f" of a communicator and its dump {dumped}: it was written before, and the logs decide",
        )
        return logged
    if is_newer_than_log(job, logged):
        recorded.remark(
            f"NCCL's lines name {in_logs} instead, of which a dump shows more collectives than the log: that lacks"
            " lines, and the dumps decide"
        )
        recorded.add_evidence("context", logged.evidence_lines[:2])
    return recorded


def is_older_than_log(job: Job, recorded: Explanation) -> tuple[int, int, int] | None:
    """Return a culprit of which the log shows more collectives of a communicator than its dump, and both numbers."""
    places = [place for rank_id in recorded.culprits for place in _in_both(job, rank_id)]
    return next(((rank, made, dumped) for rank, made, dumped in places if made > dumped), None)


def is_newer_than_log(job: Job, logged: Explanation) -> bool:
    """Whether the dumps of all culprits by the logs show more collectives than these, which then lack lines."""
    return (
        DUMPS not in job.doubts
        and bool(logged.culprits)
        and all(any(dumped > made for _, made, dumped in _in_both(job, rank_id)) for rank_id in logged.culprits)
    )


def _communicator(job: Job, diagnosis: Explanation) -> str | None:
    """Return the communicator of the process group at whose call the culprits are waited for, collectives first.

    The same order decides which call the diagnosis names.
    """
    recordings = recordings_of(job)
    blamed = job.numbers_blamed(diagnosis)
    awaited: list[Row] = [
        call
        for rank in sorted(recordings.read)
        if (call := recordings.blocking(rank)) and not blamed.isdisjoint(recordings.targets(rank))
    ]
    first = min(awaited, key=lambda call: bool(call["is_p2p"]), default=None)
    return job.communicators_of_groups.get(first["group"]) if first else None


def _in_both(job: Job, rank_id: int) -> list[tuple[int, int, int]]:
    """Return the rank, its collectives in its log and in its dump, of each communicator that is in both."""
    rank = job.rank_number(rank_id)
    if rank is None or job.recordings is None:
        return []
    recordings = job.recordings
    made = job.last_calls.filter(pl.col("rank_id") == rank_id).select(pl.col("key").cast(pl.String), "calls")
    calls = dict(made.iter_rows())
    found = [(recordings.positions[group].get(rank), group, key) for group, key in job.communicators_of_groups.items()]
    return [
        (rank, calls.get(key, 0), recordings.enqueued(group, rank))
        for row, group, key in found
        if row and not row["has_p2p"]
    ]
