"""Ranks in PyTorch's text, whose lines name them by their number in the job or in a process group."""

from __future__ import annotations

from ncclforensics.analyses.verdict.job import Job, Row


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
    return {number for number in (*named, *job.rank_id_of) if number is not None}
