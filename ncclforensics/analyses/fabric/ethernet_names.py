"""Which interface the statistics of ethtool are of: that of the command, or of the heading above them."""

from __future__ import annotations

import polars as pl

from ncclforensics.analyses.host.command_sessions import CommandHistory
from ncclforensics.frames.columns import text_of
from ncclforensics.grammar.values import parse_value
from ncclforensics.parsing.sampled_outputs import row_above

OF_HEADINGS = ("output", "statistics", "stats", "counters", "interface", "device")  # behind `# ethtool -S`, in prose


def interface_names(
    heads: pl.DataFrame, ethernet_device: pl.DataFrame, dump_host: pl.DataFrame, commands: CommandHistory
) -> dict[tuple[int, int], str | None]:
    """Return the interface of each block of statistics, by source and line of its head; None if nothing names one.

    Where ethtool -i stands above a block, and no name of an interface, it is called by the address of its device.
    """
    words = dump_host.select("source", pl.col("line") + 1, "bare_host").iter_rows()
    above = {(source, line): str(word) for source, line, word in words if parse_value(word, "interface_name")}
    places = heads.select("source", "line").sort("source", "line")
    buses = ethernet_device.select("source", "line", bus=text_of("nic_bus")).sort("source", "line")
    shown = row_above(places["source"], places["line"], buses["source"], buses["line"])
    is_of_another = shown == shown.shift(1)  # a block stands in between
    bus = buses["bus"].gather(shown.set(is_of_another.fill_null(value=False), None))
    return {
        place: interface_of_command(commands, *place) or above.get(place) or address
        for place, address in zip(places.rows(), bus, strict=True)
    }


def interface_of_command(commands: CommandHistory, source: int, line: int) -> str | None:
    """Return the interface in the command line of ethtool above a line."""
    words = commands.arguments(source, line, ("ethtool",))
    name = next((word for word in words if not word.startswith("-")), None)
    return None if name and name.lower() in OF_HEADINGS else name
