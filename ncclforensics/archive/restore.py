"""Take the inputs of saved runs out of their archives instead of parsing the files again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import polars as pl

from ncclforensics.archive import parquet
from ncclforensics.archive.manifest import Saved
from ncclforensics.grammar.patterns import Shape
from ncclforensics.inputs import lines
from ncclforensics.inputs.sources import Source
from ncclforensics.parsing.load import Records
from ncclforensics.parsing.parser import COUNTS, NO_TALLY, SPEAKER
from ncclforensics.parsing.repeated_lines import REPEATED


@dataclass(slots=True)
class SavedInputs:
    """The inputs of a run that come from saved runs."""

    origin: Mapping[int, tuple[Saved, int]] = field(default_factory=dict)  # number -> saved run, number in that run
    complete: Saved | None = None  # a saved run that is all of this run: its frames are used as they are
    _quotes: dict[Saved, dict[tuple[int, int], str]] = field(default_factory=dict)

    @property
    def hashes(self) -> dict[int, str]:
        """Number of an input -> SHA-256 of its bytes."""
        return {number: saved.inputs[position]["sha256"] for number, (saved, position) in self.origin.items()}

    def quote(self, number: int, wanted: Iterable[int]) -> dict[int, tuple[int, str]]:
        """Lines of one input: number -> (line of the file, text); empty where it was not saved. Raises SavedError."""
        saved, position = self.origin[number]
        if saved not in self._quotes:
            self._quotes[saved] = parquet.cited(saved)
        in_file = {line: 1 if saved.inputs[position]["is_document"] else line for line in wanted}
        return {line: (place, self._quotes[saved].get((position, place), "")) for line, place in in_file.items()}


def expand(sources: Sequence[Source]) -> list[tuple[Source, int]]:
    """Replace each saved run by the inputs it was made of: the sources, each with its number in the saved run."""
    inputs: list[tuple[Source, int]] = []
    for source in sources:
        for position, entry in enumerate(source.saved.inputs if source.saved else ()):
            size, hint = entry["bytes"], entry["rank_hint"]
            inputs.append((replace(source, path=entry["path"], size=size, rank_hint=hint), position))
        if not source.saved:
            inputs.append((source, 0))
    return inputs


def restore(records: Records, positions: Sequence[int], *, is_only_source: bool) -> SavedInputs:
    """Add to `records` what saved runs hold of their inputs.

    `positions`: the number of each input in its saved run. `is_only_source`: there is one source, and all its lines are
    wanted; if this version of the program saved it with the same numbers, its frames need not be put together again.
    Raises SavedError.
    """
    origin = {
        reader.number: (reader.source.saved, position)
        for reader, position in zip(records.inputs, positions, strict=True)
        if reader.source.saved
    }
    for number, (saved, position) in origin.items():
        entry, reader = saved.inputs[position], records.inputs[number]
        reader.is_whole, reader.lines_read, reader.is_cut = True, entry["lines_read"], entry["is_cut"]
        reader.is_binary, reader.is_document = entry["is_binary"], entry["is_document"]
        reader.last_time = entry["last_time"]
        reader.problems += [str(problem) for problem in entry["problems"]]
        counted = {"source": number, **{name: entry[name] for name in COUNTS}}
        records.tallies.append(pl.DataFrame([counted], schema=NO_TALLY.schema))
    numbers: dict[Saved, dict[int, int]] = {}
    for number, (saved, position) in origin.items():
        numbers.setdefault(saved, {})[position] = number
    is_unchanged = all(position == number for number, (_, position) in origin.items())
    complete = next((saved for saved in numbers if is_only_source and saved.is_ours and is_unchanged), None)
    shared = {name: lines.SCHEMA[name] for name in ("source", "line")}
    shared |= {label: base.dtype for label, base in records.dialect.labels.items()}
    for saved, renumbering in numbers.items():
        if saved.holds("speaker"):
            records.speakers.append(_renumbered(parquet.frame(saved, "speaker", SPEAKER), renumbering))
        if saved.holds("repeated_line"):
            records.repeated_lines.append(_renumbered(parquet.frame(saved, "repeated_line", REPEATED), renumbering))
        for shape in () if complete else records.dialect.with_all_formats.shapes:
            if saved.holds(shape.frame):
                rows = _converted(saved, shape, {**shared, **shape.schema}).drop("pos", strict=False)
                records.frames.setdefault(shape.frame, []).append(_renumbered(rows, renumbering))
    return SavedInputs(origin, complete)


def _converted(saved: Saved, shape: Shape, schema: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """The rows of a saved frame in the column types of this version. Raises SavedError."""
    rows = parquet.frame(saved, shape.frame, schema, is_converted=False)
    other = {name: base for name, base in shape.columns.items() if rows.schema.get(name, base.dtype) != base.dtype}
    try:
        return rows.with_columns(base.cast(pl.col(name).cast(pl.String)).alias(name) for name, base in other.items())
    except pl.exceptions.PolarsError as error:
        raise saved.damaged(shape.frame, error) from error


def _renumbered(rows: pl.DataFrame, numbers: Mapping[int, int]) -> pl.DataFrame:
    return rows.with_columns(pl.col("source").replace_strict(numbers, return_dtype=pl.Int32))
