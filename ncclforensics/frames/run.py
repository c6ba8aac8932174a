"""The run: its named frames, computed on first use and remembered.

A frame is parsed (named after the rule of a grammar) or computed by the analysis of that name. Analyses and rules name
the frames they need as parameters; `Run.call` supplies them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import polars as pl

from ncclforensics.archive import parquet
from ncclforensics.archive.manifest import Saved
from ncclforensics.formats import all_formats, dialect, document
from ncclforensics.frames.assemble import completed, in_order, joined, renamed, with_small_together
from ncclforensics.frames.columns import text_of, with_line
from ncclforensics.frames.registry import analyses
from ncclforensics.frames.time_range import Span
from ncclforensics.grammar.dialect import Dialect
from ncclforensics.grammar.patterns import Shape
from ncclforensics.inputs.sources import Source
from ncclforensics.parsing.concurrency import Result, alone
from ncclforensics.parsing.matching import distinct
from ncclforensics.parsing.parser import COUNTS, NO_HOSTS, NO_TALLY, SPEAKER, Parsed
from ncclforensics.parsing.reading import Reading, survey
from ncclforensics.parsing.templates import CALL_TEMPLATE, Repetition, folded, together
from ncclforensics.parsing.workers import Readers

# Times rarer than its true name a torn host name is: one that ends like it, and any other.
RARE, VERY_RARE = 3, 30
MANY = 300_000  # lines whose frames are worth the engine's threads
Progress = Callable[[int], None]  # told how many bytes have been parsed since the last time

ORIGIN = {"source": pl.Int32(), "line": pl.Int32(), "pos": pl.Int64()}
CALL_OCCURRENCE = "call_occurrence"
SPEAKER_COLUMNS = {**ORIGIN, **SPEAKER, "last_pos": pl.Int64()}

SOURCE_COLUMNS = {
    "source": pl.Int32(),
    "path": pl.String(),
    "is_whole": pl.Boolean(),  # every line was read
    "is_cut": pl.Boolean(),  # the last line has no end
    "hint": pl.Int32(),  # the rank that its name suggests
    "damaged": pl.Int64(),  # lines
    "dropped": pl.Int64(),  # lines that a collector counted and did not pass on
    "lines": pl.Int64(),  # read
    "recognised": pl.Int64(),  # of these
    "problem": pl.String(),
}


class Run:
    """Everything that one set of sources holds, or what was printed in one span of time.

    Sources are numbered by name, numbers in names counted as numbers: `rank2` before `rank10`, `log.1` before `log.2`.
    So nothing depends on the order in which they were given.
    """

    def __init__(
        self, sources: Iterable[Source], *, whole: bool, span: Span | None = None, progress: Progress = lambda _: None
    ) -> None:
        self.dialect: Dialect = dialect()
        found = list(sources)
        in_order = sorted(_inputs(found), key=lambda one: _natural(one[0].path))
        self.readings = [Reading(source, number, self.dialect) for number, (source, _, _) in enumerate(in_order)]
        self._stored = {number: (saved, at) for number, (_, saved, at) in enumerate(in_order) if saved is not None}
        # A saved run that is all there is: its frames are taken as they are.
        self._saved = found[0].saved if len(found) == 1 and span is None else None
        self._cited: dict[Saved, dict[tuple[int, int], str]] = {}
        self._span = span
        self._readers = Readers(self.dialect, self._keep, progress)
        self._parsed: dict[str, list[pl.DataFrame]] = {}
        self._repetitions: list[Repetition] = []
        self._tallies: list[pl.DataFrame] = []
        self._speakers: list[pl.DataFrame] = [pl.DataFrame(schema=SPEAKER)]
        self._frames: dict[str, pl.DataFrame] = {}
        self._restore()
        for reading in self.readings:
            if reading.source.problem:
                reading.problems.append(reading.source.problem)
                reading.is_whole = True  # there is nothing more to be had
        fresh = [one for one in self.readings if one.number not in self._stored and not one.problems]
        of_lines = survey(fresh, self.dialect, self._is_document)
        readable = [reading for reading in of_lines if not reading.problems]
        due = sum(reading.due(whole=whole) for reading in readable)
        self._readers.take(readable, lambda reading: reading.start(whole=whole), due)

    def _restore(self) -> None:
        """Take what saved runs hold in place of reading; frames of one that is not alone are numbered anew."""
        numbers: dict[Saved, dict[int, int]] = {}
        for number, (saved, at) in self._stored.items():
            numbers.setdefault(saved, {})[at] = number
            told, reading = saved.inputs[at], self.readings[number]
            reading.is_whole, reading.lines_read, reading.is_cut = True, told["lines_read"], told["is_cut"]
            reading.is_binary, reading.is_document = told["is_binary"], told["is_document"]
            reading.problems += [str(problem) for problem in told["problems"]]
            counted = {"source": number, **{name: told[name] for name in COUNTS}}
            self._tallies.append(pl.DataFrame([counted], schema=NO_TALLY.schema))
        if self._saved and not (self._saved.is_ours and all(at == number for number, (_, at) in self._stored.items())):
            self._saved = None
        for saved, own in numbers.items():
            if saved.holds("speaker"):
                self._speakers.append(_renumbered(parquet.frame(saved, "speaker", SPEAKER), own))
            for shape in () if self._saved else self.dialect.with_all_formats.shapes:
                if saved.holds(shape.frame):
                    rows = _fitted(saved, shape)
                    self._parsed.setdefault(shape.frame, []).append(_renumbered(rows.drop("pos"), own))

    def read_on(self, wanted: pl.DataFrame) -> None:
        """Read more of the sources named in `wanted` (columns `source`, `reach`: head, tail or all)."""
        reach = {int(row["source"]): str(row["reach"]) for row in wanted.iter_rows(named=True)}

        def more(reading: Reading) -> Iterator[pl.DataFrame]:
            end = reach[reading.number]
            return reading.finish() if end == "all" else reading.widen(head=end == "head", tail=end == "tail")

        readings = [reading for reading in self.readings if reading.number in reach]
        due = sum(reading.due(whole=reach[reading.number] == "all") for reading in readings)
        self._readers.take(readings, more, due)
        self._frames.clear()
        for name in ("_true_hosts", "_ends", "kinds"):
            self.__dict__.pop(name, None)

    def _is_document(self, reading: Reading) -> bool:
        """Whether a source is one object, or one value; then all its records are taken."""
        read = document(reading.beginning, reading.source.path)
        if read is None or reading.problems:
            return False
        records, problems = read(reading.document())
        reading.problems += problems
        reading.lines_read = len(records)
        rows: dict[str, list[dict[str, Any]]] = {}
        for number, (frame, columns) in enumerate(records, 1):
            rows.setdefault(frame, []).append({"source": reading.number, "line": number, **columns})
        origin = {"source": pl.Int32(), "line": pl.Int32()}
        frames = {
            name: [pl.DataFrame(each, schema_overrides=origin, infer_schema_length=None)] for name, each in rows.items()
        }
        tally = {"source": reading.number, **dict.fromkeys(COUNTS, 0), "recognised": len(records)}
        counted = pl.DataFrame([tally], schema=NO_TALLY.schema)
        self._keep(Parsed(frames, counted, NO_HOSTS, pl.DataFrame(schema=SPEAKER)))
        return True

    def _keep(self, parsed: Parsed) -> None:
        self._tallies.append(parsed.tally)
        self._speakers.append(parsed.speakers)
        self._repetitions += [parsed.call_occurrence] if parsed.call_occurrence else []
        for name, pieces in parsed.frames.items():
            self._parsed.setdefault(name, []).extend(pieces)

    def briefly(self, work: Callable[[], Result]) -> Result:
        """Do some work on the frames, and without the engine's threads where few lines were read."""
        return alone(work) if sum(reading.lines_read for reading in self.readings) < MANY else work()

    @property
    def hashes(self) -> dict[int, str]:
        """Source -> SHA-256 of its bytes, where a saved run tells it."""
        return {number: saved.inputs[at]["sha256"] for number, (saved, at) in self._stored.items()}

    @property
    def tally(self) -> pl.DataFrame:
        """Lines of every source read so far, by kind: columns `source` and `parse.COUNTS`."""
        return pl.concat(self._tallies).group_by("source").sum() if self._tallies else NO_TALLY

    @cached_property
    def kinds(self) -> dict[int, str]:
        """Source -> the contract's `inputs[].kind`, of the sources that hold any line of ours."""
        if self._saved:
            return {number: one["kind"] for number, one in enumerate(self._saved.inputs)}
        return {
            source: kind
            for one in all_formats().values()
            for frame, kind in one.KINDS.items()
            for rows in self._rows_of(frame)
            for source in rows["source"].unique()
        }

    def has(self, name: str) -> bool:
        """Whether a frame has any row: not made where no line was found for it, nor read where a saved run tells."""
        if name not in self._frames and self._saved:
            return self._saved.frames.get(name, 0) > 0
        return any(rows.height for rows in self._rows_of(name))

    def _rows_of(self, name: str) -> list[pl.DataFrame]:
        """What tells of the rows of a frame: its pieces, where it is not made yet and would hold all of them."""
        if name == self._commonest.frame:
            return [self[CALL_TEMPLATE]]
        is_parsed = name not in analyses() and name not in ("source", "speaker")
        pieces = self._parsed.get(name, [])
        return pieces if is_parsed and name not in self._frames and not (self._span and pieces) else [self[name]]

    def __getitem__(self, name: str) -> pl.DataFrame:
        if name not in self._frames:
            self._frames[name] = self._made(name)
        return self._frames[name]

    def _made(self, name: str) -> pl.DataFrame:
        if name == "source":
            return self._sources()
        if name == "speaker":
            return self._speaking()
        if name in (CALL_TEMPLATE, CALL_OCCURRENCE):
            self._frames |= self._repeating()
            return self._frames[name]
        if self._saved and not self.has(name):
            return pl.DataFrame(schema=self._schema(name))
        if self._saved and self._saved.holds(name):
            return parquet.frame(self._saved, name, self._schema(name))
        if name in analyses():
            one = analyses()[name]
            computed: pl.DataFrame | None = self.call(one.function, one.of)
            if computed is None:
                return pl.DataFrame(schema=one.columns)
            return pl.DataFrame([computed[column].cast(dtype) for column, dtype in one.columns.items()])
        if name == self._commonest.frame:
            lines = with_line(self[CALL_OCCURRENCE]).drop("source")
            return Repetition(self[CALL_TEMPLATE].drop("pos"), lines).unfolded().select(list(self._schema(name)))
        return self._typed(self._shape(name))

    @property
    def _commonest(self) -> Shape:
        """The shape whose lines are kept as what repeats in them, and where."""
        return self.dialect.candidates[0].shape

    def _shape(self, name: str) -> Shape:
        """The shape of a parsed frame. Raises KeyError if there is no such frame."""
        for known in (self.dialect, self.dialect.with_all_formats):  # most that is asked for is NCCL's own
            for shape in known.shapes:
                if shape.frame == name:
                    return shape
        raise KeyError(name)

    def call(self, function: Callable[..., Any], of: tuple[str, ...] = ()) -> Any:
        """Call a function with the frames that its parameters name; where those of `of` are all empty, give None."""
        if of and not any(self.has(frame) for frame in of):
            return None
        return function(**{name: self[name] for name in inspect.signature(function).parameters})

    def quote(self, wanted: Iterable[tuple[int, int]]) -> dict[tuple[int, int], tuple[int, str]]:
        """The true number and the text of lines, read a second time: (source, line) -> (line, text)."""
        found: dict[tuple[int, int], tuple[int, str]] = {}
        by_source: dict[int, list[int]] = {}
        for number, line in wanted:
            by_source.setdefault(number, []).append(line)
        for number, lines in by_source.items():
            if number in self._stored:
                saved, at = self._stored[number]
                if saved not in self._cited:
                    self._cited[saved] = parquet.cited(saved)
                found |= {(number, line): (line, self._cited[saved].get((at, line), "")) for line in lines}
                continue
            for line, (true, text) in self.readings[number].quote(lines).items():
                found[number, line] = true, text
        return found

    def _sources(self) -> pl.DataFrame:
        counted = {row["source"]: row for row in self.tally.to_dicts()}
        none = dict.fromkeys(COUNTS, 0)
        dropped = dict(pl.concat(self._speakers).group_by("source").agg(pl.col("dropped").sum()).iter_rows())
        rows = [
            (
                r.number,
                r.source.path,
                r.is_whole or r.is_binary,
                r.is_cut,
                r.source.rank_hint,
                counted.get(r.number, none)["damaged"],
                dropped.get(r.number, 0),
                r.lines_read,
                counted.get(r.number, none)["recognised"],
                "; ".join(r.problems),
            )
            for r in self.readings
        ]
        return pl.DataFrame(rows, schema=SOURCE_COLUMNS, orient="row")

    def _schema(self, name: str) -> Mapping[str, pl.DataType]:
        """The columns of a frame. Raises KeyError if there is no such frame."""
        if name in analyses():
            return analyses()[name].columns
        return {**ORIGIN, **self._labels, **self._shape(name).schema}

    @property
    def _labels(self) -> dict[str, pl.DataType]:
        return {label: base.dtype for label, base in self.dialect.labels.items()}

    def _repeating(self) -> dict[str, pl.DataFrame]:
        """The rows of the commonest shape: what its lines say, each once; and where, in the order of the lines."""
        shape, counter = self._commonest, self.dialect.counter
        own = ["line", counter, *self._labels]
        as_rows = [self[shape.frame].drop("pos")] if self._saved else self._parsed.get(shape.frame, [])
        pieces = self._repetitions + [folded(rows, own) for rows in as_rows]
        if self._span:
            pieces = [folded(self._span.of(each.unfolded()), own) for each in pieces]
        shared = {name: dtype for name, dtype in shape.schema.items() if name != counter}
        columns = {CALL_TEMPLATE: pl.UInt32(), "pos": pl.Int64(), counter: shape.schema[counter], **self._labels}
        pieces = with_small_together(pieces, lambda each: each.lines.height, together)
        if not pieces:
            return {
                CALL_TEMPLATE: pl.DataFrame(schema={**ORIGIN, **shared}),
                CALL_OCCURRENCE: pl.DataFrame(schema=columns),
            }
        said = in_order(pl.concat([each.said for each in pieces], how="diagonal"), self._ends)
        order = said["pos"].arg_sort()
        whole = completed(renamed(said, self._true_hosts), {**ORIGIN, **shared})[order]
        once, place = distinct(whole, ["source", *shared])
        place = place.gather(order.arg_sort())
        lines, start = [], 0
        for each in pieces:
            memberships = (each.lines[CALL_TEMPLATE] + start).alias(CALL_TEMPLATE)
            placed = in_order(each.lines.with_columns(source=said["source"].gather(memberships)), self._ends)
            lines.append(placed.drop("source", "line").with_columns(place.gather(memberships).alias(CALL_TEMPLATE)))
            start += each.said.height
        if (self._ends > 0).all():  # nothing more will be read: the frames take the place of the pieces
            self._repetitions = []
            self._parsed.pop(shape.frame, None)
        del pieces
        return {CALL_TEMPLATE: once, CALL_OCCURRENCE: joined(lines, columns)}

    def _typed(self, shape: Shape) -> pl.DataFrame:
        schema = self._schema(shape.frame)
        parsed = with_small_together(
            self._parsed.get(shape.frame, []), lambda rows: rows.height, partial(pl.concat, how="diagonal")
        )
        if not parsed:
            return pl.DataFrame(schema=schema)
        pieces = [in_order(rows, self._ends) for rows in parsed]
        if (self._ends > 0).all():  # nothing more will be read: the frame takes the place of its pieces
            self._parsed.pop(shape.frame, None)
        del parsed
        whole = joined(pieces, schema)
        if self._span:
            whole = self._span.of(whole)
        return renamed(whole, self._true_hosts) if "host" in whole.columns else whole

    def _speaking(self) -> pl.DataFrame:
        stretches = pl.concat(self._speakers).with_columns(pl.col("last", "dropped_line") - pl.col("line"))
        placed = in_order(stretches, self._ends)
        placed = placed.with_columns(
            pl.col("last", "dropped_line") + pl.col("line"), last_pos=pl.col("pos") + pl.col("last")
        )
        return renamed(placed.select(list(SPEAKER_COLUMNS)).sort("pos"), self._true_hosts)

    @cached_property
    def _true_hosts(self) -> dict[tuple[str, int], str]:
        """(host, pid) -> host, for lines whose host name was torn: they begin inside of it or behind other text.

        The same process speaks under the true name, too, and far more often.
        """
        speakers = pl.concat(self._speakers)
        counted = speakers.group_by(text_of("host"), "pid").agg(pl.col("lines").sum())
        pairs = counted.join(counted, on="pid", suffix="_true").filter(pl.col("host") != pl.col("host_true"))
        ends_alike = pl.col("host").str.ends_with(pl.col("host_true")) | pl.col("host_true").str.ends_with(
            pl.col("host")
        )
        is_rarer = pl.col("lines") * pl.when(ends_alike).then(RARE).otherwise(VERY_RARE) < pl.col("lines_true")
        torn = pairs.filter(is_rarer).sort("lines_true")
        return {(host, pid): true for host, pid, true in torn.select("host", "pid", "host_true").iter_rows()}

    @cached_property
    def _ends(self) -> pl.Series:
        """The number of the line behind the end of every source (0: unknown).

        Lines counted from the end of a file get their true number once its windows have met.
        """
        ends = [reading.lines_read + 1 if reading.is_whole else 0 for reading in self.readings]
        return pl.Series(ends, dtype=pl.Int32)


