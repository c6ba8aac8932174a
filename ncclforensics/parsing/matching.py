"""Dispatch lines to patterns and extract their fields.

Lines of a log repeat, but for the process that prints them. So a line is cut after its prefix
(`host:pid:tid [dev] NCCL INFO `); distinct prefixes and distinct bodies are parsed once each, and assembled again.
The beginning of a body, or a literal that a pattern requires, selects the patterns that are tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import groupby
from typing import NamedTuple

import polars as pl

from ncclforensics.grammar.dialect import FIELDS, MATCHED, Dialect, fields
from ncclforensics.grammar.patterns import FORM, Shape
from ncclforensics.inputs.lines import cleaned, is_strange
from ncclforensics.parsing.candidates import Hits, find_hits
from ncclforensics.parsing.templates import distinct_rows

WORD = 12  # most characters of the word after the prefix marker, with its blank
NONE = -1
NO_HOST = "?"  # stands for the host of a line that does not name its process; no host can be called so
PREFIX_FIELDS = {"host": pl.Categorical(), "pid": pl.Int32(), "stamp": pl.String()}

KNOWN = {
    "source": pl.Int32(),
    "line": pl.Int32(),
    "host": pl.Categorical(),
    "pid": pl.Int32(),
    "launcher_rank": pl.Int32(),
    "launcher_repeats": pl.Int32(),
    "is_unrecognised": pl.Boolean(),  # only the catch-all matches
    "cut": pl.Boolean(),
}


class _Prefixes(NamedTuple):
    """The distinct prefixes of some lines."""

    kinds: pl.Series  # the bits of the prefix rules that match
    values: dict[
        str, pl.DataFrame
    ]  # prefix rule that matches any -> a row for each prefix, of nulls where it does not match
    processes: pl.DataFrame  # columns `host` and `pid`


class _Lines(NamedTuple):
    """Lines of a table, and of each the body that candidates are applied to."""

    table: pl.DataFrame
    row: pl.Series  # of `table`
    body: pl.Series
    prefixes: _Prefixes | None
    prefix: pl.Series  # of `prefixes`
    kind: pl.Series

    def matched(
        self, dialect: Dialect, frames: dict[str, list[pl.DataFrame]], *, is_clean: bool
    ) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
        """Return the rows that match a shape, those that match none, and those that have to be cleaned first."""
        if self.row.is_empty():
            return NO_LINES, self.table.clear(), self.table.clear()
        texts = pl.DataFrame({"kind": self.kind, "cut": self.table["cut"][self.row], "body": self.body})
        models, model = distinct_rows(texts, texts.columns)
        is_dirty = pl.repeat(False, models.height, eager=True) if is_clean else is_strange(models["body"])
        owner = pl.repeat(NONE, models.height, dtype=pl.Int32, eager=True)
        place = pl.repeat(0, models.height, dtype=pl.UInt32, eager=True)
        found = find_hits(models, ~is_dirty, dialect, has_prefix=self.prefixes is not None)
        hits = sorted(found, key=lambda hit: hit.candidate.prefix)
        for number, hit in enumerate(hits):
            owner.scatter(hit.places, number)
            place.scatter(hit.places, pl.int_range(hit.places.len(), dtype=pl.UInt32, eager=True))
        owners = pl.DataFrame({"row": self.row, "prefix": self.prefix, "owner": owner[model], "place": place[model]})
        free = owners["owner"] == NONE
        owned = owners.filter(~free).sort("owner", maintain_order=True)
        known = self._assemble(owned, hits, dialect, frames)
        needs_cleaning = is_dirty[model] & free
        return known, self.table[self.row.filter(free & ~needs_cleaning)], self.table[self.row.filter(needs_cleaning)]

    def _assemble(
        self, owned: pl.DataFrame, hits: Sequence[Hits], dialect: Dialect, frames: dict[str, list[pl.DataFrame]]
    ) -> pl.DataFrame:
        """Add rows of prefix and body fields to `frames`; return the process of every line (columns KNOWN)."""
        labels = [name for name in self.table.columns if name in dialect.labels]
        lines = self.table.select("source", "line", *labels)[owned["row"]]
        start, unrecognised = 0, []
        counted = owned.group_by("owner", maintain_order=True).len().iter_rows()
        for prefix, alike in groupby(counted, key=lambda item: hits[item[0]].candidate.prefix):
            counts = list(alike)
            values_of_prefix = self._prefix_fields(
                prefix, owned["prefix"].slice(start, sum(count for _, count in counts))
            )
            for number, count in counts:
                hit, part = hits[number], slice(start, start + count)
                start += count
                first, values_of_prefix = values_of_prefix.head(count), values_of_prefix.slice(count)
                if hit.candidate.shape.frame == dialect.catch_all:
                    unrecognised.append(number)
                    continue
                columns = lines[part].hstack([_form(hit.candidate.pattern.form).new_from_index(0, count)])
                columns.hstack(first, in_place=True)
                if hit.values.width:
                    columns.hstack(hit.values[owned["place"][part]], in_place=True)
                frames.setdefault(hit.candidate.shape.frame, []).append(_told_apart_by_rank(columns))
        cut = self.table["cut"][owned["row"]]
        processes = lines.with_columns(cut=cut, is_unrecognised=owned["owner"].is_in(unrecognised))
        if self.prefixes:
            processes.hstack(self.prefixes.processes[owned["prefix"]], in_place=True)
        missing = [
            pl.lit(None, dtype=dtype).alias(name) for name, dtype in KNOWN.items() if name not in processes.columns
        ]
        return _told_apart_by_rank(processes.with_columns(missing).select(list(KNOWN)))

    def _prefix_fields(self, prefix: str, places: pl.Series) -> pl.DataFrame:
        """The fields of one prefix rule for these lines, without columns of nulls."""
        if self.prefixes is None:
            return pl.DataFrame(height=places.len())
        values_of_prefix = self.prefixes.values[prefix][places]
        return values_of_prefix.select(column for column in values_of_prefix if column.null_count() < places.len())


class Matched(NamedTuple):
    """The result of matching some lines."""

    frames: dict[str, list[pl.DataFrame]]
    known: pl.DataFrame  # lines that match a shape (columns KNOWN)
    unknown: pl.DataFrame  # all other lines, unchanged


def no_match(rows: pl.DataFrame) -> Matched:
    """The result for lines of which none matches a shape."""
    return Matched({}, NO_LINES, rows)


NO_LINES = pl.DataFrame(schema=KNOWN)


def match(rows: pl.DataFrame, dialect: Dialect) -> Matched:
    """Match lines with the shapes of a dialect."""
    if rows.is_empty():
        return no_match(rows)
    frames: dict[str, list[pl.DataFrame]] = {}
    with_prefix, others = _cut_prefixes(rows, dialect)
    known, unknown, dirty = with_prefix.matched(dialect, frames, is_clean=False)
    needs_cleaning = is_strange(others["text"])
    late, never = _cut_prefixes(cleaned(pl.concat([others.filter(needs_cleaning), dirty])), dialect)
    more, left, _ = late.matched(dialect, frames, is_clean=True)
    without_prefix = _without_prefix(pl.concat([others.filter(~needs_cleaning), never]))
    rest, application, _ = without_prefix.matched(dialect, frames, is_clean=True)
    return Matched(frames, pl.concat([known, more, rest]), pl.concat([unknown, left, application]))


def messages(rows: pl.DataFrame, dialect: Dialect) -> pl.DataFrame:
    """What stands in lines behind their prefix: columns `source`, `line`, `host`, `pid`, `stamp`, `message`.

    A line without a prefix is a message, and the other columns are null.
    """
    cut, others = _cut_prefixes(rows, dialect)
    place = cut.table.select("source", "line")[cut.row]
    missing = [pl.lit(None, dtype=dtype).alias(name) for name, dtype in PREFIX_FIELDS.items()]
    without = others.select("source", "line", *missing, message="text")
    if cut.prefixes is None:
        return without
    stamps = [values["stamp"] for values in cut.prefixes.values.values() if "stamp" in values.columns]
    stamp = _first_of(stamps) if stamps else pl.lit(None)
    fields_of_prefix = cut.prefixes.processes.with_columns(stamp=stamp.cast(pl.String))[cut.prefix]
    return pl.concat([place.hstack(fields_of_prefix).with_columns(message=cut.body), without])


def _cut_prefixes(rows: pl.DataFrame, dialect: Dialect) -> tuple[_Lines, pl.DataFrame]:
    """Cut lines after their prefix; return them and the lines without one."""
    text, start, mark = pl.col("text"), pl.col("start"), dialect.prefix_marker
    at = rows["text"].str.find(mark, literal=True)
    is_marked = at.is_not_null()
    if not is_marked.any():
        return _without_prefix(rows.clear()), rows
    place, here = is_marked.arg_true(), rows["text"].filter(is_marked)
    marked = pl.DataFrame({"row": place, "text": here, "start": at.drop_nulls()})
    if not marked.select((text.str.len_bytes() == text.str.len_chars()).all()).item():
        # Offsets are bytes, slices are characters.
        before = text.str.splitn(mark, 2).struct.field("field_0")
        marked = marked.with_columns(start=before.str.len_chars())
    word = text.str.slice(start + len(mark), WORD)  # a slice is a copy: take few characters
    stop = start + len(mark) + 1 + word.str.find(" ", literal=True)
    # Cutting many texts at the same position copies nothing, and prefixes have few lengths.
    lengths = marked.with_columns(stop=stop).drop_nulls().partition_by("stop", as_dict=True, include_key=False)
    pieces = [
        part.select("row", prefix=text.str.head(length), body=text.str.slice(length))
        for (length,), part in lengths.items()
    ]
    if not pieces:
        return _without_prefix(rows.clear()), rows
    halves = pl.concat(pieces).sort("row")
    models, model = distinct_rows(halves, ["prefix"])
    prefixes = _parse_prefixes(models["prefix"], dialect)
    halves = halves.with_columns(prefix=model, kind=prefixes.kinds.gather(model)).filter(pl.col("kind") > 0)
    is_other = pl.repeat(True, rows.height, eager=True).scatter(halves["row"], False)
    return _Lines(rows, halves["row"], halves["body"], prefixes, halves["prefix"], halves["kind"]), rows.filter(
        is_other
    )


def _without_prefix(rows: pl.DataFrame) -> _Lines:
    """Lines without a prefix, with the whole text as body."""
    none = pl.repeat(0, rows.height, dtype=pl.UInt32, eager=True)
    return _Lines(rows, pl.int_range(rows.height, dtype=pl.UInt32, eager=True), rows["text"], None, none, none)


def _parse_prefixes(texts: pl.Series, dialect: Dialect) -> _Prefixes:
    kinds = pl.repeat(0, texts.len(), dtype=pl.Int64, eager=True)
    table, values = texts.to_frame("text"), {}
    is_present = table.select(
        pl.col("text").str.contains(prefix.patterns[0].anchor, literal=True).any().alias(prefix.frame)
        for prefix in dialect.prefixes
    ).row(0, named=True)
    for bit, prefix in enumerate(dialect.prefixes):
        if is_present[prefix.frame]:
            rows = table.select(fields(pl.col("text"), prefix.patterns[0].regex)).unnest(FIELDS)
            typed = [base.cast(pl.col(name)).alias(name) for name, base in prefix.columns.items()]
            values[prefix.frame] = rows.select(*typed, pl.col(MATCHED).is_not_null())
            kinds += values[prefix.frame].drop_in_place(MATCHED).cast(pl.Int64) * (1 << bit)
    is_bare = (kinds == 0) & ~texts.str.contains(dialect.prefix_regex)
    for short, of in dialect.short_prefixes:
        bits = sum(1 << bit for bit, prefix in enumerate(dialect.prefixes) if prefix.frame in of)
        for pattern in short.patterns:
            if not is_bare.any():
                break
            found = table.select(fields(pl.col("text"), pattern.regex)).unnest(FIELDS)
            is_short = found[MATCHED].is_not_null() & is_bare
            if not is_short.any():
                continue
            kinds |= is_short.cast(pl.Int64) * bits
            short_values = found.select(short.columns[name].cast(pl.col(name)).alias(name) for name in pattern.columns)
            for prefix in dialect.prefixes:
                if prefix.frame in of:
                    known = values.get(prefix.frame, _nulls(prefix, texts.len()))
                    values[prefix.frame] = _with_short_values(known, is_short, short_values)
            is_bare &= ~is_short
    tables = values.values() or [_nulls(dialect.prefixes[0], texts.len())]
    owners = {name: _first_of([rows[name] for rows in tables]) for name in ("host", "pid")}
    return _Prefixes(kinds, values, pl.DataFrame(owners, schema={name: KNOWN[name] for name in owners}))


def _nulls(prefix: Shape, height: int) -> pl.DataFrame:
    """The fields of a prefix rule that matches no line."""
    return pl.DataFrame(schema={name: base.dtype for name, base in prefix.columns.items()}).clear(height)


def _with_short_values(values: pl.DataFrame, is_short: pl.Series, short_values: pl.DataFrame) -> pl.DataFrame:
    """Values of a prefix rule with those of short prefixes, whose process is known by nothing but its device.

    With the name of a host, in which the number of the process is hidden, a number below zero stands for that.
    """
    known = {name: pl.when(is_short).then(short_values[name]).otherwise(pl.col(name)) for name in short_values.columns}
    nowhere = pl.lit(NO_HOST).cast(pl.Categorical())
    host = short_values["host"].cast(pl.Categorical()) if "host" in short_values else nowhere
    device = short_values["dev"].fill_null(0).cast(pl.Int32) if "dev" in short_values else pl.lit(0, dtype=pl.Int32)
    return values.with_columns(
        **{name: value for name, value in known.items() if name in values.columns and name != "host"},
        host=pl.when(is_short).then(host).otherwise("host"),
        pid=pl.when(is_short).then(device if "host" not in short_values else -1 - device).otherwise("pid"),
    )


def _told_apart_by_rank(rows: pl.DataFrame) -> pl.DataFrame:
    """Rows in which processes without a host are told apart by the rank that a launcher prefix names, if any does."""
    if not {"host", "pid", "launcher_rank"} <= set(rows.columns):
        return rows
    is_ranked = (pl.col("host") == NO_HOST) & pl.col("launcher_rank").is_not_null()
    return rows.with_columns(pid=pl.when(is_ranked).then("launcher_rank").otherwise("pid"))


def _first_of(columns: Sequence[pl.Series]) -> pl.Series:
    """The first value of every row that is not null."""
    return pl.select(pl.coalesce(*columns)).to_series()


@cache
def _form(name: str) -> pl.Series:
    return pl.Series(FORM, [name], dtype=pl.Categorical())
