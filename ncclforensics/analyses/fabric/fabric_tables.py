"""The tables of ibdiagnet2.db_csv: sections whose first record names the columns."""

from __future__ import annotations

import csv
from collections.abc import Iterator

import polars as pl

from ncclforensics.analyses.host.command_output import OUTPUT_KEY, add_heading_above
from ncclforensics.data.counters import LINK_SPEED_CODES, LINK_WIDTH_CODES, PHYSICAL_STATE_CODES, PORT_STATE_CODES
from ncclforensics.frames.columns import LINE, text_of
from ncclforensics.frames.registry import analysis

TABLED_NODE = {
    **LINE,
    "guid": pl.String(),  # as printed
    "node": pl.String(),
    "kind": pl.String(),  # switch, host, router
    "ports": pl.Int32(),
    "system": pl.String(),  # without 0x
    "device_number": pl.String(),  # hexadecimal
}
TABLED_LINK = {
    "source": pl.Int32(),
    "line": pl.Int32(),  # of the link; of the port where it leads nowhere
    "launcher_time": pl.String(),
    "launcher_rank": pl.Int32(),
    "launcher_node": pl.String(),
    "guid": pl.String(),
    "node": pl.String(),
    "port": pl.Int32(),
    "lid": pl.Int32(),
    "state": pl.String(),
    "physical": pl.String(),
    "width": pl.String(),
    "speed": pl.String(),
    "peer_guid": pl.String(),
    "peer_node": pl.String(),
    "peer_port": pl.Int32(),
    "peer_lid": pl.Int32(),
}
TABLED_FIRMWARE = {
    **LINE,
    "guid": pl.String(),
    "node": pl.String(),
    "board": pl.String(),  # PSID
    "firmware": pl.String(),
}
NODE_KINDS = {1: "host", 2: "switch", 3: "router"}
CELLS = pl.List(pl.String)
NO_PORTS = (0, 255)  # of a switch: its own, and all of them


def _records(
    table_edge: pl.DataFrame, table_record: pl.DataFrame, section: str
) -> Iterator[tuple[pl.DataFrame, list[list[str]]]]:
    """Yield the lines of each table of a section, the one with the names of columns first, and their cells."""
    edges = table_edge.select(*OUTPUT_KEY, "line", "section", edge=text_of("form"))
    rows = add_heading_above(table_record, edges).filter((pl.col("edge") == "start") & (text_of("section") == section))
    for table in rows.sort("source", "line").partition_by("source", "head_line", maintain_order=True):
        yield table, [[cell.strip() for cell in next(csv.reader([record]))] for record in table["record"]]


def table_cells(table_edge: pl.DataFrame, table_record: pl.DataFrame, section: str) -> pl.DataFrame:
    """One row per cell of the records of a section: its text, `cell`, and the name of its `column`."""
    tables = [
        table[1:].with_columns(
            cell=pl.Series([record[: len(names)] for record in records], dtype=CELLS),
            column=pl.Series([names[: len(record)] for record in records], dtype=CELLS),
        )
        for table, (names, *records) in _records(table_edge, table_record, section)
    ]
    none = table_record.clear().with_columns(cell=pl.lit(None, CELLS), column=pl.lit(None, CELLS))
    return pl.concat([none, *tables], how="diagonal_relaxed").explode("cell", "column")


def _table(table_edge: pl.DataFrame, table_record: pl.DataFrame, section: str, columns: dict[str, str]) -> pl.DataFrame:
    """One row per record of a section, with its columns by our names; null where the header lacks one."""
    tables = []
    for table, (names, *records) in _records(table_edge, table_record, section):
        place = {name: names.index(printed) if printed in names else len(names) for name, printed in columns.items()}
        cells = {name: [record[at] if at < len(record) else None for record in records] for name, at in place.items()}
        named = {name: pl.Series(texts, dtype=pl.String) for name, texts in cells.items()}
        tables.append(table[1:].select("line", *OUTPUT_KEY).with_columns(**named))
    none = table_record.clear().select("line", *OUTPUT_KEY, **{name: pl.lit(None, pl.String) for name in columns})
    return pl.concat([none, *tables])


def _number(column: str) -> pl.Expr:
    """A number as it is printed: decimal, or hexadecimal behind 0x."""
    text = pl.col(column)
    hexadecimal = text.str.strip_prefix("0x").str.to_integer(base=16, strict=False)
    is_hexadecimal = text.str.starts_with("0x")
    number = pl.when(is_hexadecimal).then(hexadecimal).otherwise(text.str.to_integer(strict=False))
    return number.cast(pl.Int32, strict=False)


