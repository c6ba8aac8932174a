"""Flags that transceivers raise, as ethtool -m prints them, with the interface of the command above."""

from __future__ import annotations

import polars as pl

from ncclforensics.analyses.fabric.ethernet_names import interface_of_command
from ncclforensics.analyses.host.command_sessions import (
    CommandHistory,
    Row,
    frame_from_rows,
    origin_of,
    rows_with_origin,
)
from ncclforensics.frames.registry import analysis

TRANSCEIVER_FLAG = {
    "source": pl.Int32(),
    "line": pl.Int32(),
    "host": pl.String(),
    "moment": pl.Datetime("us"),
    "netdev": pl.String(),  # null where no command shows it
    "quantity": pl.String(),
    "bound": pl.String(),  # high or low
    "level": pl.String(),  # alarm or warning
    "lane": pl.Int32(),  # null for the module as a whole
    "is_on": pl.Boolean(),
}


@analysis(TRANSCEIVER_FLAG, of=("module_flag",))
def transceiver_flag(
    module_flag: pl.DataFrame, dump_command: pl.DataFrame, output_heading: pl.DataFrame
) -> pl.DataFrame:
    """One row per alarm or warning that a transceiver can raise."""
    commands = CommandHistory(dump_command)
    rows: list[Row] = []
    for row in rows_with_origin(module_flag, output_heading):
        rows.append(
            {
                **origin_of(row),
                "netdev": interface_of_command(commands, row["source"], row["line"]),
                "quantity": str(row["quantity"]).lower(),
                "bound": str(row["bound"]),
                "level": str(row["level"]),
                "lane": row["lane"],
                "is_on": str(row["flag"]) == "On",
            }
        )
    return frame_from_rows(rows, TRANSCEIVER_FLAG)
