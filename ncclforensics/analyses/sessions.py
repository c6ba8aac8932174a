"""On which host, and by which command, lines were collected: as launchers, prompts and commands above them tell."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

import polars as pl

from ncclforensics.analyses.printed import whole

Row = dict[str, Any]
TOOLS_OF_LINKS = ("mlxlink", "mstlink")
Command = tuple[int, str, list[str]]  # line, tool, its arguments


class Sessions:
    """The commands of every source, in order."""

    def __init__(self, *commands: pl.DataFrame) -> None:
        self._hosts: dict[int, list[tuple[int, str]]] = {}
        self._commands: dict[int, list[Command]] = {}
        for row in pl.concat(commands, how="diagonal_relaxed").sort("source", "line").to_dicts():
            source, line = row["source"], row["line"]
            if tool := row.get("tool"):
                self._commands.setdefault(source, []).append((line, str(tool), (row["arguments"] or "").split()))
            if host := row["prompt_host"]:
                self._hosts.setdefault(source, []).append((line, str(host)))

    def host(self, source: int, line: int, node: str | None) -> str | None:
        """The host that a launcher or the last prompt names; the name of a file proves nothing."""
        if node:
            return str(node)
        told = self._hosts.get(source, [])
        place = bisect_left(told, (line, ""))
        return told[place - 1][1] if place else None

    def arguments(self, source: int, line: int, tools: Iterable[str]) -> list[str]:
        """Those of the last command above a line, if it is one of these tools."""
        told = self._commands.get(source, [])
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


def framed(rows: Iterable[Row], schema: dict[str, Any]) -> pl.DataFrame:
    """Rows as a frame."""
    return pl.DataFrame(list(rows), schema=schema, orient="row")


def place_of(row: Row, sessions: Sessions) -> Row:
    """Source and line of a row, and the host that it is of."""
    source, line = row["source"], row["line"]
    return {"source": source, "line": line, "host": sessions.host(source, line, row["launcher_node"])}


def mlxlinks(sections: pl.DataFrame, fields: pl.DataFrame, sessions: Sessions) -> Iterator[tuple[Row, dict[str, Row]]]:
    """Place and fields of each output of mlxlink: it begins with what is operational."""
    begins = set(sections.filter(pl.col("section") == "Operational Info").select("source", "line").iter_rows())
    everything = pl.concat([sections, fields], how="diagonal").sort("source", "line")
    place: Row = {}
    told: dict[str, Row] = {}
    for row in everything.to_dicts():
        source, line = row["source"], row["line"]
        if (source, line) in begins or place.get("source") != source:
            if told:
                yield place, told
            arguments = sessions.arguments(source, line, TOOLS_OF_LINKS)
            port = whole(option(arguments, "-p", "--port"))
            place = {**place_of(row, sessions), "device": option(arguments, "-d", "--device"), "port": port}
            told = {}
        if row["field"] is not None:
            told[str(row["field"])] = row
    if told:
        yield place, told
