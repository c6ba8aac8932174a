r"""Lines that are records of a collector or a logger become the lines that these records carry.

A record is a JSON object with a text and, most often, a time and where it comes from: `{"log":"text\n","time":…}`.
Which keys hold what is data (`data.log_records`). A record's text may hold several lines, and a long line may come in
several records, so the number of lines may change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

import orjson
import polars as pl

from ncclforensics.data import log_records
from ncclforensics.data.log_records import Path

SAMPLED = 32  # records that tell which keys a block of lines uses
MOST_WRAPPED = 3  # records around one line: those of a collector around those of a logger
MOST_NESTED = 12  # levels of objects and arrays that are searched for records
# As the columns of launcher prefixes: what a collector says of a line and what a launcher says are the same.
LABELS = {"launcher_time": pl.String(), "launcher_node": pl.Categorical(), "launcher_rank": pl.Int32()}
# A number of seconds since 1970 has ten digits; of milliseconds, microseconds, nanoseconds three more each.
EPOCH_UNITS = ((10**11, 1), (10**14, 10**3), (10**17, 10**6), (10**20, 10**9))


class Record(NamedTuple):
    """One record of a log: its text, and what its other fields say of it."""

    text: str
    time: str | None = None
    node: str | None = None
    rank: int | None = None
    is_damaged: bool = False  # the text is what is left of it


class Layout(NamedTuple):
    """The paths at which the records of one writer hold what is wanted."""

    text: Path
    time: Path | None
    node: Path | None
    rank: Path | None

    @property
    def errors(self) -> tuple[Path, ...]:
        """Where the error stands that the text is about, apart from it."""
        return log_records.ERRORS if self.text in log_records.MESSAGES else ()

    def record(self, value: dict[str, Any]) -> Record | None:
        """The record that an object is, if it has a text at the place for it."""
        text = _as_text(_at(value, self.text))
        if text is None:
            return None
        node = _at(value, self.node) if self.node else None
        rank = _at(value, self.rank) if self.rank else None
        time = as_time(_at(value, self.time)) if self.time else None
        text = ": ".join([text, *_texts_at(value, self.errors)])
        text = "\n".join([text, *_texts_at(value, log_records.TRACEBACKS)])
        return Record(text, time, node if isinstance(node, str) else None, _as_rank(rank))


def layout_of(value: object) -> Layout | None:
    """Where an object that is a record holds its text, time, host and rank; null where it is no record of a log."""
    if not isinstance(value, dict):
        return None
    text = next((path for path in log_records.TEXT if _as_text(_at(value, path)) is not None), None)
    if text is None:
        return None
    time = next((path for path in log_records.TIME if as_time(_at(value, path)) is not None), None)
    if time is None and log_records.COMPANIONS.isdisjoint(value):
        return None
    node = next((path for path in log_records.NODE if isinstance(_at(value, path), str)), None)
    rank = next((path for path in log_records.RANK if _as_rank(_at(value, path)) is not None), None)
    return Layout(text, time, node, rank)


def records_in(value: object, depth: int = MOST_NESTED) -> Iterator[Record]:
    """Every record that a JSON value is or holds, in its order: exports wrap them in objects and arrays."""
    if depth == 0:
        return
    if (layout := layout_of(value)) is not None and isinstance(value, dict):
        record = layout.record(value)
        if record is not None:
            yield record
            return
    if isinstance(value, dict):
        if isinstance(pairs := value.get("values"), list) and isinstance(labels := value.get("stream"), dict):
            yield from _of_stream(labels, pairs)  # Loki's query API
            return
        for inner in value.values():
            if isinstance(inner, dict | list):
                yield from records_in(inner, depth - 1)
    elif isinstance(value, list):
        if (row := _of_fields(value)) is not None:  # CloudWatch Logs Insights
            yield from records_in(row, depth - 1)
            return
        for inner in value:
            if isinstance(inner, dict | list):
                yield from records_in(inner, depth - 1)


def _of_stream(labels: dict[str, Any], pairs: list[Any]) -> Iterator[Record]:
    """The records of a Loki stream, whose labels hold for all its pairs of time and line."""
    around = layout_of({"line": "", "labels": labels, "level": ""}) or Layout(("line",), None, None, None)
    for pair in pairs:
        if isinstance(pair, list) and len(pair) > 1 and isinstance(pair[1], str):
            record = around.record({"line": pair[1], "labels": labels})
            if record is not None:
                yield Record(record.text, as_time(pair[0]), record.node, record.rank)


def _of_fields(value: list[Any]) -> dict[str, Any] | None:
    """The object that a list of `{"field": name, "value": value}` stands for."""
    if not value or not all(isinstance(field, dict) and {"field", "value"} <= field.keys() for field in value):
        return None
    return {str(field["field"]): field["value"] for field in value}


def is_record(line: bytes) -> bool:
    """Whether a line is one record of a log, or holds some."""
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError:
        return False
    return isinstance(value, dict) and next(records_in(value), None) is not None


def unwrap(rows: pl.DataFrame) -> pl.DataFrame:
    """The lines (columns: `lines.SCHEMA`), each record of a log replaced by the lines of its text.

    What a record says besides its text becomes columns (some of LABELS). Lines that are no records stay as they are;
    `line` stays the number of the line that the record stands in.
    """
    for _ in range(MOST_WRAPPED):
        unwrapped = _unwrapped_once(rows)
        if unwrapped is rows:
            break
        rows = unwrapped
    return rows


def _unwrapped_once(rows: pl.DataFrame) -> pl.DataFrame:
    """The lines without the outermost record that each stands in; the same object where none stands in one."""
    starts = rows["text"].str.starts_with("{")
    if starts.any():
        starts &= ~rows["text"].str.contains_any(list(log_records.EVENTS))
    if not starts.any():
        return rows
    candidates = rows["text"].filter(starts)
    layout = _most_common_layout(candidates)
    if layout is None:
        return rows
    found = _decoded(candidates, layout)
    if found is None:
        found = _decoded_one_by_one(candidates, layout)
    place = starts.arg_true()
    is_found = found["text"].is_not_null()
    if not is_found.any():
        return rows
    place, found = place.filter(is_found), found.filter(is_found)
    labels = [name for name in LABELS if found[name].null_count() < found.height]
    unwrapped = rows.with_columns(
        rows["text"].scatter(place, found["text"]),
        rows["cut"].scatter(place, False),  # the end of the object is there, so that of its text is, too
        *(_scattered(rows, place, found[name]) for name in labels),
    )
    if layout.text == log_records.IN_PIECES:
        unwrapped = _joined_pieces(unwrapped, place)
    return _one_line_each(unwrapped)


def _scattered(rows: pl.DataFrame, place: pl.Series, label: pl.Series) -> pl.Series:
    """A label of some rows as a column of all; what an outer record says stays where the inner one says nothing."""
    if label.name not in rows.columns:
        return pl.Series(label.name, [None], dtype=label.dtype).new_from_index(0, rows.height).scatter(place, label)
    known = label.is_not_null()
    return rows[label.name].scatter(place.filter(known), label.filter(known))


def _most_common_layout(candidates: pl.Series) -> Layout | None:
    step = max(candidates.len() // SAMPLED, 1)
    layouts: Counter[Layout] = Counter()
    for text in candidates.gather_every(step).head(SAMPLED):
        try:
            value = orjson.loads(text)
        except orjson.JSONDecodeError:
            continue
        layout = layout_of(value)
        if layout is None and next(records_in(value), None) is not None:
            layout = Layout((), None, None, None)  # records inside of records: one by one
        if layout is not None:
            layouts[layout] += 1
    return layouts.most_common(1)[0][0] if layouts else None


def _decoded(texts: pl.Series, layout: Layout) -> pl.DataFrame | None:
    """Columns `text` and LABELS of records that are all alike; null where one is not."""
    paths = {"text": layout.text, "time": layout.time, "node": layout.node, "rank": layout.rank}
    wanted = {name: path for name, path in paths.items() if path}
    if "text" not in wanted:
        return None
    traced = [path for path in log_records.TRACEBACKS if texts.str.contains(f'"{path[0]}"', literal=True).any()]
    try:
        values = texts.str.json_decode(_struct([*wanted.values(), *layout.errors, *traced])).struct.unnest()
    except pl.exceptions.PolarsError:  # one line of another form is enough
        return None
    columns = [_field(path).alias(name) for name, path in wanted.items()]
    columns[0] = pl.concat_str(columns[0], *map(_field, layout.errors), separator=": ", ignore_nulls=True)
    columns[0] = pl.concat_str(columns[0], *map(_field, traced), separator="\n", ignore_nulls=True)
    missing = [pl.lit(None, dtype=pl.String).alias(name) for name in paths if name not in wanted]
    found = values.select(*columns).with_columns(missing)
    if found["text"].null_count():
        return None
    time = found["time"]
    if time.cast(pl.Float64, strict=False).null_count() < time.len():
        time = pl.Series("time", [as_time(text) for text in time], dtype=pl.String)
    rank = found["rank"].cast(pl.Int32, strict=False)
    return pl.DataFrame(
        {"text": found["text"], "launcher_time": time, "launcher_node": found["node"], "launcher_rank": rank},
        schema={"text": pl.String(), **LABELS},
    )


def _struct(paths: list[Path]) -> pl.Struct:
    """The type of objects that hold texts at these paths."""
    fields: dict[str, pl.DataType] = {}
    inner: dict[str, list[Path]] = {}
    for first, *rest in paths:
        if rest:
            inner.setdefault(first, []).append(tuple(rest))
        else:
            fields[first] = pl.String()
    return pl.Struct(fields | {name: _struct(own) for name, own in inner.items()})


def _field(path: Path) -> pl.Expr:
    column = pl.col(path[0])
    for name in path[1:]:
        column = column.struct.field(name)
    return column


def _decoded_one_by_one(texts: pl.Series, layout: Layout) -> pl.DataFrame:
    """The same of records of any form: those with several texts hold them as lines of one."""
    found: list[tuple[str | None, str | None, str | None, int | None]] = []
    for text in texts:
        try:
            value = orjson.loads(text)
        except orjson.JSONDecodeError:
            found.append((None, None, None, None))
            continue
        record = layout.record(value) if layout.text and isinstance(value, dict) else None
        records = [record] if record is not None else list(records_in(value))
        if not records:
            found.append((None, None, None, None))
            continue
        joined = records[0].text if len(records) == 1 else "\n".join(inner.text.rstrip("\r\n") for inner in records)
        found.append((joined, records[0].time, records[0].node, records[0].rank))
    schema = {"text": pl.String(), **LABELS}
    return pl.DataFrame(found, schema=schema, orient="row")


def _joined_pieces(rows: pl.DataFrame, place: pl.Series) -> pl.DataFrame:
    """The lines that came in several records put together; each stands where its first piece does."""
    ends = rows["text"].gather(place).str.ends_with("\n")
    if ends.all() or (ends.sum() or 0) * 2 < ends.len():  # or the writer leaves out the line feed of every record
        return rows
    is_end = pl.repeat(True, rows.height, eager=True).scatter(place, ends)
    piece = is_end.shift(1, fill_value=True).cum_sum().alias("piece")
    firsts = [pl.col(name).first() for name in rows.columns if name not in ("text", "damaged", "cut")]
    joined = rows.group_by(piece, maintain_order=True).agg(
        *firsts, pl.col("text").str.join(""), pl.col("damaged").any(), pl.col("cut").last()
    )
    return joined.select(rows.columns)


def _one_line_each(rows: pl.DataFrame) -> pl.DataFrame:
    """A row for each line of a text, without its end."""
    rows = rows.with_columns(pl.col("text").str.strip_suffix("\n").str.strip_suffix("\r"))
    if not rows["text"].str.contains("\n", literal=True).any():
        return rows
    lines = pl.col("text").str.replace_all("\r\n", "\n", literal=True).str.split("\n")
    return rows.with_columns(lines).explode("text")


def as_time(value: object) -> str | None:
    """A record's time as text; numbers count from 1970, in seconds or in a fraction of them."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, str) and not value.replace(".", "", 1).isdecimal():
        return value or None
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        return None
    number = float(value)
    unit = next((unit for below, unit in EPOCH_UNITS if number < below), None)
    if unit is None or number < 10**9:  # before 2001: a time since the program began
        return None
    return datetime.fromtimestamp(number / unit, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _as_text(value: object) -> str | None:
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str):
        return value[0]
    if isinstance(value, list) and value and all(isinstance(byte, int) and 0 <= byte < 256 for byte in value):
        return bytes(value).decode("utf-8", "replace")  # journald, where a text is not plain
    return value if isinstance(value, str) else None


def _as_rank(value: object) -> int | None:
    if isinstance(value, str) and value.isascii() and value.isdecimal():
        value = int(value)
    is_rank = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 24
    return value if isinstance(value, int) and is_rank else None


def _texts_at(value: dict[str, Any], paths: tuple[Path, ...]) -> list[str]:
    return [text for path in paths if isinstance(text := _at(value, path), str)]


def _at(value: dict[str, Any], path: Path) -> object:
    """What stands at a path, or under its parts joined with dots; null where nothing does."""
    inner: object = value
    for name in path:
        inner = inner.get(name) if isinstance(inner, dict) else None
    return value.get(".".join(path)) if inner is None and len(path) > 1 else inner
