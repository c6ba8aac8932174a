"""The ranks that the text of PyTorch and of launchers shows, and which process each is: Ray Train, DeepSpeed."""

from __future__ import annotations

import polars as pl

from ncclforensics.analyses.job.text.torch_text import RENDEZVOUS, ranks_named
from ncclforensics.frames.columns import text_of
from ncclforensics.frames.registry import analysis

LAUNCHED_RANK = {
    "source": pl.Int32(),
    "rank": pl.Int32(),
    "pid": pl.Int32(),
    "node": pl.String(),  # name or address; null where the program does not say it
}


@analysis(LAUNCHED_RANK, of=("launched_process",))
def launched_rank(launched_process: pl.DataFrame) -> pl.DataFrame:
    """One row per process that was started for a rank; DeepSpeed's launchers start as many on each node.

    Sources: ray: train/v2/_internal/execution/worker_group; deepspeed: launcher/launch.py.
    """
    columns = [pl.col(name).cast(dtype) for name, dtype in LAUNCHED_RANK.items()]
    of_ray = launched_process.filter(form="ray").with_columns(rank="world_rank", node="address")
    place = ["source", "launcher_node"]
    nodes = launched_process.filter(form="deepspeed_node").group_by(place).agg(pl.col("per_node", "node_rank").last())
    started = launched_process.filter(text_of("form") == "deepspeed").select(*place, "pid", "local_rank")
    of_deepspeed = started.join(nodes, on=place, nulls_equal=True).with_columns(
        rank=pl.col("node_rank") * pl.col("per_node") + pl.col("local_rank"), node="launcher_node"
    )
    return pl.concat([of_ray.select(columns), of_deepspeed.select(columns)])


TORCH_RANK = {"rank": pl.Int32(), "source": pl.Int32()}


@analysis(
    TORCH_RANK,
    of=(
        *("torch_error", "exception", "gpu_exception", "crash", "watchdog", "watchdog_failure", "elastic_failure"),
        *("process_end", "worker_end"),
    ),
)
def torch_rank(
    torch_error: pl.DataFrame,
    torch_source: pl.DataFrame,
    exception: pl.DataFrame,
    gpu_exception: pl.DataFrame,
    crash: pl.DataFrame,
    call_error: pl.DataFrame,
    watchdog: pl.DataFrame,
    watchdog_failure: pl.DataFrame,
    elastic_failure: pl.DataFrame,
    process_end: pl.DataFrame,
    worker_end: pl.DataFrame,
    launched_rank: pl.DataFrame,
    rank_announced: pl.DataFrame,
) -> pl.DataFrame:
    """The ranks that PyTorch's text and that of launchers shows, where it shows a failure."""
    raised = exception.filter(pl.col("form").is_in(["error", "recorded"]))
    watched = (watchdog, watchdog_failure)
    failures = (torch_error, raised, gpu_exception, crash, *watched, elastic_failure)
    of_launched = (process_end, worker_end) if launched_rank.height else ()
    if not any(frame.height for frame in (*failures, *of_launched)):
        return pl.DataFrame(schema=TORCH_RANK)
    named = [ranks_named(frame) for frame in (exception, gpu_exception, crash, call_error, *watched, elastic_failure)]
    # The agent that serves the store of the rendezvous is that of the first node, on which rank 0 is started.
    first_node = torch_error.filter(call=RENDEZVOUS).select("source", rank=pl.lit(0, dtype=pl.Int32))
    listed = ((launched_rank, "rank"), (rank_announced, "announced_rank"))
    named += [frame.select("source", rank=pl.col(column).cast(pl.Int32)) for frame, column in listed]
    rows = pl.concat([torch_error.select("source", "rank"), torch_source.select("source", "rank"), *named, first_node])
    return rows.drop_nulls("rank").sort("source").unique("rank", keep="first").select(*TORCH_RANK).sort("rank")
