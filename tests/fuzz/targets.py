"""What is drawn: for each grammar, files full of faulty lines of it; for each kind of file, faulty files of that kind.

A target writes files into an empty folder. `TARGETS` has all of them by name.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import pickle
import zipfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any

import polars as pl

from ncclforensics import analyze
from ncclforensics.archive import small_frames
from ncclforensics.archive.write import save
from ncclforensics.grammar import grammar_file
from tests.fuzz.containers import archives, compressed, folders
from tests.fuzz.ingredients import (
    LARGEST_CASE,
    LARGEST_INCIDENT,
    MOST_FILES,
    all_examples,
    examples_of,
    faulty_incident,
    logs_of,
    small_incidents,
    write,
)
from tests.fuzz.mutation import NUMBER, Draw, mutate_bytes, mutate_lines, mutate_value
from tests.incidents import ALL, INCIDENTS

Target = Callable[[Draw, Path], None]


def lines_of_grammar(grammar: str, draw: Draw, folder: Path) -> None:
    """Lines of one grammar, some of others, between the lines of a job."""
    examples, others = examples_of(grammar) or (b"",), all_examples()
    logs = logs_of(draw.choice(small_incidents()), draw.choice((1, 3, 6)))
    files = {}
    for name, data in logs.items():
        lines = data.splitlines()[:400]
        count = draw.choice((60, 300, 1000, 5000))
        own = [draw.choice(examples if draw.random() < 0.8 else others) for _ in range(count)]
        if draw.random() < 0.3:  # in their order, as a tool prints them
            own = list(examples) * draw.choice((1, 2, 10))
        own = mutate_lines(draw, own, others, draw.choice((0.05, 0.5, 0.9)))
        at = draw.randrange(len(lines) + 1)
        if draw.random() < 0.2:
            lines = [prefix_of(line) + draw.choice(own or [b""]) for line in lines[:at]] + own
        else:
            lines = lines[:at] + own + mutate_lines(draw, lines[at:], others, 0.05)
        files[name] = b"\n".join(lines)[: LARGEST_CASE // len(logs)]
    write(folder, files)


def many_files(draw: Draw, folder: Path) -> None:
    """Hundreds of small files in one folder, each of another format, and damaged in its own way."""
    files: dict[str, bytes] = {}
    logs = [data for incident in draw.choices(small_incidents(), k=5) for data in logs_of(incident, 2).values()]
    for number in range(draw.choice((50, 100, 200))):
        kind = draw.random()
        if kind < 0.1:
            value = mutate_value(draw, draw.choice(_json_documents())[1], draw.choice((0.001, 0.02)))
            name, data = "document.json", _dumped(value).encode("utf-8", "replace")[:4000]
        else:
            grammar = draw.choice(grammar_file.names())
            lines = draw.choices(examples_of(grammar) or (b"",), k=draw.choice((3, 10, 40)))
            if kind < 0.3:  # as a part of a job's log
                log = draw.choice(logs).split(b"\n")
                at = draw.randrange(len(log))
                lines = log[at : at + 10] + lines
            data = b"\n".join(mutate_lines(draw, lines, all_examples(), draw.choice((0.3, 0.7, 1.0))))
            name, data = f"{grammar}.log", data[:5000]
        if draw.random() < 0.1:
            data = mutate_bytes(draw, draw.choice((bytes, gzip.compress))(data))
        files[f"node{number % 16}/{number}-{name}"] = data
    write(folder, files)


def copies(draw: Draw, folder: Path) -> None:
    """Examples of a grammar or two, each many times, with one number of every line counted up: what costs grows so."""
    examples = [
        line for name in draw.sample(grammar_file.names(), draw.choice((1, 1, 2))) for line in examples_of(name)
    ]
    if draw.random() < 0.7:
        examples = draw.sample(examples, min(len(examples), draw.choice((1, 2, 4))))
    place, step = draw.choice((None, 0, 1, 2, 3, 4, 5, 6, -1)), draw.choice((1, 1, 8))
    most = draw.choice((1000, 3000, 8000)) // max(len(examples), 1)
    lines = [counted_up(line, place, step * number) for number in range(most) for line in examples]
    draw.mutated += len(lines)
    names = draw.choice((("job.log",), ("job.log",), ("nccl_rank0.log", "nccl_rank1.log")))
    write(folder, {name: b"\n".join(lines)[: LARGEST_CASE // len(names)] for name in names})


def counted_up(line: bytes, place: int | None, by: int) -> bytes:
    """A line with the number at a place raised, or with all of them."""
    found = list(NUMBER.finditer(line))
    if place is not None:
        found = found[place:][:1]
    for match in reversed(found):
        text = match[0]
        raised = b"0x%x" % (int(text, 16) + 16 * by) if text[:2] == b"0x" else b"%d" % (int(float(text)) + by)
        line = line[: match.start()] + raised + line[match.end() :]
    return line


def prefix_of(line: bytes) -> bytes:
    """What NCCL printed before its message."""
    before, found, _ = line.partition(b" NCCL INFO ")
    return before + found


@cache
def _documents() -> tuple[tuple[str, bytes], ...]:
    """The inputs of all incidents that are JSON or pickles, with their names."""
    found = []
    for incident in ALL:
        for name in incident.logs:
            data = (incident.folder / name).read_bytes()
            if len(data) < LARGEST_INCIDENT and (data[:1] in (b"{", b"[") or data[:1] == b"\x80"):
                found.append((f"{incident.name}-{Path(name).name}", data))
    return tuple(found)


@cache
def _json_documents() -> tuple[tuple[str, Any], ...]:
    values = []
    for name, data in _documents():
        try:
            values.append((name, json.loads(data)))
        except ValueError:
            continue
    from tests.fuzz.documents import DOCUMENTS

    return (*values, *DOCUMENTS.items())


@cache
def _pickles() -> tuple[tuple[str, Any], ...]:
    return tuple((name, pickle.loads(data)) for name, data in _documents() if data[:1] == b"\x80")


def json_documents(draw: Random, folder: Path) -> None:
    """JSON documents with values of another kind, huge numbers, deep nesting; some damaged as bytes, too."""
    files = {}
    for number in range(draw.randrange(1, MOST_FILES)):
        name, value = draw.choice(_json_documents())
        value = mutate_value(draw, value, draw.choice((0.001, 0.02, 0.2)))
        try:
            data = json.dumps(value, indent=draw.choice((None, 1))).encode("utf-8", "replace")
        except RecursionError:
            data = b'{"entries": ' + b"[" * 100_000
        files[f"{number}-{name}"] = mutate_bytes(draw, data) if draw.random() < 0.2 else data
    write(folder, files)


def _pickled(value: Any, protocol: int) -> bytes:
    try:
        return pickle.dumps(value, protocol)
    except RecursionError:
        return b"\x80\x02" + b"]" * 10_000 + b"."


def flight_recorders(draw: Random, folder: Path) -> None:
    """Pickles of Flight Recorders: other values, other instructions, bytes changed; beside them, good ones."""
    files = {}
    source = draw.choice(_pickles())[0].rpartition("-")[0]
    for number, (_, value) in enumerate(entry for entry in _pickles() if entry[0].startswith(source)):
        data = _pickled(value, draw.choice((2, 2, 3, 4, 5)))
        if draw.random() < 0.4:
            data = _pickled(mutate_value(draw, value, draw.choice((0.001, 0.02, 0.2))), draw.choice((2, 2, 4)))
        if draw.random() < 0.4:
            data = mutate_bytes(draw, data)
        if draw.random() < 0.3:
            data = mutate_instructions(draw, data)
        files[f"nccl_trace_rank_{number}"] = data
    write(folder, files)


# Instructions of every kind, arguments included: of values, of the memo, of marks, and those that would run something.
INSTRUCTIONS = (
    b"]", b"}", b")", b"(", b"a", b"e", b"s", b"u", b"t", b"\x85", b"\x86", b"\x87", b"0", b"1", b"2", b"N", b"\x88",
    b"K\x05", b"M\x00\x01", b"J\xff\xff\xff\x7f", b"G" + b"\xff" * 8, b"X\xff\xff\xff\xff", b"X\x03\x00\x00\x00abc",
    b"\x8c\xff", b"q\x00", b"h\x00", b"r\xff\xff\xff\xff", b"j\xff\xff\xff\x7f", b"\x94", b"\x95" + b"\xff" * 8,
    b"\x8a\xff", b"\x8a\x02\x00\x01", b"\x8b\xff\xff\xff\x7f", b"\x8d" + b"\xff" * 8, b"\x8e" + b"\xff" * 8, b"\x8f",
    b"\x90", b"\x91", b"\x96" + b"\xff" * 8, b"cos\nsystem\n", b"R", b"b", b"\x93", b"i", b"o", b"B\xff\xff\xff\xff",
    b"C\xff", b"F1e999\n", b"I99999999999999999999\n", b"L1L\n", b"V\\ud800\n", b"S'x'\n", b"P1\n", b"Q", b"\x81",
    b"\x92", b"\x80\x05", b".",
)  # fmt: skip


def mutate_instructions(draw: Random, data: bytes) -> bytes:
    """A pickle with instructions put in, anywhere and many times."""
    for _ in range(draw.choice((1, 1, 2, 10))):
        at = draw.randrange(2, max(len(data), 3))
        data = data[:at] + draw.choice(INSTRUCTIONS) * draw.choice((1, 1, 2, 70, 5000)) + data[at:]
    return data


def records(draw: Random, folder: Path) -> None:
    """Logs as a collector stores them: JSON records, a line each or in an array, and tables with separators."""
    keys = ("log", "message", "msg", "stream", "time", "@timestamp", "kubernetes", "pod", "host", "textPayload", "_raw")
    files = {}
    for name, data in logs_of(draw.choice(small_incidents()), 5).items():
        lines = [line.decode("utf-8", "replace") for line in data.split(b"\n")[:300]]
        rows = [{key: draw.choice((line, "stdout", number)) for key in keys[:3]} for number, line in enumerate(lines)]
        rows = [
            {draw.choice(keys): line, **(row if draw.random() < 0.5 else {})}
            for row, line in zip(rows, lines, strict=True)
        ]
        rows = mutate_value(draw, rows, draw.choice((0.0, 0.001, 0.02)))
        rows = rows if isinstance(rows, list) else [rows]
        if draw.random() < 0.5:
            text = "\n".join(_dumped(row) for row in rows)
        elif draw.random() < 0.5:
            text = _dumped(rows)
        else:
            text = _as_table(draw, rows, draw.choice((keys[:3], ("Line", "Date"), ("@timestamp", "@message"))))
        packed = text.encode("utf-8", "replace")
        files[name] = mutate_bytes(draw, packed) if draw.random() < 0.2 else packed
    write(folder, files)


def _as_table(draw: Random, rows: list[Any], heads: tuple[str, ...]) -> str:
    table = io.StringIO()
    writer = csv.writer(table, delimiter=draw.choice(",;\t|"))
    writer.writerow(heads)
    try:
        writer.writerows([list(row.values()) if isinstance(row, dict) else [row] for row in rows])
    except RecursionError:  # a value that is nested too deeply to be printed: the rows before it are there
        return table.getvalue()
    return table.getvalue()


def _dumped(value: Any) -> str:
    try:
        return json.dumps(value)
    except RecursionError:
        return "[" * 5000


@cache
def _saved() -> tuple[dict[str, bytes], ...]:
    """The members of a few saved runs."""
    runs = []
    for name in ("one-rank-stops-before-an-allreduce", "a-cable-goes-bad-under-a-job", "a-benchmark-times-out",
                 "flight-recorders-show-a-rank-that-stopped"):  # fmt: skip
        file = io.BytesIO()
        with _temporary() as path:
            save(analyze([str(INCIDENTS / name)], everything=True), path)
            file.write(path.read_bytes())
        with zipfile.ZipFile(file) as archive:
            runs.append({member: archive.read(member) for member in archive.namelist()})
    return tuple(runs)


class _temporary:  # noqa: N801  # used as a function
    def __enter__(self) -> Path:
        from tempfile import TemporaryDirectory

        self._folder = TemporaryDirectory(prefix="ncclforensics-fuzz-")
        return Path(self._folder.__enter__(), "run.ncclf")

    def __exit__(self, *exception: object) -> None:
        self._folder.cleanup()


def saved_runs(draw: Random, folder: Path) -> None:
    """Saved runs with other values in their frames and manifest, without columns, with columns of other types."""
    members = dict(draw.choice(_saved()))
    frames = [name for name in members if name.endswith(".parquet")]
    if SMALL in members and draw.random() < 0.8:
        members[SMALL] = _mutated_rows(draw, members[SMALL])
    for name in sorted(draw.sample(frames, min(len(frames), draw.choice((0, 1, 1, 3, 20))))):
        members[name] = _mutated_frame(draw, members[name])
    if draw.random() < 0.3:
        manifest = mutate_value(draw, json.loads(members["manifest.json"]), draw.choice((0.01, 0.1)))
        members["manifest.json"] = _dumped(manifest).encode("utf-8", "replace")
    if draw.random() < 0.2:
        members.pop(draw.choice(list(members)))
    left = [name for name in frames if name in members]
    if left and draw.random() < 0.1:
        members[draw.choice(left)] = members[draw.choice(left)]
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name), data)
    data = file.getvalue()
    write(folder, {"run.ncclf": mutate_bytes(draw, data) if draw.random() < 0.2 else data})


SMALL = f"frames/{small_frames.NAME}.parquet"
# Frames that views and rules read directly.
IMPORTANT = (
    "verdict", "rank", "member", "wait", "process", "shown_call", "cited", "connection", "benchmark", "host_port",
    "counter_delta", "failure_event", "process_exit", "call_template", "recorded_call", "transport", "placement",
)  # fmt: skip
ODD_COLUMNS = (0, 1, -1, 7, 99, 2**31 - 1, 2**40, 2**62, -(2**63))


def _mutated_rows(draw: Random, data: bytes) -> bytes:
    """Frames of few rows, which are stored as JSON: other values in the rows of one or two of them."""
    rows = pl.read_parquet(data)
    names = [name for name in IMPORTANT if name in set(rows["frame"])]
    chosen = draw.sample(names, min(len(names), draw.choice((0, 1, 2)))) or [draw.choice(rows["frame"].to_list())]
    texts = [
        _dumped(mutate_value(draw, json.loads(row), draw.choice((0.02, 0.2)))) if frame in chosen else row
        for frame, row in rows.iter_rows()
    ]
    file = io.BytesIO()
    rows.with_columns(row=pl.Series(texts, dtype=pl.String)).write_parquet(file)
    return file.getvalue()


def _mutated_frame(draw: Random, data: bytes) -> bytes:
    rows = pl.read_parquet(data)
    for name in draw.sample(rows.columns, min(len(rows.columns), draw.choice((1, 1, 2, 5)))):
        dtype, kind = rows.schema[name], draw.randrange(6)
        if kind == 0:
            rows = rows.drop(name)
        elif kind == 1:
            rows = rows.with_columns(
                pl.col(name).cast(pl.String, strict=False) if not dtype.is_nested() else pl.lit("x").alias(name)
            )
        elif kind == 2:
            rows = rows.with_columns(pl.lit(None).cast(dtype, strict=False).alias(name))
        elif dtype.is_integer():
            value = draw.choice(ODD_COLUMNS)
            rows = (
                rows.with_columns(pl.lit(value, pl.Int64).cast(dtype, strict=False).alias(name))
                if kind < 5
                else rows.with_columns(pl.lit(value, pl.Int64).alias(name))
            )
        elif dtype in (pl.String, pl.Categorical):
            text = draw.choice(("", "\x1b[31m", "\u202e", "x\ny", "no-such-word", "1", "[0", "x" * 2000))
            rows = rows.with_columns(pl.lit(text).cast(dtype).alias(name))
        elif dtype == pl.List(pl.Int64) or dtype == pl.List(pl.Int32):
            rows = rows.with_columns(pl.lit([2**31 - 1, -1, 0]).cast(dtype).alias(name))
        elif dtype.is_float():
            rows = rows.with_columns(
                pl.lit(draw.choice((float("inf"), float("nan"), -1.0, 1e308))).cast(dtype).alias(name)
            )
    if draw.random() < 0.1:
        rows = pl.concat([rows] * draw.choice((2, 5)))
    elif draw.random() < 0.1:
        rows = rows.head(draw.choice((0, 1)))
    file = io.BytesIO()
    rows.write_parquet(file)
    return file.getvalue()


TARGETS: dict[str, Target] = {
    **{f"grammar-{name}": partial(lines_of_grammar, name) for name in grammar_file.names()},
    "many-files": many_files,
    "copies": copies,
    "incidents": faulty_incident,
    "json-documents": json_documents,
    "flight-recorders": flight_recorders,
    "compressed": compressed,
    "archives": archives,
    "folders": folders,
    "records": records,
    "saved-runs": saved_runs,
}
# How often each is drawn: a grammar is one of sixty.
WEIGHTS = {"many-files": 15, "copies": 8,
           "incidents": 25, "json-documents": 8, "flight-recorders": 10, "compressed": 3, "archives": 4,
           "folders": 8, "records": 6, "saved-runs": 8}  # fmt: skip
