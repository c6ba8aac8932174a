"""Join what Flight Recorder dumps show with NCCL's lines and the watchdogs' messages on the same job.

A process group with the same members as one communicator is that communicator; both count its collectives. The recorder
keeps its calls in memory until it writes them, while the last lines of a log may be lost in a buffer: where the two
name different ranks, the dumps decide, unless the log shows more calls of that rank than its dump, which then was
written before.
"""

from __future__ import annotations

import polars as pl

from ncclforensics.analyses.hang import pytorch, waiting
from ncclforensics.analyses.hang.job import Diagnosis, Job, Row
from ncclforensics.analyses.hang.recorder_diagnosis import recordings_of
from ncclforensics.data.names import ranks_text


def weigh_against_other_sources(job: Job, recorded: Diagnosis | None) -> Diagnosis | None:
    """Return the diagnosis of the dumps, or that of NCCL's lines where these are surer, with what the other shows."""
    if recorded is None or job.recordings is None:
        return recorded
    recorded.key = _communicator(job, recorded)
    logged = waiting.find_waited_for_ranks(job)
    if logged is not None and logged.culprits and logged.verdict != "undecidable":
        return _weigh_logs(job, recorded, logged)
    reported = pytorch.find_desync(job)
    if reported is not None and reported.culprits and reported.culprits != recorded.culprits:
        ranks = ranks_text(job.rank_numbers(reported.culprits))
        recorded.reason += f"; the watchdogs' messages name {ranks} instead: the dumps show every call, and decide"
        recorded.lower_certainty("possible")
        recorded.add_evidence("context", reported.evidence_lines[:2])
    return recorded


def _weigh_logs(job: Job, recorded: Diagnosis, logged: Diagnosis) -> Diagnosis:
    in_logs, in_dumps = (ranks_text(_numbers(job, diagnosis)) for diagnosis in (logged, recorded))
    if _numbers(job, logged) == _numbers(job, recorded):
        if logged.certainty == "certain":
            return logged  # it names the call and its line
        recorded.reason += f"; NCCL's lines name {in_logs}, too"
        recorded.add_evidence("culprit", logged.evidence_lines[:2])
        return recorded
    outdated = [place for rank_id in recorded.culprits if (place := _older_dump(job, rank_id))]
    if outdated:
        rank, made, dumped = outdated[0]
        logged.reason += (
            f"; the Flight Recorder dumps name {in_dumps} instead, but the log of rank {rank} shows {made} collectives"
            f" of a communicator and its dump {dumped}: it was written before, and the logs decide"
        )
        logged.lower_certainty("likely")
        return logged
    recorded.reason += (
        f"; NCCL's lines name {in_logs} instead: the last lines of a log may be lost in a buffer, which a dump from"
        " memory is not, so the dumps decide"
    )
    recorded.lower_certainty("possible")
    recorded.add_evidence("context", logged.evidence_lines[:2])
    return recorded


def _numbers(job: Job, diagnosis: Diagnosis) -> list[int]:
    return sorted({*job.rank_numbers(diagnosis.culprits), *diagnosis.missing})


def _communicators(job: Job) -> dict[str, str]:
    """Process group -> the only communicator with the same members."""
    recordings = recordings_of(job)
    keys: dict[tuple[int, ...], list[str]] = {}
    for key, rows in job.members.items():
        keys.setdefault(tuple(job.rank_numbers(row["rank_id"] for row in rows)), []).append(key)
    groups: dict[tuple[int, ...], list[str]] = {}
    for group, members in recordings.members.items():
        groups.setdefault(tuple(sorted(members)), []).append(group)
    return {
        names[0]: keys[members][0]
        for members, names in groups.items()
        if len(names) == 1 and len(keys.get(members, [])) == 1
    }


def _communicator(job: Job, diagnosis: Diagnosis) -> str | None:
    """Return the communicator of the process group at whose call the culprits are waited for, collectives first.

    The same order decides which call the diagnosis names.
    """
    recordings = recordings_of(job)
    awaited: list[Row] = [
        call
        for rank in sorted(recordings.read)
        if (call := recordings.blocking(rank)) and set(recordings.targets(rank)) & set(_numbers(job, diagnosis))
    ]
    first = min(awaited, key=lambda call: bool(call["is_p2p"]), default=None)
    return _communicators(job).get(first["group"]) if first else None


def _older_dump(job: Job, rank_id: int) -> tuple[int, int, int] | None:
    """Return a rank of which the log shows more collectives of a communicator than its dump, and both numbers."""
    recordings, rank = recordings_of(job), job.rank_number(rank_id)
    if rank is None:
        return None
    made = job.last_calls.filter(pl.col("rank_id") == rank_id).select(pl.col("key").cast(pl.String), "calls")
    calls = dict(made.iter_rows())
    for group, key in _communicators(job).items():
        row = recordings.positions[group].get(rank)
        if row and not row["has_p2p"] and calls.get(key, 0) > recordings.enqueued(group, rank):
            return rank, calls[key], recordings.enqueued(group, rank)
    return None
