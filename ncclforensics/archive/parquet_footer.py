"""The sizes that a Parquet file states of itself, from its last bytes and without reading its rows.

Polars states the number of rows, but not what the pages of a column take once they are decompressed: 30 KB may hold one
text of 1 GB. The footer is a Thrift struct in the compact protocol (parquet.thrift: FileMetaData, RowGroup).
"""

from __future__ import annotations

from typing import Any, NamedTuple

MAGIC = b"PAR1"
MOST_DEPTH = 16  # of structs; Parquet's are nested six deep
ROW_GROUPS, ROWS, UNCOMPRESSED = 4, 3, 2  # numbers of fields: in FileMetaData, FileMetaData, RowGroup
_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _STRUCT = 1, 2, 3, 7, 8, 9, 10, 12
_INTEGERS = (4, 5, 6)  # of 16, 32 and 64 bits


class Footer(NamedTuple):
    """What a Parquet file states: its rows, and the bytes of all its columns before they were compressed."""

    rows: int
    uncompressed: int


def read_footer(data: bytes) -> Footer:
    """Read the footer of a Parquet file. Raises ValueError if there is none that can be read."""
    length = int.from_bytes(data[-8:-4], "little")
    if data[-4:] != MAGIC or length > len(data) - 12:
        raise ValueError("no Parquet footer")
    try:
        metadata = _Reader(data[-8 - length : -8]).struct(0)
        groups = metadata.get(ROW_GROUPS, [])
        return Footer(int(metadata[ROWS]), sum(int(group[UNCOMPRESSED]) for group in groups))
    except (IndexError, KeyError, TypeError) as error:
        raise ValueError("a damaged Parquet footer") from error


class _Reader:
    """Reads values of the compact protocol one after the other."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._place = 0

    def struct(self, depth: int) -> dict[int, Any]:
        """Number of a field -> its value. Raises IndexError at the end, ValueError for what Parquet does not write."""
        if depth > MOST_DEPTH:
            raise ValueError("nested too deeply")
        fields: dict[int, Any] = {}
        number = 0
        while kind := self._byte():
            delta, kind = kind >> 4, kind & 15
            number = number + delta if delta else self._integer()
            fields[number] = kind == _TRUE if kind in (_TRUE, _FALSE) else self._value(kind, depth)
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        if kind in (_TRUE, _FALSE, _BYTE):
            return self._byte()
        if kind in _INTEGERS:
            return self._integer()
        if kind == _DOUBLE:
            return self._bytes(8)
        if kind == _BINARY:
            return self._bytes(self._unsigned())
        if kind in (_LIST, _SET):
            head = self._byte()
            size = head >> 4 if head >> 4 < 15 else self._unsigned()
            if size > len(self._data):
                raise ValueError("a list longer than the footer")
            return [self._value(head & 15, depth + 1) for _ in range(size)]
        if kind == _STRUCT:
            return self.struct(depth + 1)
        raise ValueError(f"type {kind}")

    def _byte(self) -> int:
        self._place += 1
        return self._data[self._place - 1]

    def _bytes(self, length: int) -> bytes:
        self._place += length
        if self._place > len(self._data):
            raise IndexError(length)
        return self._data[self._place - length : self._place]

    def _unsigned(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
            if shift > 63:
                raise ValueError("a number of more than 64 bits")

    def _integer(self) -> int:
        value = self._unsigned()
        return value >> 1 ^ -(value & 1)
