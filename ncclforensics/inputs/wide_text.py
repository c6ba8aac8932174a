"""Text in UTF-16, as PowerShell writes what a program prints into a file (`>`): read as UTF-8."""

from __future__ import annotations

import codecs
import io
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

BYTE_ORDER_MARK = codecs.BOM_UTF16_LE
STEP = 1 << 16  # bytes


class _Recoded(io.RawIOBase):
    def __init__(self, stored: io.BufferedIOBase) -> None:
        self._stored = stored
        self._recoder = codecs.getincrementaldecoder("utf-16")(errors="replace")
        self._left = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        view = memoryview(buffer).cast("B")
        while not self._left:
            data = self._stored.read(STEP)
            self._left = self._recoder.decode(data, final=not data).encode()
            if not data:
                break
        size = min(len(view), len(self._left))
        view[:size], self._left = self._left[:size], self._left[size:]
        return size

    def close(self) -> None:
        self._stored.close()
        super().close()


def open_wide(stored: Path | io.BufferedReader) -> io.BufferedIOBase:
    """Open the text of a file that begins with the mark of UTF-16."""
    return io.BufferedReader(_Recoded(stored.open("rb") if isinstance(stored, Path) else stored))
