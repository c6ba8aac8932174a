"""Names of rotated logs: which files may be parts of one log, and in which order their names put them.

A name is a hint only: ranks and hosts are numbered in the same way (`rank.1.log`). Sources: logrotate (`.1`, `.2.gz`,
`-20261121`), Docker (`.1`), the kubelet (`.20261121-031415`), Python's RotatingFileHandler and
TimedRotatingFileHandler (`.2026-11-21_03-14`), and loggers that put the time before the extension.
"""

from __future__ import annotations

from pathlib import Path

COMPRESSED = frozenset({"gz", "bz2", "xz", "zst", "Z"})
EXTENSIONS = frozenset({"log", "txt", "out", "err", "json", "jsonl", "ndjson"})
OLD = frozenset({"old", "bak", "prev", "previous"})
SEPARATORS = ".-_@ "
MOST_PARTS = 10_000  # a larger number is a time
DATE = 3  # numbers that make one

Age = tuple[int, tuple[int, ...]]


def stem(path: str) -> str:
    """A path without what rotation puts into its name: equal for all parts of one log."""
    file = Path(path)
    return str(file.parent / _split(file.name)[0])


def age(path: str) -> Age:
    """What orders the parts of one log, the oldest first, as far as their names tell.

    Times rise. Numbers fall, as those of logrotate do: `.2` was rotated before `.1`. The part without either is the one
    that is being written.
    """
    marks = _split(Path(path).name)[1]
    if not marks:
        return 2, ()
    numbers = [int(digits) for mark in marks if (digits := _digits(mark)).isdecimal()]
    if any(number >= MOST_PARTS for number in numbers) or len(numbers) >= DATE:
        return 0, tuple(numbers)
    return 1, (-sum(numbers) - sum(mark in OLD for mark in marks),)


def _split(name: str) -> tuple[str, list[str]]:
    """The part of a name that is equal in all parts, and the marks that rotation has added, in their order."""
    while (cut := _last_word(name)) and name[cut:] in COMPRESSED:
        name = name[: cut - 1]
    name, outer = _without_marks(name)
    if not (cut := _last_word(name)) or name[cut:] not in EXTENSIONS:
        return name, outer
    before, inner = _without_marks(name[: cut - 1])
    return f"{before}.{name[cut:]}", inner + outer


def _without_marks(name: str) -> tuple[str, list[str]]:
    marks: list[str] = []
    while (cut := _last_word(name)) and (name[cut:] in OLD or _digits(name[cut:]).isdecimal()):
        marks.insert(0, name[cut:])
        name = name[: cut - 1]
    return name, marks


def _last_word(name: str) -> int:
    """Where the last word of a name begins that stands behind others; 0 if there is none."""
    cut = max(name.rfind(separator) for separator in SEPARATORS)
    return cut + 1 if cut > 0 else 0


def _digits(word: str) -> str:
    """A number, or a piece of a time (`21T03`, `15Z`), as digits; other words as they are, without these letters."""
    return word.replace("T", "", 1).removesuffix("Z") if word.isascii() else ""
