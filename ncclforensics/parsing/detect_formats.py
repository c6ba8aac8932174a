"""Detect from samples of both ends whether an input is a log, its dialect, and its launcher prefixes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile

import polars as pl

from ncclforensics.data.typography import COLOUR_STARTS
from ncclforensics.grammar.dialect import Dialect
from ncclforensics.grammar.patterns import Pattern
from ncclforensics.inputs import lines
from ncclforensics.inputs.windows import InputReader
from ncclforensics.parsing.copied_text import (
    cleaned_in_order,
    find_margins,
    find_numbered,
    has_marks,
    without_margin,
    without_marks,
    without_numbers,
)
from ncclforensics.parsing.cut_lines import detect_cut_widths, mark_cut
from ncclforensics.parsing.headed_values import have_values_below_paths, join_values_to_paths
from ncclforensics.parsing.launcher_prefixes import detect_prefixes, may_have_prefixes, strip_prefixes
from ncclforensics.parsing.learned_tags import LEARNED, have_tag, learn_tag, learn_tail, without_tail
from ncclforensics.parsing.parser import parse
from ncclforensics.parsing.wrapped_lines import detect_widths, join_wrapped

PADDED = 0.5  # share of lines
STILL_KNOWN = 0.9  # of the lines known with a margin: some lines are known again as text of others
WITHOUT_PADDING = pl.col("text").str.strip_chars_end(" ")
RUN = 40  # calls at each end of a run of them; what is between shows nothing that these do not

# How this program's own reports begin. They quote lines, which must not count a second time.
TITLE = b"## ncclforensics: "
REPORT_STARTS = (TITLE, b"<!DOCTYPE html>", b'{\n  "schema_version"', b'{\n  "$schema"', b"<?xml", b"<svg ")
REPORT_NAMES = (
    TITLE, b'content="ncclforensics ', b'"name": "ncclforensics"', b'<testsuites name="ncclforensics"',
    b'data-generator="ncclforensics ',
)  # fmt: skip
NAME_WITHIN = 400  # bytes
# Above the verdict of a text report, which may have been pasted below a heading: `16 files · 73 NCCL lines`.
LINE_COUNTS, ITEM, FILES = (b" NCCL line", b" known line"), " · ".encode(), b" file"
COUNT_WITHIN = 1500  # bytes


@dataclass(slots=True)
class InputFormat:
    """What the lines of one input may look like."""

    dialect: Dialect
    prefixes: tuple[Pattern, ...] = ()  # of launchers and collectors, outermost first
    outer_width: int | None = None  # at which lines were wrapped, prefixes of launchers included
    cut_width: int | None = None  # at which lines were cut
    inner_width: int | None = None  # at which they were wrapped before they got these prefixes
    margin: str = ""  # blanks in front of all lines
    is_numbered: bool = False  # whether a program or an editor numbered its lines
    is_marked: bool = False  # whether it holds marks of the page or program that it was copied out of
    tail: str | None = None  # what closes lines, as a regex
    is_padded: bool = False  # whether blanks fill its lines
    has_values_below_paths: bool = False  # as find and tail print files

    @property
    def is_plain(self) -> bool:
        """Whether lines are parsed as they stand in the input."""
        is_changed = self.prefixes or self.margin or self.is_numbered or self.is_padded or self.has_values_below_paths
        return self.keeps_lines and not is_changed

    @property
    def keeps_lines(self) -> bool:
        """Whether a line of the input is one line that was printed, with all its text."""
        return self.outer_width is None and self.inner_width is None and self.cut_width is None and not self.is_marked

    @property
    def has_learned_tag(self) -> bool:
        """Whether one of the prefixes was learned from the lines."""
        return any(prefix.form == LEARNED for prefix in self.prefixes)

    def strip(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Remove marks of pages and programs, put wrapped lines together, strip launcher prefixes and padding."""
        is_coloured = bool(self.prefixes) and rows["text"].str.contains_any(COLOUR_STARTS).any()
        # Samples are cleaned: a tab is a blank there, and a tag has no colour.
        if is_coloured or self.is_marked or self.has_learned_tag or self.margin or self.is_numbered:
            rows = cleaned_in_order(rows)
        if self.is_marked:
            rows = without_marks(rows)
        if self.is_numbered:
            rows = without_numbers(rows)
        if self.margin:
            rows = without_margin(rows, self.margin)
        if self.outer_width is not None:
            rows = join_wrapped(rows, self.dialect, self.outer_width)
        if self.cut_width is not None:
            rows = mark_cut(rows, self.cut_width)
        if self.prefixes:
            rows = strip_prefixes(rows, self.dialect, self.prefixes)
        if self.tail:
            rows = without_tail(rows, self.tail)
        if self.inner_width is not None:
            rows = join_wrapped(rows, self.dialect, self.inner_width)
        if self.has_values_below_paths:
            rows = join_values_to_paths(rows)
        return rows.with_columns(WITHOUT_PADDING) if self.is_padded else rows

    def learn(self, rows: pl.DataFrame, reader: InputReader) -> Dialect:
        """Add the embedded formats that begin in these lines, and return the dialect.

        The sample shows them in short files, and in long ones that are read in windows.
        """
        if not reader.is_sampled_whole and not reader.is_windowed:
            self.dialect = self.dialect.including_formats_in(rows["text"])
        return self.dialect


