"""Find the lines that an author wrote, in documents and sources: what they tell of failures, no program printed."""

from __future__ import annotations

import polars as pl

from ncclforensics.grammar import grammar_file

PLACE = ["source", "line"]
MIN_LINES, SHARE = 20, 0.35  # outside of blocks, and how many of them an author wrote, for a source to be a document
MIN_JOINING = 2  # words that join a sentence
MOST_LINES = 5_000  # of a document
BLOCK = "    "  # in front of a line that a document quotes, where it is none of its sentences or statements


def without_documents(tried: pl.DataFrame, unknown: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """Leave out of `tried` what documents hold outside of blocks that quote something, and in blocks of code.

    `unknown`: the lines that no shape reads; `rows`: all lines.
    """
    outside, code = _written(tried, unknown, rows)
    return tried.join(pl.concat([outside, code]), on=PLACE, how="anti", maintain_order="left")


def without_mentions(
    frames: dict[str, list[pl.DataFrame]], unknown: pl.DataFrame, rows: pl.DataFrame
) -> dict[str, list[pl.DataFrame]]:
    """Leave out what was read of sentences, lists and tables of documents: nothing printed what they name."""
    if rows.height > MOST_LINES:
        return frames
    mentioning = rows.filter(pl.col("text").str.contains(_part("_mention"))).join(unknown, on=PLACE, how="anti")
    outside, _ = _written(mentioning, unknown, rows)
    written = outside.join(mentioning, on=PLACE, how="semi")
    if written.is_empty():
        return frames
    return {name: [rows.join(written, on=PLACE, how="anti") for rows in found] for name, found in frames.items()}


def _written(tried: pl.DataFrame, unknown: pl.DataFrame, rows: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The lines of documents among the sources of `tried`: outside of blocks, and in blocks of code (columns PLACE).

    Sentences, lists, tables and statements of a program are most of a document, and few lines of a log. The source of
    a program indents its blocks, and quotes nothing.
    """
    none = tried.select(PLACE).clear()
    sources = tried["source"].unique().implode()
    unread = unknown.filter(pl.col("source").is_in(sources)).select(PLACE)
    if rows.height > MOST_LINES or unread.height < MIN_LINES * SHARE:
        return none, none
    texts = rows.filter(pl.col("source").is_in(sources) & (pl.col("text") != "")).sort(PLACE).select(*PLACE, "text")
    text = pl.col("text")
    is_fence, of_code = (text.str.contains(f"^{_part(name)}") for name in ("_fence", "_fence_of_code"))
    is_fenced = (is_fence.cum_sum().over("source") % 2 == 1) | is_fence
    is_code = is_fenced & pl.when(is_fence).then(of_code).forward_fill().over("source")
    is_sentence = text.str.contains(f"^{_part('_sentence_start')}")
    is_sentence &= text.str.count_matches(_part("_joining_word")) >= MIN_JOINING
    is_unread = _is_among(unread)
    is_authored = is_sentence | text.str.contains(f"^{_part('_of_an_author')}")
    is_statement = is_unread & text.str.contains(f"^{_part('_of_a_source')}")
    is_source = is_statement.mean().over("source") >= SHARE
    is_block = text.str.starts_with(BLOCK) & ~is_source
    is_quoted = is_fenced | (is_block & ~(is_authored & (is_unread | _is_among(tried))))
    marked = texts.with_columns(is_written=is_unread & is_authored, is_quoted=is_quoted, is_code=is_code)
    outside = marked.filter(~pl.col("is_quoted"))
    counted = outside.unique(["source", "text"]).group_by("source").agg(pl.len(), share=pl.col("is_written").mean())
    documents = counted.filter(pl.col("len") >= MIN_LINES, pl.col("share") >= SHARE).select("source")
    of_documents = marked.join(documents, on="source", how="semi")
    return of_documents.filter(~pl.col("is_quoted")).select(PLACE), of_documents.filter("is_code").select(PLACE)


def _is_among(places: pl.DataFrame) -> pl.Expr:
    return pl.struct(PLACE).is_in(places.select(pl.struct(PLACE)).to_series().implode())


def _part(rule: str) -> str:
    return f"(?:{grammar_file.load('copied').part_regex(rule)})"
