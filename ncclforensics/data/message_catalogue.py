"""The catalogue of messages: which releases of NCCL print a text, and where in its sources.

`catalogue/messages.json` is generated from the sources of all releases (`make variables`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import orjson

from ncclforensics.data.versions import release

MESSAGES = Path(__file__).with_name("catalogue") / "messages.json"
ALIKE = 0.8  # of the characters of the message that a line shares most characters with
SHORTEST = 8  # characters of a message's own words, without which it tells nothing


class Message(NamedTuple):
    """A message of NCCL."""

    words: Sequence[str]  # between its values
    first: str  # the first release that prints it
    last: str  # the last one; empty: the newest does whose sources are public
    source: str  # file, line and release; empty: only releases print it whose sources are not public

    @property
    def length(self) -> int:
        """Return how many characters its words have."""
        return sum(map(len, self.words))

    @property
    def origin(self) -> str:
        """Return which releases print it, and where."""
        since = self.first if self.last == self.first else f"{self.first} to {self.last}"
        return f"NCCL {since if self.last else f'since {self.first}'}" + (f": {self.source}" if self.source else "")

    def ends(self, line: str) -> bool:
        """Whether a line ends with this message."""
        *before, last = self.words
        position = 0
        for words in before:
            if (found := line.find(words, position)) < 0:
                return False
            position = found + len(words)
        return line.endswith(last) and len(line) - len(last) >= position


@cache
def _messages() -> list[tuple[str, Message]]:
    """All messages, each with its longest words."""
    messages = [Message(*row) for row in orjson.loads(MESSAGES.read_bytes())]
    return [(max(message.words, key=len), message) for message in messages if message.length >= SHORTEST]


def message_of(line: str) -> Message | None:
    """Return the message that a line ends with; of several that differ by a word, what holds of all."""
    found = [message for words, message in _messages() if words in line and message.ends(line)]
    most = max((message.length for message in found), default=0)
    alike = sorted((message for message in found if message.length >= ALIKE * most), key=_newest)
    if not alike:
        return None
    return alike[-1]._replace(first=min((message.first for message in alike), key=release))


def _newest(message: Message) -> tuple[bool, tuple[int, ...], bool]:
    return not message.last, release(message.last or message.first), bool(message.source)
