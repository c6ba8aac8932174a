"""Apply patterns to texts: the beginning of a text, or a literal that a pattern requires, selects which are tried."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import groupby
from typing import NamedTuple

import polars as pl

from ncclforensics.grammar.dialect import FEW, FIELDS, MIN_START, Candidate, Dialect, words_in
from ncclforensics.grammar.patterns import may_match

KEY = 20  # characters of a body by which it is looked up
MANY = 50_000  # texts matched at once
LAST = "\U0010ffff"
AS_WRITTEN = pl.QueryOptFlags.none()


class Hits(NamedTuple):
    """The texts that match a candidate: their row numbers, and a row of values for each."""

    candidate: Candidate
    places: pl.Series
    values: pl.DataFrame


def find_hits(models: pl.DataFrame, is_free: pl.Series, dialect: Dialect, *, has_prefix: bool) -> list[Hits]:
    """Match texts (columns `body`, `kind`, `cut`) with candidates where `is_free`, which is cleared for those found."""
    found = list(_hits_as_written(models, is_free, dialect, has_prefix=has_prefix))
    return _without_padding(found, models, dialect) if has_prefix else found


def contains_prefix(texts: pl.Series, dialect: Dialect) -> pl.Series:
    """Whether a prefix occurs somewhere in a text."""
    is_marked = texts.str.contains(dialect.prefix_marker, literal=True)
    marked = is_marked.arg_true()
    return (
        is_marked.scatter(marked, texts.gather(marked).str.contains(dialect.prefix_regex))
        if marked.len()
        else is_marked
    )


def _hits_as_written(models: pl.DataFrame, is_free: pl.Series, dialect: Dialect, *, has_prefix: bool) -> Iterator[Hits]:
    """Yield the texts of each candidate; the first candidate that matches gets the text."""
    numbers = pl.int_range(models.height, dtype=pl.UInt32, eager=True)
    has_inner_prefix = contains_prefix(models["body"], dialect)
    table = models.select(_number=numbers, _kind="kind", _cut="cut", _has_inner_prefix=has_inner_prefix, _text="body")
    if has_prefix:
        yield from _apply(_by_start(table, dialect.by_start), is_free)
    for alike, words in _groups(dialect, has_prefix=has_prefix):
        if not is_free.any():
            break
        yield from _apply(_by_words(table.filter(is_free), alike, words), is_free)


@cache
def _groups(dialect: Dialect, *, has_prefix: bool) -> list[tuple[list[Candidate], list[str]]]:
    """The candidates that no literal start selects, by priority, and the words of which each requires one."""
    others = dialect.by_anchor if has_prefix else dialect.without_prefix
    groups = [list(alike) for _, alike in groupby(others, key=lambda candidate: candidate.shape.priority)]
    return [(alike, sorted({word for candidate in alike for word in candidate.words} - {""})) for alike in groups]


def _without_padding(found: list[Hits], models: pl.DataFrame, dialect: Dialect) -> list[Hits]:
    """Match again, without the blanks at their end, texts that only shapes for lines of any text matched.

    Screens, pages and spreadsheets fill lines with blanks; NCCL itself ends lines of some shapes with one.
    """
    general = [hits for hits in found if hits.candidate.shape.priority < 0]
    places = pl.concat([pl.Series(dtype=pl.UInt32), *(hits.places for hits in general)])
    padded = places.filter(models["body"][places].str.ends_with(" "))
    if padded.is_empty():
        return found
    without_blanks = models[padded].with_columns(pl.col("body").str.strip_chars_end(" "))
    is_free = pl.repeat(True, padded.len(), eager=True)
    order = pl.repeat(0, models.height, dtype=pl.UInt32, eager=True)
    for hits in general:
        order.scatter(hits.places, hits.candidate.number)
    again = []
    for hits in _hits_as_written(without_blanks, is_free, dialect, has_prefix=True):
        moved = Hits(hits.candidate, padded[hits.places], hits.values)
        again.append(_only(moved, order[moved.places] > hits.candidate.number))
    is_matched = pl.repeat(False, models.height, eager=True)
    for hits in again:
        is_matched.scatter(hits.places, True)
    still = [_only(hits, ~is_matched[hits.places]) for hits in general]
    return [*(hits for hits in found if hits.candidate.shape.priority >= 0), *still, *again]


def _only(hits: Hits, is_wanted: pl.Series) -> Hits:
    """Return the hits of some texts (`is_wanted`, one value for each text)."""
    values = hits.values.filter(is_wanted) if hits.values.width else hits.values
    return Hits(hits.candidate, hits.places.filter(is_wanted), values)


def _apply(attempts: Iterable[tuple[Candidate, pl.DataFrame]], is_free: pl.Series) -> Iterator[Hits]:
    """Apply candidates to the texts selected for them; of several that match a text, the first one gets it.

    Many candidates are applied in one call, because starting Polars takes longer than matching; but to no more than
    MANY texts, because the results stay in memory until then. `is_free` is cleared for texts that matched.
    """
    for portion in _in_portions(attempts):
        if len(portion) == 1:  # of many texts, others before may have matched most
            candidate, part = portion[0]
            portion = [(candidate, part.filter(is_free[part["_number"]]))]
        tables = pl.collect_all([_attempt(candidate, part) for candidate, part in portion], optimizations=AS_WRITTEN)
        for (candidate, _), values in zip(portion, tables, strict=True):
            free = is_free[values["_number"]]
            own = values if free.all() else values.filter(free)
            if own.height:
                numbers = own.drop_in_place("_number")
                is_free.scatter(numbers, False)
                yield Hits(candidate, numbers, own.select(column for column in own if column.null_count() < own.height))


def _in_portions(attempts: Iterable[tuple[Candidate, pl.DataFrame]]) -> Iterator[list[tuple[Candidate, pl.DataFrame]]]:
    """Group attempts in their order so that each group matches up to MANY texts, and has at least one attempt."""
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
    """The texts that match a candidate: its columns, and `_number`."""
    plan = part.lazy()
    if not all(candidate.anchor in start for start in candidate.starts):  # a pattern that fails takes ten times as long
        plan = plan.filter(pl.col("_text").str.contains(candidate.anchor, literal=True))
    return (
        plan.with_columns(candidate.fields)
        .unnest(FIELDS)
        .filter(candidate.is_match)
        .select("_number", *candidate.typed)
    )


def _by_start(table: pl.DataFrame, candidates: Sequence[Candidate]) -> Iterator[tuple[Candidate, pl.DataFrame]]:
    """Yield candidates with the texts that have one of their literal starts, found by bisection in sorted texts."""
    groups = (
        table.select("_number", key=pl.col("_text").str.head(KEY))
        .group_by("key")
        .agg("_number", count=pl.len())
        .sort("key")
    )
    keys = groups["key"].to_list()
    ends = [0, *groups["count"].cum_sum()]
    in_order = table[groups["_number"].explode()]
    for candidate in candidates:
        rows = []
        for start in candidate.starts:
            low, high = bisect_left(keys, start[:KEY]), bisect_left(keys, start[:KEY] + LAST)
            if low < high:
                rows.append(in_order.slice(ends[low], ends[high] - ends[low]))
        if rows and _may_match(rows, candidate):
            yield candidate, rows[0] if len(rows) == 1 else pl.concat(rows)


def _fills_lines(word: str) -> bool:
    """Whether a text may stand dozens of times in a line, as blanks do, and dots between a name and its value."""
    return len(word) < MIN_START or word in (word + word)[1:-1]


def _may_match(parts: list[pl.DataFrame], candidate: Candidate) -> bool:
    """Whether a text has the literals that the candidate requires; of many texts, some may."""
    if sum(part.height for part in parts) > FEW:
        return True
    return any(may_match(text, candidate.literals, candidate.words) for part in parts for text in part["_text"])


def _by_words(
    table: pl.DataFrame, candidates: Sequence[Candidate], words: Sequence[str]
) -> Iterator[tuple[Candidate, pl.DataFrame]]:
    """Yield candidates with the texts that have a word they require."""
    places = _places_of(table, words)
    for candidate in candidates:
        if "" not in candidate.words:
            met = [places[word] for word in candidate.words if word in places]
            part = table[met[0] if len(met) == 1 else pl.concat(met).unique().sort()] if met else None
        elif candidate.prefix_bit:  # free text: matches only after its own prefix
            part = table.filter(pl.col("_kind") & candidate.prefix_bit > 0)
        else:
            part = table
        if part is not None and _may_match([part], candidate):
            yield candidate, part


def _places_of(table: pl.DataFrame, words: Sequence[str]) -> dict[str, pl.Series]:
    """The numbers of the texts in which each of these words stands, if any; words are searched for in one pass."""
    wanted = words_in(table["_text"], words)
    if table.height <= FEW:
        texts = table["_text"].to_list()
        stand = {word: [number for number, text in enumerate(texts) if word in text] for word in wanted}
        return {word: pl.Series(numbers, dtype=pl.UInt32) for word, numbers in stand.items() if numbers}
    common = [word for word in wanted if _fills_lines(word)]
    rare = [word for word in wanted if not _fills_lines(word)]
    stands = table.select(pl.col("_text").str.contains(word, literal=True).alias(word) for word in common)
    places = {column.name: column.arg_true() for column in stands if column.any()}
    if rare:
        found = [
            part.select(word=pl.col("_text").str.extract_many(rare, overlapping=True))
            .with_row_index("place", offset=number * MANY)
            .explode("word")
            .drop_nulls()
            .with_columns(pl.col("word").cast(pl.Enum(rare)))
            for number, part in enumerate(table.iter_slices(MANY))
        ]
        first = pl.col("place").filter(pl.col("place").ne_missing(pl.col("place").shift()))
        rows = pl.concat(found).group_by("word").agg(first)
        places |= dict(zip(rows["word"], rows["place"], strict=True))
    return places
