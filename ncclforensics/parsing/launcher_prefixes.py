"""Detect the prefixes that launchers and log collectors add to lines, per input, and strip them.

Such a prefix tells whose line it is, and so does a tag of the program's own, which stays with its line.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import itemgetter
from typing import cast

import polars as pl

from ncclforensics.grammar import grammar_file
from ncclforensics.grammar.dialect import REST, Dialect
from ncclforensics.grammar.patterns import Pattern
from ncclforensics.parsing.learned_tags import RANK, learn_tag, may_show_tag, own_time

DEPTH = 4  # prefixes in front of one another
SAMPLED = 200  # lines of each part by which prefixes are detected
SOME, NEARLY_ALL = 0.05, 0.8  # of the lines of a sample
# The last line with words, of those that no shape has: of any process, of the rank that a tag of the program names, and
# of the number that a launcher puts in front, which may be that of a rank, a node or an agent.
# `is_relayed`: by the driver of Ray, with the tag of another process; null where no line has such a tag.
VOICE = {"source": pl.Int32(), "line": pl.Int32(), "rank": pl.Int32(), RANK: pl.Int32(), "is_relayed": pl.Boolean()}
PID = "launcher_pid"
TAGS_OF_RANKS = ["rank", "Rank", "RANK"]


def detect_prefixes(sample: pl.DataFrame, dialect: Dialect) -> tuple[Pattern, ...]:
    """The launcher prefixes of one input, outermost first, from lines of its beginning and end.

    A prefix of priority -1 may be something else: it is accepted only if nearly all lines of the beginning, of the
    end, or where NCCL's lines begin have it (launchers report a failure without their own tag, once for each task).
    One of priority -2 is accepted only if it stands before nearly all NCCL lines, because `INFO: ` is no host name;
    signatures of embedded formats count as NCCL lines. Prefixes of priority 1 may follow any tag, and are tried
    wherever a tag was found. What still stands in front of lines is learned from them.

    One of `prefixes_of_some` is accepted by one line, and also where no NCCL line has any: what a program prints
    through its logger has it, and so do its workers' lines in the output of a driver, into which NCCL prints itself.
    """
    prefixes: list[Pattern] = []
    parts = [part for part in _parts(sample, dialect) if part.height] or [sample]
    sample = pl.concat([part.with_columns(part=pl.lit(number)) for number, part in enumerate(parts)])
    certain = [
        pattern for shape in dialect.launcher_prefixes if -1 <= shape.priority <= 0 for pattern in shape.patterns
    ]
    while len(prefixes) < DEPTH:
        sample = sample.filter(pl.col("text") != "")
        is_plain = _has_no_prefix(sample["text"], dialect)
        is_nccl = sample["text"].str.contains(dialect.prefix_regex)
        # All at once: ten thousand files without a prefix cost as many queries.
        possible = [
            (shape, pattern)
            for shape, pattern in dialect.prefixes_near(sample["text"])
            if not is_plain or shape.frame in dialect.prefixes_of_some
        ]
        hits = sample.select(_has_each(pattern for _, pattern in possible))
        tried = [
            (shape, pattern, has_prefix)
            for (shape, pattern), has_prefix in zip(possible, hits, strict=True)
            if has_prefix.any()
        ]
        likely: list[tuple[bool, float, int, Pattern]] = []
        longer: list[pl.Series] = []
        for shape, pattern, has_prefix in tried:
            share = max(_share(has_prefix.filter(sample["part"] == number)) for number in range(len(parts)))
            of_nccl = _share(has_prefix.filter(is_nccl))
            if shape.priority < 0:
                suffixes = strip_prefixes(sample.filter(has_prefix), dialect, [pattern])["text"]
                near, near_as_printed = (dialect.formats_near(texts)[0] for texts in (suffixes, sample["text"]))
                near_as_printed = {name: regex for name, regex in near_as_printed.items() if name in near}
                revealed, as_printed = _found(suffixes, near), _found(sample["text"], near_as_printed)
                of_nccl = max(of_nccl, revealed / (revealed + as_printed or 1))
            least = 0 if shape.frame in dialect.prefixes_of_some else SOME if shape.priority >= 0 else NEARLY_ALL
            if max(share if shape.priority >= -1 else 0, of_nccl) >= least:
                # `0: ` is a task before it is a host, and a time in front of other words is part of a longer prefix
                if shape.priority < 0 and any((has_prefix | ~hit).all() for hit in longer):
                    continue
                likely.append((shape.priority >= -1, share, shape.priority, pattern))
                longer += [has_prefix] * (shape.priority == 0)
        found = max(likely, key=itemgetter(0, 1, 2))[-1] if likely else None
        if found is None and not is_plain:
            found = learn_tag(sample["text"], certain)
        if found is None:
            break
        prefixes.append(found)
        sample = strip_prefixes(sample, dialect, prefixes[-1:])
    if prefixes:
        prefixes += [pattern for shape in dialect.launcher_prefixes if shape.priority > 0 for pattern in shape.patterns]
    return tuple(prefixes)


def _parts(sample: pl.DataFrame, dialect: Dialect) -> list[pl.DataFrame]:
    """Up to SAMPLED lines of the beginning, of the end, and from the first line of NCCL in between."""
    head, rest = sample.head(SAMPLED), sample.slice(SAMPLED)
    middle, tail = rest.head(-SAMPLED), rest.tail(SAMPLED)
    first = middle["text"].str.contains(dialect.prefix_marker, literal=True).arg_max()
    return [head, middle.slice(first or 0, SAMPLED), tail]


def may_have_prefixes(samples: pl.DataFrame, dialect: Dialect) -> list[int]:
    """The inputs (columns `source`, `text`) whose lines may have prefixes.

    Not those of which no line begins like a prefix or has, inside of it, a beginning by which a tag is learned; of
    those whose NCCL lines all have none, only the other lines count, and `prefixes_of_some`. A time that NCCL prints in
    front of some lines itself, by default of warnings, is no prefix.
    """
    nccl_lines = samples.filter(pl.col("text").str.contains(dialect.prefix_marker, literal=True))
    is_at_start = nccl_lines["text"].str.contains(f"^(?:{dialect.prefix_regex})")
    buried = nccl_lines.filter(~is_at_start)
    buried = buried.filter(pl.col("text").str.contains(dialect.prefix_regex))
    buried = buried.filter(~pl.col("text").str.contains(f"^{own_time()}(?:{dialect.prefix_regex})"))
    at_start = nccl_lines["source"].filter(is_at_start)
    is_plain = pl.col("source").is_in(list(set(at_start.unique()) - set(buried["source"].unique())))
    is_nccl = pl.col("text").str.contains(dialect.prefix_marker, literal=True)
    others, beside_plain = samples.filter(~is_plain), samples.filter(is_plain & ~is_nccl)
    near = [pattern for _, pattern in dialect.prefixes_near(others["text"])]
    of_some = [
        pattern
        for shape, pattern in dialect.prefixes_near(beside_plain["text"])
        if shape.frame in dialect.prefixes_of_some
    ]
    found: set[int] = set()
    for rows, hits in ((others, [*_has_each(near), may_show_tag(pl.col("text"))]), (beside_plain, _has_each(of_some))):
        if hits and not rows.is_empty():  # to make the searches ready takes longer than one of a short text
            found.update(rows.filter(pl.any_horizontal(*hits))["source"].unique())
    return sorted(found)


def _has_each(prefixes: Iterable[Pattern]) -> list[pl.Expr]:
    """Whether a text has each of these prefixes."""
    return [pl.col("text").str.contains(pattern.regex).alias(str(number)) for number, pattern in enumerate(prefixes)]


def _has_no_prefix(texts: pl.Series, dialect: Dialect) -> bool:
    """Whether there are NCCL lines, and none of them has a launcher prefix."""
    nccl_lines = texts.filter(texts.str.contains(dialect.prefix_regex))
    return bool(nccl_lines.len()) and bool(nccl_lines.str.contains(f"^(?:{dialect.prefix_regex})").all())


def _found(texts: pl.Series, regexes: Mapping[str, str]) -> int:
    return sum(int(texts.str.contains(regex).sum()) for regex in regexes.values())


def _share(hits: pl.Series) -> float:
    return float(cast(float, hits.mean() or 0))


def strip_prefixes(rows: pl.DataFrame, dialect: Dialect, patterns: Iterable[Pattern]) -> pl.DataFrame:
    """Strip prefixes from lines; their fields become columns (some of `dialect.labels`)."""
    for pattern in patterns:
        fields = rows["text"].str.extract_groups(pattern.regex).struct.unnest()
        rest = pl.when(_is_hit(fields)).then(fields[REST].fill_null("")).otherwise(rows["text"])
        labels = fields.select(base.cast(pl.col(name)) for name, base in dialect.labels.items() if name in fields)
        # Of two launchers the inner one started the program.
        known = [pl.coalesce(label, label.name) if label.name in rows else label for label in labels]
        rows = rows.with_columns(*known, text=rest)
    return rows


def _is_hit(fields: pl.DataFrame) -> pl.Series:
    return fields.select(pl.any_horizontal(pl.all().is_not_null())).to_series()


def no_voices() -> pl.DataFrame:
    """Return no line of anybody."""
    return pl.DataFrame(schema=VOICE)


def find_voices(rows: pl.DataFrame) -> pl.DataFrame:
    """Who printed last, of lines from which prefixes were stripped, and that no shape has (columns VOICE)."""
    is_worded = rows["text"].str.contains("[0-9A-Za-z]")
    if not is_worded.any():
        return no_voices()
    lines = [rows.select("source", "line").filter(is_worded)]
    if RANK in rows.columns:
        lines.append(rows.select("source", "line", RANK).filter(is_worded).drop_nulls(RANK))
    if PID in rows.columns:
        lines.append(rows.filter(is_worded).select("source", "line", is_relayed=pl.col(PID).is_not_null()))
    tagged = rows.filter(is_worded & rows["text"].str.contains_any(TAGS_OF_RANKS))
    if tagged.height:  # to make the search ready takes longer than one of a few lines
        front, back = map(grammar_file.load("launcher").part_regex, ("_before_speaker", "_behind_speaker"))
        rank = pl.col("text").str.extract(f"^(?:{front})([0-9]+)(?:{back})").cast(pl.Int32, strict=False)
        lines.append(tagged.select("source", "line", rank=rank).drop_nulls("rank"))
    voices = pl.concat([no_voices(), *lines], how="diagonal")
    last = voices.group_by("source", "rank", RANK, "is_relayed", is_of_tail=pl.col("line") < 0).agg(
        pl.col("line").max()
    )
    return last.select(VOICE.keys())
