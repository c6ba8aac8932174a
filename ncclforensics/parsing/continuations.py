"""Put lines together whose rest stands on the next lines: text was wrapped there, or another process wrote in between.

This is tried only on lines of NCCL, or on a failure, that no specific shape matches and that are followed by lines
that begin no line of NCCL or PyTorch, of which clean logs have few. The grammar decides: the text put together must
match a shape that the line alone does not match. In inputs that were wrapped, lines that match a shape alone may go
on, too.
"""

from __future__ import annotations

import polars as pl

from ncclforensics.grammar.dialect import CUT, Dialect
from ncclforensics.parsing.altered_lines import altered_lines
from ncclforensics.parsing.matching import Matched, match
from ncclforensics.parsing.next_lines import PLACE, joined_texts, rest_lines, specific_shapes, with_next_lines
from ncclforensics.parsing.wrapped_lines import is_start

ERRORS = "exception"  # frame
LONG = 50  # characters of the first line of a message that goes on
MAX_LINES = 2_000  # lines that are tried together with the next ones
MAX_TORN = 200  # lines that are tried with every place where they may be torn
MOST_PLACES = 40_000  # places where lines may be torn: each is a text that is matched
MIN_WRAPPED = 2  # completed lines that show that an input was wrapped
MIN_FIRST, MIN_REST = 8, 4  # characters of the message before a tear, and of the rest


def complete_lines(rows: pl.DataFrame, matched: Matched, dialect: Dialect) -> Matched:
    """What was matched of `rows`, with lines of NCCL completed by the lines without a prefix behind them.

    A completed line is matched with the number of its first part. All its parts count as recognised; where it was torn,
    as damaged, because values beside the tear are uncertain.
    """
    if matched.unknown.is_empty():
        return matched
    completed = _all_completed(rows, matched, dialect)
    return _replaced(rows, matched, completed, dialect) if completed.height else matched


def whole_text(rows: pl.DataFrame, dialect: Dialect) -> str:
    """The text of the first of these lines with the next ones that it goes on in; empty where it stands alone.

    Lines that were wrapped at one width have been put together: then the number of the second one shows it.
    """
    if rows.is_empty():
        return ""
    if rows["line"].slice(1, 1).to_list() != [rows["line"][0] + 1]:
        return str(rows["text"][0]) if rows.height > 1 else ""
    if rows.slice(1, 1).select(is_start(dialect)).item():
        return ""
    matched = match(rows, dialect)
    completed = _all_completed(rows, matched, dialect).filter(
        (pl.col("line") == rows["line"][0]) & (pl.col("parts") > 1)
    )
    return str(completed["text"][0]) if completed.height else ""


def _all_completed(rows: pl.DataFrame, matched: Matched, dialect: Dialect) -> pl.DataFrame:
    """Lines that are read together with others (columns PLACE, `text`, `parts`, `is_torn`)."""
    rest = rest_lines(matched, dialect)
    completed = altered_lines(rows, matched, rest, dialect).with_columns(is_torn=False)
    if rest.is_empty():
        return completed
    completed = pl.concat([completed, _announced(rows, matched, rest)])
    certain = _completed(rows, matched, rest, dialect)
    # Of two readings, the one that leaves fewer lines over.
    completed = pl.concat([certain, completed]).sort("parts", descending=True, maintain_order=True)
    return _apart(completed.unique(PLACE, keep="first", maintain_order=True))


def _announced(rows: pl.DataFrame, matched: Matched, rest: pl.DataFrame) -> pl.DataFrame:
    """Errors whose message begins on the next line, with that line (columns PLACE, `text`, `parts`, `is_torn`)."""
    none = rest.select(*PLACE, "text", parts=pl.lit(0), is_torn=pl.lit(value=False)).clear()
    pieces = [piece for piece in matched.frames.get(ERRORS, []) if "exception" in piece.columns]
    heads = [_without_message(piece).select(*PLACE, "exception") for piece in pieces]
    if not any(piece.height for piece in heads):
        return none
    followed = with_next_lines(pl.concat(heads), rows, rest).filter(pl.col("next1").is_not_null())
    head = pl.col("text").str.strip_chars_end(" ")
    tag = pl.col("text").str.split(pl.col("exception").cast(pl.String)).list.first()
    first, second = (pl.col(name).str.strip_prefix(tag).str.strip_chars(" ") for name in ("next1", "next2"))
    goes_on = (second.str.len_chars() > 0) & (first.str.len_chars() >= LONG) & ~first.str.ends_with(".")
    goes_on = goes_on.fill_null(value=False)
    joined = followed.filter(head.str.ends_with(":")).with_columns(
        text=pl.concat_str(head, first, pl.when(goes_on).then(second), separator=" ", ignore_nulls=True),
        parts=2 + goes_on.cast(pl.Int32),
    )
    return joined.select(*PLACE, "text", "parts", is_torn=pl.lit(value=False)).cast(none.schema)


