"""Count the calls of each communicator between the windows of an input, without parsing them.

A call line names its communicator between two literals. Counting such a text takes a twentieth of the time of parsing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import polars as pl

from ncclforensics.grammar.patterns import Pattern
from ncclforensics.inputs.windows import InputReader

POINTER = "comm"  # the column of a call that holds its communicator's pointer
CALLS_BETWEEN = {
    "source": pl.Int32(),
    POINTER: pl.Categorical(),
    "calls": pl.Int64(),  # lines of calls on it between the windows; null if they cannot be counted
}


@dataclass(frozen=True, slots=True)
class CountedCalls:
    """How many calls on each communicator stand between the windows."""

    calls: Mapping[str, int] = field(default_factory=dict)  # by pointer; nothing where they cannot be counted
    # Byte of the file behind the last line there that names a communicator and is no call: it creates or destroys one,
    # and a pointer may stand for two communicators, one after the other. 0 without one.
    named_until: int = 0


def count_calls(reader: InputReader, pattern: Pattern, counter: str, pointers: Sequence[str]) -> CountedCalls:
    """Count the calls between the windows. `pattern`: that of a call; `pointers`: the communicators that windows show.

    Nothing is counted where calls are made on other communicators, too, or where a call is torn: the column `counter`
    then stands on another line.
    """
    before, _, after = (part.encode() for part in pattern.delimiters[POINTER])
    begin = pattern.delimiters[counter][0].encode()
    texts = [before + pointer.encode() + after for pointer in pointers]
    calls = [0] * len(texts)
    position, named_until, has_others = reader.head_stop, 0, False
    try:
        for data in reader.bytes_between():
            position += len(data)
            found = [data.count(text) for text in texts]
            calls = [sum(pair) for pair in zip(calls, found, strict=True)]
            if data.count(b"\n") == sum(found):  # most often there is nothing else, and lines are counted fast
                continue
            named = data.count(before)
            has_others |= named != sum(found) or any(after in line and begin not in line for line in data.split(b"\n"))
            if named != data.count(after):
                named_until = position
    except OSError:  # reported when the rest is read
        return CountedCalls()
    is_counted = not (named_until or has_others)
    return CountedCalls(dict(zip(pointers, calls, strict=True)) if is_counted else {}, named_until)