def reject_non_log(reader: InputReader, sample: bytes, dialect: Dialect, *, is_document: bool) -> bool:
    """Whether a sample shows that an input is no log; then the reason is added to the input's problems.

    `is_document`: a format that is no log was recognised in it.
    """
    if _is_report(sample):
        problem = "is a report of this program, skipped"
    elif is_document:
        return False
    elif sample.startswith(lines.PICKLE_STARTS):
        problem = "is not a log: a pickle other than a Flight Recorder dump, skipped"
    elif _is_binary(sample, dialect):
        problem = "is not a log: binary data, skipped"
    else:
        return False
    reader.problems.append(problem)
    reader.is_binary = True
    return True


def _is_report(sample: bytes) -> bool:
    if sample.startswith(REPORT_STARTS):
        return any(name in sample[:NAME_WITHIN] for name in REPORT_NAMES)
    text = b" ".join(sample[:COUNT_WITHIN].split())  # the line may be wrapped
    counts = [text[: text.find(lines)].split(ITEM)[-2:] for lines in LINE_COUNTS if lines in text]
    return any(len(items) == 2 and FILES in items[0] and items[1].replace(b",", b"").isdigit() for items in counts)


def _is_binary(sample: bytes, dialect: Dialect) -> bool:
    undecodable = 0 if sample.isascii() else sample.decode("utf-8", "replace").count("\ufffd")
    is_mostly_text = (sample.count(b"\x00") + undecodable) * 10 <= len(sample)
    return not is_mostly_text and not parse(lines.block(sample, 1), dialect).frames


def detect_formats(samples: Mapping[int, bytes], dialect: Dialect) -> dict[int, InputFormat]:
    """The format of each of these inputs: number -> format.

    Many inputs are looked at in one call, because a call of Polars costs more than matching one sample.
    """
    formats = {number: InputFormat(dialect) for number in samples}
    texts = _without_middles(lines.texts(samples), dialect)
    if has_marks(texts["text"]):
        for number in samples:
            own = texts.filter(source=number)
            formats[number].is_marked = has_marks(own["text"])
            texts = pl.concat([texts.filter(pl.col("source") != number), without_marks(own)])
    for number in find_numbered(texts):
        own = texts.filter(source=number)
        rest = without_numbers(own)
        known = _count_known(without_margin(rest, find_margins(rest).get(number, "")), dialect)
        if known > _count_known(own, dialect):
            formats[number].is_numbered = True
            texts = pl.concat([texts.filter(pl.col("source") != number), rest])
    for number, margin in find_margins(texts).items():
        own = texts.filter(source=number)
        if _count_known(rest := without_margin(own, margin), dialect) >= STILL_KNOWN * _count_known(own, dialect):
            formats[number].margin = margin
            texts = pl.concat([texts.filter(pl.col("source") != number), rest])
    for number, width in detect_widths(texts, dialect).items():
        formats[number].outer_width = width
        joined = join_wrapped(texts.filter(source=number), dialect, width)
        texts = pl.concat([texts.filter(pl.col("source") != number), joined])
    texts = texts.with_columns(length=pl.col("text").str.len_chars())
    stripped = _find_prefixes(texts, formats, dialect)
    texts = pl.concat([texts.filter(~pl.col("source").is_in(list(stripped))), *stripped.values()])
    for number, width in detect_cut_widths(texts, dialect).items():
        if formats[number].outer_width is None:
            formats[number].cut_width = width
    if stripped:
        for number, width in detect_widths(texts.filter(pl.col("source").is_in(list(stripped))), dialect).items():
            formats[number].inner_width = width
    for number in _padded(texts):
        formats[number].is_padded = True
        texts = texts.with_columns(pl.when(source=number).then(WITHOUT_PADDING).otherwise("text").alias("text"))
    for number in have_values_below_paths(texts):
        formats[number].has_values_below_paths = True
        joined = join_values_to_paths(texts.filter(source=number))
        texts = pl.concat([texts.filter(pl.col("source") != number), joined])
    for number, detected in dialect.by_source(texts.with_columns(WITHOUT_PADDING)).items():  # one line may be filled
        formats[number].dialect = detected
    return formats


