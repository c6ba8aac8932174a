"""Windows of compressed files: their bytes are unpacked once to find the end, and then again from the beginning.

Unpacking is faster than parsing, and what is unpacked is never held: only its last bytes.
"""

from __future__ import annotations

import io
from collections.abc import Callable

from ncclforensics.inputs.held_ends import HeldEnds

STEP = 1 << 20  # bytes unpacked at once where they are skipped


def positioned(opener: Callable[[], io.BufferedIOBase], length: int, tail: bytes) -> io.BufferedIOBase:
    """The bytes of a compressed file as a stream that can be positioned; going back unpacks it from the beginning.

    `opener` opens the stream of its bytes, `length` is their number, `tail` the last of them.
    """
    return _Sequential(_Unpacked(opener, length, tail))


class _Sequential(io.BufferedReader):
    is_sequential = True  # who reads on where the last read ended pays for each byte once


class _Unpacked(HeldEnds):
    def __init__(self, opener: Callable[[], io.BufferedIOBase], length: int, tail: bytes) -> None:
        super().__init__(length, b"", tail)
        self._opener = opener
        self._stream: io.BufferedIOBase | None = None
        self._reached = 0  # of the stream

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
        super().close()

    def _between(self, start: int, stop: int) -> bytes:
        """Bytes of the file. Raises one of DAMAGED_ARCHIVE."""
        if self._stream is None or self._reached > start:
            if self._stream is not None:
                self._stream.close()
            self._stream, self._reached = self._opener(), 0
        while self._reached < start:
            skipped = len(self._stream.read(min(STEP, start - self._reached)))
            if not skipped:
                return b""  # the file has shrunk since it was measured
            self._reached += skipped
        data = self._stream.read(stop - start)
        self._reached += len(data)
        return data


def measure(stream: io.BufferedIOBase, kept: int) -> tuple[int, bytes]:
    """The number of bytes in a stream, and the last `kept` of them. Raises one of DAMAGED_ARCHIVE."""
    length, tail = 0, b""
    while data := stream.read(STEP):
        length += len(data)
        tail = data if len(data) >= kept else tail[-kept:] + data
    return length, tail[-kept:]
