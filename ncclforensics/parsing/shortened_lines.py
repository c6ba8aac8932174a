"""Read warnings of which parts were left out: values, a stretch in the middle, or the end.

People shorten what they publish: `Got completion from peer X with error 12, ...`. No shape matches that as a whole, but
what is left stands in the order of one. Columns whose value was left out are null. Text that is *added* is not
accepted: `, ignoring` or `, retrying` makes another sentence of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple

from ncclforensics.grammar import grammar_file
from ncclforensics.grammar.dialect import Dialect
from ncclforensics.grammar.patterns import FORM, Shape

if TYPE_CHECKING:
    import polars as pl

MIN_LITERAL = 12  # characters of a shape's own words, which precede the first stretch that was left out
MIN_RESUMED = 3  # characters of the words with which a line goes on behind that
MAX_MESSAGES = 200  # distinct ones that are compared with all shapes
WARNINGS = ("_warn", "_signed")  # the prefixes of warnings of any text
PREFIXED = ("_note", "_warn")  # the prefixes of shapes that a warning may have
LONGEST_PREFIX = 16  # pieces
PREFIX = "h:1:1 [0] f.cc:1 NCCL WARN "  # a prefix that both rules match

# The words or the regex of a part of a shape, and the column that it gives.
Piece = tuple[str, str, str]


class _Alternative(NamedTuple):
    """An alternative of a shape, in pieces behind its prefix."""

    shape: Shape
    form: str
    pieces: tuple[Piece, ...]


class _Reading(NamedTuple):
    """How a text may be read: how many characters of a shape's own words it holds, and the values of columns."""

    literal: int
    values: Mapping[str, str]

    def after(self, literal: int, column: str = "", value: str = "") -> _Reading:
        """This reading behind some more words, or behind the value of a column."""
        values = {column: value, **self.values} if column else self.values
        return _Reading(self.literal + literal, values)


def read_message(message: str, dialect: Dialect) -> tuple[Shape, str, Mapping[str, str]] | None:
    """Return the shape, the form and the values of the only line that a message may be a shortened one of."""
    if found := _read(message, dialect):
        alternative, values = found
        return alternative.shape, alternative.form, values
    return None


def read_shortened(frames: Mapping[str, list[pl.DataFrame]], dialect: Dialect) -> dict[str, list[pl.DataFrame]]:
    """Return the frames, where warnings that are shortened lines of a shape stand in the frame of that shape, too.

    They stay in their own: what was left out may be what a rule needs, and then the sentence itself is reported.
    """
    import polars as pl

    unshaped = [shape.frame for shape in dialect.shapes if is_of_any_text(shape)]
    tables = [table for frame in unshaped for table in frames.get(frame, [])]
    result = dict(frames)
    if not tables:
        return result
    distinct = pl.concat([table.select(pl.col("message").cast(pl.String)) for table in tables])["message"].unique()
    read = {text: found for text in distinct.drop_nulls().sort().head(MAX_MESSAGES) if (found := _read(text, dialect))}
    for table in tables:
        text = table["message"].cast(pl.String)
        for message in text.filter(text.is_in(list(read))).unique(maintain_order=True):
            alternative, values = read[message]
            rows = _with_values(table.filter(text == message), alternative, values)
            result[alternative.shape.frame] = [*result.get(alternative.shape.frame, []), rows]
    return result


def is_of_any_text(shape: Shape) -> bool:
    """Whether every warning that no other shape matches is a line of this shape."""
    if shape.priority >= 0 or "message" not in shape.columns:
        return False
    return any(rule in pattern.suffixes for pattern in shape.patterns for rule in WARNINGS)


def _with_values(rows: pl.DataFrame, alternative: _Alternative, values: Mapping[str, str]) -> pl.DataFrame:
    """The rows of a warning as rows of a shape."""
    import polars as pl

    texts = pl.DataFrame({name: [text] for name, text in values.items()}, schema=dict.fromkeys(values, pl.String))
    typed = texts.select(alternative.shape.columns[name].cast(pl.col(name)).alias(name) for name in values)
    form = pl.Series(FORM, [alternative.form], dtype=pl.Categorical())
    columns = [column.new_from_index(0, rows.height) for column in (form, *typed)]
    return rows.drop("message").with_columns(columns)


def _read(message: str, dialect: Dialect) -> tuple[_Alternative, Mapping[str, str]] | None:
    """The alternative that a message is a shortened line of, and its values; None where forms have an equal claim."""
    best = 0, 0
    claims: list[tuple[_Alternative, Mapping[str, str]]] = []
    for alternative in _alternatives(dialect):
        words = next((literal for literal, _, _ in alternative.pieces if literal), "")
        if words[:MIN_LITERAL] not in message:
            continue
        reading = _Reader(message, alternative.pieces).read(0, 0, 0)
        score = (reading.literal, len(reading.values)) if reading else (0, 0)
        if reading and score >= best:
            claims = [*(claims if score == best else []), (alternative, reading.values)]
            best = score
    is_one = len({(alternative.shape.frame, alternative.form) for alternative, _ in claims}) == 1
    return claims[0] if is_one else None


@cache
def _left_out() -> re.Pattern[str]:
    """A stretch that was left out, with the blanks and commas around it."""
    return re.compile(f"[ ,;]*(?:{grammar_file.load('copied').part_regex('_left_out')})[ ,;]*")