def _inputs(sources: list[Source]) -> list[tuple[Source, Saved | None, int]]:
    """Each source; in place of a saved run all that it was made of, with the number that it has there."""
    found: list[tuple[Source, Saved | None, int]] = []
    for source in sources:
        for at, told in enumerate(source.saved.inputs if source.saved else ()):
            one = replace(source, path=told["path"], size=told["bytes"], rank_hint=told["rank_hint"], saved=None)
            found.append((one, source.saved, at))
        if not source.saved:
            found.append((source, None, 0))
    return found


def _fitted(saved: Saved, shape: Shape) -> pl.DataFrame:
    """The rows of a saved frame in today's dtypes, whichever version wrote them. Raises SavedError."""
    rows = parquet.frame(saved, shape.frame)
    other = {name: base for name, base in shape.columns.items() if rows.schema.get(name, base.dtype) != base.dtype}
    try:
        return rows.with_columns(base.cast(pl.col(name).cast(pl.String)).alias(name) for name, base in other.items())
    except pl.exceptions.PolarsError as error:
        raise saved.damaged(shape.frame, error) from error


def _renumbered(rows: pl.DataFrame, numbers: Mapping[int, int]) -> pl.DataFrame:
    """The rows with the numbers that their sources have in this run."""
    return rows.with_columns(pl.col("source").replace_strict(numbers, return_dtype=pl.Int32))


def _natural(name: str) -> list[tuple[bool, int, str]]:
    parts, digits = [], ""
    for character in name + "\0":
        if character.isascii() and character.isdigit():
            digits += character
            continue
        if digits:
            parts.append((False, int(digits), ""))
            digits = ""
        parts.append((True, 0, character))
    return parts
