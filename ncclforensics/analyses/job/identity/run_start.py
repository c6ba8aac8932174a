"""When the run that NCCL's lines show began, to tell what an earlier one left beside its logs.

PyTorch leaves Flight Recorder dumps in a folder that all jobs of a user share, and torchrun starts the ranks again
below the output of the attempt before. No rank calls NCCL, or waits for it in vain, before it created a communicator.
"""

from __future__ import annotations

import polars as pl

from ncclforensics.analyses.job.text.torch_text import attempt_of
from ncclforensics.frames.columns import text_of
from ncclforensics.frames.registry import analysis
from ncclforensics.frames.time_range import NO_YEAR, as_utc, time_of

RUN_START = {
    "stamp": pl.Datetime("us"),  # when the first communicator was created: by NCCL, in the local time of a process
    "launcher_time": pl.Datetime("us"),  # by the launcher or collector, as it prints it
    "utc": pl.Datetime("us"),  # the same where it prints a zone
    "nranks": pl.Int32(),  # of the largest communicator
    "attempt": pl.Int32(),  # of torchrun's log folder, the latest; null elsewhere
}


@analysis(RUN_START)
def run_start(communicator: pl.DataFrame, source: pl.DataFrame) -> pl.DataFrame:
    """One row: when the first communicator was created, by the clocks that all such lines have; none without lines."""
    if communicator.is_empty():
        return pl.DataFrame(schema=RUN_START)
    paths = source.filter(pl.col("source").is_in(communicator["source"].unique().implode()))["path"]
    attempts = [number for path in paths if (number := attempt_of(path)) is not None]
    times = {
        "stamp": time_of("stamp", NO_YEAR),
        "launcher_time": time_of("launcher_time", NO_YEAR),
        "utc": as_utc(text_of("launcher_time")),
    }
    # A line without a time may be of the first communicator.
    first = [pl.when(time.is_not_null().all()).then(time.min()).alias(name) for name, time in times.items()]
    return communicator.select(
        *first, pl.col("nranks").max(), attempt=pl.lit(max(attempts, default=None), pl.Int32())
    ).select(*RUN_START)
