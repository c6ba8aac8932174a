"""Read a trace in Chrome's JSON format event by event: files of hundreds of megabytes, of which few events are wanted.

An event ends and the next begins with the same bytes everywhere in a file, as its writer indents them. The text is cut
there, what holds none of the wanted words is left out, and the rest is parsed as JSON some megabytes at a time.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from ncclforensics.inputs.damaged_json import decoded
from ncclforensics.inputs.tolerant_json import json_object, parse_json

BLOCK = 1 << 20  # bytes read at once; more do not fit into a core's cache
LONGEST_HEAD = 64 << 20  # bytes before the first event: of thousands of process groups
LONGEST_EVENT = 64 << 20  # bytes without an end of an event: no trace
# Keys of which one stands in the beginning of a trace, and none in other JSON that this program reads.
_KEYS = (b'"schemaVersion"', b'"traceEvents"', b'"distributedInfo"', b'"deviceProperties"')
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_BETWEEN = re.compile(rb"\}\s*,\s*\{")
CUT = "is JSON that was cut off"
Event = dict[str, Any]


def is_chrome_trace(beginning: bytes) -> bool:
    """Whether JSON that begins like this is a trace."""
    return beginning.lstrip()[:1] == b"{" and any(key in beginning for key in _KEYS)


@dataclass(slots=True)
class ChromeTrace:
    """The keys of a trace beside its events, how many events cannot be read, and problems; complete once it is read."""

    stream: io.BufferedIOBase
    wanted: Sequence[bytes]  # an event that holds none of these is left out
    keys: dict[str, Any] = field(default_factory=dict)
    damaged: int = 0
    problems: list[str] = field(default_factory=list)

    def read_head(self) -> bytes | None:
        """Read the keys before the events; the bytes behind them, from the first event on; None if there are none."""
        data = b""
        while (found := _EVENTS.search(data)) is None:
            block = self.stream.read(BLOCK)
            if not block or len(data) > LONGEST_HEAD:
                self.keys, self.problems = json_object(parse_json(data)[0]), ["is a trace without events"]
                return None
            data += block
        head = data[: found.start()].rstrip().removesuffix(b",")
        self.keys = json_object(parse_json(head + b"}")[0])
        return data[found.end() :].lstrip()

    def events(self) -> Iterator[list[Event]]:
        """Yield the wanted events, those of some megabytes at a time, in the order of the file."""
        held = self.read_head()
        if held is None:
            return
        between, block = b"", held
        while block:
            if not between and (found := _BETWEEN.search(held)):
                between = found[0]
            end = held.rfind(between) if between else -1
            if end >= 0:
                yield self._parsed(held[: end + 1], between)
                held = held[end + len(between) - 1 :]
            elif len(held) > LONGEST_EVENT:
                self.problems.append("holds an event of more than 64 MiB; the rest is not read")
                return
            block = self.stream.read(BLOCK)
            held += block
        yield from self._last(held)

    def _parsed(self, text: bytes, between: bytes) -> list[Event]:
        """The wanted events in a text that begins and ends with one."""
        parts = self._wanted_parts(text, between)
        try:
            return _objects(orjson.loads(b"[" + b",".join(parts) + b"]"))
        except orjson.JSONDecodeError:
            return [event for part in parts for event in self._single(part)]

    def _wanted_parts(self, text: bytes, between: bytes) -> list[bytes]:
        """The events in a text that hold a wanted word, in order: found by the words, for most events hold none."""
        ends: dict[int, int] = {}  # of events, by their starts
        for word in self.wanted:
            place = text.find(word)
            while place >= 0:
                start, end = text.rfind(between, 0, place), text.find(between, place)
                end = len(text) if end < 0 else end + 1
                ends[0 if start < 0 else start + len(between) - 1] = end
                place = text.find(word, end)
        return [text[start : ends[start]] for start in sorted(ends)]

    def _single(self, text: bytes) -> list[Event]:
        try:
            return _objects([orjson.loads(text)])
        except orjson.JSONDecodeError:
            self.damaged += 1
            return []

    def _last(self, held: bytes) -> Iterator[list[Event]]:
        """The last events, and the keys behind them."""
        text = held.decode("utf-8", "replace")
        place, events = 0, []
        while text[place : place + 1] == "{":
            event, end = decoded(text, place)
            if not end:
                break
            events.append(event)
            place = end
            while text[place : place + 1] in (",", " ", "\n", "\r", "\t") and place < len(text):
                place += 1
        yield _objects(events)
        if text[place : place + 1] != "]":
            self.problems.append(CUT)
            return
        rest = text[place + 1 :].lstrip().removeprefix(",")
        self.keys = {**json_object(parse_json(b"{" + rest.encode())[0]), **self.keys}


def _objects(values: Any) -> list[Event]:
    return [value for value in values if isinstance(value, dict)]
