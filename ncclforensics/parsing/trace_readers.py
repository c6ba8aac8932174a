"""Read traces in processes of their own: Python parses one trace at a time in a process, whatever its threads.

The processes run the module `trace_process` and get a pickled request for each trace. What one of them cannot
read, this process reads itself, so that problems of inputs are found and reported in one place.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue

from ncclforensics.formats import TraceReader, TraceRecords
from ncclforensics.inputs.sources import Source

Request = tuple[Source, TraceReader]
# What the pipe to a process that ended raises, and what an answer that it did not finish does.
BROKEN = (OSError, EOFError, pickle.UnpicklingError)
WORTH_PROCESSES = 128 << 20  # bytes of traces; a process takes half a second to start
# `-P`: without the current folder, which may hold modules of the same names.
COMMAND = ("-P", "-c", "from ncclforensics.parsing.trace_process import serve; serve()")
ROOT = Path(__file__).parents[2]


def read_trace(source: Source, found: TraceReader, *, is_whole: bool = True) -> TraceRecords:
    """Read a trace here. Raises OSError or one of DAMAGED_ARCHIVE."""
    with source.open() as stream:
        return found.read(stream, is_whole=is_whole)


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
            pickle.dump(request, process.stdin)
            process.stdin.flush()
            answer: TraceRecords | None = pickle.load(process.stdout)
        except BROKEN:
            self.is_alive = False
            return None
        return answer

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
