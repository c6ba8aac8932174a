"""Lines times shapes: typed rows, and every line counted exactly once."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from ncclforensics.grammar.dialect import Dialect
from ncclforensics.grammar.patterns import FORM, Pattern
from ncclforensics.parsing.concurrency import OrderedMap
from ncclforensics.parsing.matching import Matched, has_opening, match
from ncclforensics.parsing.templates import CALL_TEMPLATE, EncodedRows, distinct_rows

DEPTH = 4  # lines that one physical line may be torn together from

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
    "dropped": pl.Int64(),  # lines that a collector counted and did not pass on
    "dropped_line": pl.Int32(),  # the first line that says so
}
NO_HOSTS = pl.DataFrame(schema={"source": pl.Int32(), "host": pl.Categorical()})


@dataclass(slots=True)
class Parsed:
    """What became of some lines: frame name -> rows, and per source the count of lines of each of the four kinds."""

    frames: dict[str, list[pl.DataFrame]]
    tally: pl.DataFrame
    hosts: pl.DataFrame  # columns `source`, `host`: who stands at the beginning of a line
    speakers: pl.DataFrame  # columns SPEAKER: the stretches of a source in which a process speaks
    encoded: EncodedRows | None = None  # rows of the most frequent pattern


def parse_by_template(rows: pl.DataFrame, dialect: Dialect) -> tuple[Parsed, pl.DataFrame]:
    """Take out the lines of the commonest form, which are nearly all there is in a long log; and give back the others.

    A training loop prints the same calls again and again, and only a counter in them grows. So every line is cut before
    and behind the counter, and the pattern is applied once to all the lines that have the same two ends: more than
    twice as fast as applying it to every line.
    """
    shape, pattern = dialect.candidates[0].shape, dialect.candidates[0].pattern
    cut = _cut_at_counter(rows, pattern, dialect.counter)
    models, model = distinct_rows(cut, ["source", "left", "right"])
    fields = models["text"].str.extract_groups(pattern.regex).struct.unnest()
    is_known = (fields[dialect.counter] == models["counter"]).fill_null(False)
    if not is_known.any():
        return Parsed({}, NO_TALLY, NO_HOSTS, _speakers(rows.clear())), rows
    columns = [name for name in pattern.columns if name != dialect.counter]
    typed = fields.select(
        pl.lit(pattern.form).cast(pl.Categorical).alias(FORM),
        *(shape.columns[name].cast(pl.col(name)).alias(name) for name in columns),
    )
    typed = typed.select(column for column in typed if column.null_count() < column.len())
    said = models.select("source", "line").hstack(typed)
    if not is_known.all():
        is_like = is_known.gather(model)
        cut, model = cut.filter(is_like), (is_known.cum_sum() - 1).cast(pl.UInt32).gather(model.filter(is_like))
        said = said.filter(is_known)
    counter = shape.columns[dialect.counter].cast(pl.col("counter")).alias(dialect.counter)
    lines = cut.select("line", *_labels(cut, dialect), counter, call_template=model)
    rest = rows.clear()
    if lines.height < rows.height:
        is_other = pl.repeat(True, rows.height, eager=True).scatter(cut["row"], False)
        # A text that is filtered keeps the whole block that it stands in; a new one keeps itself alone.
        rest = rows.filter(is_other).with_columns(pl.col("text") + "")
    speakers = _speakers(lines, said)
    none = [pl.lit(0, dtype=pl.Int64).alias(name) for name in COUNTS[1:]]
    tally = (
        speakers.group_by("source").agg(pl.col("lines").sum()).select("source", pl.col("lines").alias(COUNTS[0]), *none)
    )
    return Parsed({}, tally, speakers.select("source", "host"), speakers, EncodedRows(said, lines)), rest


def _cut_at_counter(rows: pl.DataFrame, pattern: Pattern, column: str) -> pl.DataFrame:
    """The lines that may match, cut around the counter (columns `left`, `counter`, `right`)."""
    before, counter, behind = pattern.delimiters[column]
    text, start, stop = pl.col("text"), pl.col("start"), pl.col("stop")
    found = rows.with_row_index("row").with_columns(start=text.str.find(before, literal=True) + len(before))
    is_candidate = start.is_not_null() & ~pl.col("cut") if pattern.is_open else start.is_not_null()
    found = _only(found, is_candidate)
    data = text.cast(pl.Binary).bin  # where something was found is told in bytes
    found = found.with_columns(stop=text.str.find(behind, literal=True))
    number = data.slice(start, stop - start).cast(pl.String, strict=False)
    found = found.with_columns(left=data.head(start), counter=number, right=data.slice(stop))
    return _only(found, pl.col("counter").str.contains(f"^(?:{counter})$"))


def _only(rows: pl.DataFrame, condition: pl.Expr) -> pl.DataFrame:
    """The rows that fulfil a condition; as they are where all do, for to leave out nothing copies everything."""
    is_wanted = rows.select(condition).to_series()
    return rows if is_wanted.all(ignore_nulls=False) else rows.filter(is_wanted)


def parse(
    rows: pl.DataFrame,
    dialect: Dialect,
    hosts: pl.DataFrame | None = None,
    ordered_map: OrderedMap[pl.DataFrame, Matched] = map,
    parts: int = 1,
) -> Parsed:
    """Apply the shapes to lines (columns as in `lines.SCHEMA`), of one source or of many.

    `hosts`: who else is known to stand at the beginning of a line (columns `source`, `host`). `ordered_map`: applies
    a function to `parts` parts of the lines, perhaps in parallel.
    """
    length = max(-(-rows.height // parts), 1)
    matched = list(ordered_map(lambda part: match(part, dialect), list(rows.iter_slices(length)) or [rows]))
    whole, unknown = pl.concat([part.known for part in matched]), pl.concat([part.unknown for part in matched])
    beginnings = _hosts(whole)
    known = pl.concat([beginnings, *([] if hosts is None else [hosts])])
    torn = [match(_unpasted(unknown, dialect, _named(known)), dialect)]
    for _ in range(DEPTH):
        speaking = _named(pl.concat([known, *(_hosts(each.known) for each in torn)]))
        pieces = _pieces(torn[-1].unknown, dialect, speaking)
        if pieces.is_empty():
            break
        torn.append(match(pieces, dialect))
    inside = pl.concat([each.known for each in torn])
    frames: dict[str, list[pl.DataFrame]] = {}
    for part in (*matched, *torn):
        for name, found in part.frames.items():
            frames.setdefault(name, []).extend(found)
    tally = _tally(whole, unknown, inside, dialect)
    return Parsed(frames, tally, beginnings, _speakers(pl.concat([whole, inside])))


def _labels(rows: pl.DataFrame, dialect: Dialect) -> list[str]:
    return [name for name in rows.columns if name in dialect.labels]


def _hosts(known: pl.DataFrame) -> pl.DataFrame:
    return known.select("source", "host").drop_nulls().unique()


def _named(hosts: pl.DataFrame) -> pl.DataFrame:
    return hosts.unique().cast({"host": pl.String})


def _speakers(rows: pl.DataFrame, said: pl.DataFrame | None = None) -> pl.DataFrame:
    """The stretches of sources in which processes speak. `said`: who speaks, where rows only have its number there."""
    known = rows if said is None else said
    who = [name for name in ("source", "host", "pid") if name in known.columns]
    owners, owner = distinct_rows(known.select(who), who)
    place = (owner if said is None else owner.gather(rows[CALL_TEMPLATE])).cast(pl.Int64)
    told: dict[str, pl.Expr] = {}
    if "launcher_rank" in rows.columns:
        told["launcher_ranks"] = pl.col("launcher_rank").drop_nulls().unique()
    if "launcher_repeats" in rows.columns:
        told["dropped"] = pl.col("launcher_repeats").sum()
        told["dropped_line"] = pl.col("line").filter(pl.col("launcher_repeats").is_not_null()).min()
    stretch = (2 * place + (rows["line"] < 0)).alias("stretch")
    if stretch.is_sorted():  # most often: then nothing needs to be hashed, which takes twenty times as long
        stretch = stretch.set_sorted()
    stretches = (
        rows.with_columns(stretch)
        .group_by("stretch")
        .agg(lines=pl.len(), line=pl.col("line").min(), last=pl.col("line").max(), **told)
    )
    each = stretches.hstack(owners[stretches["stretch"] // 2])
    missing = {name: _NOBODY.get(name, pl.lit(None)) for name in SPEAKER if name not in each.columns}
    each = each.with_columns(**missing).filter(pl.col("host").is_not_null())
    return each.select(pl.col(name).cast(dtype) for name, dtype in SPEAKER.items())


_NOBODY = {"launcher_ranks": pl.lit([], dtype=SPEAKER["launcher_ranks"]), "dropped": pl.lit(0)}


def _unpasted(rows: pl.DataFrame, dialect: Dialect, hosts: pl.DataFrame) -> pl.DataFrame:
    """The lines taken apart that others were pasted into: where one begins behind a blank, the one before has ended.

    Such a beginning is believed if its host is known, or stands there more than once; but not if the end of the line
    before may have grown onto a known name (`0x55node1`): then it was torn.
    """
    opening = f" ({dialect.prefix_regex})"
    found = rows.with_row_index("whole").filter(pl.col("text").str.contains(opening))
    if found.is_empty():
        return rows
    begun = rows.filter(pl.col("text").str.contains(f"^{dialect.prefix_regex}"))
    hosts = pl.concat([hosts, begun.select("source", host=_before_colon("text"))]).unique()
    inner = found.select("whole", "source", pl.col("text").str.extract_all(opening)).explode("text")
    inner = inner.with_columns(host=_before_colon("text").str.strip_chars(" "))
    known = inner.join(hosts, on=["source", "host"], how="semi")
    grown = inner.join(hosts, on="source", suffix="_true").filter(pl.col("host").str.ends_with(pl.col("host_true")))
    call_template = inner.filter(pl.len().over("source", "host") > 1).join(grown, on=["source", "host"], how="anti")
    doubted = inner.join(pl.concat([known, call_template]), on=["source", "host"], how="anti")
    pasted = found.join(doubted, on="whole", how="anti")
    each = pasted.with_columns(pl.col("text").str.replace_all(opening, "\n${1}").str.split("\n")).explode("text")
    each = each.with_columns(
        text=(pl.col("text") + " ").str.replace(f"(?:{dialect.tag_regex})+$", "").str.strip_chars_end(" "),
        cut=pl.col("cut") & pl.col("whole").is_last_distinct(),
    )
    others = rows.with_row_index("whole").join(pasted, on="whole", how="anti")
    return pl.concat([others, each]).drop("whole")


def _before_colon(column: str) -> pl.Expr:
    return pl.col(column).str.split(":").list.first()


def _pieces(rows: pl.DataFrame, dialect: Dialect, hosts: pl.DataFrame) -> pl.DataFrame:
    """The lines that are buried in other lines: behind text of any kind, or behind a line that was cut.

    Where two lines were torn into one, the end of the first may have grown onto the host name of the second: such a
    piece is kept only with a host that stands at the beginning of some line of the same source.
    """
    buried = rows.filter(has_opening(rows["text"], dialect))
    if buried.is_empty():
        return buried
    opening = dialect.prefix_regex
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
    at_beginning = split.filter("is_torn").select("source", host=pl.col("text").str.split(":").list.first())
    hosts = pl.concat([hosts, at_beginning]).drop_nulls().unique()
    whole = (
        split.select("piece", "source", "second", grown=_before_colon("second"))
        .join(hosts, on="source")
        .filter(pl.col("grown").str.ends_with(pl.col("host")))
        .sort(pl.col("host").str.len_bytes(), descending=True)
        .unique("piece", keep="first", maintain_order=True)
        .select("piece", whole=pl.col("second").str.tail(_length("second") - _length("grown") + _length("host")))
    )
    split = split.join(whole, on="piece", how="left", maintain_order="left")
    before = pl.col("text").str.head(_length("text") - _length(pl.coalesce("whole", "second")))
    # What stands before a line may be half a row of a format whose lines have no beginning of their own.
    first = (split if dialect.detected else split.filter(is_torn)).with_columns(text=before, cut=True)
    second = split.with_columns(text=pl.when(is_torn).then("whole").otherwise(pl.coalesce("whole", "second")))
    return pl.concat([first, second.drop_nulls("text")]).select(rows.columns)


def _length(text: str | pl.Expr) -> pl.Expr:
    column = pl.col(text) if isinstance(text, str) else text
    return column.str.len_chars().cast(pl.Int64)


def _tally(whole: pl.DataFrame, unknown: pl.DataFrame, torn: pl.DataFrame, dialect: Dialect) -> pl.DataFrame:
    """Every physical line counted once. Columns `source` and COUNTS.

    `whole`: the lines known as they stand; `unknown`: all others; `torn`: what was found inside of those.
    """
    place = ["source", "line"]
    recognised = torn.filter(~pl.col("caught")).select(*place, recognised=True).unique()
    caught = torn.filter("caught").select(*place, caught=True).unique()
    unknown = unknown.select(*place, "damaged", "cut", is_shattered=has_opening(unknown["text"], dialect))
    rest = unknown.join(recognised, on=place, how="left").join(caught, on=place, how="left")
    is_recognised = pl.col("recognised").fill_null(False)
    is_caught = pl.col("caught").fill_null(False) & ~pl.col("cut") & ~is_recognised
    is_shattered = pl.col("damaged") | pl.col("is_shattered")
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
