"""Lines times shapes: typed rows, and every line counted exactly once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from typing import cast

import polars as pl

from ncclforensics.grammar import FORM, Base, Pattern, Shape
from ncclforensics.lines import cleaned

DEPTH = 4  # lines that one physical line may be torn together from, and decorations in front of a line
SAMPLED = 400  # lines at each end that tell how a source is decorated
SOME, NEARLY_ALL = 0.05, 0.8  # of the lines of a sample
REST = "rest"  # the column that holds what stands behind a decoration

COUNTS = ("recognised", "application", "unrecognised", "damaged")


NO_TALLY = pl.DataFrame(schema={"source": pl.Int32(), **dict.fromkeys(COUNTS, pl.Int64())})
# Lines of a window at the end of a file count from its end and make a stretch of their own.
SPEAKER = {
    "source": pl.Int32(),
    "host": pl.Categorical(),
    "pid": pl.Int32(),
    "lines": pl.Int64(),
    "line": pl.Int32(),  # the first
    "last": pl.Int32(),
    "launcher_ranks": pl.List(pl.Int32()),
}
_NO_HOSTS = pl.DataFrame(schema={"source": pl.Int32(), "host": pl.String()})


@dataclass(slots=True)
class Parsed:
    """What became of some lines: frame name -> rows, and per source the count of lines of each of the four kinds."""

    frames: dict[str, list[pl.DataFrame]]
    tally: pl.DataFrame
    hosts: pl.DataFrame  # columns `source`, `host`: who stands at the beginning of a line
    speakers: pl.DataFrame  # columns SPEAKER: the stretches of a source in which a process speaks


@dataclass(frozen=True)
class Language:
    """The shapes to look for, in the order of trial, and how a line of this kind begins."""

    shapes: tuple[Shape, ...]
    opening: str  # regex of a line's beginning, to find lines buried in others
    catch_all: str  # the frame whose rows count as unrecognised
    counter: str  # the column of the first shape that differs in lines that are otherwise the same
    decorations: tuple[Shape, ...]  # what may stand in front of a line, put there by others

    @cached_property
    def trials(self) -> list[tuple[Shape, Pattern]]:
        """Every pattern, most important shape first."""
        ordered = sorted(self.shapes, key=lambda shape: -shape.priority)
        return [(shape, pattern) for shape in ordered for pattern in shape.patterns]

    @cached_property
    def anchors(self) -> list[str]:
        """What a line must contain to meet any pattern at all."""
        return sorted({pattern.anchor for _, pattern in self.trials})

    @cached_property
    def labels(self) -> dict[str, Base]:
        """What a decoration tells: columns that the rows of every frame may have."""
        columns = {name: base for shape in self.decorations for name, base in shape.columns.items()}
        return {name: base for name, base in columns.items() if name != REST}


def decorations(sample: pl.DataFrame, language: Language) -> tuple[Pattern, ...]:
    """What stands in front of the lines of one source, outermost first, judged by lines of its beginning and end.

    A shape that may be something else (priority -1) is believed only where nearly all lines have it, and one that is
    hardly a shape (-2) only where nearly all lines of ours stand behind it: `INFO: ` is no host name.
    """
    found: list[Pattern] = []
    sample = pl.concat([sample.head(SAMPLED), sample.tail(SAMPLED)])
    while len(found) < DEPTH:
        sample = sample.filter(pl.col("text") != "")
        is_ours = sample["text"].str.contains(language.opening)
        if is_ours.any() and sample["text"].filter(is_ours).str.contains(f"^(?:{language.opening})").all():
            break  # bare
        likely: list[tuple[float, Pattern]] = []
        for shape in language.decorations:
            for pattern in shape.patterns:
                fields = sample["text"].str.extract_groups(pattern.regex).struct.unnest()
                has_it = _is_hit(fields)
                share = float(cast(float, has_it.mean() or 0))
                of_ours = float(cast(float, has_it.filter(is_ours).mean() or 0))
                if max(share if shape.priority >= -1 else 0, of_ours) >= (SOME if shape.priority >= 0 else NEARLY_ALL):
                    likely.append((share, pattern))
        if not likely:
            break
        found.append(max(likely, key=itemgetter(0))[1])
        sample = peeled(sample, language, found[-1:])
    return tuple(found)


def peeled(rows: pl.DataFrame, language: Language, patterns: Iterable[Pattern]) -> pl.DataFrame:
    """The lines without what stands in front of them; what it says is kept (columns: some of `language.labels`)."""
    for pattern in patterns:
        fields = rows["text"].str.extract_groups(pattern.regex).struct.unnest()
        bare = pl.when(_is_hit(fields)).then(fields[REST].fill_null("")).otherwise(rows["text"])
        labels = fields.select(base.cast(pl.col(name)) for name, base in language.labels.items() if name in fields)
        # The inner of two is the one that the program itself was started by.
        known = [pl.coalesce(label, label.name) if label.name in rows else label for label in labels]
        rows = rows.with_columns(*known, text=bare)
    return rows


def _is_hit(fields: pl.DataFrame) -> pl.Series:
    return fields.select(pl.any_horizontal(pl.all().is_not_null())).to_series()


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
        return Parsed({}, NO_TALLY, _NO_HOSTS, _speakers(rows.clear())), rows
    typed = _typed(models, fields, language, shape, pattern).drop(
        "source", "line", language.counter, *_labels(models, language)
    )
    typed = typed.select(column for column in typed if column.null_count() < column.len())
    model = (is_model.cum_sum() - 1).gather(first)  # the row of `models` that a line is like
    is_like = is_known.gather(model)
    counter = shape.columns[language.counter].cast(pl.col("counter")).alias(language.counter)
    known = cut.select("row", "source", "line", *_labels(cut, language), counter).hstack(
        typed.select(pl.all().gather(model)).get_columns()
    )
    known = known if is_like.all() else known.filter(is_like)
    rest = rows.clear()
    if known.height < rows.height:
        rest = rows.filter(~pl.int_range(rows.height, dtype=pl.UInt32, eager=True).is_in(known["row"].implode()))
    known = known.drop("row")
    counts = known.group_by("source").agg(recognised=pl.len().cast(pl.Int64))
    none = [pl.lit(0, dtype=pl.Int64).alias(name) for name in COUNTS[1:]]
    tally = counts.with_columns(none).select("source", *COUNTS)
    return Parsed({shape.frame: [known]}, tally, _hosts(known), _speakers(known)), rest


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
        .filter(text.str.contains(before, literal=True))
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
    whole, unknown = _apply(rows.with_columns(crowded=_crowded(rows, language)), language, frames)
    beginnings, torn, pieces = _hosts(whole), [whole.clear()], unknown
    for _ in range(DEPTH):
        everyone = pl.concat([_hosts(whole), *map(_hosts, torn), *([] if hosts is None else [hosts])])
        pieces = _pieces(pieces, language.opening, everyone)
        if pieces.is_empty():
            break
        more, pieces = _apply(pieces.with_columns(crowded=_crowded(pieces, language)), language, frames)
        torn.append(more)
    tally = _tally(whole, unknown, pl.concat(torn), language.opening)
    return Parsed(frames, tally, beginnings, _speakers(pl.concat([whole, *torn])))


def _labels(rows: pl.DataFrame, language: Language) -> list[str]:
    return [name for name in rows.columns if name in language.labels]


def _crowded(rows: pl.DataFrame, language: Language) -> pl.Series:
    """Whether two lines have become one."""
    return rows["text"].str.count_matches(language.opening) > 1


def _hosts(known: pl.DataFrame) -> pl.DataFrame:
    return known.select("source", "host").drop_nulls().unique().cast({"host": pl.String})


_KNOWN = {
    "source": pl.Int32(),
    "line": pl.Int32(),
    "host": pl.Categorical(),
    "pid": pl.Int32(),
    "launcher_rank": pl.Int32(),
    "caught": pl.Boolean(),
    "cut": pl.Boolean(),
}


def _apply(
    rows: pl.DataFrame, language: Language, frames: dict[str, list[pl.DataFrame]]
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The rows that some shape knows (`caught`: only by the catch-all), and the rows that none knows."""
    known = [pl.DataFrame(schema=_KNOWN)]
    is_unknown = pl.repeat(True, rows.height, eager=True)
    lines_with = _lines_with(rows["text"], language.anchors)
    for shape, pattern in language.trials:
        seats = lines_with.get(pattern.anchor)
        if seats is None:
            continue
        seats = seats.filter(is_unknown.gather(seats))
        if seats.is_empty():
            continue
        candidates = rows[seats]
        fields = candidates["text"].str.extract_groups(pattern.regex).struct.unnest()
        hit = _is_hit(fields)
        if pattern.is_greedy:  # free text may have swallowed the line that was torn into this one
            hit &= ~candidates["crowded"]
        if pattern.is_open:  # the value that ends the line may be cut itself
            hit &= ~candidates["cut"]
        if not hit.any():
            continue
        if not hit.all():
            candidates, fields, seats = candidates.filter(hit), fields.filter(hit), seats.filter(hit)
        is_unknown = is_unknown.scatter(seats, False)
        typed = _typed(candidates, fields, language, shape, pattern)
        is_caught = shape.frame == language.catch_all
        if not is_caught:
            frames.setdefault(shape.frame, []).append(typed)
        known.append(_identified(typed).with_columns(caught=pl.lit(is_caught), cut=candidates["cut"]))
    return pl.concat(known), rows.filter(is_unknown)