@analysis(TABLED_NODE, of=("table_edge",), is_step=True)
def tabled_node(table_edge: pl.DataFrame, table_record: pl.DataFrame) -> pl.DataFrame:
    """One row per node in the table NODES."""
    columns = {
        "guid": "NodeGUID", "node": "NodeDesc", "type": "NodeType", "ports": "NumPorts", "system": "SystemImageGUID",
        "device": "DeviceID",
    }  # fmt: skip
    rows = _table(table_edge, table_record, "NODES", columns).drop_nulls("guid")
    return rows.with_columns(
        kind=_number("type").replace_strict(NODE_KINDS, default=None, return_dtype=pl.String),
        ports=_number("ports"),
        system=pl.col("system").str.strip_prefix("0x"),
        device_number=_number("device").map_elements(lambda number: f"{number:x}", pl.String),
    )


@analysis(TABLED_FIRMWARE, of=("table_edge",), is_step=True)
def tabled_firmware(table_edge: pl.DataFrame, table_record: pl.DataFrame, tabled_node: pl.DataFrame) -> pl.DataFrame:
    """One row per node in the table NODES_INFO with its firmware; older files have one byte for a part."""
    parts = ("Major", "Minor", "SubMinor")
    long, short = ({f"{prefix}{part}": f"FWInfo_{prefix}{part}" for part in parts} for prefix in ("Extended_", ""))
    columns = {"guid": "NodeGUID", "board": "FWInfo_PSID", **long, **short}
    rows = _table(table_edge, table_record, "NODES_INFO", columns).drop_nulls("guid")
    versions = [pl.concat_str([_number(name) for name in names], separator=".") for names in (long, short)]
    names = tabled_node.select("source", "guid", "node").unique(["source", "guid"])
    named = rows.join(names, on=["source", "guid"], how="left", maintain_order="left")
    return named.with_columns(firmware=pl.coalesce(versions)).drop_nulls("firmware")


@analysis(TABLED_LINK, of=("table_edge",), is_step=True)
def tabled_link(table_edge: pl.DataFrame, table_record: pl.DataFrame, tabled_node: pl.DataFrame) -> pl.DataFrame:
    """One row per port in the tables LINKS and PORTS, from each end of a link.

    Codes of widths and speeds: ibutils, ibdm/Fabric.h (IBLinkWidth, IBLinkSpeed); states: InfiniBand, PortInfo.
    """
    ends = {"guid": "NodeGuid1", "port": "PortNum1", "peer_guid": "NodeGuid2", "peer_port": "PortNum2"}
    near = _table(table_edge, table_record, "LINKS", ends)
    far = near.rename({"guid": "peer_guid", "peer_guid": "guid", "port": "peer_port", "peer_port": "port"})
    links = pl.concat([near, far.select(near.columns)])
    columns = {
        "guid": "NodeGuid", "port": "PortNum", "lid": "LID", "width_code": "LinkWidthActv",
        "speed_code": "LinkSpeedActv", "state_code": "PortState", "physical_code": "PortPhyState",
    }  # fmt: skip
    ports = _table(table_edge, table_record, "PORTS", columns).rename({"line": "port_line"})
    codes = {"width": LINK_WIDTH_CODES, "speed": LINK_SPEED_CODES, "state": PORT_STATE_CODES}
    ports = ports.with_columns(
        lid=_number("lid"),
        **{
            name: _number(f"{name}_code").replace_strict(known, default=None, return_dtype=pl.String)
            for name, known in {**codes, "physical": PHYSICAL_STATE_CODES}.items()
        },
    )
    key = ["source", "guid", "port"]
    rows = links.join(ports, on=key, how="full", coalesce=True, maintain_order="left_right", suffix="_of_port")
    rows = rows.with_columns(
        pl.coalesce("line", "port_line").alias("line"),
        **{name: pl.coalesce(name, f"{name}_of_port") for name in OUTPUT_KEY[1:]},
    )
    names = tabled_node.select("source", "guid", "node").unique(["source", "guid"])
    lids = ports.select("source", peer_guid="guid", peer_port="port", peer_lid="lid")
    rows = rows.join(names, on=["source", "guid"], how="left", maintain_order="left")
    rows = rows.join(
        names.rename({"guid": "peer_guid", "node": "peer_node"}), on=["source", "peer_guid"], how="left",
        maintain_order="left",
    )  # fmt: skip
    rows = rows.join(lids, on=["source", "peer_guid", "peer_port"], how="left", maintain_order="left")
    rows = rows.with_columns(_number("port"), _number("peer_port"), launcher_time=pl.lit(None, pl.String))
    return rows.filter(~pl.col("port").is_in(NO_PORTS))
