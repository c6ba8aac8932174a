"""Versions of the firmware of adapters and switches, from the tools that print them."""

from __future__ import annotations

import polars as pl

from ncclforensics.analyses.fabric.fabric_tools import guid_of, host_and_device, node_of
from ncclforensics.analyses.host.command_output import OUTPUT_KEY, add_heading_above, add_origin
from ncclforensics.analyses.host.command_sessions import CommandHistory, option
from ncclforensics.frames.columns import short_host, text_of, with_all_columns
from ncclforensics.frames.registry import analysis

DEVICE_FIRMWARE = {
    "source": pl.Int32(),
    "line": pl.Int32(),  # of the version
    "host": pl.String(),
    "device": pl.String(),  # an adapter as RDMA tools name it, its PCI address, or a switch
    "guid": pl.String(),
    "board": pl.String(),  # PSID; the model where no tool prints that
    "firmware": pl.String(),  # without leading zeros, which some tools print
}
QUERIES = ("flint", "mstflint", "vendstat", "ibswinfo")


# Rows of ibswinfo; the first one begins a switch.
PARTS = {"part number": None, "PSID": "board", "GUID": "base_guid", "firmware version": "firmware"}


@analysis(DEVICE_FIRMWARE, of=("port_state", "tabled_firmware", "firmware_version", "switch_part"))
def device_firmware(
    port_state: pl.DataFrame,
    tabled_firmware: pl.DataFrame,
    firmware_device: pl.DataFrame,
    firmware_version: pl.DataFrame,
    firmware_board: pl.DataFrame,
    firmware_guid: pl.DataFrame,
    firmware_address: pl.DataFrame,
    switch_part: pl.DataFrame,
    fabric_node: pl.DataFrame,
    output_heading: pl.DataFrame,
    dump_command: pl.DataFrame,
) -> pl.DataFrame:
    """One row per adapter or switch whose firmware a tool prints: the last version, and the board it is for."""
    host, device = host_and_device("node")
    node = node_of("node")
    of_ports = port_state.drop_nulls(["firmware", "device", "model"]).select(
        "source", "host", "device", "guid", "firmware", line=pl.coalesce("firmware_line", "line"), board="model"
    )
    of_tables = tabled_firmware.select(
        "source", "line", "board", "firmware", guid=guid_of("guid"), host=host, device=pl.coalesce(device, node)
    )
    outputs = [
        _queried(firmware_device, firmware_board, firmware_guid, firmware_version),
        _queried(*(_of_part(switch_part, part, column) for part, column in PARTS.items())),
    ]
    queried = add_origin(pl.concat(outputs), output_heading)
    commands = CommandHistory(dump_command)
    addresses = add_heading_above(firmware_address, firmware_device.select(*OUTPUT_KEY, "line"))
    printed = addresses.select("source", "head_line", address=text_of("device_name"))
    names = fabric_node.drop_nulls("guid").select("guid", "node").unique("guid", keep="first", maintain_order=True)
    asked = [_asked(commands, source, line) for source, line in queried.select("source", "head_line").iter_rows()]
    of_queries = (
        queried.with_columns(asked=pl.Series(asked, dtype=pl.String))
        .join(printed, on=["source", "head_line"], how="left", maintain_order="left")
        .join(names, on="guid", how="left", maintain_order="left")
        .with_columns(host=pl.coalesce("origin_host", host), device=pl.coalesce("address", "asked", device, node))
    )
    rows = pl.concat([with_all_columns(part, DEVICE_FIRMWARE) for part in (of_ports, of_tables, of_queries)])
    rows = rows.drop_nulls(["board", "firmware"]).with_columns(firmware=_without_zeros("firmware"))
    is_known = pl.col("device").is_not_null() | pl.col("guid").is_not_null()
    place = pl.coalesce(short_host("host"), pl.when(pl.col("guid").is_null()).then(pl.col("source").cast(pl.String)))
    key = pl.concat_str(place.fill_null(""), pl.coalesce("guid", "device"), separator=" ")
    last = rows.filter(is_known).with_columns(_key=key).unique("_key", keep="last", maintain_order=True).drop("_key")
    return pl.concat([last, rows.filter(~is_known)]).sort("source", "line", maintain_order=True)


def _of_part(switch_part: pl.DataFrame, part: str, column: str | None) -> pl.DataFrame:
    """The rows of ibswinfo with this part of a switch, its value as `column`."""
    rows = switch_part.filter(text_of("switch_part") == part)
    return rows.with_columns(text_of("reading").alias(column)) if column else rows


def _queried(devices: pl.DataFrame, boards: pl.DataFrame, guids: pl.DataFrame, versions: pl.DataFrame) -> pl.DataFrame:
    """Versions that a tool prints among other lines on a device; those of images in files are left out."""
    heads = devices.select(*OUTPUT_KEY, "line")
    of_device = ["source", "head_line"]
    versions, boards, guids = (add_heading_above(rows, heads) for rows in (versions, boards, guids))
    board = boards.select(*of_device, board=text_of("board")).unique(of_device, keep="first")
    guid = guids.select(*of_device, guid=guid_of("base_guid"), is_image=pl.col("base_guid").is_null())
    rows = versions.drop_nulls("head_line").select(
        *OUTPUT_KEY, "line", "head_line", "launcher_time", firmware=text_of("firmware")
    )
    rows = rows.join(board, on=of_device, how="left", maintain_order="left")
    rows = rows.join(guid.unique(of_device, keep="first"), on=of_device, how="left", maintain_order="left")
    return rows.filter(~pl.col("is_image").fill_null(value=False))


def _asked(commands: CommandHistory, source: int, line: int) -> str | None:
    """The device that the command above a line asks: `mlx5_0` of `flint -d mlx5_0 q`, `LID 12` of `vendstat -N 12`."""
    arguments = commands.arguments(source, line, QUERIES)
    last = arguments[-1] if arguments else ""
    return option(arguments, "-d", "--device") or (f"LID {last}" if last.isdigit() else None)


def _without_zeros(column: str) -> pl.Expr:
    numbers = pl.element().str.strip_chars_start("0").replace("", "0")
    return pl.col(column).str.split(".").list.eval(numbers).list.join(".")
