"""Shorten cited lines to what they report: without the prefix of NCCL, pointers, and paths of source files."""

from __future__ import annotations

MARKERS = ("NCCL WARN", "NCCL INFO", "NVRM: Xid")  # behind them NCCL or the driver reports something
DROPPED = ("NCCL INFO",)  # of these, those that say nothing themselves
POINTERS = ("0x", "(nil)")
LEFT_OUT = "…"


def condensed(line: str, longest: int) -> str:
    """Return a line; one that is longer than this without what few readers need, each gap marked by an ellipsis.

    >>> condensed("a:1:1 [0] NCCL INFO Bcast: opCount 1 sendbuff 0x7f buff 0x8f count 4", 40)
    '… Bcast: opCount 1 … count 4'
    >>> condensed("RuntimeError: [/src/tcp/pair.cc:553] Connection closed by peer", 40)
    'RuntimeError: … Connection closed by peer'
    """
    line = line.strip()
    if len(line) <= longest:
        return line
    words: list[str] = []
    for word in _from_message(line).split():
        if word.startswith(POINTERS):
            words[-1:] = [LEFT_OUT]  # the pointer and its name
        else:
            words.append(LEFT_OUT if word.startswith("[/") and word.endswith("]") else word)
    kept = [word for place, word in enumerate(words) if word != LEFT_OUT or words[place - 1 : place] != [LEFT_OUT]]
    return " ".join(kept)


def cut(text: str, longest: int) -> str:
    """Return a text that is cut between two words, with an ellipsis, if it is longer than this.

    >>> cut("closed by the remote peer", 16)
    'closed by the …'
    """
    if len(text) <= longest:
        return text
    return f"{text[: max(text.rfind(' ', 0, longest), 1)]} {LEFT_OUT}"


def _from_message(line: str) -> str:
    """Return the line from its marker on, if something follows it."""
    places = [(line.find(marker), marker) for marker in MARKERS]
    found = [(place, marker) for place, marker in places if place > 0 and _has_letters(line[place + len(marker) :])]
    if not found:
        return line
    place, marker = min(found)
    return f"{LEFT_OUT} {line[place + len(marker) if marker in DROPPED else place :].strip()}"


def _has_letters(text: str) -> bool:
    return any(letter.isalnum() for letter in text)
