"""Read and parse all inputs: their records, as pieces of frames by input."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import takewhile
from typing import Any

import polars as pl

from ncclforensics.errors import Defect
from ncclforensics.formats import DAMAGED, DocumentReader, Reader, TraceReader, TraceRecords, dialect, document
from ncclforensics.formats import Records as DocumentRecords
from ncclforensics.inputs import lines
from ncclforensics.inputs.read_policy import ReadPolicy
from ncclforensics.inputs.sources import DAMAGED_ARCHIVE, Source
from ncclforensics.inputs.windows import InputReader, Lines
from ncclforensics.parsing.alike_rows import AlikeRows
from ncclforensics.parsing.calls_between import CALLS_BETWEEN, CountedCalls, CountedStretches, count_calls
from ncclforensics.parsing.concurrency import DEFECTS, ordered_map
from ncclforensics.parsing.continuations import whole_text
from ncclforensics.parsing.detect_formats import InputFormat, detect_formats, reject_non_log
from ncclforensics.parsing.kept_calls import keep_ends
from ncclforensics.parsing.launcher_prefixes import no_voices
from ncclforensics.parsing.next_lines import MAX_NEXT
from ncclforensics.parsing.parser import COUNTS, NO_HOSTS, NO_TALLY, SPEAKER, Parsed
from ncclforensics.parsing.repeated_lines import no_repeats
from ncclforensics.parsing.sampled_outputs import Samples
from ncclforensics.parsing.templates import EncodedRows, encode
from ncclforensics.parsing.trace_readers import WORTH_PROCESSES, read_trace, traces_read
from ncclforensics.parsing.workers import ParallelParser

Process = tuple[str, int]  # host and pid
SAMPLED_TOGETHER = 512  # inputs
SAMPLED_BYTES = 4 << 20  # of fewer inputs, where their samples are long
FEW_INPUTS = 16
LONGEST_WINDOWS = 400_000_000  # bytes, of a few inputs; reading these whole and counting calls takes less memory
EARLIER_LAUNCH = {  # a launch that ended before the last one, of its input or of all
    "source": pl.Int32(),
    "line": pl.Int32(),  # the first that shows the next launch; null where that stands in another input
    "failure_line": pl.Int32(),  # of the last error before it; null without one
    "end_line": pl.Int32(),  # of the launcher's report of that end; null where the program alone was started again
}
Progress = Callable[[int], None]  # called with the bytes parsed since the last call
Keep = Callable[[pl.DataFrame], pl.DataFrame]  # leaves out the rows of a frame that are not wanted


class Records:
    """What has been parsed so far of some inputs, and what is needed to read more of them.

    The constructor reads nothing: `load` does.
    """

    def __init__(
        self, sources: Sequence[Source], policy: ReadPolicy, progress: Progress, keep: Keep | None = None
    ) -> None:
        self.dialect = dialect()
        self.policy = policy
        self.inputs = [InputReader(source, number, policy) for number, source in enumerate(sources)]
        self.frames: dict[str, list[pl.DataFrame]] = {}  # parsed frame -> its pieces
        self.encoded: list[EncodedRows] = []  # pieces of the frame of the most frequent pattern
        self.tallies: list[pl.DataFrame] = []
        self.speakers: list[pl.DataFrame] = [pl.DataFrame(schema=SPEAKER)]
        self.repeated_lines: list[pl.DataFrame] = [no_repeats()]  # lines that stand for many equal ones
        self.voices: list[pl.DataFrame] = [no_voices()]  # who printed last
        self.earlier_launches = pl.DataFrame(schema=EARLIER_LAUNCH)  # nothing of them is kept in the frames
        self.calls_between: dict[int, list[dict[str, Any]]] = {}  # rows of CALLS_BETWEEN of an input, counted as text
        self.counted_stretches = CountedStretches()  # of the inputs that were read through
        self._events: dict[str, AlikeRows] = {}  # parsed frame -> what bounds it, if it is one of events
        self._sampled = Samples(self.dialect, policy.samples)
        self._formats: dict[int, InputFormat] = {}
        self._read_whole: set[int] = set()  # inputs of which every line has been read, or will be
        self._keep = keep
        self._kept_calls, self._most_calls = 0, policy.calls  # of more, those in the middle are only counted
        self.defects: list[Defect] = []  # of reading and parsing; analyses and rules add theirs
        self._progress = progress
        self._traces: list[tuple[InputReader, TraceReader]] = []  # not yet read
        self._parser = ParallelParser(self.dialect, policy, self.add, progress, self.inputs, self.defects)
        self._partly_read: dict[int, tuple[DocumentReader, int]] = {}  # documents: how they are read, records read

    def add(self, parsed: Parsed) -> None:
        """Add what was parsed of some lines."""
        if self._keep:
            parsed = self._wanted(parsed, self._keep)
        self.tallies.append(parsed.tally)
        self.speakers.append(parsed.speakers)
        self.voices += [parsed.voices] if parsed.voices.height else []
        self.repeated_lines += [parsed.repeated] if parsed.repeated.height else []
        self.encoded += [parsed.encoded] if parsed.encoded else []
        self._kept_calls += parsed.encoded.height if parsed.encoded else 0
        if self._kept_calls > self._most_calls:
            self._keep_ends()
        added = {name: sum(rows.height for rows in pieces) for name, pieces in parsed.frames.items()}
        for name, pieces in parsed.frames.items():
            self.frames.setdefault(name, []).extend(pieces)
            events = self._events.setdefault(name, AlikeRows(self.policy.events, self.policy.kept))
            if events.count(added[name]):
                self._bound(name)
        if self.policy.full:
            self._sampled.add(added, self.frames)

    def _keep_ends(self) -> None:
        """Keep no more calls than those at both ends of each process, of inputs that are read whole."""
        counted = CountedStretches()
        self.encoded = keep_ends(self.encoded, self._read_whole, self.policy.calls, counted)
        self._kept_calls = sum(piece.height for piece in self.encoded)
        self._most_calls = max(self.policy.calls, 2 * self._kept_calls)
        self.counted_stretches.add_rows(counted.rows)
        for source in counted.rows["source"].unique():
            self.inputs[source].is_read_through = True

    def kept(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The wanted rows of a frame."""
        return self._keep(rows) if self._keep else rows

    def _wanted(self, parsed: Parsed, keep: Keep) -> Parsed:
        """The wanted rows of what was parsed: those of a short time are kept of logs of any length."""
        frames = {name: [keep(rows) for rows in pieces] for name, pieces in parsed.frames.items()}
        calls = keep(parsed.encoded.decode()) if parsed.encoded else pl.DataFrame()
        encoded = encode(calls, ["line", self.dialect.counter, *self.dialect.labels]) if calls.height else None
        return replace(parsed, frames=frames, encoded=encoded)

    def _bound(self, name: str) -> None:
        """Keep no more rows of a frame of events than their kinds need."""
        if self._events[name].is_flooded and name in self.dialect.with_all_formats.collapsible:
            self.frames[name] = self._events[name].bounded(self.frames[name])

    def whole_text(self, source: int, line: int) -> str:
        """Read a line a second time, with the next ones that it goes on in; empty where it does not."""
        form, reader = self._formats.get(source), self.inputs[source]
        is_long = reader.source.text_size > reader.policy.chunk  # a copied text, which may be wrapped, is shorter
        is_gone = not (reader.source.remote or reader.source.file.exists())  # a screen may be drawn long after
        if form is None or reader.is_document or reader.export is not None or is_long or is_gone:
            return ""
        wanted = [number for number in range(line, line + MAX_NEXT + 1) if number * line > 0]  # both of head or tail
        read = reader.reread(wanted)
        texts = dict(read[number] for number in takewhile(read.__contains__, wanted))  # of each line of the file
        rows = form.strip(lines.block(b"".join(text + b"\n" for text in texts.values()), line, source))
        is_alone = rows["line"].is_unique().cast(pl.UInt8).cum_min() == 1  # up to one that holds several lines of text
        return whole_text(rows.filter(is_alone), form.dialect)

    def detect(self, readers: Sequence[InputReader]) -> None:
        """Detect the formats of inputs; those that are JSON documents or bare values are read at once."""
        with ThreadPoolExecutor(self.policy.threads) as pool:
            workers = self.policy.threads if len(readers) > FEW_INPUTS else 1
            for formats in ordered_map(self._detect, self._samples(readers), pool, workers):
                for number, form in formats.items():
                    self._formats[number] = form
                    if not form.is_plain:
                        self.inputs[number].strip = form.strip

    def _samples(self, readers: Sequence[InputReader]) -> Iterator[dict[int, bytes]]:
        """The samples of inputs of lines, a few at a time; other inputs are read, traces among them at last."""
        samples: dict[int, bytes] = {}
        length = 0
        for reader in readers:
            try:
                samples |= self._sample(reader)
            except DEFECTS as error:
                self._parser.isolation.stop_reading(reader, error)
            length += len(samples.get(reader.number, b""))
            if len(samples) == SAMPLED_TOGETHER or length > SAMPLED_BYTES:
                yield samples
                samples, length = {}, 0
        yield samples
        self._read_traces()

    def _sample(self, reader: InputReader) -> dict[int, bytes]:
        """The sample of an input of lines, by its number; nothing where the input was read as a document."""
        data = reader.sample(lambda beginning: isinstance(document(beginning, reader.source.path), TraceReader))
        found = document(reader.beginning, reader.source.path)
        is_rejected = reject_non_log(reader, data, self.dialect, is_document=found is not None)
        if self._add_document(reader, found):
            return {}
        return {reader.number: b"" if is_rejected else reader.text_of(data)}

    def _detect(self, samples: Mapping[int, bytes]) -> dict[int, InputFormat]:
        """The formats of inputs; not of those on which the program fails."""
        try:
            return detect_formats(samples, self.dialect)
        except DEFECTS:
            formats: dict[int, InputFormat] = {}
            for number, sample in samples.items():
                try:
                    formats |= detect_formats({number: sample}, self.dialect)
                except DEFECTS as error:
                    self._parser.isolation.stop_reading(self.inputs[number], error)
            return formats

    def _add_document(self, reader: InputReader, found: Reader | None) -> bool:
        """Add the records of an input that is one document or one value; False for an input of lines."""
        if found is None or reader.problems:
            return False
        if isinstance(found, TraceReader):
            self._traces.append((reader, found))
            return True
        if found.head and reader.source.seekable and not self.policy.full:
            size = self.policy.window
            while size < reader.source.size:
                if first := found.head(reader.read_head(size)):
                    self._add_records(reader, first, 0)
                    self._partly_read[reader.number] = found, len(first[0])
                    return True
                size *= 2
        self._add_records(reader, found.records(reader.read_document()), 0)
        reader.is_document = not found.one_record_a_line
        return True

    def _add_records(self, reader: InputReader, read: DocumentRecords, known: int) -> None:
        """Add the records of a document, without the first `known` ones, which were added before."""
        records, problems = read
        reader.problems += problems
        reader.lines_read = len(records)
        rows: dict[str, list[dict[str, Any]]] = {}
        for number, (frame, columns) in enumerate(records[known:], known + 1):
            if frame == DAMAGED:
                continue
            rows.setdefault(frame, []).append({"source": reader.number, "line": number, **columns})
        origin = {"source": pl.Int32(), "line": pl.Int32()}
        frames = {
            name: [pl.DataFrame(own, schema_overrides=origin, infer_schema_length=None)] for name, own in rows.items()
        }
        damaged = sum(frame == DAMAGED for frame, _ in records[known:])
        counts = {**dict.fromkeys(COUNTS, 0), "recognised": len(records) - known - damaged, "damaged": damaged}
        tally = {"source": reader.number, **counts}
        counted = pl.DataFrame([tally], schema=NO_TALLY.schema)
        self.add(Parsed(frames, counted, NO_HOSTS, pl.DataFrame(schema=SPEAKER)))

    def _read_traces(self) -> None:
        """Add the records of all traces: all of each, or those of its head where both ends of logs decide."""
        traces, self._traces = self._traces, []
        is_long = sum(reader.remaining(full=True) for reader, _ in traces) >= WORTH_PROCESSES
        processes = min(self.policy.threads, len(traces))
        if not self.policy.full or processes < 2 or not is_long:
            for reader, found in traces:
                self._add_trace(reader, found, None)
            return
        # An object that is read over the network has a connection, which no other process can use.
        requests = [(reader.source, found) for reader, found in traces if reader.source.remote is None]
        with traces_read(requests, processes) as read:
            for reader, found in traces:
                self._add_trace(reader, found, next(read) if reader.source.remote is None else None)

    def _add_trace(self, reader: InputReader, found: TraceReader, read: TraceRecords | None) -> None:
        """Add the records of a trace, which is read here unless it was already."""
        reader.is_document = reader.is_whole = True
        try:
            read = read or read_trace(reader.source, found, is_whole=self.policy.full)
        except DEFECTS as error:
            if isinstance(error, DAMAGED_ARCHIVE):
                reader.note_damage(error)
            else:
                self._parser.isolation.stop_reading(reader, error)
            return
        self._progress(reader.source.size)
        reader.problems += read.problems
        reader.lines_read = sum(rows.height for rows in read.frames.values()) + read.damaged
        counts = {**dict.fromkeys(COUNTS, 0), "recognised": reader.lines_read - read.damaged, "damaged": read.damaged}
        frames, line = {}, 1
        for name, rows in read.frames.items():
            lines = pl.int_range(line, line + rows.height, dtype=pl.Int32, eager=True)
            frames[name] = [rows.with_columns(source=pl.lit(reader.number, pl.Int32), line=lines)]
            line += rows.height
        counted = pl.DataFrame([{"source": reader.number, **counts}], schema=NO_TALLY.schema)
        self.add(Parsed(frames, counted, NO_HOSTS, pl.DataFrame(schema=SPEAKER)))

    def read(self) -> None:
        """Read every input whose format was detected for the first time: all of it, or both ends."""
        readers = [reader for reader in self._lines_of(self.inputs) if not reader.problems]
        self._read_whole |= {reader.number for reader in readers if not reader.begins_with_windows}
        self._parse(readers, InputReader.start, dict.fromkeys((r.number for r in readers), self.policy.full))

    def read_more(self, reach: Mapping[int, str]) -> None:
        """Read more of some inputs: number -> `head` or `tail` (a longer window there) or `all`.

        Windows of a few files that would be longer together than LONGEST_WINDOWS grow to the whole of their files: then
        of their calls, those at both ends of each process are kept.
        """
        # Every step is followed by an analysis, which takes as long as reading 30 MB.
        are_few = len(reach) <= FEW_INPUTS
        factor = 8 if are_few else 2
        if are_few and sum(self.inputs[number].bytes_kept for number in reach) * factor > LONGEST_WINDOWS:
            reach = dict.fromkeys(reach, "all")

        def more(reader: InputReader) -> Iterator[Lines]:
            end = reach[reader.number]
            return reader.finish() if end == "all" else reader.widen(factor, head=end == "head", tail=end == "tail")

        for number in reach.keys() & self.calls_between.keys():
            del self.calls_between[number]
        for number in sorted(reach.keys() & self._partly_read.keys()):
            found, known = self._partly_read.pop(number)
            self._add_records(self.inputs[number], found.records(self.inputs[number].read_document()), known)
        readers = self._lines_of([reader for reader in self.inputs if reader.number in reach])
        self._read_whole |= {reader.number for reader in readers if reach[reader.number] == "all"}
        self._parse(readers, more, {number: end == "all" for number, end in reach.items()})

    def count_calls(self, communicators: Mapping[int, Sequence[tuple[Process, str]]]) -> None:
        """Count the calls between the windows: number of an input -> process and pointer of its communicators.

        Where other lines between them name a communicator, these are read, and nothing is counted yet.
        """

        def count(number: int) -> CountedCalls:
            reader = self.inputs[number]
            is_countable = self._formats[number].keeps_lines and not reader.numbers.stretches
            return (
                count_calls(reader, self.dialect.template, [pointer for _, pointer in communicators[number]])
                if is_countable
                else CountedCalls()
            )

        with ThreadPoolExecutor(self.policy.threads) as pool:
            counted = dict(zip(communicators, pool.map(count, communicators), strict=True))
        named_until = {number: counts.named_until for number, counts in counted.items() if counts.named_until}
        for number in counted.keys() - named_until.keys():
            calls = counted[number].calls
            self.calls_between[number] = [
                {"source": number, "host": host, "pid": pid, "comm": pointer, "calls": calls.get(pointer)}
                for (host, pid), pointer in communicators[number]
            ]
        readers = self._lines_of([self.inputs[number] for number in sorted(named_until)])
        more = dict.fromkeys(named_until, False)
        self._parse(readers, lambda reader: reader.widen_head(named_until[reader.number]), more)

    @property
    def counted_calls(self) -> pl.DataFrame:
        """The calls between windows that were counted (columns CALLS_BETWEEN)."""
        rows = [row for number in sorted(self.calls_between) for row in self.calls_between[number]]
        return pl.DataFrame(rows, schema=CALLS_BETWEEN, orient="row")

    @property
    def parsed_calls(self) -> pl.DataFrame:
        """The calls that were parsed and are not kept (columns CALLS_BETWEEN)."""
        return self.counted_stretches.rows

    def _lines_of(self, readers: Sequence[InputReader]) -> list[InputReader]:
        return [reader for reader in readers if reader.number in self._formats]

    def _parse(
        self,
        readers: list[InputReader],
        read: Callable[[InputReader], Iterator[Lines]],
        is_whole: Mapping[int, bool],
    ) -> None:
        remaining = sum(reader.remaining(full=is_whole[reader.number]) for reader in readers)
        self._parser.parse([(reader, self._formats[reader.number]) for reader in readers], read, remaining)
        if self.counted_stretches.rows.height:
            self._keep_ends()  # what was read last stands between a window and calls that were counted
        for name in self._events:
            self._bound(name)
        self._sampled.bound(self.frames)
        for number, outputs in self._sampled.dropped.items():
            self.inputs[number].outputs_dropped = outputs

    @property
    def repeated(self) -> pl.DataFrame:
        """Lines that were counted instead of kept (columns REPEATED), a row for each stretch of them."""
        alike = [events.dropped for events in self._events.values() if events.dropped is not None]
        return pl.concat([*self.repeated_lines, *alike])


def _measured(sources: Sequence[Source], policy: ReadPolicy) -> list[Source]:
    """The sources; compressed files that may be longer than their windows with their length."""

    def measured(source: Source) -> Source:
        return source.measured(2 * policy.window)

    packed = [source for source in sources if not source.seekable and source.size > policy.window // 2]
    with ThreadPoolExecutor(policy.threads) as pool:
        found = dict(zip(map(id, packed), pool.map(measured, packed), strict=True))
    return [found.get(id(source), source) for source in sources]


def load(
    sources: Sequence[Source], policy: ReadPolicy, progress: Progress = lambda _: None, keep: Keep | None = None
) -> Records:
    """Read and parse the inputs as far as the policy says; those of saved runs are left to `archive.restore`."""
    if not policy.full:
        sources = _measured(sources, policy)
    records = Records(sources, policy, progress, keep)
    for reader in records.inputs:
        if reader.source.problem:
            reader.problems.append(reader.source.problem)
            reader.is_whole = True  # asking for more of it is useless
    records.detect([reader for reader in records.inputs if not reader.problems and not reader.source.saved])
    records.read()
    return records