def _without_message(errors: pl.DataFrame) -> pl.DataFrame:
    """Errors without a message, or with one that announces what the next line says."""
    is_open = (pl.col("form") == "error") & pl.col("exception").is_not_null()
    if "message" in errors.columns:
        is_open &= pl.col("message").cast(pl.String).str.strip_chars_end(" ").str.ends_with(":").fill_null(value=True)
    return errors.filter(is_open)


def _completed(rows: pl.DataFrame, matched: Matched, rest: pl.DataFrame, dialect: Dialect) -> pl.DataFrame:
    """Lines together with the next lines that complete them (columns PLACE, `text`, `parts`, `is_torn`)."""
    followed = _followed_lines(rows, matched, rest, dialect)
    wrapped = _first_ended(_specific(joined_texts(followed.head(MAX_LINES)), dialect))
    remaining = followed.join(wrapped, on=PLACE, how="anti", maintain_order="left")
    torn = _unambiguous(_specific(_torn_candidates(remaining.head(MAX_TORN), dialect), dialect))
    grown = _grown(rows, matched, wrapped, rest, dialect)
    untorn = pl.concat([wrapped, grown]).with_columns(is_torn=False)
    return pl.concat([untorn, torn.with_columns(is_torn=True)])


def _apart(completed: pl.DataFrame) -> pl.DataFrame:
    """Completed lines (columns PLACE, `parts`) without those that begin inside of another one."""
    ordered = completed.sort(PLACE)
    end = (pl.col("line") + pl.col("parts")).cum_max().shift(1).over("source")
    return ordered.filter((pl.col("line") >= end).fill_null(value=True))


def _followed_lines(rows: pl.DataFrame, matched: Matched, rest: pl.DataFrame, dialect: Dialect) -> pl.DataFrame:
    """Lines that only a general shape matches (columns PLACE, `text`), with the next lines that may be their rest.

    Column `next1` holds the first of these, up to MAX_NEXT of them null where there are fewer.
    """
    general = [shape.frame for shape in dialect.shapes if shape.priority < 0]
    places = [piece.select(PLACE) for name in general for piece in matched.frames.get(name, [])]
    has_failure = matched.unknown["text"].str.contains(dialect.failure_word)
    places += [matched.unknown.filter(has_failure & ~matched.unknown["damaged"]).select(PLACE)]
    lines = pl.concat([matched.known.filter("is_unrecognised").select(PLACE), *places]).unique(maintain_order=True)
    return with_next_lines(lines, rows, rest).filter(pl.col("next1").is_not_null())


def _grown(
    rows: pl.DataFrame, matched: Matched, wrapped: pl.DataFrame, rest: pl.DataFrame, dialect: Dialect
) -> pl.DataFrame:
    """Lines that match a shape alone, and another one together with the next lines.

    These are lines of inputs that were wrapped, and the beginnings of messages: what was cut off may stand behind them.
    """
    sources = wrapped.group_by("source").len().filter(pl.col("len") >= MIN_WRAPPED)["source"]
    is_known = pl.col("source").is_in(sources.implode()) & ~pl.col("is_unrecognised")
    cut = [
        piece.filter(pl.col("form").cast(pl.String) == CUT).select(PLACE)
        for name in dialect.frames_of_cut_messages.intersection(matched.frames)
        for piece in matched.frames[name]
    ]
    lines = pl.concat([matched.known.filter(is_known).select(PLACE), *cut]).unique(maintain_order=True)
    lines = lines.join(wrapped, on=PLACE, how="anti", maintain_order="left")
    followed = with_next_lines(lines, rows, rest).filter(pl.col("next1").is_not_null())
    if followed.is_empty():
        return wrapped.clear()
    completed = _specific(joined_texts(followed.head(MAX_LINES)), dialect)
    uncompleted = specific_shapes(matched, dialect).unique(PLACE)
    compared = completed.join(uncompleted, on=PLACE, suffix="_uncompleted", maintain_order="left")
    other = compared.filter(pl.col("shape") != pl.col("shape_uncompleted"))
    return _first_ended(other)


