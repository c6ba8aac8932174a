"""Explain one line: its pattern, or the nearest one and where the line stops matching it.

One line needs no columns: Python reads the patterns, too, and a start without Polars takes half as long.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from operator import itemgetter
from typing import Any, NamedTuple

from ncclforensics.data.driver_topics import DRIVER_TOPICS, OTHER_TOPIC
from ncclforensics.data.failure_topics import OF_EXCEPTIONS, OF_WARNINGS, TOPICS
from ncclforensics.data.message_catalogue import Message, message_of
from ncclforensics.data.typography import CONTROLS, ESCAPES
from ncclforensics.data.variable_catalogue import line_to_look_for
from ncclforensics.grammar import grammar_file
from ncclforensics.grammar.column_types import COLUMN_TYPES, ColumnType
from ncclforensics.grammar.dialect import REST, Candidate, Dialect
from ncclforensics.grammar.meanings import Kind, Meaning
from ncclforensics.grammar.patterns import Pattern, Shape, may_match
from ncclforensics.parsing.shortened_lines import is_of_any_text, read_message

# Of lines of any text: frame -> form -> what their words may be about.
TOPICS_OF: Mapping[str, Mapping[str, Iterable[str]]] = {
    "exception": {"error": OF_EXCEPTIONS, "named": OF_EXCEPTIONS, "what": OF_EXCEPTIONS},
    "unread_error": {"level": TOPICS, "words": TOPICS, "mild": OF_WARNINGS},
}
MIN_WORDS = 4  # literal characters that show the format of a line of any text
MIN_LITERAL = 12  # literal characters that a line must share with a shape to be compared with it
DEPTH = 4  # prefixes of launchers in front of one another
WORD = 12  # most characters of the word behind NCCL's name in a prefix, with its blank


class LineExplanation(NamedTuple):
    """The shape and fields of a line; if no shape matches (None), the nearest one and where the line differs."""

    text: str  # without launcher prefixes and escape sequences
    labels: Mapping[str, Any]  # columns of its launcher prefixes
    shape: Shape | None
    form: str = ""
    fields: Mapping[str, Any] = {}
    message: Message | None = None  # the one of NCCL's that the line holds
    is_inside: bool = False  # the shape is that of a message inside the text, or of one without its prefix
    topic: str = ""  # what the words of a line of any text are about: a key of TOPICS
    driver_topic: str = ""  # what a driver says of its device: a key of DRIVER_TOPICS
    instead: str = ""  # what to look for in place of a line that guides quote and that no release prints
    nearest: Shape | None = None
    at: int = 0  # characters of `text` that match the nearest shape
    expected: str = ""  # what that shape expects after them


class Match(NamedTuple):
    """The pattern that a line matches, and its fields."""

    shape: Shape
    form: str
    fields: Mapping[str, Any]


def explain_line(line: str, dialect: Dialect) -> LineExplanation:
    """Match one line with the shapes of a dialect, and with those of all embedded formats if these may be meant."""
    shown = re.sub(ESCAPES, "", line.rstrip("\r\n\0")).replace("\r", " ").replace("\t", " ")
    labels, text = _without_launcher(re.sub(CONTROLS, "", shown), dialect)
    found = _explained(text, labels, dialect)
    is_of_nccl = found.is_inside or _prefixes(_halves(text, dialect.prefix_marker)[0], dialect)[0]
    return found._replace(message=message_of(text)) if is_of_nccl else found


def _explained(text: str, labels: Mapping[str, Any], dialect: Dialect) -> LineExplanation:
    """The shape of a line behind the prefixes of launchers; without one, what comes near."""
    found = _match(text, dialect)
    if found is None or found.shape.priority < 0:  # a shape for lines of any text, behind those of all formats
        found = _match(text, dialect.with_all_formats)
    if found is not None and found.shape.priority >= 0:
        return LineExplanation(text, labels, *found)
    if instead := line_to_look_for(text):
        return LineExplanation(text, labels, None, instead=instead)
    if inside := _inside(text, found, dialect.with_all_formats):
        return LineExplanation(text, labels, *inside, is_inside=True)
    found = found or _match(text, dialect.of_last_shapes)
    topic = _topic(text, found) if found else ""
    if found and (topic or _meaning(found).kind is not Kind.NOISE):
        return LineExplanation(text, labels, *found, topic=topic, driver_topic=_driver_topic(found))
    literal, at, shape, expected = _nearest(text, dialect.with_all_formats)
    nearest = shape if literal >= MIN_LITERAL else None
    return LineExplanation(text, labels, None, nearest=nearest, at=at, expected=expected)


def _meaning(found: Match) -> Meaning:
    return grammar_file.load(found.shape.grammar).meanings[found.shape.frame][found.form]


def _topic(text: str, found: Match) -> str:
    """What the words of a line of any text are about."""
    topics = TOPICS_OF.get(found.shape.frame, {}).get(found.form, ())
    part = grammar_file.load("unread").part_regex
    if re.search(part("_note_first"), text) and not re.search(part("_with_word"), text):
        return ""
    return next((name for name in topics if re.search(part(f"_about_{name}"), text)), "")


def _driver_topic(found: Match) -> str:
    """What the statement of a driver is about; empty where it states no failure."""
    if found.shape.frame != "driver_statement":
        return ""
    part, statement = grammar_file.load("driverlog").part_regex, str(found.fields["statement"])
    is_nothing = re.search(part("_of_nothing"), statement) and not re.search(part("_of_abort"), statement)
    if is_nothing or not re.search(part("_of_failure"), statement):
        return ""
    statement = re.sub(f"^(?:{part('_head')})", "", statement)
    named = (name for name in DRIVER_TOPICS if name != OTHER_TOPIC and re.search(part(f"_topic_{name}"), statement))
    return next(named, OTHER_TOPIC)


def _inside(text: str, line: Match | None, dialect: Dialect) -> Match | None:
    """What stands in a text, or a line of any text, is without its prefix, or is a shortened line of."""
    own = {name: value for name, value in line.fields.items() if name != "message"} if line else {}
    message = str(line.fields.get("message", text)) if line else text
    found = _of_message(message, dialect) or next(_messages(text, dialect), None)
    if found is None and (read := read_message(message, dialect)):
        shape, form, values = read
        found = Match(shape, form, _of(shape, values))
    return found and found._replace(fields={**own, **found.fields})


def _of_message(message: str, dialect: Dialect) -> Match | None:
    """The first pattern that a message matches behind some prefix, but for those of any text."""
    candidates = (c for c in (*dialect.by_start, *dialect.by_anchor) if not is_of_any_text(c.shape))
    return _first([message], candidates, {}, dialect) if message else None


def _messages(text: str, dialect: Dialect) -> Iterator[Match]:
    """Yield what the messages inside a text match."""
    for kind in dialect.messages_inside:
        if start := re.search(kind.start_regex, text):
            message = text[start.end() if kind.is_quoted else start.start() :]
            message = kind.prefix + re.sub(f"(?:{kind.end_regex})$", "", message).strip(" ")
            if (found := _match(message, dialect)) and found.shape.priority >= 0:
                yield found


def _without_launcher(text: str, dialect: Dialect) -> tuple[dict[str, Any], str]:
    """The fields of what launchers put in front of a line, and the line; of two launchers the inner one counts."""
    labels: dict[str, str] = {}
    tags: list[Pattern] = []
    for _ in range(DEPTH):
        if not text or re.search(f"^(?:{dialect.prefix_regex})", text):
            break
        found = next(_launchers(text, dialect), None)
        if found is None:
            break
        labels, text = _cut(found, labels)
        tags = [pattern for shape in dialect.launcher_prefixes if shape.priority > 0 for pattern in shape.patterns]
    for pattern in tags:
        if tag := re.search(pattern.regex, text):
            labels, text = _cut(tag, labels)
    return {name: _typed(labels[name], base) for name, base in dialect.labels.items() if name in labels}, text


def _launchers(text: str, dialect: Dialect) -> Iterator[re.Match[str]]:
    """Yield the prefixes that a text has, the sure ones first; `INFO: ` is no host unless a known line follows."""
    unsure = []
    for shape, pattern in dialect.untagged_prefixes:
        if found := re.search(pattern.regex, text):
            if shape.priority >= -1:
                yield found
            else:
                unsure.append(found)
    is_known = re.search(dialect.prefix_regex, text) is not None
    yield from (found for found in unsure if is_known or _has_signature(found[REST] or "", dialect))


def _has_signature(text: str, dialect: Dialect) -> bool:
    """Whether a text is a line by which an embedded format is recognised."""
    signatures = (line for embedded in dialect.embedded_formats for line in embedded.signatures)
    return any(may_match(text, line.literals, line.words) and re.search(line.regex, text) for line in signatures)


def _cut(launcher: re.Match[str], labels: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """The fields so far with those of a launcher's prefix, and what stands behind it."""
    fields = launcher.groupdict()
    rest = fields.pop(REST) or ""
    return {**labels, **{name: value for name, value in fields.items() if value is not None}}, rest


