"""Parse lines into typed rows of frames, and count every line exactly once by kind."""

from __future__ import annotations

from dataclasses import dataclass, field

import polars as pl

from ncclforensics.grammar.dialect import MATCHED, Dialect, fields
from ncclforensics.grammar.patterns import FORM
from ncclforensics.inputs.lines import REPEATS
from ncclforensics.parsing.candidates import AS_WRITTEN, contains_prefix
from ncclforensics.parsing.code_excerpts import without_code
from ncclforensics.parsing.concurrency import OrderedMap
from ncclforensics.parsing.continuations import complete_lines
from ncclforensics.parsing.documents import without_documents, without_mentions
from ncclforensics.parsing.errors_at_once import errors_at_once
from ncclforensics.parsing.launcher_prefixes import find_voices, no_voices
from ncclforensics.parsing.matching import NO_HOST, Matched, match, no_match
from ncclforensics.parsing.messages_inside import messages_inside, texts_behind_bars
from ncclforensics.parsing.quoted_errors import messages_alone, quoted_errors
from ncclforensics.parsing.repeated_lines import no_repeats, repeated_lines, without_counts
from ncclforensics.parsing.shortened_lines import read_shortened
from ncclforensics.parsing.templates import (
    CALL_TEMPLATE,
    EncodedRows,
    are_repeated,
    cut_once,
    distinct_rows,
    shared_parts,
)

PLACE = ["source", "line"]
DEPTH = 4  # most lines written into one physical line
MOST_LAST = 50  # lines at either end of a source that the last shapes are tried on
LONGEST_LAST = 2_000  # bytes of such a line
LEVELS = ("] INFO ", " WARN ")
IN_OWN_WORDS = "training_progress"  # frame of lines in words of a program's own
COUNTS = ("recognised", "application", "unrecognised", "damaged")


NO_TALLY = pl.DataFrame(schema={"source": pl.Int32(), **dict.fromkeys(COUNTS, pl.Int64())})
# Stretches of lines of one process. Lines of the tail are numbered from its end and make a stretch of their own.
SPEAKER = {
    "source": pl.Int32(),
    "host": pl.Categorical(),
    "pid": pl.Int32(),
    "lines": pl.Int64(),
    "line": pl.Int32(),  # the first
    "last": pl.Int32(),
    "launcher_ranks": pl.List(pl.Int32()),
    "dropped": pl.Int64(),  # lines that a collector counted and did not pass on
    "dropped_line": pl.Int32(),  # the first line that reports dropped lines
    "ends_unread": pl.Boolean(),  # no pattern but the catch-all matches its last line
}
NO_HOSTS = pl.DataFrame(schema={"source": pl.Int32(), "host": pl.Categorical()})


@dataclass(slots=True)
class Parsed:
    """What was parsed of some lines: frame name -> rows, and per source the count of lines of each kind."""

    frames: dict[str, list[pl.DataFrame]]
    tally: pl.DataFrame
    hosts: pl.DataFrame  # columns `source`, `host`: hosts at the beginning of a line
    speakers: pl.DataFrame  # columns SPEAKER: stretches of lines of one process
    encoded: EncodedRows | None = None  # rows of the most frequent pattern
    repeated: pl.DataFrame = field(default_factory=no_repeats)  # columns REPEATED: lines that stand for many equal ones
    voices: pl.DataFrame = field(default_factory=no_voices)  # columns VOICE: who printed last


