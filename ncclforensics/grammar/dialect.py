"""What a kind of input may say: its shapes in the order of trial, and how its lines begin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter

import polars as pl

from ncclforensics.grammar.grammar_file import Base, Pattern, Shape, Signs, load

TELLING = 3  # characters of a beginning by which a line is sent to its pattern
# A group that is empty, at the end of a pattern: not null if it matched, whatever columns it has.
HIT = "_hit"
FIELDS = "_fields"
REST = "rest"  # the column that holds what stands behind a decoration


@dataclass(frozen=True)
class Trial:
    """One alternative of a shape, as it is applied: to what stands behind the head of a line, or to a whole line."""

    number: int
    shape: Shape
    pattern: Pattern
    head: str  # the head it stands behind; empty: none
    kind: int  # a bit for that head; 0: none
    regex: str
    columns: Sequence[str]
    starts: Sequence[str]
    anchor: str

    @property
    def is_telling(self) -> bool:
        """Whether the first characters of a text suffice to send it here."""
        return min(map(len, self.starts)) >= TELLING

    @cached_property
    def fields(self) -> pl.Expr:
        """What the pattern finds in the column `_text`: FIELDS, of texts, and of these HIT is null where it fails."""
        return fields(pl.col("_text"), self.regex)

    @cached_property
    def is_hit(self) -> pl.Expr:
        """Whether a text of which it found something is one of its own (columns `_kind`, `_crowded`, `_cut`)."""
        is_hit = pl.col(HIT).is_not_null()
        if self.kind:
            is_hit &= pl.col("_kind") & self.kind > 0
        if self.pattern.is_greedy:  # free text may have swallowed the line that was torn into this one
            is_hit &= ~pl.col("_crowded")
        if self.pattern.is_open:  # the value that ends the line may be cut itself
            is_hit &= ~pl.col("_cut")
        return is_hit

    @cached_property
    def typed(self) -> list[pl.Expr]:
        """The columns, made of what was found."""
        return [self.shape.columns[name].cast(pl.col(name)).alias(name) for name in self.columns]


@dataclass(frozen=True)
class Guest:
    """A format whose lines may stand among others, and the frames that tell of it: a line of one, and it is there.

    Most guests are absent from most runs, so its shapes are loaded once it is heard.
    """

    name: str
    grammars: tuple[str, ...]
    signs: tuple[str, ...]

    def speaks(self, texts: pl.Series) -> bool:
        """Whether a line of its own stands among these texts."""
        return bool(texts.str.contains(self.telling).any())

    def own(self, texts: pl.Series) -> int:
        """How many of these texts are signs."""
        return int(texts.str.contains(self.telling).sum())

    def is_hinted(self, texts: pl.Series) -> bool:
        """Whether what a sign contains stands anywhere in these texts."""
        anchors = sorted({anchor for each in self.marks for anchor in each.anchors})
        return bool(anchors) and bool(texts.str.contains_any(anchors).any())

    @cached_property
    def telling(self) -> str:
        """A regex of its signs."""
        return "|".join(each.regex for each in self.marks if each.regex)

    @cached_property
    def shapes(self) -> tuple[Shape, ...]:
        """What its lines look like."""
        return tuple(shape for name in self.grammars for shape in load(name).shapes)

    @cached_property
    def marks(self) -> list[Signs]:
        """What tells of it, by grammar."""
        return [load(name).signs(self.signs) for name in self.grammars]


@dataclass(frozen=True)
class Dialect:
    """The shapes to look for, in the order of trial, and how a line of this kind begins."""

    shapes: tuple[Shape, ...]
    opening: str  # regex of a line's beginning, to find lines buried in others
    heads: tuple[Shape, ...]  # what lines begin with: the end of it is the blank behind the word behind `mark`
    bare: tuple[tuple[Shape, frozenset[str]], ...]  # what is left of a head where nobody is named, and of which heads
    mark: str
    catch_all: str  # the frame whose rows count as unrecognised
    counter: str  # the column of the first shape that differs in lines that are otherwise the same
    decorations: tuple[Shape, ...]  # what may stand in front of a line, put there by others
    tag: str  # regex of a decoration that is so telling that it is known inside of a text, too
    guests: tuple[Guest, ...] = ()  # formats that only some sources hold
    spoken: tuple[str, ...] = ()  # the names of those whose shapes are among `shapes`
    plain: Dialect | None = None  # the same without them

    def among(self, texts: pl.Series) -> Dialect:
        """The language of a source that holds these texts, too: with the shapes of the guests that speak in them."""
        silent = [guest for guest in self.guests if guest.name not in self.spoken]
        texts = self._foreign(texts.to_frame("text"))["text"] if silent else texts.clear()
        if texts.is_empty():
            return self
        heard = {*self.spoken, *(guest.name for guest in silent if guest.speaks(texts))}
        return (self.plain or self)._with([guest for guest in self.guests if guest.name in heard])

    def of_each(self, samples: pl.DataFrame) -> dict[int, Dialect]:
        """The languages of the sources that hold these texts (columns `source`, `text`), where guests speak in them."""
        signs = self._foreign(samples)
        heard: dict[int, list[Guest]] = {}
        for guest in self.guests if signs.height else ():
            for source in signs.filter(pl.col("text").str.contains(guest.telling))["source"].unique():
                heard.setdefault(source, []).append(guest)
        return {source: self._with(guests) for source, guests in heard.items()}

    @cached_property
    def whole(self) -> Dialect:
        """With the shapes of all guests."""
        return self._with(self.guests)

    def _with(self, guests: Sequence[Guest]) -> Dialect:
        names = tuple(guest.name for guest in guests)
        if names == self.spoken:
            return self
        if names not in self._variants:
            shapes = (*self.shapes, *(shape for guest in guests for shape in guest.shapes))
            self._variants[names] = replace(self, shapes=shapes, spoken=names, plain=self)
        return self._variants[names]

    @cached_property
    def _signs(self) -> str:
        return "|".join(guest.telling for guest in self.guests if guest.name not in self.spoken)

    def _foreign(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The rows whose text is a sign of a silent guest: most bear our own mark, and few hold a guest's literal."""
        others = rows.filter(~pl.col("text").str.contains(self.mark, literal=True))
        if others.height:
            anchors, loose = self._hinting
            others = others.filter(pl.col("text").str.contains_any(anchors) | pl.col("text").str.contains(loose))
        return others.filter(pl.col("text").str.contains(self._signs)) if others.height else others

    @cached_property
    def _hinting(self) -> tuple[list[str], str]:
        """Literals, one of which stands in every sign of a guest, and a regex of the signs that have none."""
        signs = [each for guest in self.guests for each in guest.marks]
        anchors = sorted({anchor for each in signs for anchor in each.anchors})
        return anchors, "|".join(each.loose for each in signs if each.loose)

    @cached_property
    def _variants(self) -> dict[tuple[str, ...], Dialect]:
        return {}

    @cached_property
    def trials(self) -> list[Trial]:
        """Every alternative, most important shape first."""
        ordered = sorted(self.shapes, key=lambda shape: -shape.priority)
        pairs = [(shape, pattern) for shape in ordered for pattern in shape.patterns]
        return [self._trial(number, *pair) for number, pair in enumerate(pairs)]

    def _trial(self, number: int, shape: Shape, pattern: Pattern) -> Trial:
        for bit, head in enumerate(self.heads):
            if behind := pattern.behind.get(head.frame):
                return Trial(number, shape, pattern, head.frame, 1 << bit, **behind)
        return Trial(number, shape, pattern, "", 0, pattern.regex, pattern.columns, [""], pattern.anchor)

    @cached_property
    def by_start(self) -> list[Trial]:
        """What stands behind a head and begins with a telling text: no later trial may have such a line."""
        return [trial for trial in self.trials if trial.head and trial.is_telling and trial.shape.priority >= 0]

    @cached_property
    def by_anchor(self) -> list[Trial]:
        """What else stands behind a head."""
        early = set(map(attrgetter("number"), self.by_start))
        return [trial for trial in self.trials if trial.head and trial.number not in early]

    @cached_property
    def headless(self) -> list[Trial]:
        """What has no head: lines of others, and the few that NCCL prints without a prefix."""
        return [trial for trial in self.trials if not trial.head]

    @cached_property
    def labels(self) -> dict[str, Base]:
        """What a decoration tells: columns that the rows of every frame may have."""
        columns = {name: base for shape in self.decorations for name, base in shape.columns.items()}
        return {name: base for name, base in columns.items() if name != REST}


def fields(texts: pl.Expr, regex: str) -> pl.Expr:
    """The groups of a pattern, as one column FIELDS, and HIT among them."""
    return texts.str.extract_groups(f"{regex.removesuffix('$')}(?P<{HIT}>)$").alias(FIELDS)


def anchors(trials: Sequence[Trial]) -> list[str]:
    """What a text must contain to meet any of these at all; the empty one is contained in every text."""
    return sorted({trial.anchor for trial in trials} - {""})
