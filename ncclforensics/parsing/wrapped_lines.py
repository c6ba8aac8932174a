"""Detect the width at which the lines of an input were wrapped, and put wrapped lines together.

A narrow terminal, `fold` and many text boxes cut every line that is longer than their width; the rest stands on the
next lines. Length alone does not show this, for the calls of a log have equal lengths, too: the grammar decides.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from ncclforensics.grammar.dialect import Dialect
from ncclforensics.parsing.launcher_prefixes import detect_prefixes, strip_prefixes
from ncclforensics.parsing.matching import match

OPEN_ENDED = ("launch_command",)  # frames of lines that any further words complete
SPECIFIC = ("traceback_frame",)  # frames of shapes that few other texts match, although these come after all others
MIN_WIDTH = 40  # characters
MIN_COMPLETED = 2  # lines of a sample that match a shape only together with the next lines
MAX_PAIRS = 40  # lines of one sample that are tried
MIN_SPLIT, SPLIT = 3, 0.3  # lines as long as the longest that go on, and the share of them that end inside of a word
SPLIT_WORD = "^[a-z0-9_/.][a-z]"  # ends of lines that were printed are hardly ever followed by a small letter
MAX_PARTS = 12  # physical lines of one line in a sample
MAX_LONGER = 0.05  # of the lines of NCCL and PyTorch: longer than the width
PADDED = 0.8  # of the lines are as long as the width, where a terminal fills them with blanks
FILLING = "  "  # at the end of a line that a terminal filled: it ended there
MAX_BROKEN = 0.2  # lines that match a shape alone, but not together with the next line, for each completed one


def detect_widths(texts: pl.DataFrame, dialect: Dialect) -> dict[int, int]:
    """The width of every input whose lines were wrapped: number -> characters.

    `texts`: lines of samples (columns `source` and `text`), in order.
    """
    length = pl.col("text").str.len_chars()
    lines = texts.with_columns(length=length, is_known=is_known(dialect, "text"), is_start=_is_begin(dialect))
    lines = lines.with_columns(is_followed=~pl.col("is_start").shift(-1, fill_value=True) & _is_same_source(-1))
    known_lines = lines.filter("is_known")
    followed = known_lines.filter(pl.col("is_followed") & (pl.col("length") >= MIN_WIDTH))
    likely = (
        followed.group_by("source", "length")
        .len()
        .filter(pl.col("len") >= MIN_COMPLETED)
        .sort("source", "len", "length", descending=[False, True, True])
        .group_by("source", maintain_order=True)
        .head(2)
    )
    widths: dict[int, int] = {}
    for source, width in _wrapped(lines, _without_longer(known_lines, likely), dialect):
        widths.setdefault(source, width)
    longest = lines.group_by("source").agg(
        pl.col("length").max(), full=(pl.col("is_followed") & (pl.col("length") == pl.col("length").max())).sum()
    )
    longest = longest.filter((pl.col("full") >= MIN_SPLIT) & (pl.col("length") >= MIN_WIDTH))
    for source, width, _ in longest.iter_rows():
        if source not in widths and _is_split(lines.filter(source=source), width, dialect):
            widths[source] = width
    return widths


def _without_longer(lines: pl.DataFrame, likely: pl.DataFrame) -> list[tuple[int, int]]:
    """The sources with a width (`likely`: columns `source`, `length`) than which few of their lines are longer."""
    if likely.is_empty():
        return []
    own = likely.join(lines.select("source", own="length"), on="source", maintain_order="left")
    longer = own.group_by("source", "length", maintain_order=True).agg((pl.col("own") > pl.col("length")).mean())
    return longer.filter(pl.col("own") <= MAX_LONGER).select("source", "length").rows()


def _is_split(lines: pl.DataFrame, width: int, dialect: Dialect) -> bool:
    """Whether the longest lines, all as long as the width, go on with the rest of their words."""
    parts = _joined(lines.select("text", "is_start"), width).filter(pl.col("parts").is_between(2, MAX_PARTS))
    places = parts["text"].str.slice(width - 1, 5)  # lines that are printed in turn begin alike
    inside = places.filter(places.str.contains(SPLIT_WORD))
    if inside.str.slice(1).n_unique() < MIN_SPLIT or inside.len() < SPLIT * parts.height:
        return False
    prefixes = detect_prefixes(parts, dialect)
    first, text = (strip_prefixes(parts.select(text=name), dialect, prefixes)["text"] for name in ("first", "text"))
    changed = _count_changed(pl.DataFrame({"source": 0, "text": text, "first": first}), dialect)
    return int(changed["broken"].sum()) <= MAX_BROKEN * parts.height


def _count_changed(rows: pl.DataFrame, dialect: Dialect) -> pl.DataFrame:
    """Count the lines that a shape matches only together with the next ones, and only alone, of each sample.

    `rows`: texts put together and their first lines (columns `source`, `text`, `first`). Columns of the result:
    `source`, `joined`, `broken`.
    """
    dialects = dialect.by_source(rows)
    by_formats: dict[Dialect, list[int]] = {}
    for source in rows["source"].unique():
        by_formats.setdefault(dialects.get(source, dialect), []).append(source)
    counted = []
    for own, sources in by_formats.items():
        part = rows.filter(pl.col("source").is_in(sources))
        single, joined = is_recognised(part["first"], own), is_recognised(part["text"], own)
        changes = part.select("source", joined=joined & ~single, broken=single & ~joined)
        counted.append(changes.group_by("source").sum())
    return pl.concat(counted)


def _wrapped(lines: pl.DataFrame, tried: Sequence[tuple[int, int]], dialect: Dialect) -> list[tuple[int, int]]:
    """The sources with a width where lines of NCCL and PyTorch that are as long as it are completed by the next lines.

    `tried`: sources and widths; those of many sources are looked at in one call.
    """
    by_source = lines.select("source", "text", "is_start").partition_by("source", as_dict=True, include_key=False)
    found = []
    for number, (source, width) in enumerate(tried):
        parts = _joined(by_source[source,], width).filter(pl.col("parts").is_between(2, MAX_PARTS))
        parts = parts.filter(is_known(dialect, "first")).head(MAX_PAIRS)
        found += [parts.select(pl.lit(number, pl.Int32).alias("source"), "text", "first")] if parts.height else []
    if not found:
        return []
    changed = _count_changed(pl.concat(found), dialect)
    is_wrapped = (changed["joined"] >= MIN_COMPLETED) & (changed["broken"] <= MAX_BROKEN * changed["joined"])
    return [tried[number] for number in changed.filter(is_wrapped)["source"].sort()]


def is_recognised(texts: pl.Series, dialect: Dialect) -> pl.Series:
    """Whether a shape matches, other than those that match any text."""
    number = pl.int_range(1, texts.len() + 1, dtype=pl.Int32, eager=True)
    rows = pl.DataFrame({"line": number, "text": texts})
    rows = rows.select(pl.lit(0, dtype=pl.Int32).alias("source"), "line", "text", damaged=False, cut=False)
    found = match(rows, dialect)
    return number.is_in(lines_of_specific_shapes(found.frames, dialect)["line"].implode())


def lines_of_specific_shapes(frames: dict[str, list[pl.DataFrame]], dialect: Dialect) -> pl.DataFrame:
    """The lines in frames of shapes that do not match any text (columns `source`, `line`)."""
    general = general_frames(dialect) - {*SPECIFIC}
    pieces = [
        piece.select("source", "line") for name, found in frames.items() if name not in general for piece in found
    ]
    return pl.concat([pl.DataFrame(schema={"source": pl.Int32(), "line": pl.Int32()}), *pieces])


def general_frames(dialect: Dialect) -> set[str]:
    """The frames of shapes that match nearly any text, or that any further words complete."""
    return {shape.frame for shape in dialect.shapes if shape.priority < 0 or shape.frame in OPEN_ENDED}


def is_start(dialect: Dialect) -> pl.Expr:
    """Whether a line begins a new line of NCCL or PyTorch."""
    return _is_of_nccl(dialect) | pl.col("text").str.contains(f"^(?:{dialect.record_regex})")


def _is_begin(dialect: Dialect) -> pl.Expr:
    """Whether a line begins such a line, or has the tag of a rank, which what a terminal broke off lacks."""
    return _is_of_nccl(dialect) | pl.col("text").str.contains(f"^(?:{dialect.start_regex})")


def _is_of_nccl(dialect: Dialect) -> pl.Expr:
    text = pl.col("text")
    is_marked = text.str.contains(dialect.prefix_marker, literal=True)
    return is_marked & text.str.contains(rf"^[^0-9A-Za-z]*{dialect.level_regex}|{dialect.prefix_regex}")


def is_known(dialect: Dialect, column: str) -> pl.Expr:
    """Whether a text looks like a line of NCCL, or begins as one of PyTorch."""
    text = pl.col(column)
    return text.str.contains(dialect.prefix_marker, literal=True) | text.str.contains(f"^(?:{dialect.start_regex})")


def _is_same_source(shift: int) -> pl.Expr:
    return (pl.col("source") == pl.col("source").shift(shift)).fill_null(False)


def _joined(lines: pl.DataFrame, width: int) -> pl.DataFrame:
    """Lines put together (column `text`), their first part (`first`) and their number of `parts`."""
    is_full = pl.col("text").str.len_chars() == width
    goes_on = is_full & ~pl.col("text").str.ends_with(FILLING)
    is_begin = ~goes_on.shift(1, fill_value=False) | pl.col("is_start")
    return (
        lines.group_by(is_begin.cum_sum().alias("start"), maintain_order=True)
        .agg(pl.col("text").str.join("").str.strip_chars_end(" "), first=pl.col("text").first(), parts=pl.len())
        .drop("start")
    )


def join_wrapped(rows: pl.DataFrame, dialect: Dialect, width: int) -> pl.DataFrame:
    """Put the lines of one input together that were wrapped at a width; each has the number of its first part."""
    is_full = rows["text"].str.len_chars() == width
    if not is_full.any():
        return rows
    goes_on = is_full & ~rows["text"].str.ends_with(FILLING)
    is_begin = ~goes_on.shift(1, fill_value=False) | rows.select(_is_begin(dialect)).to_series()
    text = pl.col("text").str.join("").str.strip_chars_end(" ")  # a terminal fills its lines with blanks
    how = {"text": text, "damaged": pl.col("damaged").any(), "cut": pl.col("cut").last()}
    joined = rows.group_by(is_begin.cum_sum().alias("start"), maintain_order=True).agg(
        how.get(name, pl.col(name).first()) for name in rows.columns
    )
    is_padded = is_full.sum() > PADDED * is_full.len() and rows["text"][-1].endswith(" ")
    if is_full[-1] and not is_padded and "cut" in joined:  # the rest of the last line that was read may follow
        joined = joined.with_columns(joined["cut"].scatter(joined.height - 1, True))
    return joined.select(rows.columns)
