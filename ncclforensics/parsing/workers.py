"""Read and parse many inputs in parallel threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Lock

import polars as pl

from ncclforensics.errors import Defect
from ncclforensics.grammar.dialect import Dialect
from ncclforensics.inputs.lines import REPEATS, Stretch
from ncclforensics.inputs.read_policy import ReadPolicy
from ncclforensics.inputs.windows import InputReader, Lines
from ncclforensics.parsing.batches import Batch, Batches, byte_size
from ncclforensics.parsing.concurrency import DEFECTS, ordered_map, single_threaded
from ncclforensics.parsing.detect_formats import InputFormat
from ncclforensics.parsing.isolation import Isolation
from ncclforensics.parsing.parser import Parsed, parse, parse_by_template
from ncclforensics.parsing.repeated_lines import RepeatedLines

Job = tuple[InputReader, InputFormat]
Read = Callable[[InputReader], Iterator[Lines]]  # yields the lines to parse


class ParallelParser:
    """Parses lines of many inputs. Calls `on_parsed` from one thread at a time, `progress` with the bytes parsed."""

    def __init__(
        self,
        dialect: Dialect,
        policy: ReadPolicy,
        on_parsed: Callable[[Parsed], None],
        progress: Callable[[int], None],
        inputs: list[InputReader],
        defects: list[Defect],
    ) -> None:
        self._dialect = dialect
        self._policy = policy
        self._on_parsed = on_parsed
        self._progress = progress
        self._repeated = RepeatedLines(policy.kept)
        self._hosts: list[pl.DataFrame] = []  # hosts seen at the beginning of a line
        self._lock = Lock()
        self._helpers = ThreadPoolExecutor(policy.threads)  # starts no thread before it gets work
        self.isolation = Isolation(inputs, defects, self._add)

    def parse(self, jobs: list[Job], read: Read, remaining: int) -> None:
        """Parse what `read` yields of each input, about `remaining` bytes in all; small files are parsed together.

        One reader is enough for few bytes: two would wait for each other, because Python code runs in one thread at a
        time. Where there are fewer inputs than threads, the other threads help the readers.

        What is parsed together of one input depends on that input alone, never on how threads are scheduled.
        """
        queue = iter(jobs)
        is_parallel = remaining > self._policy.one_thread
        readers = min(self._policy.threads, len(jobs)) if is_parallel else 1
        workers = self._policy.threads // readers if is_parallel else 1  # of each reader
        left = Batches()
        with ThreadPoolExecutor(readers) as pool:
            reading = [pool.submit(single_threaded, partial(self._read, queue, read, workers)) for _ in range(readers)]
            for future in reading:
                for batch in future.result():
                    for rows in batch.rows:
                        left.add(batch.dialect, rows)
        for batch in left.take(at_least=0):
            single_threaded(partial(self._parse, batch, self._policy.threads))

    def _read(self, queue: Iterator[Job], read: Read, workers: int) -> list[Batch]:
        """Work on inputs from the queue until it is empty; return the rare lines that are still to be parsed."""
        small = Batches()  # lines of inputs that are too short for a call of their own
        rare_lines = Batches()  # of inputs that have been read
        while True:
            with self._lock:
                job = next(queue, None)
            for batch in small.take(at_least=0 if job is None else self._policy.chunk):
                rare_lines.add(batch.dialect, self._parse_by_template(batch))
            if job is None:
                return rare_lines.filled
            reader, form = job
            rare = Batch(self._dialect)
            chunks = self._large_chunks(reader, form, read, small)
            for others in ordered_map(self._parse_by_template, chunks, self._helpers, workers):
                rare.dialect = form.learn(others, reader)
                rare.add(others)
                if rare.weight >= self._policy.batch * workers:
                    self._parse(rare.take(), workers)
            for rows in rare.rows:
                rare_lines.add(rare.dialect, rows)
            for batch in rare_lines.take(at_least=self._policy.batch):
                self._parse(batch, workers)

    def _large_chunks(self, reader: InputReader, form: InputFormat, read: Read, small: Batches) -> Iterator[Batch]:
        """Yield lines that are worth a call of their own; add the others to `small`."""
        try:
            for rows in read(reader):
                if isinstance(rows, Stretch):
                    small.add(form.dialect, rows)
                elif byte_size(rows) < self._policy.chunk // 4:
                    small.add(form.learn(rows, reader), rows)
                else:
                    yield Batch(form.dialect).add(rows)
        except DEFECTS as error:
            self.isolation.stop_reading(reader, error)

    def _parse_by_template(self, batch: Batch) -> pl.DataFrame:
        """Parse the lines of the most frequent pattern; return the others, floods among them collapsed."""
        rows = batch.frame()
        others = [rows.clear()]
        for parsed, rest in self.isolation.parse(partial(parse_by_template, dialect=batch.dialect), rows):
            others.append(rest)
            self._add(parsed)
        with self._lock:
            self._progress(batch.size)
        return self._collapsed(pl.concat(others[-1:] if len(others) < 3 else others), batch.dialect)

    def _collapsed(self, rows: pl.DataFrame, dialect: Dialect) -> pl.DataFrame:
        """The lines with floods collapsed; all lines, where the program fails at that."""
        try:
            return self._repeated.collapse(rows, dialect)
        except DEFECTS:  # the line that shows the defect is found, left out and named when these lines are parsed
            return rows

    def _parse(self, batch: Batch, workers: int) -> None:
        """Parse rare lines, in parts if there are many and several workers."""
        parts = max(min(workers, batch.size // self._policy.chunk), 1)
        with self._lock:
            hosts = pl.concat(self._hosts) if self._hosts else None
        rows = batch.frame()
        if REPEATS in rows.columns:  # a flood may go on in the next part
            rows = self._collapsed(rows.sort("source", "line"), batch.dialect)
        in_pool = partial(ordered_map, pool=self._helpers, workers=parts)
        parse_rows = partial(parse, dialect=batch.dialect, hosts=hosts, ordered_map=in_pool, parts=parts)
        for parsed in self.isolation.parse(parse_rows, rows):
            self._add(parsed)

    def _add(self, parsed: Parsed) -> None:
        with self._lock:
            self._hosts.append(parsed.hosts)
            self._on_parsed(parsed)
