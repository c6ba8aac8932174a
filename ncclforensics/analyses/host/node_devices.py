"""Devices of the nodes of Kubernetes: how many a node has, and how many it gives to pods, by kubectl describe."""

from __future__ import annotations

import polars as pl

from ncclforensics.analyses.job.text.described_objects import titles_above
from ncclforensics.frames.columns import text_of
from ncclforensics.frames.registry import analysis

OF_NODES = ("capacity", "allocatable")  # parts that no pod has
NODE_DEVICES = {
    "source": pl.Int32(),
    "node": pl.String(),
    "resource": pl.String(),
    "capacity": pl.Int64(),  # how many the node has, as its device plugin said; null: not shown
    "capacity_line": pl.Int32(),
    "allocatable": pl.Int64(),  # of them those that are given to pods
    "allocatable_line": pl.Int32(),
}


@analysis(NODE_DEVICES, of=("described_section",))
def node_devices(
    described_title: pl.DataFrame, described_devices: pl.DataFrame, node_offers_none: pl.DataFrame
) -> pl.DataFrame:
    """One row per description of a node and kind of device: how many it has, and how many it gives to pods."""
    some = described_devices.select(
        "source", "line", resource=text_of("resource"), count=text_of("devices").cast(pl.Int64, strict=False)
    )
    none = node_offers_none.select("source", "line", resource=text_of("device_name"), count=pl.lit(0, pl.Int64))
    rows = pl.concat([some, none]).sort("source", "line")
    rows = rows.hstack(titles_above(rows, described_title))
    columns = [
        pl.col(column).filter(pl.col("part") == part).first().alias(f"{part}{suffix}")
        for part in OF_NODES
        for column, suffix in (("count", ""), ("line", "_line"))
    ]
    of_nodes = rows.filter(pl.col("part").is_in(OF_NODES)).rename({"name": "node"})
    found = of_nodes.group_by("source", "node", "resource", maintain_order=True).agg(columns)
    return found.select(pl.col(name).cast(dtype) for name, dtype in NODE_DEVICES.items())
