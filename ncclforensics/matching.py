"""Texts times trials: which alternative has each line, and the values it finds in it.

Lines of a log repeat, but for who says them. So a line is cut behind its head (`host:pid:tid [dev] NCCL INFO `); heads
are parsed once each, what stands behind them once each, and both are put together again. How a text begins, or a
literal that it must contain, tells which patterns it meets at all.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import polars as pl

from ncclforensics.grammar import FORM
from ncclforensics.language import Language, Trial, anchors
from ncclforensics.lines import cleaned, is_strange

# A group that is empty, at the end of a pattern: not null if it matched, whatever columns it has.
HIT = "_hit"
KEY = 12  # characters by which texts are sorted; Polars keeps as many without a pointer
LAST = "\U0010ffff"
NONE = -1

KNOWN = {
    "source": pl.Int32(),
    "line": pl.Int32(),
    "host": pl.Categorical(),
    "pid": pl.Int32(),
    "launcher_rank": pl.Int32(),
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
class _Hits:
    """The texts that a trial has: their places, and a row of values for each."""

    trial: Trial
    places: pl.Series
    values: pl.DataFrame


def match(
    rows: pl.DataFrame, language: Language, frames: dict[str, list[pl.DataFrame]]
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Apply the shapes to lines, into `frames`. Gives the rows that some shape knows (KNOWN), and all others."""
    headed, heads, others = _cut(rows, language)
    known, unknown, dirty = _matched(headed, heads, language, frames, is_clean=False)
    headed, heads, others = _cut(cleaned(pl.concat([others, dirty])), language)
    late, more, _ = _matched(headed, heads, language, frames, is_clean=True)
    whole = others.with_columns(body="text", head=pl.lit(0, dtype=pl.UInt32), kind=pl.lit(0, dtype=pl.Int64))
    headless, rest, _ = _matched(whole, None, language, frames, is_clean=True)
    return pl.concat([known, late, headless]), pl.concat([unknown, more, rest])


def _cut(rows: pl.DataFrame, language: Language) -> tuple[pl.DataFrame, _Heads, pl.DataFrame]:
    """The lines with a head, and columns for it (`head`, its `kind`) and what is behind (`body`); all others."""
    text, start, mark = pl.col("text"), pl.col("start"), language.mark
    marked = rows.with_row_index("row").with_columns(start=text.str.find(mark, literal=True)).drop_nulls("start")
    if not marked.select((text.str.len_bytes() == text.str.len_chars()).all()).item():
        # Offsets are bytes, slices are characters.
        before = text.str.splitn(mark, 2).struct.field("field_0")
        marked = marked.with_columns(start=before.str.len_chars())
    marked = (
        marked.with_columns(stop=start + len(mark) + 1 + text.str.slice(start + len(mark)).str.find(" ", literal=True))
        .drop_nulls("stop")
        .with_columns(start=text.str.head(pl.col("stop")), body=text.str.slice(pl.col("stop")))
    )
    models, model = _distinct(marked.select("start"))
    heads = _parsed_heads(models["start"], language)
    headed = marked.with_columns(head=model, kind=heads.kinds.gather(model)).filter(pl.col("kind") > 0)
    is_other = pl.repeat(True, rows.height, eager=True).scatter(headed["row"], False)
    return headed.drop("row", "start", "stop"), heads, rows.filter(is_other)


def _distinct(rows: pl.DataFrame) -> tuple[pl.DataFrame, pl.Series]:
    """The rows that differ, and for every row the place of the one that it is like."""
    seats = pl.int_range(rows.height, dtype=pl.UInt32, eager=True)
    first = rows.select(seats.alias("_seat"), pl.all()).select(pl.col("_seat").first().over(rows.columns)).to_series()
    is_first = first == seats
    return rows.filter(is_first), (is_first.cum_sum() - 1).cast(pl.UInt32).gather(first)


def _parsed_heads(texts: pl.Series, language: Language) -> _Heads:
    kinds = pl.repeat(0, texts.len(), dtype=pl.Int64, eager=True)
    values = {}
    for bit, head in enumerate(language.heads):
        fields = _fields(texts, head.patterns[0].regex)
        kinds += fields[HIT].is_not_null().cast(pl.Int64) * (1 << bit)
        values[head.frame] = fields.select(base.cast(pl.col(name)).alias(name) for name, base in head.columns.items())
    who = pl.DataFrame(
        {name: _first_of([table[name] for table in values.values()]) for name in ("host", "pid")},
        schema={name: KNOWN[name] for name in ("host", "pid")},
    )
    return _Heads(kinds, values, who)


def _first_of(columns: Sequence[pl.Series]) -> pl.Series:
    """The first of some columns that is not null, in every row."""
    return pl.select(pl.coalesce(*columns)).to_series()


def _fields(texts: pl.Series, regex: str) -> pl.DataFrame:
    return texts.str.extract_groups(f"{regex.removesuffix('$')}(?P<{HIT}>)$").struct.unnest()


