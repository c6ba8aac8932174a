"""Commands and their outputs: the arguments of the command above a line, and the fields of each mlxlink output."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

import polars as pl

from ncclforensics.analyses.host.command_output import add_origin
from ncclforensics.analyses.host.numbers import parse_integer
from ncclforensics.frames.columns import Row

Command = tuple[int, str, list[str]]  # line, tool, its arguments
MLXLINK_TOOLS = ("mlxlink", "mstlink")


class CommandHistory:
    """The commands of all sources, in the order of lines."""

    def __init__(self, dump_command: pl.DataFrame) -> None:
        self._commands: dict[int, list[Command]] = {}
        shown = dump_command.select("source", "line", "tool", "arguments").sort("source", "line")
        for source, line, tool, arguments in shown.iter_rows():
            self._commands.setdefault(source, []).append((line, str(tool), (arguments or "").split()))

    def arguments(self, source: int, line: int, tools: Iterable[str]) -> list[str]:
        """Find the arguments of the last command above a line; none if its tool is another."""
        commands = self._commands.get(source, [])
        above = bisect_left(commands, (line, "", []))
        _, tool, arguments = commands[above - 1] if above else (0, "", [])
        return arguments if tool in tools else []


def option(arguments: list[str], *names: str) -> str | None:
    """Find the value behind the first of these options.

    >>> option(["-d", "mlx5_0", "-c"], "-d", "--device")
    'mlx5_0'
    """
    values = (value for name, value in pairwise(arguments) if name in names)
    return next(values, None)


def frame_from_rows(rows: Iterable[Row], schema: dict[str, Any]) -> pl.DataFrame:
    """Build a frame from rows, sorted by source and line.

    A column that a row lacks is null, and so is a number that the column's type does not hold.
    """
    most = {name: pl.select(dtype.max()).item() for name, dtype in schema.items() if dtype.is_integer()}
    complete_rows = [{**dict.fromkeys(schema), **row} for row in rows]
    for row in complete_rows:
        for name, bound in most.items():
            if row[name] is not None and not -bound <= row[name] <= bound:
                row[name] = None
    return pl.DataFrame(complete_rows, schema=schema, orient="row").sort("source", "line", maintain_order=True)


def rows_with_origin(rows: pl.DataFrame, output_heading: pl.DataFrame) -> list[Row]:
    """Rows in the order of lines, each with `origin_host` and `moment`."""
    return add_origin(rows, output_heading).sort("source", "line").to_dicts()


def origin_of(row: Row) -> Row:
    """Source, line, host and time of a row that has passed `add_origin`."""
    return {"source": row["source"], "line": row["line"], "host": row["origin_host"], "moment": row["moment"]}


def mlxlink_outputs(
    sections: pl.DataFrame, fields: pl.DataFrame, output_heading: pl.DataFrame, commands: CommandHistory
) -> Iterator[tuple[Row, dict[str, Row]]]:
    """Yield origin and fields of each mlxlink output; an output begins with its section `Operational Info`."""
    origin: Row = {}
    shown: dict[str, Row] = {}
    for row in rows_with_origin(pl.concat([sections, fields], how="diagonal"), output_heading):
        if str(row["section"]) == "Operational Info" or origin.get("source") != row["source"]:
            if shown:
                yield origin, shown
            arguments = commands.arguments(row["source"], row["line"], MLXLINK_TOOLS)
            port = parse_integer(option(arguments, "-p", "--port"))
            origin = {**origin_of(row), "device": option(arguments, "-d", "--device"), "port": port}
            shown = {}
        if row["field"] is not None:
            shown[str(row["field"])] = row
    if shown:
        yield origin, shown