def _match(text: str, dialect: Dialect) -> Match | None:
    """The shape that a line matches, the form of it, and the fields of its prefix and of what follows."""
    prefix, body = _halves(text, dialect.prefix_marker)
    kind, of_prefixes = _prefixes(prefix, dialect)
    if not kind:
        own = {shape.frame for shape in (dialect.base or dialect).shapes}
        certain = (c for c in dialect.without_prefix if c.shape.frame in own or not _needs_lines_around(c))
        return _first([text], certain, {}, dialect)
    candidates = [c for c in (*dialect.by_start, *dialect.by_anchor) if c.prefix_bit & kind]
    return _first([body, body.rstrip(" ")], candidates, of_prefixes, dialect)  # screens fill lines with blanks


def _needs_lines_around(candidate: Candidate) -> bool:
    """Whether one of any text has no words that show its format by themselves."""
    words = max(len(candidate.anchor.strip()), min(map(len, candidate.words), default=0))
    return candidate.shape.priority < 0 and words < MIN_WORDS


def _first(
    texts: Iterable[str],
    candidates: Iterable[Candidate],
    of_prefixes: Mapping[str, Mapping[str, str | None]],
    dialect: Dialect,
) -> Match | None:
    """The first candidate that one of these texts matches, with the fields of its prefix."""
    for text in dict.fromkeys(texts):
        for candidate in candidates:
            shape = candidate.shape
            if shape.frame != dialect.catch_all and (fields := _fields(text, candidate, dialect)) is not None:
                fields = {**of_prefixes.get(candidate.prefix, {}), **fields}
                return Match(shape, candidate.pattern.form, _of(shape, fields))
    return None


