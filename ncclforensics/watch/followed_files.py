"""Follow files that grow, are rotated, truncated or added, and count the calls and warnings in their new bytes.

A file is known by its inode, so that one that was renamed is not read again. The parts of a rotated log share one name.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from stat import S_ISREG

from ncclforensics.data.names import MESSAGES
from ncclforensics.formats import dialect
from ncclforensics.inputs.rotation import stem
from ncclforensics.inputs.sources import files_at, path_text

STEP = 1 << 20  # bytes read at once
TAIL = 64 << 10  # bytes at the end of a file that is there at the beginning, read to see whether the job makes calls
BEGINNING = 1 << 20  # bytes of a log in which messages show, if its rank sends or receives any
SEARCH_EVERY = 5.0  # seconds between two searches for new files; known ones are looked at every time


@dataclass(slots=True)
class NewLines:
    """What was added to one log: bytes, lines of calls, lines of Send and Recv among them, lines of warnings."""

    size: int = 0
    calls: int = 0
    messages: int = 0
    warnings: int = 0


@dataclass(slots=True)
class _File:
    log: str
    offset: int
    search: int = 0  # the last one after which it was there


@dataclass(slots=True)
class FollowedFiles:
    """The files that paths name. A path that names nothing yet may do so later."""

    paths: list[str]
    shows_calls: bool = False  # some log has shown a call
    newest: float = 0.0  # the last time of modification, in seconds since the epoch
    _calls: dict[str, int] = field(default_factory=dict)  # of each log, since it is followed
    _incomplete: set[str] = field(default_factory=set)  # logs of which not all lines were read
    _with_messages: set[str] = field(default_factory=set)  # logs that show Send or Recv
    _files: dict[tuple[int, int], _File] = field(default_factory=dict)  # by device and inode
    _found: dict[str, Path] = field(default_factory=dict)
    _searched: float | None = None
    _searches: int = 0

    @property
    def names(self) -> list[str]:
        """The paths of the files that exist."""
        return list(self._found)

    def collectives_so_far(self) -> dict[str, int]:
        """Return the number of calls of each log that was read from its first line, and shows only collectives."""
        left_out = self._incomplete | self._with_messages
        return {log: calls for log, calls in self._calls.items() if calls and log not in left_out}

    def read_new(self, now: float) -> dict[str, NewLines]:
        """Read the bytes added since the last time: name of a log -> what was added, of logs that grew.

        Of files that are there at the first time, only the end is read, and nothing of them counts as new.
        """
        is_first = self._searched is None
        if self._searched is None or now - self._searched >= SEARCH_EVERY:
            self._searched = now
            # One that is renamed just now is missing in one search.
            self._files = {key: file for key, file in self._files.items() if file.search >= self._searches - 1}
            self._searches += 1
            self._found = {path_text(file): file for path in self.paths for file, _ in files_at(path)}
        grown: dict[str, NewLines] = {}
        for name, path in self._found.items():
            try:
                status = path.stat()
                if not S_ISREG(status.st_mode):  # a pipe would block
                    continue
                key = status.st_dev, status.st_ino
                if (file := self._files.get(key)) is None:
                    offset = max(0, status.st_size - TAIL) if is_first else 0
                    file = self._files[key] = _File(stem(name), offset)
                    if offset:
                        self._incomplete.add(file.log)
                file.search = self._searches
                new = self._read_on(path, file, status.st_size)
            except OSError:  # gone since; the next search does not find it
                continue
            self.newest = max(self.newest, status.st_mtime)
            self.shows_calls |= new.calls > 0
            self._calls[file.log] = self._calls.get(file.log, 0) + new.calls
            if new.messages:
                self._with_messages.add(file.log)
            if new.size and not is_first:
                total = grown.setdefault(file.log, NewLines())
                total.size += new.size
                total.calls += new.calls
                total.warnings += new.warnings
        return grown

    def _read_on(self, path: Path, file: _File, size: int) -> NewLines:
        """Count what stands in the whole lines behind the offset. A file that shrank begins anew."""
        new = NewLines()
        if size < file.offset:
            file.offset = 0
        if size == file.offset:
            return new
        with open(path, "rb", buffering=0) as stream:
            while True:
                data = os.pread(stream.fileno(), STEP, file.offset)
                end = data.rfind(b"\n") + 1 or (len(data) if len(data) == STEP else 0)
                new.size += end
                new.calls += _count(data, end, "operation")
                if file.offset < BEGINNING:
                    new.messages += sum(data.count(message, 0, end) for message in _messages())
                new.warnings += _count(data, end, "warning")
                file.offset += end
                if len(data) < STEP:
                    return new


def logs_of(paths: Iterable[str]) -> frozenset[str]:
    """The names of the logs that files are parts of."""
    return frozenset(stem(path) for path in paths)


def _count(data: bytes, end: int, frame: str) -> int:
    """How many of the lines up to `end` belong to a frame; one line may hold the literals of several patterns."""
    return max((data.count(anchor, 0, end) for anchor in _anchors(frame)), default=0)


@cache
def _anchors(frame: str) -> tuple[bytes, ...]:
    """The literals of which each line of a frame holds one."""
    patterns = (pattern for shape in dialect().shapes if shape.frame == frame for pattern in shape.patterns)
    return tuple(pattern.anchor.encode() for pattern in patterns if pattern.anchor)


@cache
def _messages() -> tuple[bytes, ...]:
    """The names of messages with the literals that follow the name of a call."""
    return tuple(b" " + name.encode() + anchor for name in MESSAGES for anchor in _anchors("operation"))