def _torn_candidates(followed: pl.DataFrame, dialect: Dialect) -> pl.DataFrame:
    """Texts put together of a beginning of each line and the next line: the longest beginnings first."""
    if followed.is_empty():
        return followed.select(*PLACE, "text", parts=pl.lit(2))
    message = pl.col("text").str.find(dialect.prefix_marker, literal=True) + len(dialect.prefix_marker)
    length = pl.col("text").str.len_chars()
    followed = followed.filter(length.cast(pl.Int64).cum_sum() <= MOST_PLACES)
    beginnings = followed.filter(pl.col("next1").str.len_chars() >= MIN_REST).with_columns(
        at=pl.int_ranges(message.cast(pl.Int64) + MIN_FIRST, length.cast(pl.Int64)).list.reverse()
    )
    texts = beginnings.explode("at").drop_nulls("at")
    text = pl.col("text").str.head(pl.col("at")) + pl.col("next1")
    return texts.select(*PLACE, "at", text=text, parts=pl.lit(2))


def _unambiguous(candidates: pl.DataFrame) -> pl.DataFrame:
    """For each line the longest beginning, if no other matches, or if it ends with a digit.

    The text that was written into a line may begin like the rest of a name: `AllEpoch 3` and `Reduce: opCount 1a`.
    """
    if candidates.is_empty():
        return candidates.select(*PLACE, "text", "parts")
    before = pl.col("text").str.slice(pl.col("at") - 1, 1)
    is_certain = (pl.len().over(PLACE) == 1) | before.is_in(list("0123456789"))
    longest = candidates.with_columns(is_certain=is_certain).unique(PLACE, keep="first", maintain_order=True)
    return longest.filter("is_certain").select(*PLACE, "text", "parts")


def _specific(candidates: pl.DataFrame, dialect: Dialect) -> pl.DataFrame:
    """The candidates that a specific shape matches, with its form (`shape`) and whether more text may follow there.

    If it may (`is_free`), the text may be the beginning of a sentence, or end within a value.
    """
    numbered = candidates.with_columns(number=pl.int_range(1, pl.len() + 1, dtype=pl.Int32))
    found = match(numbered.select("source", "text", line="number", damaged=False, cut=False), dialect)
    is_free = dialect.ranks_of_forms.group_by("shape").agg(pl.col("is_free").any())
    shapes = specific_shapes(found, dialect).unique("line").join(is_free, on="shape").rename({"line": "number"})
    return numbered.join(shapes.drop("source"), on="number", maintain_order="left").drop("number")


def _first_ended(candidates: pl.DataFrame) -> pl.DataFrame:
    """For each line the first candidate after which no text may follow (columns PLACE, `text`, `parts`), or the first.

    `candidates`: columns as of `_specific`.
    """
    ordered = candidates.sort("is_free", maintain_order=True).unique(PLACE, keep="first", maintain_order=True)
    return ordered.select(*PLACE, "text", "parts")


def _replaced(rows: pl.DataFrame, matched: Matched, completed: pl.DataFrame, dialect: Dialect) -> Matched:
    """What was matched, with completed lines (columns PLACE, `text`, `parts`, `is_torn`) instead of their parts."""
    whole_lines = rows.drop("text").join(completed.select(*PLACE, "text"), on=PLACE, maintain_order="left")
    found = match(whole_lines.select(rows.columns), dialect.including_formats_in(completed["text"]))
    distances = completed.with_columns(distance=pl.int_ranges(0, pl.col("parts"))).explode("distance")
    parts = distances.with_columns(part=pl.col("line") + pl.col("distance").cast(pl.Int32))
    known = found.known.join(parts.select(*PLACE, "part", "is_torn"), on=PLACE, maintain_order="left")
    known = known.with_columns(
        host=pl.when(pl.col("part") == pl.col("line")).then("host"),  # the rest is no line that the process printed
        line="part",
        is_unrecognised=pl.col("is_unrecognised") | pl.col("is_torn"),
        cut=pl.col("cut") | pl.col("is_torn"),
    ).select(matched.known.columns)
    replaced = parts.select("source", line="part")
    frames = {name: [_without(piece, replaced) for piece in pieces] for name, pieces in matched.frames.items()}
    for name, pieces in found.frames.items():
        frames.setdefault(name, []).extend(pieces)
    known = pl.concat([_without(matched.known, replaced), known])
    return Matched(frames, known, _without(matched.unknown, replaced))


def _without(rows: pl.DataFrame, places: pl.DataFrame) -> pl.DataFrame:
    return rows.join(places, on=PLACE, how="anti", maintain_order="left")
