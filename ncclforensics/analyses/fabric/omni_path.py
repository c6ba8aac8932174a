"""Ports of Omni-Path and their counters, as opainfo and opapmaquery print them."""

from __future__ import annotations

import polars as pl

from ncclforensics.analyses.fabric.counters import COUNTER
from ncclforensics.analyses.host.command_output import OUTPUT_KEY, add_heading_above, add_origin
from ncclforensics.analyses.host.command_sessions import (
    CommandHistory,
    frame_from_rows,
    option,
    origin_of,
    rows_with_origin,
)
from ncclforensics.analyses.host.numbers import parse_integer
from ncclforensics.data.host_counters import FLIT, OF_OMNI_PATH, unit
from ncclforensics.frames.columns import Row, text_of, with_all_columns
from ncclforensics.frames.registry import analysis

OMNI_PATH_PORT = {
    "source": pl.Int32(),
    "line": pl.Int32(),  # of the state
    "moment": pl.Datetime("us"),
    "host": pl.String(),
    "device": pl.String(),
    "port": pl.Int32(),
    "lid": pl.Int32(),
    "state": pl.String(),  # as printed; of a port that is described without one it is down
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
def omni_path_port(
    opa_port: pl.DataFrame, opa_field: pl.DataFrame, opa_counter: pl.DataFrame, output_heading: pl.DataFrame
) -> pl.DataFrame:
    """One row per port that opainfo describes, or of which it prints the counters."""
    heads = opa_port.select(*OUTPUT_KEY, "line")
    qualities = opa_counter.filter(pl.col("quality").is_not_null()).select(*OUTPUT_KEY, "line", "form", "quality")
    shown = pl.concat([opa_field, qualities], how="diagonal_relaxed")
    fields = add_heading_above(shown, heads).with_columns(form=text_of("form"))

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
    is_described = text_of("form") != "counted"
    state = pl.coalesce(text_of("state"), pl.when(is_described).then(pl.lit("Down")))
    rows = rows.with_columns(pl.coalesce("state_line", "line").alias("line"), state=state)
    return with_all_columns(rows, OMNI_PATH_PORT)


@analysis(COUNTER, of=("opa_counter",))
def omni_path_counter(
    opa_port: pl.DataFrame,
    opa_counted: pl.DataFrame,
    opa_counter: pl.DataFrame,
    output_heading: pl.DataFrame,
    dump_command: pl.DataFrame,
) -> pl.DataFrame:
    """One row per counter of a port; those of a virtual lane are left out, and ports without a name among several."""
    commands = CommandHistory(dump_command)
    nameless = opa_counted.filter(pl.col("form") == "port").group_by("source").len().filter(pl.col("len") > 1)["source"]
    place: Row | None = None
    rows = []
    lines = pl.concat([opa_port.select(*OUTPUT_KEY, "line", "hfi", "port"), opa_counted, opa_counter], how="diagonal")
    adapter: Row = {}
    for row in rows_with_origin(lines, output_heading):
        source = row["source"]
        if row["hfi"] is not None:
            adapter = {"source": source, "device": str(row["hfi"])}
        elif row["port"] is not None:
            arguments = commands.arguments(source, row["line"], ("opapmaquery",))
            lid = parse_integer(option(arguments, "-l"))
            device = adapter.get("device") if adapter.get("source") == source else None
            is_named = device is not None or lid is not None or source not in nameless
            place, adapter = {"device": device, "port": row["port"], "lid": lid} if is_named else None, {}
        elif row["lane"] is not None:
            place = None
        name = OF_OMNI_PATH.get(str(row["opa_counter"] or row["data_counter"]))
        if place is not None and name is not None:
            value = row["count"] if row["flits"] is None else row["flits"] * FLIT
            rows.append(
                {**origin_of(row), **place, "name": name, "value": value, "unit": unit(name), "is_saturated": False}
            )
    return frame_from_rows(rows, COUNTER)