class _Reader:
    """Reads one message as a line of one alternative."""

    def __init__(self, text: str, pieces: tuple[Piece, ...]) -> None:
        self._text, self._pieces, self._left_out = text, pieces, _left_out()
        self._known: dict[tuple[int, int, bool], _Reading | None] = {}

    def read(self, piece: int, at: int, literal: int) -> _Reading | None:
        """Read the text from a position on, as this piece and the following ones; `literal`: characters so far."""
        key = piece, at, literal >= MIN_LITERAL
        if key not in self._known:
            self._known[key] = None  # until it is known
            found = [reading for reading in self._readings(piece, at, literal) if reading]
            self._known[key] = max(found, key=lambda reading: (reading.literal, len(reading.values)), default=None)
        return self._known[key]

    def _readings(self, piece: int, at: int, literal: int) -> Iterator[_Reading | None]:
        if at == len(self._text):
            yield _Reading(0, {}) if literal >= MIN_LITERAL else None
            return
        if gap := self._left_out.match(self._text, at):
            yield from self._behind_gap(piece, gap.end(), literal)
        if piece == len(self._pieces):
            return
        words, _, column = self._pieces[piece]
        if words:
            pairs = zip(words, self._text[at:], strict=False)
            count = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
            rest = self.read(piece + 1, at + count, literal + count) if count == len(words) else None
            yield rest and rest.after(count)
            here = at + count
            gap = self._left_out.match(self._text, here)
            if 0 < count < len(words) and (here == len(self._text) or gap):
                for rest in self._behind_gap(piece + 1, gap.end() if gap else here, literal + count):
                    yield rest and rest.after(count)
            return
        for end, value in self._values(piece, at):
            rest = self.read(piece + 1, end, literal)
            yield rest and rest.after(0, column if value else "", value)

    def _values(self, piece: int, at: int) -> Iterator[tuple[int, str]]:
        """Ends of what may stand for a piece that is no word: with its text, or without one if that was left out."""
        _, regex, column = self._pieces[piece]
        words = next((words for words, _, _ in self._pieces[piece + 1 : piece + 2]), "")
        ends = set()
        for follows in dict.fromkeys((words, words[:MIN_RESUMED])):
            until = f"(?={re.escape(follows)}|{self._left_out.pattern}|$)" if follows else ""
            left_out = f"[^ ]+?{until}" if follows else "[^ ,]+"
            if found := re.compile(f"(?:{regex}){until}").match(self._text, at):
                value = found[0] if self._is_whole(piece, found) else ""
            elif column and (found := re.compile(left_out).match(self._text, at)):
                value = ""
            if found and found.end() not in ends:
                ends.add(found.end())
                yield found.end(), value

    def _is_whole(self, piece: int, found: re.Match[str]) -> bool:
        """Whether a value is there and cannot have been cut in its middle: `error 1` may have been `error 12`."""
        if self._left_out.fullmatch(found[0]):
            return False
        if piece + 1 == len(self._pieces):
            return True
        words, _, _ = self._pieces[piece + 1]
        return self._text.startswith((" ", ",", ";", words[:1] or " "), found.end())

    def _behind_gap(self, piece: int, at: int, literal: int) -> Iterator[_Reading | None]:
        """Go on behind a stretch that was left out, with any later piece: perhaps in the middle of its words."""
        if literal < MIN_LITERAL:
            return
        if at == len(self._text):
            yield _Reading(0, {})
        for later in range(piece, len(self._pieces)):
            words, _, _ = self._pieces[later]
            for start in range(len(words) - MIN_RESUMED + 1):
                rest_of_words = words[start:].lstrip(" ")
                if len(rest_of_words) >= MIN_RESUMED and self._text.startswith(rest_of_words, at):
                    count = len(rest_of_words)
                    rest = self.read(later + 1, at + count, literal + count)
                    yield rest and rest.after(count)
                    break


def _alternatives(dialect: Dialect) -> Iterator[_Alternative]:
    """The alternatives that a warning may be a line of, but for those of any text."""
    for shape in dialect.shapes:
        if shape.priority >= 0:
            yield from _of_shape(shape.grammar, shape.frame)


@cache
def _of_shape(grammar: str, frame: str) -> list[_Alternative]:
    """The alternatives of a shape that begin with a prefix that a warning may have."""
    loaded = grammar_file.load(grammar)
    shape = next(shape for shape in loaded.shapes if shape.frame == frame)
    found = []
    for number, pattern in enumerate(shape.patterns):
        if any(rule in pattern.suffixes for rule in PREFIXED):
            pieces = loaded.pieces[frame][number]
            own = pieces[_length_of_prefix(tuple(regex for regex, _ in pieces[:LONGEST_PREFIX])) :]
            found.append(_Alternative(shape, pattern.form, tuple(_piece(regex, name) for regex, name in own)))
    return found


@cache
def _length_of_prefix(regexes: tuple[str, ...]) -> int:
    """How many pieces of an alternative are those of its prefix."""
    return next(count for count in range(len(regexes)) if re.fullmatch("".join(regexes[:count]), PREFIX))


def _piece(regex: str, name: str) -> Piece:
    """A piece as the grammar names it: `"words"`, `COLUMN`, `_PART`, or a sentence about an optional part."""
    if name.startswith('"'):
        return name[1:-1], regex, ""
    return "", regex, name.lower() if name.isupper() and not name.startswith("_") else ""
