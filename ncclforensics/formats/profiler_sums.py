"""Sums of calls and kernels over a profile: tables of torch.profiler and `nsys stats`, databases of Nsight Systems.

A database is foreign input. It is opened read-only, as what cannot change, without the right to anything but reading
its tables; a view, a virtual table or a trigger in it is never run, and a query that takes too long ends.
"""

from __future__ import annotations

import io
import shutil
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from ncclforensics.data import nouns
from ncclforensics.formats import TraceRecords

if TYPE_CHECKING:
    import sqlite3  # every start imports this module, and few read a database

GRAMMARS = ("profilersums",)
SIGNATURES = ("sum_columns", "summed_process")
KINDS = dict.fromkeys(SIGNATURES, "profiler-trace")
IS_SIDE_OUTPUT = True
NOUN = nouns.SUMS
MAGIC_OF_SQLITE = b"SQLite format 3\x00"
KERNELS, STRINGS, SYSTEM = "CUPTI_ACTIVITY_KIND_KERNEL", "StringIds", "TARGET_INFO_SYSTEM_ENV"
LONGEST_QUERY = 60.0  # seconds
STEPS_BETWEEN_LOOKS = 100_000  # of SQLite's machine, between two looks at the clock
LONGEST_VALUE = 1 << 20  # bytes
LONGEST_NAME = 200  # characters of a kernel's name
MOST_NAMES = 4096
MOST_GPUS = 1 << 16
Row = dict[str, Any]

SUMS = f"""
SELECT kernels.deviceId AS gpu, names.value AS kernel, count(*) AS calls,
       sum(kernels."end" - kernels.start) / 1000.0 AS total_us, min(kernels.start) AS began, max(kernels."end") AS ended
FROM {KERNELS} AS kernels LEFT JOIN {STRINGS} AS names ON names.id = kernels.{{column}}
WHERE kernels."end" >= kernels.start GROUP BY kernels.deviceId, kernels.{{column}}
ORDER BY total_us DESC LIMIT {MOST_NAMES}
"""
HOST = f"SELECT value FROM {SYSTEM} WHERE name = 'Hostname' LIMIT 1"


def is_trace(beginning: bytes) -> bool:
    """Whether a file with this beginning is a database of SQLite."""
    return beginning.startswith(MAGIC_OF_SQLITE)


def read_trace(stream: io.BufferedIOBase, *, is_whole: bool) -> TraceRecords:
    """Read the sums of a database; nothing, if not `is_whole`."""
    if not is_whole:
        return TraceRecords({}, [], 0)
    import sqlite3

    try:
        with _path_of(stream) as path, closing(_opened(path)) as database:
            return _sums(database)
    except (sqlite3.Error, UnicodeError, OverflowError) as error:
        return TraceRecords({}, [f"is a database of SQLite that cannot be read: {error}"], 0)


@contextmanager
def _path_of(stream: io.BufferedIOBase) -> Iterator[str]:
    """The path of a file with the database: its own, or of a copy, where it is a member of an archive or compressed."""
    name = getattr(stream, "name", None)
    if isinstance(name, str) and isinstance(stream, io.BufferedReader) and Path(name).is_file():
        yield name
        return
    with NamedTemporaryFile(suffix=".sqlite") as copy:
        shutil.copyfileobj(stream, copy)
        copy.flush()
        yield copy.name


def _opened(path: str) -> sqlite3.Connection:
    import sqlite3

    reading = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION}
    database = sqlite3.connect(f"file:{quote(str(Path(path).resolve()))}?mode=ro&immutable=1", uri=True)
    database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST_VALUE)
    database.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    database.execute("PRAGMA trusted_schema = OFF")
    database.execute("PRAGMA query_only = ON")
    ends = time.monotonic() + LONGEST_QUERY
    database.set_progress_handler(lambda: int(time.monotonic() > ends), STEPS_BETWEEN_LOOKS)
    database.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in reading else sqlite3.SQLITE_DENY)
    database.row_factory = sqlite3.Row
    return database


def _sums(database: sqlite3.Connection) -> TraceRecords:
    columns = _columns(database, KERNELS)
    named_by = next((column for column in ("demangledName", "shortName") if column in columns), None)
    if (
        named_by is None
        or not {"start", "end", "deviceId"} <= columns
        or not {"id", "value"} <= _columns(database, STRINGS)
    ):
        return TraceRecords({}, ["is a database of SQLite without kernels of Nsight Systems"], 0)
    rows = [row for row in map(dict, database.execute(SUMS.format(column=named_by))) if _is_sum(row)]
    if not rows:
        return TraceRecords({}, ["is a database of Nsight Systems without a kernel"], 0)
    host = None
    if {"name", "value"} <= _columns(database, SYSTEM):
        host = next((row["value"] for row in database.execute(HOST) if isinstance(row["value"], str)), None)
    kept = ("calls", "gpu", "kernel", "total_us")
    import polars as pl  # where no trace is read, it need not be loaded

    kernels = pl.DataFrame([{name: row[name] for name in kept} for row in rows])
    gpus = sorted({row["gpu"] for row in rows})
    frames = {
        "summed_process": pl.DataFrame([_of_gpu(gpu, host, rows) for gpu in gpus]),
        "summed_kernel": kernels.with_columns(pl.col("kernel").str.slice(0, LONGEST_NAME)),
    }
    return TraceRecords(frames, [], 0)


def _of_gpu(gpu: int, host: str | None, rows: list[Row]) -> Row:
    own = [row for row in rows if row["gpu"] == gpu]
    wall = max(row["ended"] for row in own) - min(row["began"] for row in own)
    return {"gpu": gpu, "host": host, "kernels": sum(row["calls"] for row in own), "wall_us": wall / 1000}


def _columns(database: sqlite3.Connection, table: str) -> set[str]:
    """The columns of an ordinary table; none, if there is no such table: a view or virtual table would run code."""
    master = "SELECT sql FROM sqlite_master WHERE type = 'table' AND name = ?"
    found = [row["sql"] for row in database.execute(master, (table,))]
    if len(found) != 1 or not isinstance(found[0], str) or not found[0].upper().startswith("CREATE TABLE"):
        return set()
    empty = database.execute(f'SELECT * FROM "{table}" LIMIT 0')
    return {str(column[0]) for column in empty.description}


def _is_sum(row: Row) -> bool:
    """Whether a row has the types of a sum: a column of SQLite may hold any."""
    integers = (row["calls"], row["gpu"], row["began"], row["ended"])
    is_sum = all(isinstance(number, int) for number in integers) and isinstance(row["total_us"], float)
    return is_sum and isinstance(row["kernel"], str) and 0 <= row["gpu"] < MOST_GPUS