def _lines_with(text: pl.Series, anchors: Sequence[str]) -> dict[str, pl.Series]:
    """Anchor -> the places of the texts that contain it. All anchors are searched for at once."""
    places = (
        text.str.extract_many(list(anchors), overlapping=True)
        .to_frame("anchor")
        .with_row_index("place")
        .explode("anchor")
        .drop_nulls()
        .with_columns(pl.col("anchor").cast(pl.Enum(anchors)))
        .group_by("anchor")
        .agg(pl.col("place").filter(pl.col("place").ne_missing(pl.col("place").shift())))
    )
    return dict(zip(places["anchor"], places["place"], strict=True))


def _typed(
    rows: pl.DataFrame, fields: pl.DataFrame, language: Language, shape: Shape, pattern: Pattern
) -> pl.DataFrame:
    return fields.select(
        rows["source"],
        rows["line"],
        *rows.select(_labels(rows, language)),
        pl.lit(pattern.form).cast(pl.Categorical).alias(FORM),
        *(shape.columns[name].cast(pl.col(name)).alias(name) for name in pattern.columns),
    )


def _identified(typed: pl.DataFrame) -> pl.DataFrame:
    """Who says a line: the columns of _KNOWN but for the last two; null where a frame has none."""
    return typed.select(
        pl.col(name) if name in typed.columns else pl.lit(None, dtype=dtype).alias(name)
        for name, dtype in _KNOWN.items()
        if name not in ("caught", "cut")
    )