def _halves(text: str, marker: str) -> tuple[str, str]:
    """The prefix of a line, up to the blank behind the word that follows the marker, and the rest."""
    before, found, following = text.partition(marker)
    word, blank, body = following.partition(" ")
    return (before + found + word + blank, body) if found and blank and len(word) < WORD else ("", text)


def _prefixes(prefix: str, dialect: Dialect) -> tuple[int, dict[str, dict[str, str | None]]]:
    """The bits of the prefix rules that a prefix matches, and the fields that it has by each of them."""
    rules = dialect.prefixes if prefix else ()
    matches = {rule.frame: re.search(rule.patterns[0].regex, prefix) for rule in rules}
    fields = {frame: match.groupdict() for frame, match in matches.items() if match}
    if prefix and not fields and not re.search(dialect.prefix_regex, prefix):
        for rule, replaced in dialect.short_prefixes:
            matching = (match for pattern in rule.patterns if (match := re.search(pattern.regex, prefix)))
            if match := next(matching, None):
                fields = dict.fromkeys(replaced, match.groupdict())
                break
    return sum(1 << bit for bit, rule in enumerate(rules) if rule.frame in fields), fields


def _fields(text: str, candidate: Candidate, dialect: Dialect) -> dict[str, str | None] | None:
    """The fields of a text that a candidate matches."""
    if not may_match(text, candidate.literals, candidate.words):
        return None
    found = re.search(candidate.regex, text)
    if found and candidate.pattern.is_greedy and re.search(dialect.prefix_regex, text):
        return None  # a second line, torn into this one
    return found and found.groupdict()


def _of(shape: Shape, fields: Mapping[str, str | None]) -> dict[str, Any]:
    """The fields of a line, in the order of its shape."""
    found = ((name, base, fields.get(name)) for name, base in shape.columns.items())
    return {name: _typed(text, base) for name, base, text in found if text is not None}


def _typed(text: str, base: ColumnType) -> int | str:
    """A whole number as such, in whatever base it is printed; anything else as it stands in the line."""
    if base.dtype_name in ("Int32", "Int64"):
        with suppress(ValueError):
            return int(text, 16 if base is COLUMN_TYPES["HEX"] else 10)
    return text


# Matching characters in literals, all matching characters, the shape, and what it expects next.
PartialMatch = tuple[int, int, Shape, str]


def _nearest(text: str, dialect: Dialect) -> PartialMatch:
    """The alternative that matches most literal characters; those that cannot exceed the best so far are skipped."""
    shapes = [shape for shape in dialect.shapes if shape.frame != dialect.catch_all]
    alternatives = [
        (shape, pieces) for shape in shapes for pieces in grammar_file.load(shape.grammar).pieces[shape.frame]
    ]
    bounds = [_upper_bound(text, pieces) for _, pieces in alternatives]
    best: PartialMatch = (-1, 0, shapes[0], "")
    for bound, (shape, pieces) in sorted(zip(bounds, alternatives, strict=True), key=itemgetter(0), reverse=True):
        if bound < max(best[0], MIN_LITERAL):
            break
        best = max(best, _match_start(text, shape, pieces), key=itemgetter(0, 1))
    return best


def _literal(name: str) -> str:
    return name[1:-1] if name.startswith('"') else ""


def _upper_bound(text: str, pieces: list[tuple[str, str]]) -> int:
    """An upper bound of the literal characters that match: those of the literals that occur in order."""
    position, literal_length = 0, 0
    for _, name in pieces:
        literal = _literal(name)
        if (position := text.find(literal, position)) < 0:
            break
        position, literal_length = position + len(literal), literal_length + len(literal)
    return literal_length


def _match_start(text: str, shape: Shape, pieces: list[tuple[str, str]]) -> PartialMatch:
    """Match as many leading pieces of an alternative as possible; found by bisection, for any fewer match as well."""

    def matched(count: int) -> int:
        found = re.match("".join(regex for regex, _ in pieces[:count]), text)
        return found.end() if found else -1

    count = bisect_left(range(1, len(pieces) + 1), 1, key=lambda count: matched(count) < 0)
    literal = sum(len(_literal(name)) for _, name in pieces[:count])
    expected = pieces[count][1] if count < len(pieces) else "the end of the line"
    return literal, matched(count) if count else 0, shape, expected
