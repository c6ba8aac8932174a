"""Copies of a text among the sources: equal ones, and older ones that hold only the beginning of it.

Somebody compressed a log while the job ran, or a backup of it lies beside it: its lines must not count twice. Compared
are the decompressed bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from itertools import groupby, pairwise
from operator import itemgetter
from typing import NamedTuple

from ncclforensics.inputs.sources import DAMAGED_ARCHIVE, Source, is_system_error

FIRST = 512  # bytes by which most sources differ; they hold the host and the pid of a rank
COMPARED = 1 << 15  # bytes of each beginning by which candidates are found
STEP = 1 << 20  # bytes compared at once


class Copy(NamedTuple):
    """A source that adds nothing to another one."""

    original: int  # place of the source that holds all of it
    is_older: bool  # it ends before that one does

    def problem(self, original: Source) -> str:
        """What is said of it among the inputs."""
        kind = "an older copy" if self.is_older else "a copy"
        return f"is {kind} of {original.path}; left out"


def find_copies(sources: Sequence[Source], has_identity: Callable[[bytes], bool]) -> dict[int, Copy]:
    """Which sources add nothing to another one: place in `sources` -> the copy that it is.

    `has_identity`: whether a beginning says which process wrote it. Two ranks may print the same banner, and two hosts
    may answer a command alike; that does not make the one a copy of the other.
    """
    alike = _alike([beginning(source, FIRST) for source in sources])
    ordered = sorted((data, place) for place in alike if (data := beginning(sources[place])))
    copies: dict[int, Copy] = {}
    for (data, place), (next_data, next_place) in pairwise(ordered):
        # A text sorts directly before those that begin with it.
        if len(data) < COMPARED and next_data.startswith(data) and has_identity(data):
            copies[place] = Copy(next_place, is_older=data != next_data)
    for data, equal in groupby(ordered, key=itemgetter(0)):
        places = [place for _, place in equal]
        if len(data) == COMPARED and len(places) > 1 and has_identity(data):
            _compare_all(sources, places, copies)
    return {place: _followed(copies, copy) for place, copy in copies.items()}


def _alike(starts: Sequence[bytes]) -> set[int]:
    """The places of those that are equal to another, or a beginning of another."""
    ordered = sorted((data, place) for place, data in enumerate(starts) if data)
    pairs = [pair for pair in pairwise(ordered) if pair[1][0].startswith(pair[0][0])]
    return {place for pair in pairs for _, place in pair}


def _compare_all(sources: Sequence[Source], places: list[int], copies: dict[int, Copy]) -> None:
    """Compare sources whose beginnings are equal to their ends."""
    originals: list[int] = []
    for place in places:
        for at, original in enumerate(originals):
            ends = _which_ends_first(sources[original], sources[place])
            if ends is None:
                continue
            if ends < 0:
                copies[original] = Copy(place, is_older=True)
                originals[at] = place
            else:
                copies[place] = Copy(original, is_older=ends > 0)
            break
        else:
            originals.append(place)


def _followed(copies: dict[int, Copy], copy: Copy) -> Copy:
    """The copy with the source that is left in the place of one that is a copy itself."""
    is_older = copy.is_older
    while (further := copies.get(copy.original)) is not None:
        is_older = is_older or further.is_older
        copy = Copy(further.original, is_older)
    return copy


def beginning(source: Source, size: int = COMPARED) -> bytes:
    """The first bytes of a source, decompressed; nothing where a read fails."""
    if source.problem:
        return b""
    data = b""
    try:
        with closing(_pieces(source, size)) as pieces:
            for piece in pieces:
                data += piece
                if len(data) >= size:
                    break
    except OSError:
        return b""  # a part of them could be taken for a copy; reported when the source is read
    return data[:size]


def _pieces(source: Source, step: int = STEP) -> Generator[bytes, None, None]:
    """The bytes of a source, with line ends as Unix has them; of a damaged archive, those that can be read.

    Raises OSError if a read fails.
    """
    held = b""  # the first half of a line end whose second half is yet to be read
    try:
        with source.open() as stream:
            while data := stream.read1(step):
                data = held + data
                held = b"\r" * data.endswith(b"\r")
                if text := data.removesuffix(b"\r").replace(b"\r\n", b"\n"):
                    yield text
    except DAMAGED_ARCHIVE as error:
        if is_system_error(error):
            raise


def _which_ends_first(source: Source, other: Source) -> int | None:
    """-1 where the first is a beginning of the other, 1 where the other is one of it, 0 where they are equal.

    None where neither is known: they differ, or a read fails.
    """
    data, other_data = b"", b""
    try:
        with closing(_pieces(source)) as first, closing(_pieces(other)) as second:
            while True:
                data, other_data = data or next(first, b""), other_data or next(second, b"")
                if not data or not other_data:
                    return bool(data) - bool(other_data)
                size = min(len(data), len(other_data))
                if data[:size] != other_data[:size]:
                    return None
                data, other_data = data[size:], other_data[size:]
    except OSError:
        return None
