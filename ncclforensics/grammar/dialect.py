"""The pattern table of one kind of input: its shapes in the order they are tried, and the prefixes of its lines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from ncclforensics.errors import GrammarError
from ncclforensics.grammar.column_types import ColumnType
from ncclforensics.grammar.grammar_file import load, place_of_rule
from ncclforensics.grammar.meanings import ANSWERED
from ncclforensics.grammar.patterns import OutputHead, Pattern, Shape, Signature, may_match
from ncclforensics.grammar.template import Template

if TYPE_CHECKING:
    import polars as pl

MIN_ANCHOR = 5  # characters; a shorter literal stands in too many other lines
FEW = 64  # texts; searching so few for literals is faster than compiling a pattern
LITTLE = 4096  # characters of texts; longer ones are searched for all literals in one pass
MIN_START = 3  # characters; a shorter literal start does not select a pattern
# An empty group at the end of every pattern: not null where the pattern matched, whatever columns it has.
MATCHED = "_matched"
FIELDS = "_fields"
REST = "rest"  # the column that holds the line after a launcher prefix
CUT = "cut"  # the form of the beginning of a message, where text was cut in copying


@dataclass(eq=False)
class Candidate:
    """One alternative of a shape, as it is applied: to the text after the prefix of a line, or to the whole line."""

    number: int
    shape: Shape
    pattern: Pattern
    prefix: str  # the prefix rule it begins with; empty: none
    prefix_bit: int  # the bit of that prefix in the column `_kind`; 0: none
    regex: str
    columns: Sequence[str]
    starts: Sequence[str]
    anchor: str
    words: Sequence[str]
    literals: Sequence[str]

    @property
    def has_literal_start(self) -> bool:
        """Whether the first characters of a text are enough to select this pattern."""
        return min(map(len, self.starts)) >= MIN_START

    @cached_property
    def fields(self) -> pl.Expr:
        """The pattern applied to the column `_text`: a struct FIELDS of texts, whose MATCHED is null on a mismatch."""
        import polars as pl

        return fields(pl.col("_text"), self.regex)

    @cached_property
    def is_match(self) -> pl.Expr:
        """Whether a text belongs to this pattern: from MATCHED, `_kind`, `_has_inner_prefix` and `_cut`."""
        import polars as pl

        is_match = pl.col(MATCHED).is_not_null()
        if self.prefix_bit:
            is_match &= pl.col("_kind") & self.prefix_bit > 0
        if self.pattern.is_greedy:  # free text may include a second line that was torn into this one
            is_match &= ~pl.col("_has_inner_prefix")
        if self.pattern.is_open:  # the last value may be cut
            is_match &= ~pl.col("_cut")
        return is_match

    @cached_property
    def typed(self) -> list[pl.Expr]:
        """The columns, cast from the matched texts to their types.

        Categories of events stay text until most of them are dropped (`parsing.alike_rows`), because Polars keeps every
        category that was ever made in memory.
        """
        import polars as pl

        is_of_events = load(self.shape.grammar).may_collapse
        typed = []
        for name in self.columns:
            base, text = self.shape.columns[name], pl.col(name)
            typed.append((base.convert(text) if is_of_events else base.cast(text)).alias(name))
        return typed


@dataclass(eq=False)
class EmbeddedFormat:
    """A format whose lines may stand among NCCL's, and the frames whose lines prove that it is present.

    Most formats are absent from most runs, so shapes are loaded only where a signature was found.
    """

    name: str
    grammars: tuple[str, ...]
    signature_frames: tuple[str, ...]

    @cached_property
    def signatures(self) -> list[Signature]:
        """How the lines are recognised by which this format is; of short anchors, which tell nothing, none."""
        found = (line for name in self.grammars for line in load(name).signatures(self.signature_frames))
        return [line if len(line.anchor) >= MIN_START else line._replace(anchor="") for line in found]


class Quotation(NamedTuple):
    """How another program quotes NCCL's last warning: a line that announces it, and the text on the next line."""

    frame: str
    form: str  # of the announcing line
    tag_regex: str  # what stands in front of both lines
    end_regex: str  # what a logger puts behind the text, in the same line
    time_regex: str  # a line that is only the time of the next one
    prefix: str  # of NCCL, as it would stand before the text


class MessageInside(NamedTuple):
    """How messages of one kind are found inside other text, and what a line of them would begin with."""

    start_regex: str
    end_regex: str  # what closes the message
    prefix: str
    is_quoted: bool = False  # what `start_regex` matches stands before the message and is no part of it