def parse_by_template(rows: pl.DataFrame, dialect: Dialect) -> tuple[Parsed, pl.DataFrame]:
    """Parse the lines of the most frequent pattern, nearly all lines of a long log; return them and the other lines.

    A training loop prints the same calls again and again, and only a counter and the buffers in them differ. Every line
    is cut around these, or around the counter alone where the buffers repeat, and the pattern is applied to one of the
    lines whose other parts are the same: five times as fast as applying it to every line.
    """
    shape, pattern, parts = dialect.candidates[0].shape, dialect.candidates[0].pattern, dialect.template
    lines = cut_once(rows, parts, is_open=pattern.is_open, at_counter=are_repeated(rows, parts))
    models, model = distinct_rows(lines, ["source", "left", "right"])
    cut = shared_parts(models.select("source", "line", "text"), parts)
    shared = [f"shared_{place}" for place in range(len(parts.shared))]
    first_lines, template = distinct_rows(cut, ["source", *shared])
    matched = first_lines.select(
        fields(pl.col(name), regex).alias(name) for name, regex in zip(shared, parts.shared, strict=True)
    )
    is_known = matched.select(
        pl.all_horizontal(pl.col(name).struct.field(MATCHED).is_not_null() for name in shared)
    ).to_series()
    if not is_known.any():
        return Parsed({}, NO_TALLY, NO_HOSTS, _speakers(rows.clear())), rows
    values = pl.concat([matched[name].struct.unnest().drop(MATCHED) for name in shared], how="horizontal")
    columns = [name for name in pattern.columns if name in values.columns]
    typed = values.select(
        pl.lit(pattern.form).cast(pl.Categorical).alias(FORM),
        *(shape.columns[name].cast(pl.col(name)).alias(name) for name in columns),
    )
    typed = typed.select(column for column in typed if column.null_count() < column.len())
    templates = first_lines.select("source", "line").hstack(typed).filter(is_known)
    template = is_known.cum_sum().cast(pl.UInt32).zip_with(is_known, pl.Series([0], dtype=pl.UInt32)).gather(template)
    of_models = pl.repeat(0, models.height, dtype=pl.UInt32, eager=True).scatter(cut["row"], template)
    template = of_models.gather(model)
    if not (is_like := template > 0).all():
        lines, template = lines.filter(is_like), template.filter(is_like)
    counter = shape.columns[dialect.counter].cast(pl.col("counter")).alias(dialect.counter)
    row, lines = lines["row"], lines.select("line", *_labels(lines, dialect), counter, call_template=template - 1)
    rest = rows.clear()
    if lines.height < rows.height:
        is_other = pl.repeat(True, rows.height, eager=True).scatter(row, False)
        # A filtered text column keeps its whole buffer in memory; a new one does not.
        rest = rows.filter(is_other).with_columns(pl.col("text") + "")
    speakers = _speakers(lines, templates)
    none = [pl.lit(0, dtype=pl.Int64).alias(name) for name in COUNTS[1:]]
    tally = (
        speakers.group_by("source").agg(pl.col("lines").sum()).select("source", pl.col("lines").alias(COUNTS[0]), *none)
    )
    return Parsed({}, tally, speakers.select("source", "host"), speakers, EncodedRows(templates, lines)), rest


