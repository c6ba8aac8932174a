"""The run: its named frames, computed on first use and kept.

A frame is parsed (named after the rule of a grammar) or computed by the analysis of that name. Analyses and rules name
the frames they need as parameters; `call` supplies them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, partial

import polars as pl

from ncclforensics.archive import parquet
from ncclforensics.archive.restore import SavedInputs
from ncclforensics.data.names import NO_KIND
from ncclforensics.data.settings import ExpectedMachine, Settings, Thresholds
from ncclforensics.errors import BrokenFrameError, Defect, ForensicsError, own_place
from ncclforensics.formats import all_formats, filled_by
from ncclforensics.frames import earlier_launches, stretches
from ncclforensics.frames.agent_folders import ranks_of_files
from ncclforensics.frames.assemble import assemble, concat_small, labels_of, no_lines, parsed_schema, with_positions
from ncclforensics.frames.columns import (
    OWNER,
    columns_of,
    names_with_values,
    with_all_columns,
)
from ncclforensics.frames.process_names import ProcessNames, process_names
from ncclforensics.frames.protocol import Frames, call
from ncclforensics.frames.registry import RUN_FRAMES, analyses
from ncclforensics.frames.stated_lines import stated_lines
from ncclforensics.frames.templated import OCCURRENCES, TEMPLATES, TemplatedFrame
from ncclforensics.frames.time_range import TimeRange
from ncclforensics.grammar.dialect import Dialect
from ncclforensics.inputs.windows import InputReader
from ncclforensics.parsing import templates
from ncclforensics.parsing.concurrency import DEFECTS, Result, single_threaded
from ncclforensics.parsing.load import Records
from ncclforensics.parsing.parser import COUNTS, NO_TALLY

MANY_LINES = 300_000  # from here on, Polars' thread pool computes frames faster than one thread

TAGGED = ("exception", "traceback_frame")  # frames whose lines have PyTorch's tag of their rank
STRETCHES = {
    "speaker": stretches.speakers,
    "calls_between": stretches.calls_between,
    "repeated_line": stretches.repeated_lines,
    "voice": stretches.voices,
}

SOURCE_COLUMNS = {
    "source": pl.Int32(),
    "path": pl.String(),
    "is_whole": pl.Boolean(),  # every line was read, and every call kept
    "is_closed": pl.Boolean(),  # all that can be read was read; if it is not whole, some calls were only counted
    "is_cut": pl.Boolean(),  # the last line has no end
    "hint": pl.Int32(),  # the rank that its name suggests
    "damaged": pl.Int64(),  # lines
    "unrecognised": pl.Int64(),  # lines of NCCL
    "dropped": pl.Int64(),  # lines that a collector counted and did not pass on
    "lines": pl.Int64(),  # read
    "recognised": pl.Int64(),  # of these
    "problem": pl.String(),
    "blank_end": pl.Int64(),  # of the last lines, those that say nothing
    "last_time": pl.String(),  # of its last line, as a launcher or collector printed it
}


class Run:
    """The frames of all inputs together, or of what was printed in a time range."""

    def __init__(
        self,
        records: Records,
        saved: SavedInputs | None = None,
        time_range: TimeRange | None = None,
        settings: Settings | None = None,
    ) -> None:
        self._records = records
        self.settings = settings or Settings()
        self._saved_inputs = saved or SavedInputs()
        self._saved = self._saved_inputs.complete
        self._time_range = time_range
        self._frames: dict[str, pl.DataFrame] = {}
        self.broken: set[str] = set()

    @property
    def defects(self) -> list[Defect]:
        """What failed so far, of reading, parsing, analyses and rules."""
        return self._records.defects

    @property
    def dialect(self) -> Dialect:
        """Describes the parsed frames."""
        return self._records.dialect

    @property
    def inputs(self) -> list[InputReader]:
        """Every input, by number."""
        return self._records.inputs

    @property
    def hashes(self) -> dict[int, str]:
        """Number of an input -> SHA-256 of its bytes, where a saved run holds it."""
        return self._saved_inputs.hashes

    def read_on(self, wanted: pl.DataFrame) -> None:
        """Read more of the inputs named in `wanted` (columns `source`, `reach`: head, tail or all)."""
        self._records.read_more({int(row["source"]): str(row["reach"]) for row in wanted.iter_rows(named=True)})
        self._forget()

    def _forget(self) -> None:
        """Forget what was computed of fewer lines."""
        self._frames.clear()
        for name in ("_process_names", "_ends", "kinds"):
            self.__dict__.pop(name, None)

    def count_calls(self, wanted: pl.DataFrame) -> None:
        """Count the calls between the windows on communicators (columns `source`, `host`, `pid`, `comm`)."""
        communicators: dict[int, list[tuple[tuple[str, int], str]]] = {}
        for source, host, pid, comm in wanted.iter_rows():
            communicators.setdefault(source, []).append(((host, pid), comm))
        self._records.count_calls(communicators)
        self._frames.clear()

    def read_until_decided(self) -> None:
        """Read on until no frame asks for more."""
        while True:
            if (uncounted := self["uncounted_communicator"]).height:
                self.count_calls(uncounted)
            elif (wanted := self["read_next"]).height or (wanted := self["read_to_verify"]).height:
                self.read_on(wanted)
            else:
                break
        if self._records.earlier_launches.is_empty() and (earlier := earlier_launches.find(self)).height:
            self._leave_out(earlier)

    def _leave_out(self, earlier: pl.DataFrame) -> None:
        """Forget what launches printed that had ended before the last one of their input, and what followed of it."""
        without = partial(earlier_launches.without, earlier=earlier, ends=self._ends)
        for name, pieces in self._records.frames.items():
            self._records.frames[name] = [without(rows, name) for rows in pieces]
        parsed = {*self._frames} - {*analyses()} - {"stated_line", "earlier_launch"}
        self._frames = {name: without(self._frames[name], name) for name in parsed}
        self._records.earlier_launches = earlier.drop("pos")

    @property
    def tally(self) -> pl.DataFrame:
        """Lines read of every input, by kind: columns `source` and `parser.COUNTS`."""
        tallies = self._records.tallies
        return pl.concat(tallies).group_by("source").sum() if tallies else NO_TALLY

    @cached_property
    def kinds(self) -> dict[int, str]:
        """Number of an input -> the contract's `inputs[].kind`, of inputs with any line of a known format."""
        if self._saved:
            kinds = ((number, entry["kind"]) for number, entry in enumerate(self._saved.inputs))
            return {number: kind for number, kind in kinds if kind != NO_KIND}
        ordered = sorted(all_formats().values(), key=lambda form: not getattr(form, "IS_SIDE_OUTPUT", False))
        return {
            source: kind
            for form in ordered
            for frame, kind in form.KINDS.items()
            for rows in self._pieces(frame)
            for source in rows["source"].unique()
        }

    def has(self, name: str) -> bool:
        """Whether a frame has rows; does not compute a parsed frame to find out."""
        if name in self._frames:
            return self._frames[name].height > 0
        if self._saved and name in self._saved.frames:
            return True
        return any(rows.height for rows in self._pieces(name))

    def _parsed_names(self) -> set[str]:
        """The names of parsed frames that may have rows."""
        names = {*self._records.frames, *self._frames, *(self._saved.frames if self._saved else ())}
        return names - {*analyses()} - RUN_FRAMES

    def _pieces(self, name: str) -> list[pl.DataFrame]:
        """Frames that together have a row from each source that has one in this frame.

        For a parsed frame that has not been assembled yet, these are its pieces.
        """
        if name == self._templated.frame:
            return [self[TEMPLATES]]
        is_parsed = name not in analyses() and name not in RUN_FRAMES
        return self._parsed(name) if is_parsed and name not in self._frames else [self[name]]

    def _parsed(self, name: str) -> list[pl.DataFrame]:
        """The pieces that were parsed of a frame, and of those whose rows it has, too."""
        pieces = list(self._records.frames.get(name, []))
        for own in filled_by(name):
            pieces += [self._frames[own].drop("pos")] if own in self._frames else self._records.frames.get(own, [])
        return pieces

    def __getitem__(self, name: str) -> pl.DataFrame:
        if name not in self._frames:
            self._frames |= self._compute(name)
        return self._frames[name]

    def _compute(self, name: str) -> dict[str, pl.DataFrame]:
        """The frame of this name, and others that are computed with it. Raises KeyError if there is none."""
        if name == "source":
            return {name: self._sources()}
        if name == "expected_machine":
            machine = self.settings.machine._asdict()
            return {name: pl.DataFrame([machine] if any(machine.values()) else [], schema=columns_of(ExpectedMachine))}
        if name == "threshold":
            return {name: pl.DataFrame([self.settings.thresholds._asdict()], schema=columns_of(Thresholds))}
        if name in STRETCHES:
            return {name: STRETCHES[name](self._records, self._process_names, self._ends)}
        if name == "earlier_launch":
            return {name: with_positions(self._records.earlier_launches, self._ends)}
        if name == "stated_line":
            return {name: stated_lines(self, self._parsed_names())}
        if name in (TEMPLATES, OCCURRENCES):
            return self._encoded()
        if self._saved and self._saved.holds(name):
            return {name: parquet.frame(self._saved, name, self._schema(name))}
        if self._saved and self._saved.is_empty(name):
            return {name: self._empty(name)}
        if name in analyses():
            return {name: self._analyse(name)}
        if name == self._templated.frame:
            return {name: self._templated.decode(self[TEMPLATES], self[OCCURRENCES], self._schema(name))}
        return {name: self._assemble(name)}

    def _analyse(self, name: str) -> pl.DataFrame:
        analysis = analyses()[name]
        try:
            computed: pl.DataFrame | None = call(self, analysis)
            if computed is not None:
                names, dtypes = [*analysis.columns], [*analysis.columns.values()]
                is_small = computed.height < MANY_LINES
                is_settled = is_small and computed.columns == names and computed.dtypes == dtypes
                if is_settled and max(computed.n_chunks("all")) == 1:
                    return computed
                # Column by column, so that never more than one of them stands in memory twice.
                left = computed[:, names]
                del computed
                filled = names if is_small else names_with_values(left) or names
                columns = [_cast(left.drop_in_place(name), analysis.columns[name]) for name in filled]
                return with_all_columns(pl.DataFrame(columns), analysis.columns)
        except BrokenFrameError:
            self.broken.add(name)
        except ForensicsError:
            raise
        except DEFECTS as error:
            self.broken.add(name)
            self.defects.append(Defect.of(f"the analysis {name}", error, own_place=own_place(analysis.function, error)))
        return analysis.no_rows

    @cached_property
    def _templated(self) -> TemplatedFrame:
        """The frame of the most frequent pattern."""
        return TemplatedFrame(self.dialect.candidates[0].shape, self.dialect.counter, labels_of(self.dialect))

    def quote(self, wanted: Iterable[tuple[int, int]]) -> dict[tuple[int, int], tuple[int, str]]:
        """Read lines a second time: (source, line) -> (line numbered from the start, text)."""
        by_source: dict[int, list[int]] = {}
        for source, line in wanted:
            by_source.setdefault(source, []).append(line)
        quotes: dict[tuple[int, int], tuple[int, str]] = {}
        for source, lines in by_source.items():
            is_saved = source in self._saved_inputs.origin
            found = self._saved_inputs.quote(source, lines) if is_saved else self.inputs[source].quote(lines)
            quotes |= {(source, line): quote for line, quote in found.items()}
        return quotes

    def whole_text(self, source: int, line: int) -> str:
        """The text of a line with the next ones that it goes on in; empty where it stands alone, or in a saved run."""
        return "" if source in self._saved_inputs.origin else self._records.whole_text(source, line)

    def _sources(self) -> pl.DataFrame:
        counted = {row["source"]: row for row in self.tally.to_dicts()}
        none = dict.fromkeys(COUNTS, 0)
        speakers = pl.concat(self._records.speakers)
        dropped = dict(speakers.group_by("source").agg(pl.col("dropped").sum()).iter_rows())
        tagged = (rows for name in TAGGED for rows in self._pieces(name) if "rank" in rows.columns)
        own = ranks_of_files({reader.number: reader.source.path for reader in self.inputs}, tagged)
        rows = [
            (
                reader.number,
                reader.source.path,
                (reader.is_whole and not reader.is_read_through) or reader.is_binary,
                reader.is_closed or reader.is_binary,
                reader.is_cut,
                own.get(reader.number, reader.source.rank_hint),
                counted.get(reader.number, none)["damaged"],
                counted.get(reader.number, none)["unrecognised"],
                dropped.get(reader.number, 0),
                reader.lines_read,
                counted.get(reader.number, none)["recognised"],
                "; ".join(reader.problems),
                reader.blank_end,
                None if self._time_range else reader.last_time,
            )
            for reader in self.inputs
        ]
        return pl.DataFrame(rows, schema=SOURCE_COLUMNS, orient="row")

    def _schema(self, name: str) -> Mapping[str, pl.DataType]:
        """The columns of a frame. Raises KeyError if there is none."""
        return analyses()[name].columns if name in analyses() else parsed_schema(self.dialect, name)

    def _empty(self, name: str) -> pl.DataFrame:
        """A frame without rows. Raises KeyError if there is none of this name."""
        return analyses()[name].no_rows if name in analyses() else no_lines(self.dialect, name)

    @property
    def _is_complete(self) -> bool:
        """Whether nothing more can be read; then an assembled frame takes the place of its pieces in memory."""
        return bool((self._ends > 0).all())

    def _encoded(self) -> dict[str, pl.DataFrame]:
        frame, records = self._templated.frame, self._records
        parsed = [self[frame].drop("pos")] if self._saved else records.frames.get(frame, [])
        pieces = records.encoded + [
            self._templated.encode(self._process_names.without_ambiguous(rows)) for rows in parsed
        ]
        pieces = concat_small(pieces, records.policy.small_frame, templates.concat)
        if self._is_complete:
            records.encoded = []
            records.frames.pop(frame, None)
        del parsed
        return self._templated.assemble(pieces, self._ends, self._process_names)

    def _assemble(self, name: str) -> pl.DataFrame:
        small = self._records.policy.small_frame
        parsed = concat_small(self._parsed(name), small, partial(pl.concat, how="diagonal_relaxed"))
        if not parsed:
            return self._empty(name)
        schema = self._schema(name)
        pieces = [with_positions(rows, self._ends) for rows in parsed]
        if self._is_complete:
            self._records.frames.pop(name, None)
        del parsed
        rows = assemble(pieces, schema)
        if "comm" in schema:  # a call or a communicator is of use only with its process
            rows = self._process_names.without_ambiguous(rows)
        return self._process_names.replace_in(rows) if set(OWNER) <= set(rows.columns) else rows

    @cached_property
    def _process_names(self) -> ProcessNames:
        """Replacements of hosts that were torn or cut away."""
        return process_names(pl.concat(self._records.speakers))

    @cached_property
    def _ends(self) -> pl.Series:
        """One more than the number of lines of every input; 0 while that is unknown.

        Lines numbered from the end of a file get their number from the start once its windows have met.
        """
        ends = [reader.lines_read + 1 if reader.is_whole else 0 for reader in self.inputs]
        return pl.Series(ends, dtype=pl.Int32)


def _cast(column: pl.Series, dtype: pl.DataType) -> pl.Series:
    """A computed column in its declared type and one chunk. A number of a log that none can be is unknown."""
    return column.cast(dtype, strict=not column.dtype.is_integer()).rechunk()


def limit_threads(frames: Frames, work: Callable[[], Result]) -> Result:
    """Call `work`; on one thread where so few lines were read that a thread pool costs more than it saves."""
    is_small = sum(reader.lines_read for reader in frames.inputs) < MANY_LINES
    return single_threaded(work) if is_small else work()
