"""Cut a pattern where its lines differ, so that what they have in common is matched once for all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ncclforensics.errors import GrammarError


class Part(NamedTuple):
    """A part of a pattern between its literals, or a literal."""

    regex: str
    literal: str | None  # the text that it stands for
    column: str
    is_unnamed: bool  # a terminal without a column: its values differ without meaning


class Template(NamedTuple):
    """A pattern cut where its lines differ: at a counter, and at values without a column, such as buffers.

    A line is `shared[0] + own[0] + shared[1] + own[1] …`, and ends with an own part.
    """

    shared: tuple[str, ...]  # regexes, with columns, of the parts that many lines have in common
    own: tuple[str, ...]  # regexes of the parts between these, which differ in each line
    counter: str  # regex of the counter
    starts: tuple[str, ...]  # the literal before each own part
    stops: tuple[str, ...]  # the literal that follows each own part; empty: it ends the line
    counter_stop: str  # the literal that follows the counter, with which the first own part begins
    around: Mapping[str, tuple[str, str]]  # column -> the literals that it stands between


def cut(parts: Sequence[Part], counter: str) -> Template:
    """Cut a pattern.

    Raises GrammarError unless the counter is the first value of its own, literals stand around all own parts, and such
    a part ends the line.
    """
    is_own = [part.column == counter or part.is_unnamed for part in parts]
    runs: list[list[Part]] = [[]]  # shared and own parts in turn
    for place, part in enumerate(parts):
        is_between = part.literal is not None and all(is_own[max(place - 1, 0) : place + 2 : 2]) and place > 0
        if (is_own[place] or is_between) != (len(runs) % 2 == 0):
            runs.append([])
        runs[-1].append(part)
    shared, own = runs[::2], runs[1::2]
    starts = [run[-1].literal for run in shared]
    stops = [*(run[0].literal for run in shared[1:]), ""]
    counter_stop = own[0][1].literal if own and own[0][0].column == counter and len(own[0]) > 1 else None
    literals = [literal for literal in (*starts, *stops, counter_stop) if literal is not None]
    if len(shared) != len(own) or len(literals) < 2 * len(own) + 1:
        raise GrammarError(f"`{counter.upper()}`, and values without a column, do not stand between literals")
    return Template(
        tuple(_regex(run) for run in shared),
        tuple(_regex(run) for run in own),
        _regex(own[0][:1]),
        tuple(literals[: len(own)]),
        tuple(literals[len(own) : -1]),
        literals[-1],
        {
            part.column: (before.literal, following.literal)
            for before, part, following in zip(parts, parts[1:], parts[2:], strict=False)
            if part.column and before.literal and following.literal
        },
    )


def _regex(parts: Sequence[Part]) -> str:
    return f"^{''.join(part.regex for part in parts)}$"
