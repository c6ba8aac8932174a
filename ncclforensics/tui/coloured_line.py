"""Colour a line of a log so that what decides stands out; the text itself stays as it is."""

from __future__ import annotations

from rich.text import Text

from ncclforensics.report.condensed_lines import LEFT_OUT, MARKERS, POINTERS

WARNING = "NCCL WARN"  # as NCCL prints it
DECISIVE_FIELDS = ("count", "datatype", "op", "root", "peer", "rank", "nranks", "status", "opcode")
FAILURES = ("error", "fail", "abort", "killed", "timeout", "timed", "refused", "reset", "unreachable", "signal")
CALL, VALUE, FAILURE, PLAIN = "bold cyan", "bold", "bold red", "dim"


def coloured(line: str) -> Text:
    """Return a line with its prefix and pointers dimmed, and its call, arguments and words of failure stressed.

    >>> [part.style for part in coloured("a:1:1 [0] NCCL INFO Bcast: buff 0x7f count 4").spans]
    ['dim', 'bold cyan', 'dim', 'bold']
    """
    if WARNING in line:
        return Text(line, "bold yellow")
    text = Text(line)
    begin = max((place + len(marker) for marker in MARKERS if (place := line.find(marker)) >= 0), default=0)
    text.stylize(PLAIN, 0, begin)
    place, before = begin, ""
    for word in line[begin:].split(" "):
        if style := _style(word, before):
            text.stylize(style, place, place + len(word))
        place, before = place + len(word) + 1, word or before
    return text


def _style(word: str, before: str) -> str:
    if word.startswith(POINTERS):
        return PLAIN
    if word.endswith(":") and before in ("", LEFT_OUT):
        return CALL
    if before.rstrip(":=").lower() in DECISIVE_FIELDS:
        return VALUE
    return FAILURE if any(failure in word.lower() for failure in FAILURES) else ""
