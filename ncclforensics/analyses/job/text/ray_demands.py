"""What waits for GPUs of a cluster of Ray, beside the GPUs that the cluster has."""

from __future__ import annotations

import polars as pl

from ncclforensics.frames.columns import ORIGIN, text_of
from ncclforensics.frames.registry import analysis
from ncclforensics.grammar.values import TEXT, find_values

RAY_DEMAND = {
    **ORIGIN,
    "asked": pl.Float64(),  # GPUs that have to be free at once
    "gpus": pl.Float64(),  # of the whole cluster
    "held": pl.Float64(),  # of these: used, or reserved
    "gpus_line": pl.Int32(),  # that shows them
}


@analysis(RAY_DEMAND, of=("ray_status",))
def ray_demand(ray_status: pl.DataFrame) -> pl.DataFrame:
    """One row per placement group, task or actor that `ray status` shows as pending and that asks for GPUs.

    Several tasks on one line are placed one by one. The GPUs of single nodes stand below those of the cluster, which
    are the most; what the last such line says of them holds. A cluster without a GPU has no such line.
    """
    held = pl.max_horizontal("used_gpus", "reserved_gpus")
    have = ray_status.filter(form="gpus").select("source", gpus="all_gpus", held=held, gpus_line="line")
    is_most = pl.col("gpus") == pl.col("gpus").max().over("source")
    have = have.filter(is_most).sort("source", "gpus_line").unique("source", keep="last")
    without = ray_status.filter(form="cpus").join(have, on="source", how="anti").sort("source", "line")
    none = without.unique("source", keep="last").select("source", gpus=0.0, held=0.0, gpus_line="line")
    have = pl.concat([have, none], how="vertical_relaxed")
    pending = ray_status.filter(text_of("form").is_in(["group", "task"])).with_row_index(TEXT)
    bundles = find_values(pending["bundles"].cast(pl.String), "gpu_bundle").join(
        pending.select(TEXT, kind=text_of("form")), on=TEXT
    )
    count = pl.when(kind="group").then(pl.col("bundle_count").fill_null(1)).otherwise(1)
    asked = bundles.group_by(TEXT).agg(asked=(pl.col("bundle_gpus") * count).sum())
    return pending.join(asked, on=TEXT).join(have, on="source").select(RAY_DEMAND.keys()).sort("pos")