def _without_middles(texts: pl.DataFrame, dialect: Dialect) -> pl.DataFrame:
    """Samples without the middles of long runs of calls, which are nearly all lines of a long log."""
    is_call = texts["text"].str.contains(dialect.template.starts[0], literal=True)
    is_call &= texts["source"] == texts["source"].shift(1)
    place = pl.int_range(texts.height, eager=True)
    edges = place.to_frame("place").select(pl.when(~is_call).then("place")).to_series()
    is_far = (place - edges.forward_fill() > RUN) & (edges.backward_fill().fill_null(texts.height) - place > RUN)
    return texts.filter(~is_far) if is_far.any() else texts


def _count_known(rows: pl.DataFrame, dialect: Dialect) -> int:
    """How many of these lines are recognised behind their prefixes."""
    rows = strip_prefixes(rows, dialect, detect_prefixes(rows, dialect))
    text = "\n".join(rows["text"]).encode()
    known = parse(lines.block(text + b"\n", 1), dialect.including_formats_in(rows["text"])).tally
    return int(known["recognised"].sum())


def _padded(texts: pl.DataFrame) -> list[int]:
    """The inputs most of whose lines end with blanks, as a screen, a page or a spreadsheet leaves them."""
    filled = texts.filter(pl.col("text") != "").group_by("source").agg(pl.col("text").str.ends_with(" ").mean())
    return filled.filter(pl.col("text") > PADDED)["source"].to_list()


def _find_prefixes(
    texts: pl.DataFrame, formats: Mapping[int, InputFormat], dialect: Dialect
) -> dict[int, pl.DataFrame]:
    """Note the prefixes of inputs in their formats; return the samples without them, of those inputs that have any."""
    stripped: dict[int, pl.DataFrame] = {}
    tagged: list[pl.DataFrame] = []  # samples in which a tag was learned, with that tag
    candidates = may_have_prefixes(texts, dialect)
    by_source = texts.filter(pl.col("source").is_in(candidates)).partition_by("source", as_dict=True)
    for number in candidates:
        own = by_source[number,]
        if prefixes := detect_prefixes(own, dialect):
            outer = list(takewhile(lambda prefix: prefix.form != LEARNED, prefixes))
            if len(outer) < len(prefixes):
                tagged.append(strip_prefixes(own, dialect, outer).select(texts.columns))
            stripped[number] = _without_prefixes(own, formats[number], prefixes)
    shared = learn_tag(pl.concat(tagged)["text"]) if len(tagged) > 1 else None
    if shared is None:
        return stripped
    for number, found in formats.items():
        # Another program of the same job, none of whose lines has a certain beginning.
        own = stripped.get(number, texts.filter(source=number))
        if not found.has_learned_tag and have_tag(own["text"], shared):
            stripped[number] = _without_prefixes(own, found, (shared,))
    return stripped


def _without_prefixes(own: pl.DataFrame, found: InputFormat, prefixes: tuple[Pattern, ...]) -> pl.DataFrame:
    """The sample of one input without prefixes, which are noted, and without what closes lines that a tag begins."""
    rest = strip_prefixes(own, found.dialect, prefixes).select(own.columns)
    found.prefixes = (*found.prefixes, *prefixes)
    if found.has_learned_tag and (tail := learn_tail(rest["text"])):
        found.tail = tail
        rest = without_tail(rest, tail)
    return rest
