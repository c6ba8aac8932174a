"""The tables of a history: the only place where their columns are declared, for SQLite and for Polars."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

RUN = "run"  # the column of every table that says to which run a row belongs
Columns = Mapping[str, pl.DataType]

TABLES: dict[str, Columns] = {
    "run": {
        "run": pl.Int64(),  # its number in this history, from 1
        "identity": pl.String(),  # SHA-256 over the SHA-256 of its inputs
        "path": pl.String(),  # of its folder, file or glob
        "moment": pl.String(),  # when it ran, in ISO 8601
        "clock": pl.String(),  # what the moment was taken from: one of CLOCKS
        "added": pl.String(),  # when it was recorded first
        "lines": pl.Int64(),  # that were read
    },
    # A communicator's id is drawn at random by NCCL: two runs that share one are logs of the same job.
    "communicator": {"run": pl.Int64(), "commid": pl.String()},
    "start": {
        "run": pl.Int64(),
        "job": pl.Int64(),
        "verdict": pl.String(),
        "certainty": pl.String(),
        "ranks": pl.Int64(),  # of its largest communicator, or of those with a log where no line states that
    },
    "fact": {"run": pl.Int64(), "what": pl.String(), "value": pl.String()},
    # A host, GPU or port that took part in a run.
    "part": {
        "run": pl.Int64(),
        "kind": pl.String(),  # one of KINDS
        "host": pl.String(),
        "name": pl.String(),  # of a GPU or a port on its host; empty for a host
        "ranks": pl.String(),  # numbers of the ranks on it, such as `3,11`
    },
    # A rule that names such a part in a run, as the cause.
    "naming": {
        "run": pl.Int64(),
        "kind": pl.String(),
        "host": pl.String(),
        "name": pl.String(),
        "rule": pl.String(),
        "certainty": pl.String(),
        "ranks": pl.String(),  # numbers of the ranks that were named there, such as `3,11`
    },
    # Every rule with a warning or an error, whatever it names.
    "finding": {"run": pl.Int64(), "rule": pl.String(), "severity": pl.String()},
    "measurement": {
        "run": pl.Int64(),
        "benchmark": pl.Int64(),  # number in its run
        "series": pl.String(),  # what was measured: only equal tests are compared
        "hosts": pl.String(),
        "busbw": pl.Float64(),  # GB/s
    },
}

HOST, GPU, PORT = "host", "GPU", "port"
KINDS = (HOST, GPU, PORT)
MOMENT = "%Y-%m-%dT%H:%M:%S"  # how times are written
CLOCKS = ("given", "log", "file", "added")


@dataclass(frozen=True, slots=True)
class Record:
    """The rows of one run, by table, without its number. `run` has exactly one row."""

    rows: Mapping[str, pl.DataFrame]

    @property
    def identity(self) -> str:
        """The digest of its inputs."""
        return str(self.rows["run"]["identity"].item())

    @property
    def path(self) -> str:
        """The path that was given."""
        return str(self.rows["run"]["path"].item())

    @property
    def lines(self) -> int:
        """Lines that were read."""
        return int(self.rows["run"]["lines"].item())

    @property
    def communicators(self) -> list[str]:
        """Ids of its communicators."""
        return self.rows["communicator"]["commid"].to_list()


def columns_of(table: str) -> Columns:
    """Return the columns of a table without the number of the run."""
    return {name: dtype for name, dtype in TABLES[table].items() if name != RUN}


def frame_of(table: str, rows: list[dict[str, object]]) -> pl.DataFrame:
    """Return rows of a table, without the number of the run, as a frame; equal rows once."""
    return pl.DataFrame(rows, schema=dict(columns_of(table))).unique(maintain_order=True)