def _matched(
    rows: pl.DataFrame,
    heads: _Heads | None,
    language: Language,
    frames: dict[str, list[pl.DataFrame]],
    *,
    is_clean: bool,
) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """The rows that some shape knows, those that none knows, and those that have to be cleaned first."""
    plain = [name for name in rows.columns if name not in ("head", "kind", "body")]
    if rows.is_empty():
        return pl.DataFrame(schema=KNOWN), rows.select(plain), rows.select(plain)
    models, model = _distinct(rows.select("kind", "cut", "body"))
    is_dirty = pl.repeat(False, models.height, eager=True) if is_clean else is_strange(models["body"])
    hits = list(_hits(models, ~is_dirty, language, is_headed=heads is not None))
    owner = pl.repeat(NONE, models.height, dtype=pl.Int32, eager=True)
    place = pl.repeat(0, models.height, dtype=pl.UInt32, eager=True)
    for number, one in enumerate(hits):
        owner = owner.scatter(one.places, number)
        place = place.scatter(one.places, pl.int_range(one.places.len(), dtype=pl.UInt32, eager=True))
    labels = [name for name in rows.columns if name in language.labels]
    rows = rows.with_columns(owner=owner.gather(model), place=place.gather(model))
    left, dirty = rows.filter(pl.col("owner") == NONE), rows.clear()
    if is_dirty.any():
        needs = is_dirty.gather(model).filter(rows["owner"] == NONE)
        left, dirty = left.filter(~needs), left.filter(needs)
    owned = rows.filter(pl.col("owner") != NONE).sort("owner", maintain_order=True)
    start = 0
    for number, count in owned.group_by("owner", maintain_order=True).len().iter_rows():
        one, part = hits[number], owned.slice(start, count)
        start += count
        if one.trial.shape.frame == language.catch_all:
            continue
        columns = part.select("source", "line", *labels).with_columns(_form(one.trial))
        if heads is not None:
            head = heads.values[one.trial.head]
            columns = columns.hstack(head.select(pl.all().gather(part["head"])))
        if one.values.width:
            columns = columns.hstack(one.values.select(pl.all().gather(part["place"])))
        frames.setdefault(one.trial.shape.frame, []).append(columns)
    caught = [number for number, one in enumerate(hits) if one.trial.shape.frame == language.catch_all]
    who = owned.select("source", "line", "cut", *labels, caught=pl.col("owner").is_in(caught))
    if heads is not None:
        who = who.hstack(heads.who.select(pl.all().gather(owned["head"])))
    missing = [pl.lit(None, dtype=dtype).alias(name) for name, dtype in KNOWN.items() if name not in who.columns]
    return who.with_columns(missing).select(list(KNOWN)), left.select(plain), dirty.select(plain)


def _form(trial: Trial) -> pl.Expr:
    return pl.lit(trial.pattern.form).cast(pl.Categorical).alias(FORM)


def _hits(models: pl.DataFrame, is_free: pl.Series, language: Language, *, is_headed: bool) -> Iterator[_Hits]:
    """Every text goes to the first trial that has it (columns `body`, `kind`, `cut`)."""
    texts = models["body"]
    is_crowded = texts.str.contains(language.mark, literal=True)
    if is_crowded.any():
        is_crowded = is_crowded & texts.str.contains(language.opening)
    bits = {head.frame: 1 << bit for bit, head in enumerate(language.heads)}
    facts = models.select(
        _seat=pl.int_range(models.height, dtype=pl.UInt32, eager=True), _kind="kind", _cut="cut", _crowded=is_crowded
    )

    def tried(trial: Trial, seats: pl.Series) -> _Hits | None:
        nonlocal is_free
        seats = seats.filter(is_free.gather(seats))
        if seats.is_empty():
            return None
        found = facts[seats].hstack(_fields(texts.gather(seats), trial.regex))
        is_hit = pl.col(HIT).is_not_null()
        if is_headed:
            is_hit &= pl.col("_kind") & bits[trial.head] > 0
        if trial.pattern.is_greedy:  # free text may have swallowed the line that was torn into this one
            is_hit &= ~pl.col("_crowded")
        if trial.pattern.is_open:  # the value that ends the line may be cut itself
            is_hit &= ~pl.col("_cut")
        found = found.filter(is_hit)
        if found.is_empty():
            return None
        is_free = is_free.scatter(found["_seat"], False)
        values = found.select(trial.shape.columns[name].cast(pl.col(name)).alias(name) for name in trial.columns)
        return _Hits(trial, found["_seat"], values)

    if is_headed:
        for trial, seats in _by_start(texts, language.by_start):
            if hits := tried(trial, seats):
                yield hits
    for trial, seats in _by_anchor(texts, is_free, language.by_anchor if is_headed else language.headless):
        if hits := tried(trial, seats):
            yield hits


def _by_start(texts: pl.Series, trials: Sequence[Trial]) -> Iterator[tuple[Trial, pl.Series]]:
    """Trials with the places of the texts that begin as they do, all searched for at once in the sorted beginnings."""
    groups = (
        pl.DataFrame({"key": texts.str.head(KEY)})
        .with_row_index("place")
        .group_by("key")
        .agg("place", count=pl.len())
        .sort("key")
    )
    keys = groups["key"].to_list()
    ends = [0, *groups["count"].cum_sum()]
    places = groups["place"].explode()
    for trial in trials:
        found = []
        for start in trial.starts:
            low, high = bisect_left(keys, start[:KEY]), bisect_left(keys, start[:KEY] + LAST)
            if low < high:
                found.append(places.slice(ends[low], ends[high] - ends[low]))
        if found:
            yield trial, found[0] if len(found) == 1 else pl.concat(found)


def _by_anchor(texts: pl.Series, is_free: pl.Series, trials: Sequence[Trial]) -> Iterator[tuple[Trial, pl.Series]]:
    """Trials with the places of the texts that contain their anchor, all searched for at once."""
    free = is_free.arg_true()
    wanted = anchors(trials)
    found = (
        texts.gather(free)
        .str.extract_many(wanted, overlapping=True)
        .to_frame("anchor")
        .with_columns(place=free)
        .explode("anchor")
        .drop_nulls()
        .with_columns(pl.col("anchor").cast(pl.Enum(wanted)))
        .group_by("anchor")
        .agg(pl.col("place").filter(pl.col("place").ne_missing(pl.col("place").shift())))
    )
    places = {"": free, **dict(zip(found["anchor"], found["place"], strict=True))}
    for trial in trials:
        if trial.anchor in places:
            yield trial, places[trial.anchor]
