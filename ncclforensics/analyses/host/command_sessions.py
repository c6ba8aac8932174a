"""The commands above what they printed, and what one output of mlxlink holds."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

import polars as pl

from ncclforensics.analyses.host.command_output import add_origin
from ncclforensics.analyses.host.numbers import parse_integer

Row = dict[str, Any]
Command = tuple[int, str, list[str]]  # line, tool, its arguments
MLXLINK_TOOLS = ("mlxlink", "mstlink")


class CommandHistory:
    """The commands of every source, in order."""

    def __init__(self, dump_command: pl.DataFrame) -> None:
        self._told: dict[int, list[Command]] = {}
        shown = dump_command.select("source", "line", "tool", "arguments").sort("source", "line")
        for source, line, tool, arguments in shown.iter_rows():
            self._told.setdefault(source, []).append((line, str(tool), (arguments or "").split()))

    def arguments(self, source: int, line: int, tools: Iterable[str]) -> list[str]:
        """Those of the last command above a line, if it is one of these tools."""
        told = self._told.get(source, [])
        place = bisect_left(told, (line, "", []))
        _, tool, arguments = told[place - 1] if place else (0, "", [])
        return arguments if tool in tools else []


def option(arguments: list[str], *names: str) -> str | None:
    """The word behind the first of these options.

    >>> option(["-d", "mlx5_0", "-c"], "-d", "--device")
    'mlx5_0'
    """
    behind = (value for name, value in pairwise(arguments) if name in names)
    return next(behind, None)


def frame_from_rows(rows: Iterable[Row], schema: dict[str, Any]) -> pl.DataFrame:
    """Rows as a frame, by source and line; a column that a row lacks is null."""
    whole_rows = [{**dict.fromkeys(schema), **row} for row in rows]
    return pl.DataFrame(whole_rows, schema=schema, orient="row").sort("source", "line", maintain_order=True)


def rows_with_origin(rows: pl.DataFrame, output_heading: pl.DataFrame) -> list[Row]:
    """Rows in the order of lines, each with its host and time."""
    return add_origin(rows, output_heading).sort("source", "line").to_dicts()


def origin_of(row: Row) -> Row:
    """Where a row that has been `add_origin` stands, of which host and when."""
    return {"source": row["source"], "line": row["line"], "host": row["origin_host"], "moment": row["moment"]}


def mlxlink_outputs(
    sections: pl.DataFrame, fields: pl.DataFrame, output_heading: pl.DataFrame, commands: CommandHistory
) -> Iterator[tuple[Row, dict[str, Row]]]:
    """Place and fields of each output of mlxlink: it begins with what is operational."""
    place: Row = {}
    told: dict[str, Row] = {}
    for row in rows_with_origin(pl.concat([sections, fields], how="diagonal"), output_heading):
        if str(row["section"]) == "Operational Info" or place.get("source") != row["source"]:
            if told:
                yield place, told
            arguments = commands.arguments(row["source"], row["line"], MLXLINK_TOOLS)
            port = parse_integer(option(arguments, "-p", "--port"))
            place = {**origin_of(row), "device": option(arguments, "-d", "--device"), "port": port}
            told = {}
        if row["field"] is not None:
            told[str(row["field"])] = row
    if told:
        yield place, told
