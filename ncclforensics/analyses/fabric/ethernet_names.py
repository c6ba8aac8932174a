"""Which interface the statistics of ethtool are of: that of the command, or of the heading above them."""

from __future__ import annotations

import polars as pl

from ncclforensics.analyses.host.command_sessions import CommandHistory
from ncclforensics.grammar.values import parse_value

OF_HEADINGS = ("output", "statistics", "stats", "counters", "interface", "device")  # behind `# ethtool -S`, in prose


def interface_names(
    heads: pl.DataFrame, dump_host: pl.DataFrame, commands: CommandHistory
) -> dict[tuple[int, int], str | None]:
    """Return the interface of each block of statistics, by source and line of its head; None if nothing names one."""
    words = dump_host.select("source", pl.col("line") + 1, "bare_host").iter_rows()
    above = {(source, line): str(word) for source, line, word in words if parse_value(word, "interface_name")}
    places = heads.select("source", "line").rows()
    return {place: interface_of_command(commands, *place) or above.get(place) for place in places}


def interface_of_command(commands: CommandHistory, source: int, line: int) -> str | None:
    """Return the interface in the command line of ethtool above a line."""
    words = commands.arguments(source, line, ("ethtool",))
    name = next((word for word in words if not word.startswith("-")), None)
    return None if name and name.lower() in OF_HEADINGS else name
