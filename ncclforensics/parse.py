"""Lines times shapes: typed rows, and every line counted exactly once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import polars as pl

from ncclforensics.grammar import FORM, Pattern, Shape
from ncclforensics.lines import cleaned

DEPTH = 4  # lines that one physical line may be torn together from


COUNTS = ("recognised", "application", "unrecognised", "damaged")


NO_TALLY = pl.DataFrame(schema={"source": pl.Int32(), **dict.fromkeys(COUNTS, pl.Int64())})
_NO_HOSTS = pl.DataFrame(schema={"source": pl.Int32(), "host": pl.String()})


@dataclass(slots=True)
class Parsed:
    """What became of some lines: frame name -> rows, and per source the count of lines of each of the four kinds."""

    frames: dict[str, list[pl.DataFrame]]
    tally: pl.DataFrame
    hosts: pl.DataFrame  # columns `source`, `host`: who stands at the beginning of a line


@dataclass(frozen=True)
class Language:
    """The shapes to look for, in the order of trial, and how a line of this kind begins."""

    shapes: tuple[Shape, ...]
    opening: str  # regex of a line's beginning, to find lines buried in others
    catch_all: str  # the frame whose rows count as unrecognised
    counter: str  # the column of the first shape that differs in lines that are otherwise the same

    @cached_property
    def trials(self) -> list[tuple[Shape, Pattern]]:
        """Every pattern, most important shape first."""
        ordered = sorted(self.shapes, key=lambda shape: -shape.priority)
        return [(shape, pattern) for shape in ordered for pattern in shape.patterns]


def sift(rows: pl.DataFrame, language: Language) -> tuple[Parsed, pl.DataFrame]:
    """Take out the lines of the commonest form, which are nearly all there is in a long log; and give back the others.

    A training loop prints the same calls again and again, and only a counter in them grows. So every line is cut before
    and behind the counter, and the pattern is applied once to all the lines that have the same two ends: more than
    twice as fast as applying it to every line.
    """
    shape, pattern = language.trials[0]
    cut = _cut_at_counter(rows, pattern, language.counter)
    first = cut["first"]
    is_model = cut["seat"] == first
    models = cut.filter(is_model)
    fields = models["text"].str.extract_groups(pattern.regex).struct.unnest()
    is_known = (fields[language.counter] == models["counter"]).fill_null(False)
    if not is_known.any():
        return Parsed({}, NO_TALLY, _NO_HOSTS), rows
    typed = _typed(models, fields, shape, pattern).drop("source", "line", language.counter)
    typed = typed.select(column for column in typed if column.null_count() < column.len())
    model = (is_model.cum_sum() - 1).gather(first)  # the row of `models` that a line is like
    is_like = is_known.gather(model)
    counter = shape.columns[language.counter].cast(pl.col("counter")).alias(language.counter)
    known = cut.select("row", "source", "line", counter).hstack(typed.select(pl.all().gather(model)).get_columns())
    known = known if is_like.all() else known.filter(is_like)
    rest = rows.clear()
    if known.height < rows.height:
        rest = rows.filter(~pl.int_range(rows.height, dtype=pl.UInt32, eager=True).is_in(known["row"].implode()))
    known = known.drop("row")
    counts = known.group_by("source").agg(recognised=pl.len().cast(pl.Int64))
    none = [pl.lit(0, dtype=pl.Int64).alias(name) for name in COUNTS[1:]]
    return Parsed({shape.frame: [known]}, counts.with_columns(none).select("source", *COUNTS), _hosts(known)), rest


def _cut_at_counter(rows: pl.DataFrame, pattern: Pattern, column: str) -> pl.DataFrame:
    """The lines that may match, cut around the counter; `first` is the first of them with the same text around it."""
    before, counter, behind = pattern.between[column]
    text, start, stop = pl.col("text"), pl.col("start"), pl.col("stop")
    # Offsets are bytes, slices are characters: the same in ASCII, and the pattern knows nothing else.
    is_candidate = text.str.len_bytes() == text.str.len_chars()
    if pattern.is_open:
        is_candidate &= ~pl.col("cut")
    return (
        rows.with_row_index("row")
        .filter(is_candidate)
        .with_columns(
            start=text.str.find(before, literal=True) + len(before),
            stop=text.str.find(behind, literal=True),
        )
        .with_columns(
            counter=text.str.slice(start, stop - start),
            left=text.str.head(start),
            right=text.str.slice(stop),
        )
        .filter(pl.col("counter").str.contains(f"^(?:{counter})$"))
        .with_row_index("seat")
        .with_columns(first=pl.col("seat").first().over("left", "right"))
    )


def parse(rows: pl.DataFrame, language: Language, hosts: pl.DataFrame | None = None) -> Parsed:
    """Apply the shapes to lines (columns as in `lines.SCHEMA`), of one source or of many.

    `hosts`: who else is known to stand at the beginning of a line (columns `source`, `host`).
    """
    frames: dict[str, list[pl.DataFrame]] = {}
    rows = cleaned(rows)
    crowded = pl.col("text").str.count_matches(language.opening) > 1  # two lines have become one
    known, unknown = _apply(rows.with_columns(crowded=crowded), language.trials, language, frames)
    beginnings = _hosts(known)
    for _ in range(DEPTH):
        everyone = pl.concat([_hosts(known), *([] if hosts is None else [hosts])])
        pieces = _pieces(unknown, language.opening, everyone)
        if pieces.is_empty():
            break
        more, unknown = _apply(pieces.with_columns(crowded=crowded), language.trials, language, frames)
        known = pl.concat([known, more])
    return Parsed(frames, _tally(rows, known, language.opening), beginnings)


def _hosts(known: pl.DataFrame) -> pl.DataFrame:
    return known.select("source", "host").drop_nulls().unique().cast({"host": pl.String})


_KNOWN = {"source": pl.Int32(), "line": pl.Int32(), "caught": pl.Boolean(), "host": pl.String()}


def _apply(
    rows: pl.DataFrame,
    trials: list[tuple[Shape, Pattern]],
    language: Language,
    frames: dict[str, list[pl.DataFrame]],
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The rows that some shape knows (`caught`: only by the catch-all), and the rows that none knows."""
    known = [pl.DataFrame(schema=_KNOWN)]
    for shape, pattern in trials:
        if rows.is_empty():
            break
        has_anchor = rows["text"].str.contains(pattern.anchor, literal=True)
        candidates = rows.filter(has_anchor)
        if candidates.is_empty():
            continue
        fields = candidates["text"].str.extract_groups(pattern.regex).struct.unnest()
        hit = fields.select(pl.any_horizontal(pl.all().is_not_null())).to_series()
        if pattern.is_greedy:  # free text may have swallowed the line that was torn into this one
            hit &= ~candidates["crowded"]
        if pattern.is_open:  # the value that ends the line may be cut itself
            hit &= ~candidates["cut"]
        rows = rows.filter(~has_anchor) if hit.all() else pl.concat([rows.filter(~has_anchor), candidates.filter(~hit)])
        if not hit.any():
            continue
        if not hit.all():
            candidates, fields = candidates.filter(hit), fields.filter(hit)
        typed = _typed(candidates, fields, shape, pattern)
        is_caught = shape.frame == language.catch_all
        frames.setdefault(shape.frame, []).append(_speakers(typed) if is_caught else typed)
        host = pl.col("host").cast(pl.String) if "host" in typed.columns else None
        known.append(typed.select("source", "line", caught=pl.lit(is_caught), host=host))
    return pl.concat(known), rows


