"""A history with pseudonyms: hosts, paths, and what is found by its form in the values of facts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path

import polars as pl

from ncclforensics.history.store import History
from ncclforensics.report.pseudonyms import REMOVED, Pseudonyms
from ncclforensics.report.redaction import read_map, write_map

TEXTS = ("hosts", "value")  # lists of hosts, values of facts


def redact(history: History, map_file: Path | None = None, words: Iterable[str] = ()) -> History:
    """Return the history with pseudonyms, the same for a name in all runs; read and write those of `map_file`.

    `words` are removed wherever they stand.
    """
    hosts = history["part"]["host"].unique().sort().to_list()
    if map_file is not None and map_file.exists():
        pseudonyms = read_map(map_file)
    else:
        identities = history["run"]["identity"].sort()
        pseudonyms = Pseudonyms(hashlib.sha256("\n".join([*hosts, *identities]).encode()).digest())
    for word in words:
        pseudonyms.set(word, REMOVED)
    for host in hosts:
        pseudonyms.host(host)
    change: dict[str, Callable[[str], str]] = {
        "path": pseudonyms.path,
        "host": pseudonyms.host,
        **dict.fromkeys(TEXTS, pseudonyms.text),
    }
    redacted = {
        table: rows.with_columns(
            pl.col(column).replace(names, [change[column](name) for name in names])
            for column in change
            if column in rows.columns and (names := rows[column].unique().to_list())
        )
        for table, rows in history.items()
    }
    if map_file is not None:
        write_map(pseudonyms, map_file)
    return redacted
