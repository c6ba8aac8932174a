"""Texts times candidates: which alternative has each line, and the values it finds in it.

Lines of a log repeat, but for who says them. So a line is cut behind its head (`host:pid:tid [dev] NCCL INFO `); heads
are parsed once each, what stands behind them once each, and both are put together again. How a text begins, or a
literal that it must contain, tells which patterns it meets at all.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby

import polars as pl

from ncclforensics.grammar.dialect import FIELDS, MATCHED, Candidate, Dialect, anchors, fields
from ncclforensics.grammar.patterns import FORM
from ncclforensics.inputs.lines import cleaned, is_strange
from ncclforensics.parsing.templates import distinct_rows

KEY = 20  # characters by which texts are sorted
FEW = 64  # texts that are sooner looked through than a pattern is compiled
MANY = 50_000  # texts that are searched at once
WORD = 12  # characters in which the word behind a mark and its blank must stand
LAST = "\U0010ffff"
NONE = -1
AS_WRITTEN = pl.QueryOptFlags.none()

KNOWN = {
    "source": pl.Int32(),
    "line": pl.Int32(),
    "host": pl.Categorical(),
    "pid": pl.Int32(),
    "launcher_rank": pl.Int32(),
    "launcher_repeats": pl.Int32(),
    "caught": pl.Boolean(),  # only by the catch-all
    "cut": pl.Boolean(),
}


@dataclass(frozen=True, slots=True)
class _Heads:
    """The heads of some lines, each once."""

    kinds: pl.Series  # a bit for each of the language's heads that it is
    values: dict[str, pl.DataFrame]  # head -> a row for each, of nulls where it is not this head
    who: pl.DataFrame  # columns `host` and `pid`


@dataclass(frozen=True, slots=True)
class _Lines:
    """Some lines of a table, each as the text that candidates are applied to."""

    table: pl.DataFrame
    row: pl.Series  # of the table
    body: pl.Series
    heads: _Heads | None
    head: pl.Series  # of `heads`
    kind: pl.Series

    def matched(
        self, dialect: Dialect, frames: dict[str, list[pl.DataFrame]], *, is_clean: bool
    ) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
        """The rows that some shape knows, those that none knows, and those that have to be cleaned first."""
        texts = pl.DataFrame({"kind": self.kind, "cut": self.table["cut"][self.row], "body": self.body})
        models, model = distinct_rows(texts, texts.columns) if self.heads else (texts, self.row)
        is_dirty = pl.repeat(False, models.height, eager=True) if is_clean else is_strange(models["body"])
        owner = pl.repeat(NONE, models.height, dtype=pl.Int32, eager=True)
        place = pl.repeat(0, models.height, dtype=pl.UInt32, eager=True)
        found = _hits(models, ~is_dirty, dialect, is_headed=self.heads is not None)
        hits = sorted(found, key=lambda one: one.candidate.prefix)
        for number, one in enumerate(hits):
            owner.scatter(one.places, number)
            place.scatter(one.places, pl.int_range(one.places.len(), dtype=pl.UInt32, eager=True))
        owners = pl.DataFrame({"row": self.row, "head": self.head, "owner": owner[model], "place": place[model]})
        free = owners["owner"] == NONE
        owned = owners.filter(~free).sort("owner", maintain_order=True)
        known = self._said(owned, hits, dialect, frames)
        needs = is_dirty[model] & free
        return known, self.table[self.row.filter(free & ~needs)], self.table[self.row.filter(needs)]

    def _said(
        self, owned: pl.DataFrame, hits: Sequence[_Hits], dialect: Dialect, frames: dict[str, list[pl.DataFrame]]
    ) -> pl.DataFrame:
        """Put heads and bodies together again, into `frames`; and tell whose lines these are (columns KNOWN)."""
        labels = [name for name in self.table.columns if name in dialect.labels]
        lines = self.table.select("source", "line", *labels)[owned["row"]]
        start, caught = 0, []
        counted = owned.group_by("owner", maintain_order=True).len().iter_rows()
        for head, alike in groupby(counted, key=lambda each: hits[each[0]].candidate.prefix):
            counts = list(alike)
            said = self._headed(head, owned["head"].slice(start, sum(count for _, count in counts)))
            for number, count in counts:
                one, part = hits[number], slice(start, start + count)
                start += count
                first, said = said.head(count), said.slice(count)
                if one.candidate.shape.frame == dialect.catch_all:
                    caught.append(number)
                    continue
                columns = lines[part].hstack([_form(one.candidate.pattern.form).new_from_index(0, count)])
                columns.hstack(first, in_place=True)
                if one.values.width:
                    columns.hstack(one.values[owned["place"][part]], in_place=True)
                frames.setdefault(one.candidate.shape.frame, []).append(columns)
        cut = self.table["cut"][owned["row"]]
        who = lines.with_columns(cut=cut, caught=owned["owner"].is_in(caught))
        if self.heads:
            who.hstack(self.heads.who[owned["head"]], in_place=True)
        missing = [pl.lit(None, dtype=dtype).alias(name) for name, dtype in KNOWN.items() if name not in who.columns]
        return who.with_columns(missing).select(list(KNOWN))

    def _headed(self, head: str, places: pl.Series) -> pl.DataFrame:
        """What heads of one kind say, for lines that have them; a column of nothing is left out."""
        if self.heads is None:
            return pl.DataFrame(height=places.len())
        said = self.heads.values[head][places]
        return said.select(column for column in said if column.null_count() < places.len())


@dataclass(frozen=True, slots=True)
class _Hits:
    """The texts that a candidate has: their places, and a row of values for each."""

    candidate: Candidate
    places: pl.Series
    values: pl.DataFrame


@dataclass(frozen=True, slots=True)
class Matched:
    """What became of some lines."""

    frames: dict[str, list[pl.DataFrame]]
    known: pl.DataFrame  # rows of those that some shape knows (KNOWN)
    unknown: pl.DataFrame  # all others, as they are


def match(rows: pl.DataFrame, dialect: Dialect) -> Matched:
    """Apply the shapes to lines."""
    frames: dict[str, list[pl.DataFrame]] = {}
    headed, others = _cut(rows, dialect)
    known, unknown, dirty = headed.matched(dialect, frames, is_clean=False)
    needs = is_strange(others["text"])
    late, never = _cut(cleaned(pl.concat([others.filter(needs), dirty])), dialect)
    more, left, _ = late.matched(dialect, frames, is_clean=True)
    headless = _uncut(pl.concat([others.filter(~needs), never]))
    rest, application, _ = headless.matched(dialect, frames, is_clean=True)
    return Matched(frames, pl.concat([known, more, rest]), pl.concat([unknown, left, application]))


def _cut(rows: pl.DataFrame, dialect: Dialect) -> tuple[_Lines, pl.DataFrame]:
    """The lines that have a head, cut behind it; all others as they are."""
    text, start, mark = pl.col("text"), pl.col("start"), dialect.prefix_marker
    at = rows["text"].str.find(mark, literal=True)
    is_marked = at.is_not_null()
    if not is_marked.any():
        return _uncut(rows.clear()), rows
    place, here = is_marked.arg_true(), rows["text"].filter(is_marked)
    marked = pl.DataFrame({"row": place, "text": here, "start": at.drop_nulls()})
    if not marked.select((text.str.len_bytes() == text.str.len_chars()).all()).item():
        # Offsets are bytes, slices are characters.
        before = text.str.splitn(mark, 2).struct.field("field_0")
        marked = marked.with_columns(start=before.str.len_chars())
    word = text.str.slice(start + len(mark), WORD)  # and no more of it, for a slice is a copy
    stop = start + len(mark) + 1 + word.str.find(" ", literal=True)
    # Cut at the same place, texts are not copied; and heads have few lengths.
    lengths = marked.with_columns(stop=stop).drop_nulls().partition_by("stop", as_dict=True, include_key=False)
    pieces = [
        part.select("row", head=text.str.head(length), body=text.str.slice(length))
        for (length,), part in lengths.items()
    ]
    if not pieces:
        return _uncut(rows.clear()), rows
    halves = pl.concat(pieces).sort("row")
    models, model = distinct_rows(halves, ["head"])
    heads = _parsed_heads(models["head"], dialect)
    halves = halves.with_columns(head=model, kind=heads.kinds.gather(model)).filter(pl.col("kind") > 0)
    is_other = pl.repeat(True, rows.height, eager=True).scatter(halves["row"], False)
    return _Lines(rows, halves["row"], halves["body"], heads, halves["head"], halves["kind"]), rows.filter(is_other)


def _uncut(rows: pl.DataFrame) -> _Lines:
    """Lines without a head."""
    none = pl.repeat(0, rows.height, dtype=pl.UInt32, eager=True)
    return _Lines(rows, pl.int_range(rows.height, dtype=pl.UInt32, eager=True), rows["text"], None, none, none)


def _parsed_heads(texts: pl.Series, dialect: Dialect) -> _Heads:
    kinds = pl.repeat(0, texts.len(), dtype=pl.Int64, eager=True)
    values = {}
    for bit, head in enumerate(dialect.prefixes):
        if not texts.str.contains(head.patterns[0].anchor, literal=True).any():
            values[head.frame] = pl.DataFrame(schema={name: base.dtype for name, base in head.columns.items()}).clear(
                texts.len()
            )
            continue
        found = texts.to_frame("text").select(fields(pl.col("text"), head.patterns[0].regex)).unnest(FIELDS)
        kinds += found[MATCHED].is_not_null().cast(pl.Int64) * (1 << bit)
        values[head.frame] = found.select(base.cast(pl.col(name)).alias(name) for name, base in head.columns.items())
    for bare, of in dialect.short_prefixes:
        bits = sum(1 << bit for bit, head in enumerate(dialect.prefixes) if head.frame in of)
        kinds |= texts.str.contains(bare.patterns[0].regex).cast(pl.Int64) * bits
    who = pl.DataFrame(
        {name: _first_of([table[name] for table in values.values()]) for name in ("host", "pid")},
        schema={name: KNOWN[name] for name in ("host", "pid")},
    )
    return _Heads(kinds, values, who)


def _first_of(columns: Sequence[pl.Series]) -> pl.Series:
    """The first of some columns that is not null, in every row."""
    return pl.select(pl.coalesce(*columns)).to_series()


def has_opening(texts: pl.Series, dialect: Dialect) -> pl.Series:
    """Whether a line begins somewhere in a text."""
    is_marked = texts.str.contains(dialect.prefix_marker, literal=True)
    marked = is_marked.arg_true()
    return (
        is_marked.scatter(marked, texts.gather(marked).str.contains(dialect.prefix_regex))
        if marked.len()
        else is_marked
    )


@cache
def _form(name: str) -> pl.Series:
    return pl.Series(FORM, [name], dtype=pl.Categorical())


def _hits(models: pl.DataFrame, is_free: pl.Series, dialect: Dialect, *, is_headed: bool) -> Iterator[_Hits]:
    """Every text goes to the first candidate that has it (columns `body`, `kind`, `cut`)."""
    memberships = pl.int_range(models.height, dtype=pl.UInt32, eager=True)
    crowded = has_opening(models["body"], dialect)
    table = models.select(_seat=memberships, _kind="kind", _cut="cut", _crowded=crowded, _text="body")
    if is_headed:
        yield from _settled(_by_start(table, dialect.by_start), is_free)
    others = dialect.by_anchor if is_headed else dialect.without_prefix
    for _, alike in groupby(others, key=lambda candidate: candidate.shape.priority):
        if not is_free.any():
            break
        yield from _settled(_by_anchor(table.filter(is_free), list(alike)), is_free)


def _settled(attempts: Iterable[tuple[Candidate, pl.DataFrame]], is_free: pl.Series) -> Iterator[_Hits]:
    """What candidates have of the texts they are to meet; where several have one, it is the first one's.

    Many are made at once, for the engine takes longer to start than to run; but no more than MANY texts meet them, for
    what is found in these stands in memory meanwhile. What has been given is free no longer.
    """
    for made in _in_portions(attempts):
        tables = pl.collect_all([_attempt(*each) for each in made], optimizations=AS_WRITTEN)
        for (candidate, _), values in zip(made, tables, strict=True):
            free = is_free[values["_seat"]]
            own = values if free.all() else values.filter(free)
            if own.height:
                memberships = own.drop_in_place("_seat")
                is_free.scatter(memberships, False)
                yield _Hits(
                    candidate, memberships, own.select(column for column in own if column.null_count() < own.height)
                )


def _in_portions(attempts: Iterable[tuple[Candidate, pl.DataFrame]]) -> Iterator[list[tuple[Candidate, pl.DataFrame]]]:
    """Attempts in their order, so many at once that MANY texts are met; at least one."""
    portion: list[tuple[Candidate, pl.DataFrame]] = []
    met = 0
    for candidate, part in attempts:
        if portion and met + part.height > MANY:
            yield portion
            portion, met = [], 0
        portion.append((candidate, part))
        met += part.height
    if portion:
        yield portion


def _attempt(candidate: Candidate, part: pl.DataFrame) -> pl.LazyFrame:
    """Of some texts those that a candidate has: its columns, and `_seat`."""
    plan = part.lazy()
    if not all(candidate.anchor in start for start in candidate.starts):  # a pattern takes ten times as long to fail
        plan = plan.filter(pl.col("_text").str.contains(candidate.anchor, literal=True))
    return (
        plan.with_columns(candidate.fields).unnest(FIELDS).filter(candidate.is_match).select("_seat", *candidate.typed)
    )


def _by_start(table: pl.DataFrame, candidates: Sequence[Candidate]) -> Iterator[tuple[Candidate, pl.DataFrame]]:
    """Candidates with the texts that begin as they do, all searched for at once in the sorted beginnings."""
    groups = (
        table.select("_seat", key=pl.col("_text").str.head(KEY))
        .group_by("key")
        .agg("_seat", count=pl.len())
        .sort("key")
    )
    keys = groups["key"].to_list()
    ends = [0, *groups["count"].cum_sum()]
    in_order = table[groups["_seat"].explode()]
    for candidate in candidates:
        found = []
        for start in candidate.starts:
            low, high = bisect_left(keys, start[:KEY]), bisect_left(keys, start[:KEY] + LAST)
            if low < high:
                found.append(in_order.slice(ends[low], ends[high] - ends[low]))
        part = found[0] if len(found) == 1 else pl.concat(found) if found else in_order.clear()
        if part.height > FEW or any(candidate.anchor in text for text in part["_text"]):
            yield candidate, part


def _by_anchor(table: pl.DataFrame, candidates: Sequence[Candidate]) -> Iterator[tuple[Candidate, pl.DataFrame]]:
    """Candidates with the texts that contain their anchor, all searched for at once."""
    places: dict[str, pl.Series] = {}
    if wanted := anchors(candidates):
        found = (
            table.select(anchor=pl.col("_text").str.extract_many(wanted, overlapping=True))
            .with_row_index("place")
            .explode("anchor")
            .drop_nulls()
            .with_columns(pl.col("anchor").cast(pl.Enum(wanted)))
            .group_by("anchor")
            .agg(pl.col("place").filter(pl.col("place").ne_missing(pl.col("place").shift())))
        )
        places = dict(zip(found["anchor"], found["place"], strict=True))
    for candidate in candidates:
        if not candidate.anchor:  # free text: what stands behind another head would be met for nothing
            yield candidate, table.filter(pl.col("_kind") & candidate.prefix_bit > 0) if candidate.prefix_bit else table
        elif candidate.anchor in places:
            yield candidate, table[places[candidate.anchor]]