def _typed(rows: pl.DataFrame, fields: pl.DataFrame, shape: Shape, pattern: Pattern) -> pl.DataFrame:
    return fields.select(
        rows["source"],
        rows["line"],
        pl.lit(pattern.form).cast(pl.Categorical).alias(FORM),
        *(shape.columns[name].cast(pl.col(name)).alias(name) for name in pattern.columns),
    )


def _speakers(caught: pl.DataFrame) -> pl.DataFrame:
    """Of lines that only the catch-all knows, just who said them: the first and the last line of every process."""
    process = caught.group_by("source", "host", "pid")
    ends = [process.agg(pl.col("line").min()), process.agg(pl.col("line").max())]
    return pl.concat(ends).unique()


def _pieces(rows: pl.DataFrame, opening: str, hosts: pl.DataFrame) -> pl.DataFrame:
    """The lines that are buried in other lines: behind text of any kind, or behind a line that was cut.

    Where two lines were torn into one, the end of the first may have grown onto the host name of the second: such a
    piece is kept only with a host that stands at the beginning of some line of the same source.
    """
    buried = rows.filter(pl.col("text").str.contains(opening))
    if buried.is_empty():
        return buried
    parts = pl.col("text").str.extract_groups(f"^(?P<first>.*?)(?P<second>{opening}.*)$").struct
    halves = pl.col("text").str.extract_groups(f"^(?P<first>{opening}.*?)(?P<second>{opening}.*)$").struct
    at_start = pl.col("text").str.contains(f"^{opening}")
    is_torn = pl.col("is_torn")
    split = (
        buried.with_columns(is_torn=at_start)
        .with_columns(second=pl.when(is_torn).then(halves.field("second")).otherwise(parts.field("second")))
        .filter(pl.col("second").is_not_null())
        .with_row_index("piece")
    )
    at_beginning = split.filter("is_torn").select("source", host=pl.col("text").str.extract("([^:]+):[0-9]+:"))
    hosts = pl.concat([hosts, at_beginning]).drop_nulls().unique()
    whole = (
        split.select("piece", "source", "second", grown=pl.col("second").str.split(":").list.first())
        .join(hosts, on="source")
        .filter(pl.col("grown").str.ends_with(pl.col("host")))
        .sort(pl.col("host").str.len_bytes(), descending=True)
        .unique("piece", keep="first", maintain_order=True)
        .select("piece", whole=pl.col("second").str.tail(_length("second") - _length("grown") + _length("host")))
    )
    split = split.join(whole, on="piece", how="left", maintain_order="left")
    before = pl.col("text").str.head(_length("text") - _length(pl.coalesce("whole", "second")))
    first = split.filter(is_torn).with_columns(text=before, cut=True)
    second = split.with_columns(text=pl.when(is_torn).then("whole").otherwise(pl.coalesce("whole", "second")))
    return pl.concat([first, second.drop_nulls("text")]).select(rows.columns)


