"""A stream whose ends are held in memory, where most readers look; what lies between them is fetched on demand."""

from __future__ import annotations

import io
from abc import abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


class HeldEnds(io.RawIOBase):
    """`size` bytes that can be positioned, of which the first and the last are given."""

    def __init__(self, size: int, head: bytes, tail: bytes) -> None:
        self._size, self._head, self._tail = size, head, tail
        self._position = 0

    @abstractmethod
    def _between(self, start: int, stop: int) -> bytes:
        """Some bytes from `start`, which lies between the ends, and none from `stop` on. Raises what reading raises."""

    def readable(self) -> bool:
        """Always."""
        return True

    def seekable(self) -> bool:
        """Always."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Set the position; before the beginning is at it."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(base + offset, 0)
        return self._position

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Some bytes at the position; none at the end."""
        view = memoryview(buffer).cast("B")
        tail_start = self._size - len(self._tail)
        start, stop = self._position, min(self._position + len(view), self._size)
        if start >= stop:
            return 0
        if start < len(self._head):
            data = self._head[start:stop]
        elif start >= tail_start:
            data = self._tail[start - tail_start : stop - tail_start]
        else:
            data = self._between(start, min(stop, tail_start))
        view[: len(data)] = data
        self._position += len(data)
        return len(data)