def parse(
    rows: pl.DataFrame,
    dialect: Dialect,
    hosts: pl.DataFrame | None = None,
    ordered_map: OrderedMap[pl.DataFrame, Matched] = map,
    parts: int = 1,
) -> Parsed:
    """Apply the shapes to lines (columns as in `lines.SCHEMA`), of one source or of many.

    `hosts`: hosts seen at the beginning of other lines (columns `source`, `host`). `ordered_map`: applies
    a function to `parts` parts of the lines, perhaps in parallel.
    """
    repeated, rows = repeated_lines(rows, dialect), without_counts(rows)
    length = max(-(-rows.height // parts), 1)
    slices = list(rows.iter_slices(length)) or [rows]
    completed = list(ordered_map(lambda part: complete_lines(part, match(part, dialect), dialect), slices))
    matched, code = without_code(rows, completed, dialect)
    complete, others = pl.concat([part.known for part in matched]), pl.concat([part.unknown for part in matched])
    unknown = others.join(code, on=PLACE, how="anti", maintain_order="left") if code.height else others
    beginnings = _hosts(complete)
    known = pl.concat([beginnings, *([] if hosts is None else [hosts])])
    behind_bars = texts_behind_bars(rows, matched, dialect).select(unknown.columns)
    without_prefix = [quoted_errors(matched, unknown, dialect), messages_alone(unknown, dialect, known), behind_bars]
    quoted = match(pl.concat(without_prefix, how="diagonal"), dialect)
    torn = [quoted]
    if unknown.height:
        mended = (errors_at_once(unknown), _without_blanks_at_end(unknown), _with_name(unknown, dialect))
        torn = [*_match_torn_lines(unknown, dialect, known), quoted, *(match(lines, dialect) for lines in mended)]
    read = pl.concat([part.known.select(PLACE) for part in torn]).unique()
    remaining = unknown.join(read, on=PLACE, how="anti", maintain_order="left")
    texts = pl.concat([remaining, _texts_before_lines(unknown, read, dialect)])
    torn.append(match(messages_inside(rows, texts, matched, dialect), dialect))
    inside = pl.concat([part.known for part in torn])
    last = _match_last(remaining.join(inside.select(PLACE), on=PLACE, how="anti", maintain_order="left"), rows, dialect)
    frames: dict[str, list[pl.DataFrame]] = {}
    for part in (*matched, *torn, last):
        for name, found in part.frames.items():
            frames.setdefault(name, []).extend(found)
    frames = without_mentions(read_shortened(frames, dialect), unknown, rows)
    tally = _tally(complete, others, inside, dialect, repeated)
    known_lines = pl.concat([complete, inside])
    if repeated.height:
        known_lines = known_lines.join(repeated.select(*PLACE, REPEATS), on=PLACE, how="left", maintain_order="left")
    in_own_words = frames.get(IN_OWN_WORDS, [])
    progress = [rows.join(found.select(PLACE), on=PLACE, how="semi").select(unknown.columns) for found in in_own_words]
    voices = find_voices(pl.concat([unknown, *progress]))
    return Parsed(frames, tally, beginnings, _speakers(known_lines), repeated=repeated, voices=voices)


def _match_torn_lines(unknown: pl.DataFrame, dialect: Dialect, known: pl.DataFrame) -> list[Matched]:
    """Match the lines that stand joined in one, then the pieces of torn ones. `known`: hosts that were seen."""
    torn = [_match_joined_lines(unknown, dialect, _named(known))]
    for _ in range(DEPTH):
        hosts = _named(pl.concat([known, *(_hosts(part.known) for part in torn)]))
        pieces = _split_torn_lines(torn[-1].unknown, dialect, hosts)
        if pieces.is_empty():
            break
        torn.append(match(pieces, dialect))
    return torn


def _texts_before_lines(unknown: pl.DataFrame, read: pl.DataFrame, dialect: Dialect) -> pl.DataFrame:
    """Return what stands in front of a line of NCCL that was read inside of another line."""
    if read.is_empty():  # to make the search ready takes longer than one of a few lines
        return unknown.clear()
    first = f"^(.*?[^ ]) +{dialect.prefix_regex}"
    begun = unknown.join(read, on=PLACE, how="semi", maintain_order="left").filter(pl.col("text").str.contains(first))
    return begun.with_columns(text=pl.col("text").str.extract(first))


def _match_last(rows: pl.DataFrame, everything: pl.DataFrame, dialect: Dialect) -> Matched:
    """Match the first and the last lines of each source that nothing else reads with the last shapes."""
    if "launcher_level" in rows:  # the head of a record of PyTorch, which tells its level, was taken off
        levelled = pl.when(pl.col("launcher_level").cast(pl.String) == "E").then("ERROR: " + pl.col("text"))
        rows = rows.with_columns(text=levelled.otherwise("text"))
    regex = "|".join(f"(?:{pattern.regex})" for shape in dialect.last_shapes for pattern in shape.patterns)
    is_short = pl.col("text").str.len_bytes() <= LONGEST_LAST
    tried = rows.filter(is_short & ~pl.col("damaged") & ~pl.col("cut"))
    tried = tried.filter(pl.col("text").str.contains(regex)) if regex and tried.height else tried.clear()
    tried = without_documents(tried, rows, everything)
    nth, count = pl.int_range(pl.len()).over("source"), pl.len().over("source")
    return match(tried.filter((nth < MOST_LAST) | (nth >= count - MOST_LAST)), dialect.of_last_shapes)


def _without_blanks_at_end(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the lines that end with blanks, as copying from a screen or a page leaves them, without these."""
    if rows.is_empty():
        return rows
    padded = rows.filter(pl.col("text").str.ends_with(" "))
    return padded.with_columns(pl.col("text").str.strip_chars_end(" "))


def _with_name(rows: pl.DataFrame, dialect: Dialect) -> pl.DataFrame:
    """Return the lines of versions that print their level without the name of NCCL, with the name."""
    if not dialect.unnamed_prefix or rows.is_empty():
        return rows.clear()
    has_level = rows.filter(pl.col("text").str.contains_any(LEVELS))
    start = f"^[^0-9A-Za-z]*({dialect.unnamed_prefix})(INFO|WARN) "
    old = has_level.filter(pl.col("text").str.contains(start))
    return old.with_columns(pl.col("text").str.replace(start, f"${{1}}{dialect.prefix_marker}${{2}} "))


def _labels(rows: pl.DataFrame, dialect: Dialect) -> list[str]:
    return [name for name in rows.columns if name in dialect.labels]


def _hosts(known: pl.DataFrame) -> pl.DataFrame:
    return known.filter(pl.col("host") != NO_HOST).select("source", "host").unique()


def _named(hosts: pl.DataFrame) -> pl.DataFrame:
    return hosts.unique().cast({"host": pl.String})


def _speakers(rows: pl.DataFrame, templates: pl.DataFrame | None = None) -> pl.DataFrame:
    """Stretches of lines of one process (columns SPEAKER). `templates`: the host and pid, if rows refer to it."""
    known = rows if templates is None else templates
    owner_columns = [name for name in ("source", "host", "pid") if name in known.columns]
    owners, owner = distinct_rows(known.select(owner_columns), owner_columns)
    place = (pl.lit(owner) if templates is None else pl.lit(owner).gather(CALL_TEMPLATE)).cast(pl.Int64)
    extra: dict[str, pl.Expr] = {}
    if "launcher_rank" in rows.columns:
        extra["launcher_ranks"] = pl.col("launcher_rank").drop_nulls().unique()
    if "launcher_repeats" in rows.columns:
        extra["dropped"] = pl.col("launcher_repeats").sum()
        extra["dropped_line"] = pl.col("line").filter(pl.col("launcher_repeats").is_not_null()).min()
    if "is_unrecognised" in rows.columns:
        extra["ends_unread"] = pl.col("is_unrecognised").get(pl.col("line").arg_max())
    count = pl.len() + pl.col(REPEATS).sum() if REPEATS in rows.columns else pl.len()
    missing = SPEAKER.keys() - {*owner_columns, "lines", "line", "last", *extra}
    owner_of_stretch = {name: pl.lit(owners[name]).gather(pl.col("stretch") // 2) for name in owner_columns}
    return (
        rows.lazy()
        .with_columns(stretch=2 * place + (pl.col("line") < 0))
        .group_by("stretch")
        .agg(lines=count, line=pl.col("line").min(), last=pl.col("line").max(), **extra)
        .with_columns(**owner_of_stretch, **{name: _DEFAULTS.get(name, pl.lit(None)) for name in missing})
        .filter(pl.col("host").is_not_null())
        .select(pl.col(name).cast(dtype) for name, dtype in SPEAKER.items())
        .collect(optimizations=AS_WRITTEN)
    )


_DEFAULTS = {
    "launcher_ranks": pl.lit([], dtype=SPEAKER["launcher_ranks"]),
    "dropped": pl.lit(0),
    "ends_unread": pl.lit(value=False),
}


def _match_joined_lines(rows: pl.DataFrame, dialect: Dialect, hosts: pl.DataFrame) -> Matched:
    """Match lines that were written without an end of line between them: a prefix after a blank begins a new line.

    `rows`: lines that match nothing as they are.

    Such a prefix is accepted if its host is known or occurs there more than once, but not if the end of the line before
    may be joined to a known host name (`0x55node1`): then the line was torn.
    """
    if rows.is_empty():
        return no_match(rows)
    inner_prefix = f" ({dialect.prefix_regex})"
    found = rows.with_row_index("physical").filter(pl.col("text").str.contains(inner_prefix))
    if found.is_empty():
        return no_match(rows)
    begun = rows.filter(pl.col("text").str.contains(f"^{dialect.prefix_regex}"))
    hosts = pl.concat([hosts, begun.select("source", host=_before_colon("text"))]).unique()
    inner = found.select("physical", "source", pl.col("text").str.extract_all(inner_prefix)).explode("text")
    inner = inner.with_columns(host=_before_colon("text").str.strip_chars(" "))
    known = inner.join(hosts, on=["source", "host"], how="semi")
    grown = _with_known_end(inner, "host", hosts)
    call_template = inner.filter(pl.len().over("source", "host") > 1).join(grown, on=["source", "host"], how="anti")
    doubted = inner.join(pl.concat([known, call_template]), on=["source", "host"], how="anti")
    joined = found.join(doubted, on="physical", how="anti")
    split = joined.with_columns(pl.col("text").str.replace_all(inner_prefix, "\n${1}").str.split("\n")).explode("text")
    split = split.with_columns(
        text=(pl.col("text") + " ").str.replace(f"(?:{dialect.tag_regex})+$", "").str.strip_chars_end(" "),
        cut=pl.col("cut") & pl.col("physical").is_last_distinct(),
    )
    others = rows.with_row_index("physical").join(joined, on="physical", how="anti").drop("physical")
    matched = match(split.drop("physical"), dialect)
    return matched._replace(unknown=pl.concat([others, matched.unknown]))


def _before_colon(column: str) -> pl.Expr:
    return pl.col(column).str.split(":").list.first()


def _with_known_end(rows: pl.DataFrame, column: str, hosts: pl.DataFrame) -> pl.DataFrame:
    """Join rows with every known host (`end`) of their source with which a text of theirs ends."""
    lengths = hosts.select("source", length=_length("host")).unique()
    ends = rows.join(lengths, on="source").with_columns(end=pl.col(column).str.tail("length"))
    return ends.drop("length").join(hosts.select("source", end="host").unique(), on=["source", "end"], how="semi")


def _split_torn_lines(rows: pl.DataFrame, dialect: Dialect, hosts: pl.DataFrame) -> pl.DataFrame:
    """Split lines whose text contains another line: after text of any kind, or after a line that was cut.

    Where two lines were torn into one, the end of the first may be joined to the host name of the second: such a part
    is kept only with a host that stands at the beginning of some line of the same input.
    """
    buried = rows.filter(contains_prefix(rows["text"], dialect))
    if buried.is_empty():
        return buried
    prefix = dialect.prefix_regex
    parts = pl.col("text").str.extract_groups(f"^(?P<first>.*?)(?P<second>{prefix}.*)$").struct
    halves = pl.col("text").str.extract_groups(f"^(?P<first>{prefix}.*?)(?P<second>{prefix}.*)$").struct
    at_start = pl.col("text").str.contains(f"^{prefix}")
    is_torn = pl.col("is_torn")
    split = (
        buried.with_columns(is_torn=at_start)
        .with_columns(second=pl.when(is_torn).then(halves.field("second")).otherwise(parts.field("second")))
        .filter(pl.col("second").is_not_null())
        .with_row_index("piece")
    )
    at_beginning = split.filter("is_torn").select("source", host=pl.col("text").str.split(":").list.first())
    hosts = pl.concat([hosts, at_beginning]).drop_nulls().unique()
    mended = (
        _with_known_end(split.select("piece", "source", "second", grown=_before_colon("second")), "grown", hosts)
        .rename({"end": "host"})
        .sort(pl.col("host").str.len_bytes(), descending=True)
        .unique("piece", keep="first", maintain_order=True)
        .select("piece", mended=pl.col("second").str.tail(_length("second") - _length("grown") + _length("host")))
    )
    split = split.join(mended, on="piece", how="left", maintain_order="left")
    before = pl.col("text").str.head(_length("text") - _length(pl.coalesce("mended", "second")))
    # The text before a line may be half a row of a format whose lines have no prefix.
    first = (split if dialect.detected else split.filter(is_torn)).with_columns(text=before, cut=True)
    second = split.with_columns(text=pl.when(is_torn).then("mended").otherwise(pl.coalesce("mended", "second")))
    return pl.concat([first, second.drop_nulls("text")]).select(rows.columns)


def _length(text: str | pl.Expr) -> pl.Expr:
    column = pl.col(text) if isinstance(text, str) else text
    return column.str.len_chars().cast(pl.Int64)


def _tally(
    complete: pl.DataFrame, unknown: pl.DataFrame, torn: pl.DataFrame, dialect: Dialect, repeated: pl.DataFrame
) -> pl.DataFrame:
    """Count every physical line once, by kind. Columns `source` and COUNTS.

    `complete`: lines that match as they are; `unknown`: all others; `torn`: lines found inside of those; `repeated`:
    lines that stand for others.
    """
    recognised = torn.filter(~pl.col("is_unrecognised")).select(*PLACE, recognised=True).unique()
    is_unrecognised = torn.filter("is_unrecognised").select(*PLACE, is_unrecognised=True).unique()
    unknown = unknown.select(*PLACE, "damaged", "cut", is_shattered=contains_prefix(unknown["text"], dialect))
    rest = unknown.join(recognised, on=PLACE, how="left").join(is_unrecognised, on=PLACE, how="left")
    is_recognised = pl.col("recognised").fill_null(False)
    is_counted_unrecognised = pl.col("is_unrecognised").fill_null(False) & ~pl.col("cut") & ~is_recognised
    is_shattered = pl.col("damaged") | pl.col("is_shattered")
    is_lost = ~is_recognised & ~is_counted_unrecognised
    both = [
        complete.select(
            *PLACE,
            recognised=~pl.col("is_unrecognised"),
            unrecognised=pl.col("is_unrecognised") & ~pl.col("cut"),
            damaged=pl.col("is_unrecognised") & pl.col("cut"),
            application=pl.lit(False),
        ),
        rest.select(
            *PLACE,
            recognised=is_recognised,
            unrecognised=is_counted_unrecognised,
            damaged=is_lost & is_shattered,
            application=is_lost & ~is_shattered,
        ),
    ]
    kinds = pl.concat(both).select(*PLACE, *COUNTS)
    if repeated.height:
        dropped = kinds.join(repeated.select(*PLACE, REPEATS), on=PLACE)
        kinds = pl.concat([kinds, dropped.select(*PLACE, pl.col(COUNTS) * pl.col(REPEATS))], how="vertical_relaxed")
    counted = kinds.group_by("source").agg(pl.col(COUNTS).sum().cast(pl.Int64))
    return counted.select("source", *COUNTS)
