"""Read traces in processes of their own: Python parses one trace at a time in a process, whatever its threads.

The processes run the module `trace_process`. A request is a line of JSON; so is the head of an answer, behind which
the frames stand as Arrow streams. What a process cannot read, this one reads itself, so that problems of inputs are
found and reported in one place.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import IO

import polars as pl

from ncclforensics.formats import TraceReader, TraceRecords
from ncclforensics.inputs.sources import Source

Request = tuple[Source, TraceReader]
# What the pipe to a process that ended raises, and what an answer that it did not finish does.
BROKEN = (OSError, ValueError, pl.exceptions.PolarsError)
WORTH_PROCESSES = 128 << 20  # bytes of traces; a process takes half a second to start
# `-P`: without the current folder, which may hold modules of the same names.
COMMAND = ("-P", "-c", "from ncclforensics.parsing.trace_process import serve; serve()")
ROOT = Path(__file__).parents[2]


def read_trace(source: Source, found: TraceReader, *, is_whole: bool = True) -> TraceRecords:
    """Read a trace here. Raises OSError or one of DAMAGED_ARCHIVE."""
    with source.open() as stream:
        return found.read(stream, is_whole=is_whole)


def write_answer(records: TraceRecords | None, answers: io.BufferedIOBase) -> None:
    """Write the records of a trace, or that it cannot be read."""
    streams = {} if records is None else {name: _arrow(rows) for name, rows in records.frames.items()}
    head = None if records is None else {"problems": records.problems, "damaged": records.damaged}
    sizes = {name: len(stream) for name, stream in streams.items()}
    answers.write(json.dumps(head and {**head, "frames": sizes}).encode() + b"\n")
    for stream in streams.values():
        answers.write(stream)
    answers.flush()


def read_answer(answers: io.BufferedIOBase | IO[bytes]) -> TraceRecords | None:
    """Read what `write_answer` wrote. Raises one of BROKEN if it is not complete."""
    head = json.loads(answers.readline())
    if head is None:
        return None
    frames = {name: pl.read_ipc_stream(io.BytesIO(answers.read(size))) for name, size in head["frames"].items()}
    return TraceRecords(frames, head["problems"], head["damaged"])


def _arrow(rows: pl.DataFrame) -> memoryview:
    stream = io.BytesIO()
    rows.write_ipc_stream(stream)
    return stream.getbuffer()


@contextmanager
def traces_read(requests: Iterable[Request], processes: int) -> Iterator[Iterator[TraceRecords | None]]:
    """Yield the records of whole traces, in the order of the requests, read by so many processes.

    None: no process could read this one.
    """
    started = [_Process() for _ in range(processes)]
    idle: SimpleQueue[_Process | None] = SimpleQueue()  # None: all have ended
    for process in started:
        idle.put(process)

    def read(request: Request) -> TraceRecords | None:
        process = idle.get()
        records = process.read(request) if process else None
        if process is None or process.is_alive:
            idle.put(process)
        elif not any(other.is_alive for other in started):
            idle.put(None)
        return records

    pool = ThreadPoolExecutor(processes)
    try:
        yield pool.map(read, requests)
    finally:
        for process in started:
            process.kill()
        pool.shutdown(cancel_futures=True)
        for process in started:
            process.close()


class _Process:
    """A process that reads traces. It has ended where it could not be started."""

    def __init__(self) -> None:
        path = os.pathsep.join(filter(None, [str(ROOT), *sys.path]))
        # One thread of Polars each, as the processes share the cores already.
        environment = {**os.environ, "PYTHONPATH": path, "POLARS_MAX_THREADS": "1"}
        pipe = subprocess.PIPE
        self._process: subprocess.Popen[bytes] | None = None
        with suppress(OSError):
            self._process = subprocess.Popen(
                [sys.executable, *COMMAND], stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env=environment
            )
        self.is_alive = self._process is not None

    def read(self, request: Request) -> TraceRecords | None:
        """Return the records of a trace; None if the process cannot read it, or has ended."""
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            return None
        try:
            source, found = request
            # Escaped, as the bytes of a path need not be text.
            process.stdin.write(json.dumps({"file": str(source.file), "format": found.name}).encode() + b"\n")
            process.stdin.flush()
            return read_answer(process.stdout)
        except BROKEN:
            self.is_alive = False
            return None

    def kill(self) -> None:
        """End the process at once."""
        if self._process is not None:
            self._process.kill()

    def close(self) -> None:
        """Close the pipes to it; nothing may use them any more."""
        for pipe in (self._process.stdin, self._process.stdout) if self._process is not None else ():
            if pipe is not None:
                with suppress(OSError):  # of a request that it did not read
                    pipe.close()
        if self._process is not None:
            self._process.wait()