def _speakers(rows: pl.DataFrame) -> pl.DataFrame:
    return (
        _identified(rows)
        .filter(pl.col("host").is_not_null())
        .group_by("source", "host", "pid", is_from_end=pl.col("line") < 0)
        .agg(
            lines=pl.len().cast(pl.Int64),
            line=pl.col("line").min(),
            last=pl.col("line").max(),
            launcher_ranks=pl.col("launcher_rank").drop_nulls().unique(),
        )
        .select(pl.col(name).cast(dtype) for name, dtype in SPEAKER.items())
    )


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


def _tally(whole: pl.DataFrame, unknown: pl.DataFrame, torn: pl.DataFrame, opening: str) -> pl.DataFrame:
    """Every physical line counted once. Columns `source` and COUNTS.

    `whole`: the lines known as they stand; `unknown`: all others; `torn`: what was found inside of those.
    """
    place = ["source", "line"]
    recognised = torn.filter(~pl.col("caught")).select(*place, recognised=True).unique()
    caught = torn.filter("caught").select(*place, caught=True).unique()
    rest = unknown.join(recognised, on=place, how="left").join(caught, on=place, how="left")
    is_recognised = pl.col("recognised").fill_null(False)
    is_caught = pl.col("caught").fill_null(False) & ~pl.col("cut") & ~is_recognised
    is_shattered = pl.col("damaged") | pl.col("text").str.contains(opening)
    is_lost = ~is_recognised & ~is_caught
    both = [
        whole.select(
            "source",
            recognised=~pl.col("caught"),
            unrecognised=pl.col("caught") & ~pl.col("cut"),
            damaged=pl.col("caught") & pl.col("cut"),
            application=pl.lit(False),
        ),
        rest.select(
            "source",
            recognised=is_recognised,
            unrecognised=is_caught,
            damaged=is_lost & is_shattered,
            application=is_lost & ~is_shattered,
        ),
    ]
    counted = pl.concat(both).group_by("source").agg(pl.col(COUNTS).sum().cast(pl.Int64))
    return counted.select("source", *COUNTS)
