"""Ports of Omni-Path adapters, as opainfo prints them."""

from __future__ import annotations

import polars as pl

from ncclforensics.analyses.host.command_output import OUTPUT_KEY, add_heading_above, add_origin
from ncclforensics.frames.columns import text_of, with_all_columns
from ncclforensics.frames.registry import analysis

OMNI_PATH_PORT = {
    "source": pl.Int32(),
    "line": pl.Int32(),  # of the state
    "moment": pl.Datetime("us"),
    "host": pl.String(),
    "device": pl.String(),
    "port": pl.Int32(),
    "lid": pl.Int32(),
    "state": pl.String(),  # as printed; of a port without one it is down
    "physical_state": pl.String(),
    "lane_Gbps": pl.Float64(),
    "lanes": pl.Int32(),  # with which the link was trained
    "sending": pl.Int32(),  # with which it goes on
    "receiving": pl.Int32(),
    "lanes_line": pl.Int32(),  # of those with which it goes on
    "quality": pl.Int32(),  # 5 excellent, 4 very good, 3 good, 2 poor, 1 bad, 0 down
    "quality_line": pl.Int32(),
}


@analysis(OMNI_PATH_PORT, of=("opa_port",))
def omni_path_port(opa_port: pl.DataFrame, opa_field: pl.DataFrame, output_heading: pl.DataFrame) -> pl.DataFrame:
    """One row per port that opainfo prints."""
    heads = opa_port.select(*OUTPUT_KEY, "line")
    fields = add_heading_above(opa_field, heads).with_columns(form=text_of("form"))

    def first(column: str) -> pl.Expr:
        return pl.col(column).drop_nulls().first()

    def line_of(*forms: str) -> pl.Expr:
        return pl.col("line").filter(pl.col("form").is_in(forms)).first()

    ports = fields.group_by("source", head_line="head_line").agg(
        line_of("state", "physical").alias("state_line"),
        line_of("downgraded").alias("lanes_line"),
        line_of("quality").alias("quality_line"),
        state=first("state"),
        physical_state=first("physical"),
        lane_Gbps=first("lane_speed").cast(pl.String).cast(pl.Float64, strict=False),
        lanes=first("lanes"),
        sending=first("sending_lanes"),
        receiving=first("receiving_lanes"),
        lid=first("opa_lid").cast(pl.String).str.to_integer(base=16, dtype=pl.Int32, strict=False),
        quality=first("quality"),
    )
    rows = add_origin(opa_port, output_heading).with_columns(
        head_line="line", host="origin_host", device=text_of("hfi")
    )
    rows = rows.join(ports, on=["source", "head_line"], how="left", maintain_order="left")
    rows = rows.with_columns(pl.coalesce("state_line", "line").alias("line"), state=text_of("state").fill_null("Down"))
    return with_all_columns(rows, OMNI_PATH_PORT)
