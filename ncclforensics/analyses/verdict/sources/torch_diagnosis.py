"""Diagnoses by PyTorch's text, whose lines name ranks by their number in the job or in a process group."""

from __future__ import annotations

from ncclforensics.analyses.verdict.doubts import Doubt
from ncclforensics.analyses.verdict.explanation import Explanation
from ncclforensics.analyses.verdict.job import Job, Row
from ncclforensics.analyses.verdict.vocabulary import Kind


def diagnose(job: Job, verdict: Kind, doubts: list[Doubt], reason: str, numbers: list[int]) -> Explanation:
    """Return a diagnosis whose culprits are given by their numbers in the job."""
    rank_id_of = rank_ids_of(job)
    diagnosis = Explanation(verdict, reason, doubts)
    diagnosis.culprits = sorted(rank_id_of[number] for number in numbers if number in rank_id_of)
    diagnosis.missing = sorted(number for number in numbers if number not in rank_id_of)
    diagnosis.victims = sorted(set(job.rank_ids) - set(diagnosis.culprits))
    return diagnosis


def rank_ids_of(job: Job) -> dict[int, int]:
    """Return the rank id of each known rank number."""
    return {row["rank"]: rank_id for rank_id, row in job.rank_ids.items() if row["rank"] is not None}


def cite(job: Job, diagnosis: Explanation, what: str, rows: list[Row]) -> None:
    """Add the first lines of `rows` as evidence, with the ranks that they name."""
    rank_id_of = rank_ids_of(job)
    diagnosis.add_evidence(
        what,
        [{**row, "rank_id": rank_id_of.get(row["rank"] if "rank" in row else row["global_rank"])} for row in rows[:4]],
    )


def numbers_in_job(job: Job, rows: list[Row], column: str) -> dict[int, int] | None:
    """Return the rank in the job of each rank of a process group, or None where both are one.

    Lines that print both show it: `[rank5]: … Rank 1 …`.
    """
    pairs = {row[column]: row["global_rank"] for row in rows if None not in (row.get(column), row["global_rank"])}
    return pairs if any(number != of_job for number, of_job in pairs.items()) else None


def in_job(ranks: list[int], numbers: dict[int, int] | None) -> list[int]:
    """Return the ranks in the job of ranks of a process group, as `numbers_in_job` found them."""
    return ranks if numbers is None else sorted(numbers[rank] for rank in ranks if rank in numbers)


def ranks_with_output(job: Job) -> set[int]:
    """Return the ranks that lines name, and those that a file is named after, which may hold no known line."""
    named = {row["hint"] for row in job.sources.values()}
    return {number for number in (*named, *rank_ids_of(job)) if number is not None}
