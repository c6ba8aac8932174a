r"""Exports of log stores that are no lines of their own: JSON arrays, JSON over several lines, CSV.

The whole export is read: its records become lines, each with the number of the line of the file that its text begins
in. Stores answer with the newest record first, if not asked otherwise; the records are put into the order of time.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise

import orjson
import polars as pl

from ncclforensics.data import log_records
from ncclforensics.data.log_records import OTHER_OBJECTS
from ncclforensics.inputs import tolerant_json
from ncclforensics.inputs.records import LABELS, Record, as_time, is_record, records_in, unwrap

SCHEMA = {
    "source": pl.Int32(),
    "line": pl.Int32(),
    "text": pl.String(),
    "damaged": pl.Boolean(),
    "cut": pl.Boolean(),
    **LABELS,
}
MOST_OBJECTS = 1 / 32  # of each byte: a record has a text and a time
JUDGED = 1 << 16  # bytes of the beginning that are judged
LONGEST_DAMAGED = 500  # characters of a damaged record that are kept
Placed = tuple[int, Record]  # the number of the line that a record's text begins in, and the record
Reader = Callable[[str], list[Placed]]

csv.field_size_limit(1 << 24)


def reader_of(beginning: bytes) -> Reader | None:
    """What reads an export that begins so; null where it is none, or records that are lines in the order of time."""
    head = beginning[:JUDGED].removeprefix(b"\xef\xbb\xbf").lstrip()
    first, has_end, _ = head.partition(b"\n")
    if head.startswith(b"{") and has_end and is_record(first):
        return _json_records if _is_descending(head) else None
    if head[:1] in (b"[", b"{"):
        if any(key in head for key in OTHER_OBJECTS):
            return None
        text = head.decode("utf-8", "replace")
        return (
            _json_records
            if _is_json(text) and any(not record.is_damaged for _, record in _json_records(text))
            else None
        )
    return _csv_records if _csv_columns(first.decode("utf-8", "replace").rstrip("\r")) is not None else None


def _is_json(text: str) -> bool:
    """Whether a text is the beginning of a JSON array of objects, or of objects one after the other."""
    decoder = json.JSONDecoder(strict=False)
    place = 1 if text.startswith("[") else 0
    while rest := text[place:].lstrip(" \t\r\n,"):
        place = len(text) - len(rest)
        if rest[0] != "{":
            return rest[0] in "[]" and place > 0
        try:
            _, place = decoder.raw_decode(text, place)
        except json.JSONDecodeError as error:
            return error.pos >= len(text) - len(",") or error.msg.startswith("Unterminated")
        except RecursionError:
            return False
    return True


def rows_of(data: bytes, read: Reader, source: int) -> tuple[pl.DataFrame, pl.Series]:
    """The lines of an export (columns SCHEMA, numbered from 1), and the number of each one's line in the file.

    A text that is a record itself, as of a logger that writes JSON, becomes the text of that record.
    """
    placed = read(data.decode("utf-8", "replace").removeprefix("\ufeff"))
    times = [record.time for _, record in placed if record.time is not None]
    if _descend(times):
        placed.reverse()
    rows = [
        (physical + (offset if read is _csv_records else 0), text, record)
        for physical, record in placed
        for offset, text in enumerate(record.text.replace("\r\n", "\n").removesuffix("\n").split("\n"))
    ]
    texts = [tolerant_json.json_text(text.removesuffix("\r")) for _, text, _ in rows]
    frame = pl.DataFrame(
        {
            "source": [source] * len(rows),
            "line": range(1, len(rows) + 1),
            "text": texts,
            "damaged": [record.is_damaged for _, _, record in rows],
            "cut": [False] * len(rows),
            "launcher_time": [tolerant_json.json_text(record.time) for _, _, record in rows],
            "launcher_node": [tolerant_json.json_text(record.node) for _, _, record in rows],
            "launcher_rank": [record.rank for _, _, record in rows],
        },
        schema=SCHEMA,
    )
    physical = pl.Series("physical", [physical for physical, _, _ in rows], dtype=pl.Int32)
    frame = unwrap(frame)
    physical = physical.gather(frame["line"] - 1)
    frame = frame.with_columns(line=pl.int_range(1, pl.len() + 1, dtype=pl.Int32))
    return frame.drop([name for name in LABELS if frame[name].null_count() == frame.height]), physical


def is_hollow(data: bytes) -> bool:
    """Whether a large export holds mostly objects without a text: reading them would take minutes."""
    return tolerant_json.is_hollow(data, b"{", MOST_OBJECTS)


def _descend(times: list[str]) -> bool:
    """Whether times fall from first to last, and never rise."""
    return len(times) > 1 and times[0] > times[-1] and all(time >= following for time, following in pairwise(times))


def _is_descending(head: bytes) -> bool:
    """Whether the records of whole lines fall in time."""
    times = []
    for line in head.split(b"\n")[:-1]:
        try:
            times += [record.time for record in records_in(orjson.loads(line)) if record.time is not None]
        except orjson.JSONDecodeError:
            return False
    return _descend(times)


def _json_records(text: str) -> list[Placed]:
    """The records of all JSON values in a text, whatever stands around them; one that is cut off is searched inside.

    An object that is damaged, and no wrapper of others, becomes a damaged record.
    """
    decoder = json.JSONDecoder(strict=False)
    found: list[Placed] = []
    lines = _Lines(text)
    place = text.find("{")
    while place >= 0:
        try:
            value, end = decoder.raw_decode(text, place)
        except (json.JSONDecodeError, RecursionError):
            following = text.find("{", place + 1)
            broken = text[place : following if following >= 0 else None].rstrip()
            if found and not broken.endswith(("[", ":")):
                lines.pass_by(place)
                found.append((lines.line, Record(" ".join(broken[:LONGEST_DAMAGED].split()), is_damaged=True)))
            place = following
            continue
        found += lines.place(records_in(value), end)
        lines.pass_by(end)
        place = text.find("{", end)
    # Loki's answer is one object, whose records are arrays: nothing inside of it can be read alone.
    return found or list(_Lines(text).place(records_in(tolerant_json.parse_json(text.encode())[0]), len(text)))


class _Lines:
    """Finds the lines in which the texts of records stand, going forward."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._place = 0
        self._line = 1

    @property
    def line(self) -> int:
        """The number of the line at the place that was reached."""
        return self._line

    def place(self, found: Iterable[Record], stop: int) -> Iterator[Placed]:
        """The records with the lines that they stand in, searched from the last one to `stop`."""
        for record in found:
            yield self._line_of(record.text, stop), record

    def _line_of(self, text: str, stop: int) -> int:
        """The number of the line that holds this text as JSON writes it."""
        for encoded in (json.dumps(text, ensure_ascii=False), json.dumps(text)):
            if (place := self._text.find(encoded, self._place, stop)) >= 0:
                self.pass_by(place)
                self._place = place + len(encoded)
                break
        return self._line

    def pass_by(self, place: int) -> None:
        """Go forward to a place."""
        if place > self._place:
            self._line += self._text.count("\n", self._place, place)
            self._place = place


