"""Ask one rule about rows that are written by hand, without logs: for what stands at a limit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import polars as pl

from ncclforensics.frames.open_run import open_run
from ncclforensics.frames.protocol import parameters
from ncclforensics.rules.finding import Finding

Row = dict[str, Any]
Rule = Callable[..., Iterator[Finding]]
NOTHING = open_run([])


def findings_of(rule: Rule, **rows: list[Row]) -> list[Finding]:
    """The findings of a rule on rows of frames, by name; other frames are empty.

    A row without a place gets a line of its own; a column that is not given is null.
    """

    def frame(name: str) -> pl.DataFrame:
        schema = NOTHING[name].schema
        if name not in rows:
            return NOTHING[name]
        numbered = [{"source": 0, "line": number, **row} for number, row in enumerate(rows[name], 1)]
        given = [{column: row.get(column) for column in schema} for row in numbered]
        assert all(set(row) <= {*schema, "source", "line"} for row in rows[name]), name
        return pl.DataFrame(given, schema)

    return list(rule(**{name: frame(name) for name in parameters(rule)}) or ())
