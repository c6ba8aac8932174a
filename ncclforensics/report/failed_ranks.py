"""The ranks of a job that report an error, a time-out or their end: their processes wait no more."""

from __future__ import annotations

from collections.abc import Collection

import polars as pl

from ncclforensics.analyses.verdict.answer import Answer
from ncclforensics.data.processes import REQUESTED_ENDS
from ncclforensics.frames.protocol import Frames

FATAL = {"failure", "lost-connection"}  # what shows that the job stood still, where an error ended it


def failed_ranks(run: Frames, answer: Answer) -> set[int]:
    """Return the ids of ranks of which a line reports that they stopped by themselves."""
    failed = set(ended_by_themselves(run)["rank_id"])
    if FATAL & set(answer.stall_evidence):
        failed |= set(run["failure_event"].filter(~pl.col("at_exit"))["rank_id"])
    if run["verdict"].height == 1:  # PyTorch's lines name no job
        numbers = {*run["torch_error"]["rank"], *run["work"].filter("has_timed_out")["rank"]} - {None}
        failed |= set(run["rank"].filter(pl.col("rank").is_in(numbers))["rank_id"])
    return failed


def ended_by_themselves(run: Frames) -> pl.DataFrame:
    """Return the ends of processes that no signal of a launcher, a scheduler or a user asked for."""
    return run["process_exit"].filter(~pl.col("signal").is_in(REQUESTED_ENDS).fill_null(value=False))


def share_of_job(run: Frames, answer: Answer, rank_ids: Collection[int]) -> str:
    """Count these ranks, and those of the job: `2 of 4`.

    A process of which no line tells the rank may be one of the ranks that only PyTorch's text numbers: it counts once.
    """
    ranks = run["rank"].filter(pl.col("job") == answer.job)
    own = ranks.filter(pl.col("rank_id").is_in(list(rank_ids)))
    return f"{_distinct(own):,} of {_distinct(ranks):,}"


def _distinct(ranks: pl.DataFrame) -> int:
    number, pid = pl.col("rank"), pl.col("pid")
    nameless, of_text = ranks.filter(number.is_null()).height, ranks.filter(number.is_not_null() & pid.is_null()).height
    return ranks.height - min(nameless, of_text)
