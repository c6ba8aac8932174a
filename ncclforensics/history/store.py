"""The SQLite file of a history: add, remove and read runs, from several processes at once.

The file may be damaged, of another program, or made to deceive: it is used only if it holds exactly the tables that
this program creates, without triggers or views, and every value is checked when it is read.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import polars as pl

from ncclforensics.errors import NoInputError, UsageError
from ncclforensics.history.tables import MOMENT, RUN, TABLES, Record

APPLICATION = 0x4E434648  # in the file's header, by which `file` and this program recognise it
SCHEMA = 1
PATIENCE = 120.0  # seconds to wait for other processes that write
_SQL_TYPES = {pl.String: "TEXT", pl.Int64: "INTEGER", pl.Float64: "REAL"}
History = Mapping[str, pl.DataFrame]  # table -> its rows


class Outcome(Enum):
    """What adding a run did."""

    ADDED = "added"
    UPDATED = "updated"  # more lines of a job that was recorded before
    KNOWN = "known"


@dataclass(frozen=True, slots=True)
class Added:
    """The number of a run, and what adding it did."""

    run: int
    outcome: Outcome


def _create(table: str) -> str:
    columns = (f"{name} {_SQL_TYPES[type(dtype)]} NOT NULL" for name, dtype in TABLES[table].items())
    return f"CREATE TABLE {table} ({', '.join(columns)})"


def _objects() -> set[tuple[str, str, str]]:
    """Return type, name and SQL of everything that a history consists of."""
    tables = {("table", table, _create(table)) for table in TABLES}
    return tables | {("index", "run_number", f"CREATE UNIQUE INDEX run_number ON {RUN} ({RUN})")}


def add(file: Path, record: Record) -> Added:
    """Record a run, unless it is known; more lines of a known job replace what was recorded of it.

    A run is known by its inputs, or by the id of a communicator. Raises NoInputError if the file is no history.
    """
    with _open(file, is_written=True) as database:
        known = _find(database, record)
        if known and max(lines for _, lines in known) >= record.lines:
            return Added(known[0][0], Outcome.KNOWN)
        (highest,) = database.execute(f"SELECT coalesce(max({RUN}), 0) FROM run").fetchone()
        number = known[0][0] if known else highest + 1
        added = database.execute(f"SELECT min(added) FROM run WHERE {RUN} = ?", (number,)).fetchone()[0]
        for run, _ in known:
            _remove(database, run)
        for table, rows in record.rows.items():
            if table == "run" and added is not None:
                rows = rows.with_columns(added=pl.lit(added))
            values = rows.with_columns(pl.lit(number).alias(RUN)).select(list(TABLES[table])).iter_rows()
            marks = ", ".join("?" * len(TABLES[table]))
            database.executemany(f"INSERT INTO {table} VALUES ({marks})", values)
        return Added(number, Outcome.UPDATED if known else Outcome.ADDED)


def forget(file: Path, run: int) -> None:
    """Remove a run. Raises UsageError if there is none of this number."""
    _check_exists(file)
    with _open(file, is_written=True) as database:
        if database.execute(f"SELECT 1 FROM run WHERE {RUN} = ?", (run,)).fetchone() is None:
            raise UsageError(f"{file}: holds no run {run}; `history show -v` lists them")
        _remove(database, run)


def read(file: Path) -> History:
    """Return all tables. Raises NoInputError if the file does not exist, is damaged or is no history."""
    _check_exists(file)
    with _open(file, is_written=False) as database:
        try:
            return {table: _rows(database, table) for table in TABLES}
        except ValueError as error:
            raise NoInputError(f"{file}: is a damaged history: {error}") from error


def _check_exists(file: Path) -> None:
    if not file.exists():
        raise NoInputError(f"{file} does not exist; `history add PATH --db {file}` makes it")


def _rows(database: sqlite3.Connection, table: str) -> pl.DataFrame:
    """Return the rows of a table. Raises ValueError if a value has not the type of its column, or is missing."""
    names = ", ".join(TABLES[table])
    rows = database.execute(f"SELECT {names} FROM {table} ORDER BY rowid").fetchall()
    try:
        frame = pl.DataFrame(rows, schema=dict(TABLES[table]), orient="row", strict=True)
        if table == "run":
            frame["moment"].str.to_datetime(MOMENT, strict=True)
    except (TypeError, OverflowError, pl.exceptions.PolarsError) as error:
        raise ValueError(f"a value of table {table} has another type than its column") from error
    if any(column.null_count() for column in frame) or (frame[RUN] < 1).any():
        raise ValueError(f"a value of table {table} is missing")
    return frame


def _find(database: sqlite3.Connection, record: Record) -> list[tuple[int, int]]:
    """Return number and lines of the recorded runs that are the same as this one."""
    found = dict(database.execute(f"SELECT {RUN}, lines FROM run WHERE identity = ?", (record.identity,)).fetchall())
    for commid in record.communicators:
        same = f"SELECT {RUN}, lines FROM run WHERE {RUN} IN (SELECT {RUN} FROM communicator WHERE commid = ?)"
        found |= dict(database.execute(same, (commid,)).fetchall())
    return sorted(found.items())


def _remove(database: sqlite3.Connection, run: int) -> None:
    for table in TABLES:
        database.execute(f"DELETE FROM {table} WHERE {RUN} = ?", (run,))


@contextmanager
def _open(file: Path, *, is_written: bool) -> Iterator[sqlite3.Connection]:
    """Open a history within one transaction, which other processes see as a whole or not at all.

    Raises NoInputError for a file that is damaged or of another program.
    """
    try:
        # Without permission to write, `rw` reads; with it, a reader can undo what a killed process left half written.
        uri = f"{file.absolute().as_uri()}?mode={'rwc' if is_written else 'rw'}"
        with closing(sqlite3.connect(uri, uri=True, timeout=PATIENCE, isolation_level=None)) as database:
            database.execute("PRAGMA trusted_schema = OFF")
            database.execute("BEGIN IMMEDIATE" if is_written else "BEGIN")
            _check(database, file, creates=is_written)
            yield database
            database.execute("COMMIT")
    except sqlite3.OperationalError as error:
        if "locked" in str(error):
            raise NoInputError(f"{file}: another process has kept it locked for {PATIENCE:.0f} seconds") from error
        raise NoInputError(f"{file}: cannot be used: {error}") from error
    except (sqlite3.Error, UnicodeError) as error:
        raise NoInputError(f"{file}: is a damaged history, or none: {error}") from error


def _check(database: sqlite3.Connection, file: Path, *, creates: bool) -> None:
    """Create the tables of an empty file; raise NoInputError unless it then holds them and nothing else."""
    found = set(database.execute("SELECT type, name, sql FROM sqlite_master").fetchall())
    (application,) = database.execute("PRAGMA application_id").fetchone()
    (schema,) = database.execute("PRAGMA user_version").fetchone()
    if application == APPLICATION and schema > SCHEMA:
        raise NoInputError(f"{file}: was made by a later version of ncclforensics")
    if creates and not found and application == 0:
        for _, _, sql in sorted(_objects(), reverse=True):
            database.execute(sql)
        database.execute(f"PRAGMA application_id = {APPLICATION}")
        database.execute(f"PRAGMA user_version = {SCHEMA}")
    elif application != APPLICATION or found != _objects():
        raise NoInputError(f"{file}: is an SQLite file, but no history of ncclforensics")
