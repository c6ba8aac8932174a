"""Counters of the interfaces of Ethernet switches, by SNMP and by SONiC's own command, under the names of IF-MIB."""

from __future__ import annotations

import polars as pl

from ncclforensics.analyses.fabric.counters import COUNTER
from ncclforensics.analyses.host.command_output import add_origin
from ncclforensics.data.interfaces import NAMES, OBJECTS, OF_SONIC, OF_TABLES, SPEED, UNITS
from ncclforensics.frames.columns import text_of, with_all_columns
from ncclforensics.frames.registry import analysis

INTERFACE_SPEED = {
    "source": pl.Int32(),
    "host": pl.String(),  # the switch
    "device": pl.String(),  # the interface
    "rate_Gbps": pl.Float64(),
    "uptime": pl.Float64(),  # of the switch in seconds, when the source was written
}


def _named(
    snmp_counter: pl.DataFrame, snmp_name: pl.DataFrame, snmp_system: pl.DataFrame, output_heading: pl.DataFrame
) -> pl.DataFrame:
    """Values of a walk, with the name of the switch as `host` and that of the interface as `device`."""
    system = snmp_system.group_by("source").agg(switch=text_of("system_name").last())
    order = text_of("named").replace_strict(NAMES, default=None, return_dtype=pl.Int8)
    names = snmp_name.with_columns(order=order).sort("order", "line").group_by("source", "interface")
    interfaces = names.agg(device=text_of("interface_name").first())
    rows = add_origin(snmp_counter, output_heading).join(system, on="source", how="left", maintain_order="left")
    rows = rows.join(interfaces, on=["source", "interface"], how="left", maintain_order="left")
    return rows.with_columns(
        host=pl.coalesce("switch", "origin_host"),
        device=pl.coalesce("device", pl.format("interface {}", "interface")),
        name=text_of("counted").replace(OBJECTS),
        value="count",
    )


@analysis(COUNTER, of=("snmp_counter", "interface_row", "pfc_row", "port_row"))
def interface_counter(
    snmp_counter: pl.DataFrame,
    snmp_name: pl.DataFrame,
    snmp_system: pl.DataFrame,
    interface_row: pl.DataFrame,
    pfc_head: pl.DataFrame,
    pfc_row: pl.DataFrame,
    port_table: pl.DataFrame,
    port_row: pl.DataFrame,
    output_heading: pl.DataFrame,
) -> pl.DataFrame:
    """One row per counter of an interface of a switch, zero or not."""
    walked = _named(snmp_counter, snmp_name, snmp_system, output_heading).filter(pl.col("name") != SPEED)
    shown = add_origin(interface_row, output_heading)
    listed = [
        shown.select(
            "source", "line", "moment", host="origin_host", device=text_of("switch_port"), name=pl.lit(name),
            value=text_of(column).str.replace_all(",", "", literal=True).cast(pl.Int64, strict=False),
        )
        for column, name in OF_SONIC.items()
    ]  # fmt: skip
    pauses = _pause_frames(pfc_head, pfc_row, output_heading)
    rows = pl.concat(
        [
            with_all_columns(part, COUNTER)
            for part in (walked, *listed, pauses, _of_tables(port_table, port_row, output_heading))
        ]
    ).drop_nulls("value")
    unit = pl.col("name").replace_strict(UNITS, default="packets")
    return rows.with_columns(unit=unit, is_saturated=pl.lit(value=False))


def _of_tables(port_table: pl.DataFrame, port_row: pl.DataFrame, output_heading: pl.DataFrame) -> pl.DataFrame:
    """Return the cells of tables of Cisco's and Arista's switches, by the columns that the head above names."""
    heads = port_table.select("source", "pos", "table_columns").sort("pos")
    rows = port_row.sort("pos").join_asof(heads, on="pos", by="source", check_sortedness=False)
    words = {name: text_of(name).str.split(" ") for name in ("table_columns", "table_cells")}
    cells = {name: text.list.eval(pl.element().filter(pl.element() != "")) for name, text in words.items()}
    rows = add_origin(rows, output_heading).with_columns(**cells)
    rows = rows.filter(pl.col("table_columns").list.len() == pl.col("table_cells").list.len())
    rows = rows.explode("table_columns", "table_cells")
    return rows.select(
        "source", "line", "moment", host="origin_host", device=text_of("table_port"),
        name=pl.col("table_columns").replace_strict(OF_TABLES, default=None, return_dtype=pl.String),
        value=pl.col("table_cells").cast(pl.Int64, strict=False),
    ).drop_nulls("name")  # fmt: skip


def _pause_frames(pfc_head: pl.DataFrame, pfc_row: pl.DataFrame, output_heading: pl.DataFrame) -> pl.DataFrame:
    """Pause frames of each port and priority; the head above a row says whether they were received or sent."""
    heads = pfc_head.select("source", "pos", direction=text_of("direction").str.to_lowercase()).sort("pos")
    rows = pfc_row.sort("pos").join_asof(heads, on="pos", by="source", check_sortedness=False)
    words = text_of("frames").str.replace_all(",", "", literal=True).str.split(" ")
    cells = words.list.eval(pl.element().filter(pl.element() != ""))
    rows = add_origin(rows, output_heading).drop_nulls("direction").with_columns(cell=cells)
    rows = rows.with_columns(priority=pl.int_ranges(pl.col("cell").list.len())).explode("cell", "priority")
    return rows.select(
        "source", "line", "moment", host="origin_host", device=text_of("switch_port"),
        name=pl.format("{}_pfc_{}", "direction", "priority"), value=pl.col("cell").cast(pl.Int64, strict=False),
    )  # fmt: skip


@analysis(INTERFACE_SPEED, of=("snmp_counter",))
def interface_speed(
    snmp_counter: pl.DataFrame,
    snmp_name: pl.DataFrame,
    snmp_system: pl.DataFrame,
    snmp_uptime: pl.DataFrame,
    output_heading: pl.DataFrame,
) -> pl.DataFrame:
    """One row per interface of a switch and source: its rate, and how long the switch has been running."""
    speeds = _named(snmp_counter, snmp_name, snmp_system, output_heading).filter(pl.col("name") == SPEED)
    uptime = snmp_uptime.group_by("source").agg(uptime=pl.col("uptime").last() / 100)
    rows = speeds.join(uptime, on="source", how="left").with_columns(rate_Gbps=pl.col("value") / 1000)
    return with_all_columns(rows, INTERFACE_SPEED).unique(["source", "device"], keep="last", maintain_order=True)
