"""Take the inputs of saved runs out of their archives instead of parsing the files again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from ncclforensics.archive import parquet
from ncclforensics.archive.manifest import OversizeError, Saved, SavedError
from ncclforensics.grammar.dialect import Dialect
from ncclforensics.grammar.patterns import Shape
from ncclforensics.inputs import lines
from ncclforensics.inputs.file_state import state_in
from ncclforensics.inputs.sources import Source
from ncclforensics.inputs.windows import InputReader
from ncclforensics.parsing.calls_between import CALLS_BETWEEN
from ncclforensics.parsing.launcher_prefixes import VOICE, no_voices
from ncclforensics.parsing.load import EARLIER_LAUNCH, Records
from ncclforensics.parsing.parser import COUNTS, NO_TALLY, SPEAKER
from ncclforensics.parsing.repeated_lines import REPEATED, no_repeats

# Frames of what parsing gives beside parsed frames -> their columns.
OF_PARSING: dict[str, Mapping[str, pl.DataType]] = {
    "speaker": SPEAKER,
    "voice": VOICE,
    "repeated_line": REPEATED,
    "calls_between": CALLS_BETWEEN,
    "earlier_launch": EARLIER_LAUNCH,
}


@dataclass(slots=True)
class SavedInputs:
    """The inputs of a run that come from saved runs."""

    origin: dict[int, tuple[Saved, int]] = field(default_factory=dict)  # number -> saved run, number in that run
    complete: Saved | None = None  # a saved run that is all of this run: its frames are used as they are
    # Source and line -> line of the file, and text.
    quotes: dict[Saved, dict[tuple[int, int], tuple[int, str]]] = field(default_factory=dict)

    @property
    def hashes(self) -> dict[int, str]:
        """Number of an input -> SHA-256 of its bytes."""
        return {number: saved.inputs[position]["sha256"] for number, (saved, position) in self.origin.items()}

    def read_quotes(self, saved: Saved) -> str:
        """Read the texts of lines in a saved run, once. Returns what is wrong with them. Raises OversizeError."""
        try:
            if saved not in self.quotes:
                self.quotes[saved] = parquet.cited(saved)
        except OversizeError:
            raise
        except SavedError as error:
            self.quotes[saved] = {}
            return f"the texts of lines in its saved run are lost: {error}"
        return ""

    def quote(self, number: int, wanted: Iterable[int]) -> dict[int, tuple[int, str]]:
        """Lines of one input: number -> (line of the file, text); an empty text where it was not saved, or is lost."""
        saved, position = self.origin[number]
        is_document = saved.inputs[position]["is_document"]
        quotes = self.quotes[saved]
        return {line: quotes.get((position, line), (1 if is_document else line, "")) for line in wanted}


def expand(sources: Sequence[Source]) -> list[tuple[Source, int]]:
    """Replace each saved run by the inputs it was made of: the sources, each with its number in the saved run.

    An input that another saved run holds, too, has a problem that says so, and no saved run.
    """
    inputs: list[tuple[Source, int]] = []
    first: dict[tuple[str, str], tuple[Saved, str]] = {}  # what is equal in copies -> saved run and path of the first
    for source in sources:
        if not source.saved:
            inputs.append((source, 0))
            continue
        for position, entry in enumerate(source.saved.inputs):
            path, size, hint = entry["path"], entry["bytes"], entry["rank_hint"]
            # Lines of NCCL name their process; two hosts may answer a command alike.
            key = entry["sha256"], "" if entry["kind"] == "nccl-log" else path
            saved, original = first.setdefault(key, (source.saved, path)) if entry["sha256"] else (source.saved, path)
            restored = source._replace(path=path, size=size, rank_hint=hint, state=state_in(entry))
            if saved is not source.saved:
                restored = restored._replace(
                    saved=None, problem=f"is a copy of {original} in another saved run; left out"
                )
            inputs.append((restored, position))
    return inputs


def restore(records: Records, positions: Sequence[int], *, is_only_source: bool) -> SavedInputs:
    """Add to `records` what saved runs hold of their inputs; those of a damaged one get a problem.

    `positions`: the number of each input in its saved run. `is_only_source`: there is one source, and all its lines are
    wanted; if this version of the program saved it with the same numbers, its frames need not be put together again.
    Raises SavedError if a saved run is damaged and nothing else can be read.
    """
    numbers: dict[Saved, dict[int, int]] = {}
    for reader, position in zip(records.inputs, positions, strict=True):
        if reader.source.saved:
            numbers.setdefault(reader.source.saved, {})[position] = reader.number
    restored = SavedInputs()
    for saved, renumbering in numbers.items():
        is_unchanged = is_only_source and all(position == number for position, number in renumbering.items())
        is_complete = is_unchanged and saved.is_ours
        try:
            held = _held(saved, records.dialect, renumbering, with_frames=not is_complete)
            problem = restored.read_quotes(saved)
        except SavedError as error:
            for number in renumbering.values():
                records.inputs[number].problems.append(f"is left out: {error}")
                records.inputs[number].is_whole = True
            if all(reader.problems for reader in records.inputs):
                raise
            continue
        records.speakers.append(held.pop("speaker", pl.DataFrame(schema=SPEAKER)))
        records.voices.append(held.pop("voice", no_voices()))
        records.repeated_lines.append(held.pop("repeated_line", no_repeats()))
        if "earlier_launch" in held:
            records.earlier_launches.extend(held.pop("earlier_launch"))
        if "calls_between" in held:
            records.counted_stretches.add_rows(held.pop("calls_between"))
        for name, rows in held.items():
            records.frames.setdefault(name, []).append(records.kept(rows))
        for position, number in renumbering.items():
            records.tallies.append(_counted(saved.inputs[position], records.inputs[number]))
            restored.origin[number] = (saved, position)
        if problem:
            records.inputs[min(renumbering.values())].problems.append(problem)
        restored.complete = saved if is_complete else None
    return restored


def _counted(entry: Mapping[str, Any], reader: InputReader) -> pl.DataFrame:
    """Take over what a manifest says of one input; return the count of its lines of each kind."""
    reader.is_whole, reader.is_read_through = not entry["is_read_through"], bool(entry["is_read_through"])
    reader.lines_read, reader.is_cut = entry["lines_read"], entry["is_cut"]
    reader.is_binary, reader.is_document = entry["is_binary"], entry["is_document"]
    reader.outputs_dropped = entry["outputs_dropped"] or 0
    reader.last_time = entry["last_time"]
    reader.problems += [str(problem) for problem in entry["problems"]]
    counted = {"source": reader.number, **{name: entry[name] for name in COUNTS}}
    return pl.DataFrame([counted], schema=NO_TALLY.schema)


def _held(
    saved: Saved, dialect: Dialect, renumbering: Mapping[int, int], *, with_frames: bool
) -> dict[str, pl.DataFrame]:
    """The parsed frames of a saved run, by name, and what else parsing gives. Raises SavedError."""
    held = {name: parquet.frame(saved, name, schema) for name, schema in OF_PARSING.items() if saved.holds(name)}
    if with_frames:
        shared = {name: lines.SCHEMA[name] for name in ("source", "line")}
        shared |= {label: base.dtype for label, base in dialect.labels.items()}
        for shape in dialect.with_all_formats.shapes:
            if saved.holds(shape.frame):
                rows = _converted(saved, shape, {**shared, **shape.schema})
                held[shape.frame] = rows.drop("pos", strict=False)
    return {name: _renumbered(rows, renumbering) for name, rows in held.items()}


def _converted(saved: Saved, shape: Shape, schema: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """The rows of a saved frame in the column types of this version. Raises SavedError."""
    rows = parquet.frame(saved, shape.frame, schema, is_converted=False)
    other = {name: base for name, base in shape.columns.items() if rows.schema.get(name, base.dtype) != base.dtype}
    try:
        return rows.with_columns(base.cast(pl.col(name).cast(pl.String)).alias(name) for name, base in other.items())
    except pl.exceptions.PolarsError as error:
        raise saved.damaged(shape.frame, error) from error


def _renumbered(rows: pl.DataFrame, numbers: Mapping[int, int]) -> pl.DataFrame:
    """The rows of these inputs, with the numbers that these have now."""
    return rows.filter(pl.col("source").is_in(list(numbers))).with_columns(
        pl.col("source").replace_strict(numbers, return_dtype=pl.Int32)
    )
