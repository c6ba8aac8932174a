"""The job that the text of each input is about, where PyTorch, launchers and programs name ranks and no job."""

from __future__ import annotations

from collections import defaultdict

import polars as pl

from ncclforensics.frames.columns import OWNER
from ncclforensics.frames.registry import analysis

TEXT_JOB = {"source": pl.Int32(), "job": pl.Int32()}


@analysis(TEXT_JOB, of=("rank",))
def text_job(source: pl.DataFrame, rank: pl.DataFrame, member: pl.DataFrame, process: pl.DataFrame) -> pl.DataFrame:
    """One row per input of which the job is known: the job whose lines of NCCL stand in it, or the only one.

    Processes without a communicator are no other job, for text is about ranks.
    """
    jobs = rank["job"].unique()
    if jobs.len() < 2:
        return source.select("source", job=pl.lit(jobs.max(), pl.Int32))
    of_process = rank.select(*OWNER, "job").unique()
    shown = process.select(*OWNER, source="sources").explode("source").join(of_process, on=OWNER, nulls_equal=True)
    jobs_of: dict[int, set[int]] = defaultdict(set)
    for number, job in shown.select("source", "job").iter_rows():
        jobs_of[number].add(job)
    with_communicator = set(member["job"])
    found = []
    for number in source["source"]:
        own = jobs_of.get(number) or with_communicator
        own = own if len(own) == 1 else own & with_communicator
        found += [(number, *own)] if len(own) == 1 else []
    return pl.DataFrame(found, schema=TEXT_JOB, orient="row")