def _length(text: str | pl.Expr) -> pl.Expr:
    column = pl.col(text) if isinstance(text, str) else text
    return column.str.len_chars().cast(pl.Int64)


def _tally(rows: pl.DataFrame, known: pl.DataFrame, opening: str) -> pl.DataFrame:
    """Every physical line counted once. Columns `source` and COUNTS."""
    recognised = known.filter(~pl.col("caught")).select("source", "line").unique()
    caught = known.filter(pl.col("caught")).select("source", "line", caught=True).unique()
    rest = rows.join(recognised, on=["source", "line"], how="anti").join(caught, on=["source", "line"], how="left")
    is_caught = pl.col("caught").is_not_null() & ~pl.col("cut")
    shattered = pl.col("damaged") | pl.col("text").str.contains(opening)
    counted = rest.group_by("source").agg(
        unrecognised=is_caught.sum().cast(pl.Int64),
        damaged=(~is_caught & shattered).sum().cast(pl.Int64),
        application=(~is_caught & ~shattered).sum().cast(pl.Int64),
    )
    known_lines = recognised.group_by("source").agg(recognised=pl.len().cast(pl.Int64))
    both = known_lines.join(counted, on="source", how="full", coalesce=True)
    return both.select("source", *COUNTS).fill_null(0)
