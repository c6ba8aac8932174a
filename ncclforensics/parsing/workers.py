"""Many sources, read and parsed side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Lock

import polars as pl

from ncclforensics.grammar.dialect import Dialect
from ncclforensics.inputs.lines import CHUNK
from ncclforensics.parsing.batches import Batch, Batches, size_of
from ncclforensics.parsing.concurrency import alone, in_turn
from ncclforensics.parsing.launcher_prefixes import peeled
from ncclforensics.parsing.parser import Parsed, parse, sift
from ncclforensics.parsing.reading import Reading

LITTLE = 4 * CHUNK  # bytes that one reader has read before several have stopped waiting for one another
BATCH = 6 * CHUNK  # of rare lines: every pattern costs its compilation, whatever it is applied to
THREADS = min(pl.thread_pool_size(), 8)  # at work at once; each holds a batch in memory
Work = Callable[[Reading], Iterator[pl.DataFrame]]


class Readers:
    """What becomes of lines is given to `keep`, by one thread at a time; `progress` is told how many bytes are done."""

    def __init__(self, dialect: Dialect, keep: Callable[[Parsed], None], progress: Callable[[int], None]) -> None:
        self._language = dialect
        self._keep = keep
        self._progress = progress
        self._hosts: list[pl.DataFrame] = []  # who is known to stand at the beginning of a line
        self._lock = Lock()
        self._helpers = ThreadPoolExecutor(THREADS)  # no thread is started before there is something to do

    def take(self, readings: list[Reading], work: Work, due: int) -> None:
        """Parse what `work` yields of each reading, about `due` bytes, small files together.

        One reader is enough for little: two would wait for one another, for whatever is not Polars' is done by one at a
        time. Where there are fewer readings than threads, those that are left do parts of a reader's work.

        What is parsed together of one source depends on that source alone, never on how the threads ran.
        """
        queue = iter(readings)
        readers = min(THREADS, len(readings)) if due > LITTLE else 1
        hands = THREADS // readers if due > LITTLE else 1  # that each has
        left = Batches()
        with ThreadPoolExecutor(readers) as pool:
            for done in [pool.submit(alone, partial(self._read, queue, work, hands)) for _ in range(readers)]:
                for batch in done.result():
                    for rows in batch.rows:
                        left.add(batch.dialect, rows)
        for batch in left.ready(0):
            alone(partial(self._parse, batch, THREADS))

    def _read(self, queue: Iterator[Reading], work: Work, hands: int) -> list[Batch]:
        """Take readings from the queue until there are none; gives rare lines that are yet to be parsed."""
        small = Batches()  # of readings that are too short to be worth a call of their own
        waiting = Batches()  # rare lines of readings that have come to their end
        while True:
            with self._lock:
                reading = next(queue, None)
            for batch in small.ready(0 if reading is None else CHUNK):
                waiting.add(batch.dialect, self._sift(batch))
            if reading is None:
                return waiting.batches
            rare = Batch(self._language)
            for others in in_turn(self._sift, self._large(reading, work, small), self._helpers, hands):
                rare.dialect = reading.hears(others)
                rare.add(others)
                if rare.size >= BATCH * hands:
                    self._parse(rare.taken(), hands)
            for rows in rare.rows:
                waiting.add(rare.dialect, rows)
            for batch in waiting.ready(BATCH):
                self._parse(batch, hands)

    def _large(self, reading: Reading, work: Work, small: Batches) -> Iterator[Batch]:
        """Lines that are worth a call of their own; others are put to `small`."""
        for plain in work(reading):
            rows = peeled(plain, reading.dialect, reading.decorations) if reading.decorations else plain
            if size_of(rows) < CHUNK // 4:
                small.add(reading.hears(rows), rows)
            else:
                yield Batch(reading.dialect, [rows], size_of(rows))

    def _sift(self, batch: Batch) -> pl.DataFrame:
        parsed, rest = sift(pl.concat(batch.rows, how="diagonal"), batch.dialect)
        with self._lock:
            self._hosts.append(parsed.hosts)
            self._keep(parsed)
            self._progress(batch.size)
        return rest

    def _parse(self, batch: Batch, hands: int) -> None:
        """Parse rare lines, in parts if there are many and several hands."""
        parts = max(min(hands, batch.size // CHUNK), 1)
        with self._lock:
            hosts = pl.concat(self._hosts) if self._hosts else None
        rows = pl.concat(batch.rows, how="diagonal")
        parsed = parse(rows, batch.dialect, hosts, partial(in_turn, pool=self._helpers, ahead=parts), parts)
        with self._lock:
            self._hosts.append(parsed.hosts)
            self._keep(parsed)