def _csv_columns(header: str) -> tuple[str, dict[str, int]] | None:
    """The delimiter and the columns for text, time and node; null where a header names no text, or no time."""
    if not any(name in header.lower() for name in log_records.TIME_COLUMNS):
        return None
    for delimiter in log_records.DELIMITERS:
        try:
            names = [name.strip().strip('"').lower() for name in next(csv.reader([header], delimiter=delimiter), [])]
        except csv.Error:
            continue
        columns: dict[str, int] = {}
        for kind, known in (
            ("text", log_records.TEXT_COLUMNS),
            ("time", log_records.TIME_COLUMNS),
            ("node", log_records.NODE_COLUMNS),
        ):
            if (name := next((name for name in known if name in names), None)) is not None:
                columns[kind] = names.index(name)
        if {"text", "time"} <= columns.keys():
            return delimiter, columns
    return None


def _csv_records(text: str) -> list[Placed]:
    header = text.partition("\n")[0].rstrip("\r")
    known = _csv_columns(header)
    if known is None:
        return []
    delimiter, columns = known
    return list(_csv_rows(text, delimiter, columns))


def _csv_rows(text: str, delimiter: str, columns: dict[str, int]) -> Iterator[Placed]:
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    begins = 1
    try:
        for number, values in enumerate(reader):
            line, begins = begins, reader.line_num + 1
            if number and len(values) > max(columns.values()):
                node = values[columns["node"]] if "node" in columns else None
                yield line, Record(values[columns["text"]], as_time(values[columns["time"]]), node)
    except csv.Error:  # what is behind a field that never ends cannot be told apart
        return
