"""Which jobs are earlier runs on GPUs that a later job uses: a restart, or yesterday's run in the same folder."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime
from pathlib import PurePath
from typing import Any

import polars as pl

from ncclforensics.frames.columns import OWNER
from ncclforensics.frames.registry import analysis
from ncclforensics.frames.time_range import CLOCKS, NO_YEAR, in_last_year, time_of

EARLIER_RUN = {
    "job": pl.Int32(),
    "next_job": pl.Int32(),  # it used the same GPUs afterwards
}
Spans = dict[int, tuple[int, int]]  # file -> first and last `pos` of a job's lines in it
MOST_OVERLAP = 0.5  # of the shorter run; more than that, and both ran at a time: GPUs are numbered within a container
MOST_LATER = 32  # jobs that a job is compared with: thousands may have used one GPU
ATTEMPT = "attempt_"  # torchrun's folders of logs: attempt_0, and one more for every restart


@analysis(EARLIER_RUN, of=("rank",))
def earlier_run(
    rank: pl.DataFrame, speaker: pl.DataFrame, communicator: pl.DataFrame, source: pl.DataFrame
) -> pl.DataFrame:
    """Every pair of jobs that used the same GPU one after the other, as far as the logs show which was first.

    Shown by their lines in one file, by the times of their communicators, or by the number of torchrun's attempt.
    """
    if rank["job"].n_unique() < 2:
        return pl.DataFrame(schema=EARLIER_RUN)
    pairs = _pairs_on_one_gpu(rank.select("job", "host", "cudadev").drop_nulls().unique())
    owners = rank.select("job", *OWNER).drop_nulls().unique()
    spans: dict[int, Spans] = defaultdict(dict)
    by_file = speaker.join(owners, on=OWNER).group_by("job", "source")
    for job, number, *span in by_file.agg(pl.col("pos").min(), pl.col("last_pos").max()).iter_rows():
        spans[job][number] = (span[0], span[1])
    begun = _first_times(communicator.join(owners, on=OWNER))
    attempts = _attempts(spans, dict(source.select("source", "path").iter_rows()))
    found = []
    for job, other in pairs.iter_rows():
        order = (
            _order_in_files(spans[job], spans[other]) or _compare(begun, job, other) or _compare(attempts, job, other)
        )
        if order:
            found.append((job, other) if order < 0 else (other, job))
    return pl.DataFrame(found, schema=EARLIER_RUN, orient="row")


def _pairs_on_one_gpu(gpus: pl.DataFrame) -> pl.DataFrame:
    """Return the pairs of jobs that used the same GPU: of each job, with at most MOST_LATER of higher numbers."""
    gpus = gpus.sort("job")
    most = max(gpus.group_by("host", "cudadev").len()["len"], default=0)
    distances = range(1, min(most, MOST_LATER + 1))
    pairs = [
        gpus.select("job", job_other=pl.col("job").shift(-distance).over("host", "cudadev")) for distance in distances
    ]
    found = pl.concat([gpus.select("job", job_other="job").clear(), *pairs])
    return found.drop_nulls().unique().sort("job", "job_other")


def _order_in_files(spans: Spans, others: Spans) -> int:
    """-1 where a job begins and ends before the other, in all files that hold both; 1 the other way.

    They use the same GPU one after the other; lines of many processes in one file may overlap a little.
    """
    orders = set()
    for number in spans.keys() & others.keys():
        (first, last), (other_first, other_last) = spans[number], others[number]
        is_earlier, is_later = (first < other_first, last < other_last), (first > other_first, last > other_last)
        overlap = min(last, other_last) - max(first, other_first)
        is_beside = overlap > MOST_OVERLAP * min(last - first, other_last - other_first)
        orders.add(0 if is_beside else -1 if all(is_earlier) else 1 if all(is_later) else 0)
    return orders.pop() if len(orders) == 1 else 0


def _compare(values: dict[int, Any], job: int, other: int) -> int:
    """-1 where the value of a job is less than that of the other, 1 where it is more, 0 where one has none."""
    if job not in values or other not in values:
        return 0
    return int(values[job] > values[other]) - int(values[job] < values[other])


def _first_times(communicators: pl.DataFrame) -> dict[int, datetime]:
    """When the first communicator of each job was created, where its lines carry times."""
    clocks = [name for name in CLOCKS if name in communicators.columns]
    times = [time_of(name, NO_YEAR) for name in clocks]
    if not times:
        return {}
    first = (
        communicators.select("job", time=in_last_year(pl.coalesce(times)))
        .drop_nulls()
        .group_by("job")
        .agg(pl.col("time").min())
    )
    return dict(first.iter_rows())


def _attempts(spans: Mapping[int, Spans], paths: dict[int, str]) -> dict[int, int]:
    """The number of torchrun's attempt that the files of each job are of, if it is one attempt."""
    found: dict[int, int] = {}
    for job, files in spans.items():
        folders = {part for number in files for part in PurePath(paths[number]).parts if part.startswith(ATTEMPT)}
        numbers = [folder.removeprefix(ATTEMPT) for folder in folders]
        if len(numbers) == 1 and numbers[0].isdecimal():
            found[job] = int(numbers[0])
    return found