@dataclass(eq=False)
class Dialect:
    """The shapes to look for, in the order they are tried, and the prefixes of lines."""

    shapes: tuple[Shape, ...]
    prefix_regex: str  # the beginning of a line, to find lines inside others
    prefixes: tuple[Shape, ...]  # prefix rules; a prefix ends with the blank after the word after `prefix_marker`
    short_prefixes: tuple[tuple[Shape, frozenset[str]], ...]  # without host and process; and the prefixes they shorten
    prefix_marker: str  # a literal in every prefix
    level_regex: str  # this literal and what follows it in a prefix
    catch_all: str  # the frame whose rows count as unrecognised
    counter: str  # the column of the first shape that differs in lines that are otherwise the same
    launcher_prefixes: tuple[Shape, ...]  # what launchers and collectors put in front of a line
    failure_word: str  # stands in a line about a failure
    tag_regex: str  # a launcher prefix so distinctive that it is also recognised inside a text
    embedded_formats: tuple[EmbeddedFormat, ...] = ()  # formats that only some sources hold
    detected: tuple[str, ...] = ()  # names of the embedded formats whose shapes are in `shapes`
    base: Dialect | None = None  # the same dialect without them
    quotation: Quotation | None = None
    prefixes_of_some: frozenset[str] = frozenset()  # of these, which some lines have and others not
    alone_regex: str = ""  # the beginning of a message that stands in a text without its prefix
    alone_prefix: str = ""  # what is put before it
    unnamed_prefix: str = ""  # a prefix as old versions print it, in which `prefix_marker` is missing before the level
    record_regex: str = ""  # the beginning of a line of another logger that the shapes know
    start_regex: str = ""  # of any line of that logger, or with its tag
    messages_inside: tuple[MessageInside, ...] = ()
    bar: str = ""  # the frame of progress bars
    bar_end_regex: str = ""  # a line up to the end of its last bar, behind which the next may stand
    raised: str = ""  # the frame of exceptions of any kind, whose text may hold such messages
    calls: tuple[str, ...] = ()  # the frames of calls in tracebacks; below such a line stands a line of the program
    call_mark: str = ""  # a literal in each of their lines, behind tag and indentation
    last_shapes: tuple[Shape, ...] = ()  # of lines that nothing else reads; such a line counts as the application's

    def including_formats_in(self, texts: pl.Series) -> Dialect:
        """This dialect with the shapes of embedded formats whose signatures stand in the texts."""
        found = [*self.detected, *self._formats_of(texts.to_frame("text").with_columns(source=0)).get(0, [])]
        return (self.base or self)._including([fmt for fmt in self.embedded_formats if fmt.name in found])

    def by_source(self, samples: pl.DataFrame) -> dict[int, Dialect]:
        """The dialects of sources that hold embedded formats, by samples of their lines (columns `source`, `text`)."""
        return {
            source: self._including([fmt for fmt in self.embedded_formats if fmt.name in names])
            for source, names in self._formats_of(samples).items()
        }

    def _formats_of(self, rows: pl.DataFrame) -> dict[int, list[str]]:
        """The embedded formats whose signature lines stand in each source, without those that this dialect has.

        Blank lines, NCCL's own, repeated lines and those without any anchor are excluded first: that leaves few.
        """
        import polars as pl

        is_other = (pl.col("text") != "") & ~pl.col("text").str.contains(self.prefix_marker, literal=True)
        rows = rows[:, ["source", "text"]].filter(is_other)
        rows = rows.filter(rows.hash_rows().is_first_distinct())
        near, is_near = self.formats_near(rows["text"])
        rows = rows.filter(is_near)
        found: dict[int, list[str]] = {}
        for name, regex in near.items():
            for source in rows["source"].filter(rows["text"].str.contains(regex)).unique():
                found.setdefault(source, []).append(name)
        return found

    def formats_near(self, texts: pl.Series) -> tuple[dict[str, str], pl.Series]:
        """Formats that this dialect lacks, of which signature lines may stand in the texts; and in which of the texts.

        Each with a regex of these lines: a literal of a signature stands there, or the text is such a line without one.
        """
        import polars as pl

        if texts.is_empty() or not self._undetected:
            return {}, pl.repeat(value=False, n=len(texts), eager=True)
        anchors = words_in(texts, self._anchors_of_signatures).implode()
        is_near = texts.str.contains_any(anchors).fill_null(value=False)
        stands = texts.filter(is_near).str.extract_many(anchors, overlapping=True)
        literals = {"", *stands.explode().drop_nulls().unique()}
        few = texts.to_list() if len(texts) <= FEW else None
        possible = [
            (embedded.name, line)
            for embedded in self._undetected
            for line in embedded.signatures
            if line.anchor in literals
            and (few is None or any(may_match(text, line.literals, line.words) for text in few))
        ]
        if unanchored := "|".join(line.regex for _, line in possible if not line.anchor):  # is soon compiled if short
            is_open = texts.str.contains(unanchored)
            possible = possible if is_open.any() else [(name, line) for name, line in possible if line.anchor]
            is_near |= is_open
        near: dict[str, list[str]] = {}
        for name, line in possible:
            near.setdefault(name, []).append(line.regex)
        return {name: "|".join(regexes) for name, regexes in near.items()}, is_near

    @cached_property
    def of_last_shapes(self) -> Dialect:
        """This dialect with its last shapes alone."""
        return replace(self, shapes=self.last_shapes, embedded_formats=(), detected=(), base=None)

    @cached_property
    def untagged_prefixes(self) -> list[tuple[Shape, Pattern]]:
        """The prefixes of launchers that are tried in texts in which no tag was found."""
        return [
            (shape, pattern) for shape in self.launcher_prefixes if shape.priority <= 0 for pattern in shape.patterns
        ]

    def prefixes_near(self, texts: pl.Series) -> list[tuple[Shape, Pattern]]:
        """Those of `untagged_prefixes` that the texts may have: of few texts, those whose literals stand there."""
        few = texts.to_list() if len(texts) <= FEW else None
        return [
            (shape, pattern)
            for shape, pattern in self.untagged_prefixes
            if few is None or any(may_match(text, pattern.literals, pattern.words) for text in few)
        ]

    @cached_property
    def with_all_formats(self) -> Dialect:
        """This dialect with the shapes of all embedded formats."""
        return self._including(self.embedded_formats)

    def _including(self, formats: Sequence[EmbeddedFormat]) -> Dialect:
        names = tuple(embedded.name for embedded in formats)
        if names == self.detected:
            return self
        if names not in self._variants:
            # Formats share grammars such as `collected`, whose shapes must not be there twice.
            grammars = dict.fromkeys(name for embedded in formats for name in embedded.grammars)
            shapes = (*self.shapes, *(shape for name in grammars for shape in load(name).shapes))
            self._variants[names] = replace(self, shapes=shapes, detected=names, base=self)
        return self._variants[names]

    @property
    def _undetected(self) -> list[EmbeddedFormat]:
        return [embedded for embedded in self.embedded_formats if embedded.name not in self.detected]

    @cached_property
    def _anchors_of_signatures(self) -> set[str]:
        """Literals that stand in signature lines of formats that this dialect lacks."""
        return {line.anchor for embedded in self._undetected for line in embedded.signatures} - {""}

    @cached_property
    def answered_forms(self) -> dict[str, list[str]]:
        """The forms of each frame whose lines state a failure, a condition or a consequence."""
        meanings = {shape.frame: load(shape.grammar).meanings.get(shape.frame, {}) for shape in self.shapes}
        found = ((frame, [form for form in own if own[form].kind in ANSWERED]) for frame, own in meanings.items())
        return {frame: forms for frame, forms in found if forms}

    @cached_property
    def ranks_of_forms(self) -> pl.DataFrame:
        """Each shape with a form of it (`shape`), its place in the order of trial (`order`), and what ends it.

        `is_free`: any text or a value that more text may go on; `is_general`: a shape for lines of any text.
        """
        import polars as pl

        rows = [
            (
                f"{c.shape.frame} {c.pattern.form}",
                c.number,
                c.pattern.may_go_on,
                c.shape.priority < 0,
            )
            for c in self.candidates
        ]
        return pl.DataFrame(rows, schema=["shape", "order", "is_free", "is_general"], orient="row")

    @cached_property
    def frames_of_cut_messages(self) -> frozenset[str]:
        """The frames with a form of the beginning of a message."""
        return frozenset(c.shape.frame for c in self.candidates if c.pattern.form == CUT)

    @cached_property
    def answered_anchors(self) -> list[str]:
        """Literals of which each such line has one, and those in signatures of formats that this dialect lacks.

        Of several that are common words alone, such as `Killed`, none tells.
        """
        answered = [c for c in self.candidates if c.pattern.form in self.answered_forms.get(c.shape.frame, ())]
        choices = [c.words for c in answered if len(c.anchor) < MIN_ANCHOR]
        own = {*(c.anchor for c in answered), *(word for words in choices for word in words if not word.isalpha())}
        return sorted(word for word in own.union(self._anchors_of_signatures) if len(word) >= MIN_ANCHOR)

    @cached_property
    def _variants(self) -> dict[tuple[str, ...], Dialect]:
        return {}

    @cached_property
    def candidates(self) -> list[Candidate]:
        """Every alternative, by descending priority of its shape.

        Raises GrammarError for a priority above 0: calls, whose shape is the first, would no longer be tried first.
        """
        for shape in self.shapes:
            if shape.priority > 0:
                raise GrammarError(
                    f"{place_of_rule(shape)}: `{shape.frame}` has priority {shape.priority}; that of a line's shape is"
                    " 0 or lower"
                )
        ordered = sorted(self.shapes, key=lambda shape: -shape.priority)
        pairs = [(shape, pattern) for shape in ordered for pattern in shape.patterns]
        return [self._candidate(number, *pair) for number, pair in enumerate(pairs)]

    def _candidate(self, number: int, shape: Shape, pattern: Pattern) -> Candidate:
        for prefix, suffix in pattern.suffixes.items():
            if bit := self._prefix_bits.get(prefix):
                return Candidate(number, shape, pattern, prefix, bit, **suffix)
        return Candidate(
            *(number, shape, pattern, "", 0, pattern.regex, pattern.columns, [""]),
            *(pattern.anchor, pattern.words, pattern.literals),
        )

    @cached_property
    def _prefix_bits(self) -> dict[str, int]:
        return {prefix.frame: 1 << bit for bit, prefix in enumerate(self.prefixes)}

    @cached_property
    def template(self) -> Template:
        """The first pattern, cut where its lines differ."""
        shape = self.candidates[0].shape
        return load(shape.grammar).template(shape.frame, self.counter)

    @cached_property
    def by_start(self) -> list[Candidate]:
        """Candidates with a prefix and a literal start. No later candidate may match a line of theirs."""
        return [c for c in self.candidates if c.prefix and c.has_literal_start and c.shape.priority >= 0]

    @cached_property
    def by_anchor(self) -> list[Candidate]:
        """The other candidates with a prefix."""
        by_start = set(map(attrgetter("number"), self.by_start))
        return [candidate for candidate in self.candidates if candidate.prefix and candidate.number not in by_start]

    @cached_property
    def without_prefix(self) -> list[Candidate]:
        """Candidates without a prefix: lines of other programs, and the few that NCCL prints so."""
        return [candidate for candidate in self.candidates if not candidate.prefix]

    @cached_property
    def collapsible(self) -> frozenset[str]:
        """Frames of lines that mean the same however often they are repeated."""
        repeatable = {shape.frame for shape in self.shapes if load(shape.grammar).may_collapse}
        return frozenset({*repeatable, self.catch_all})

    @cached_property
    def above_outputs(self) -> tuple[OutputHead, ...]:
        """Lines above outputs that tell the host or the interface they are of."""
        grammars = sorted({shape.grammar for shape in self.shapes})
        return tuple(head for name in grammars for head in load(name).above_outputs)

    @cached_property
    def labels(self) -> dict[str, ColumnType]:
        """Columns of launcher prefixes, which the rows of every frame may have."""
        columns = {name: kind for shape in self.launcher_prefixes for name, kind in shape.columns.items()}
        return {name: kind for name, kind in columns.items() if name != REST}


def fields(texts: pl.Expr, regex: str) -> pl.Expr:
    """The groups of a pattern as one struct column FIELDS, with MATCHED among them."""
    return texts.str.extract_groups(f"{regex.removesuffix('$')}(?P<{MATCHED}>)$").alias(FIELDS)


def words_in(texts: pl.Series, words: Iterable[str]) -> pl.Series:
    """The words that may stand in one of these texts, sorted: of few short texts those that do, of others all.

    To make a search for a thousand words in one pass ready takes longer than to look for each in a few lines.
    """
    import polars as pl

    joined = "\n".join(filter(None, texts.to_list())) if len(texts) <= FEW else ""
    is_little = len(texts) <= FEW and len(joined) <= LITTLE
    return pl.Series(sorted(word for word in words if not is_little or word in joined), dtype=pl.String)
