"""Windows of compressed files: their bytes are unpacked once to find the end, and then again from the beginning.

Unpacking is faster than parsing, and what is unpacked is never held: only its last bytes, where most readers look.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

STEP = 1 << 20  # bytes unpacked at once where they are skipped


def positioned(opener: Callable[[], io.BufferedIOBase], length: int, tail: bytes) -> io.BufferedIOBase:
    """The bytes of a compressed file as a stream that can be positioned; going back unpacks it from the beginning.

    `opener` opens the stream of its bytes, `length` is their number, `tail` the last of them.
    """
    return _Unpacked(opener, length, tail)


class _Unpacked(io.BufferedIOBase):
    is_sequential = True  # who reads on where the last read ended pays for each byte once

    def __init__(self, opener: Callable[[], io.BufferedIOBase], length: int, tail: bytes) -> None:
        self._opener, self._length, self._tail = opener, length, tail
        self._stream: io.BufferedIOBase | None = None
        self._reached = 0  # of the stream
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._length}[whence]
        self._position = max(base + offset, 0)
        return self._position

    def read(self, size: int | None = -1, /) -> bytes:
        wanted = max(self._length - self._position, 0)
        wanted = wanted if size is None or size < 0 else min(size, wanted)
        if not wanted:
            return b""
        begin = self._position - (self._length - len(self._tail))
        data = self._tail[begin : begin + wanted] if begin >= 0 else self._unpacked(wanted)
        self._position += len(data)
        return data

    def read1(self, size: int = -1, /) -> bytes:
        return self.read(size)

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        view = memoryview(buffer).cast("B")
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
        super().close()

    def _unpacked(self, size: int) -> bytes:
        """Some bytes at the position. Raises one of DAMAGED_ARCHIVE."""
        if self._stream is None or self._reached > self._position:
            if self._stream is not None:
                self._stream.close()
            self._stream, self._reached = self._opener(), 0
        while self._reached < self._position:
            skipped = len(self._stream.read(min(STEP, self._position - self._reached)))
            if not skipped:
                return b""  # the file has shrunk since it was measured
            self._reached += skipped
        data = self._stream.read(size)
        self._reached += len(data)
        return data


def measure(stream: io.BufferedIOBase, kept: int) -> tuple[int, bytes]:
    """The number of bytes in a stream, and the last `kept` of them. Raises one of DAMAGED_ARCHIVE."""
    length, tail = 0, b""
    while data := stream.read(STEP):
        length += len(data)
        tail = data if len(data) >= kept else tail[-kept:] + data
    return length, tail[-kept:]
