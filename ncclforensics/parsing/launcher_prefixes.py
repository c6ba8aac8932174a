"""What launchers and collectors put in front of a line: found out per source, and split off."""

from __future__ import annotations

from collections.abc import Iterable
from operator import itemgetter
from typing import cast

import polars as pl

from ncclforensics.grammar.dialect import REST, Dialect
from ncclforensics.grammar.patterns import Pattern

DEPTH = 4  # decorations one in front of the other
SAMPLED = 200  # lines at each end that tell how a source is decorated
SOME, NEARLY_ALL = 0.05, 0.8  # of the lines of a sample


def detect_prefixes(sample: pl.DataFrame, dialect: Dialect) -> tuple[Pattern, ...]:
    """What stands in front of the lines of one source, outermost first, judged by lines of its beginning and end.

    A shape that may be something else (priority -1) is believed only where nearly all lines of the beginning have it or
    nearly all of the end (launchers tell of a failure without their own tag, once for each task), and one that is
    hardly a shape (-2) only where nearly all lines of ours stand behind it: `INFO: ` is no host name. Signatures
    of embedded formats are as good as lines of ours. What any line with a tag may have (1) is looked for wherever
    there are tags.
    """
    found: list[Pattern] = []
    ends = [sample.head(SAMPLED), sample.tail(SAMPLED)]
    sample = pl.concat([end.with_columns(is_end=pl.lit(bool(place))) for place, end in enumerate(ends)])
    while len(found) < DEPTH:
        sample = sample.filter(pl.col("text") != "")
        if _is_bare(sample["text"], dialect):
            break
        is_ours = sample["text"].str.contains(dialect.prefix_regex)
        embedded_formats = [embedded for embedded in dialect.embedded_formats if embedded.may_be_in(sample["text"])]
        bare = sum(embedded.count_in(sample["text"]) for embedded in embedded_formats)
        likely: list[tuple[bool, float, Pattern]] = []
        for shape in (each for each in dialect.launcher_prefixes if each.priority <= 0):
            for pattern in shape.patterns:
                has_it = sample["text"].str.contains(pattern.regex)
                share = max(_share(has_it.filter(sample["is_end"] == end)) for end in (False, True))
                of_ours = _share(has_it.filter(is_ours))
                if embedded_formats and shape.priority < 0:
                    behind = strip_prefixes(sample.filter(has_it), dialect, [pattern])["text"]
                    revealed = sum(embedded.count_in(behind) for embedded in embedded_formats)
                    of_ours = max(of_ours, revealed / (revealed + bare or 1))
                if max(share if shape.priority >= -1 else 0, of_ours) >= (SOME if shape.priority >= 0 else NEARLY_ALL):
                    likely.append((shape.priority >= -1, share, pattern))  # `0: ` is a task before it is a host
        if not likely:
            break
        found.append(max(likely, key=itemgetter(0, 1))[2])
        sample = strip_prefixes(sample, dialect, found[-1:])
    if found:
        found += [pattern for shape in dialect.launcher_prefixes if shape.priority > 0 for pattern in shape.patterns]
    return tuple(found)


def may_have_prefixes(samples: pl.DataFrame, dialect: Dialect) -> list[int]:
    """The sources (columns `source`, `text`) that may have decorations: not where all lines of ours stand bare."""
    ours = samples.filter(pl.col("text").str.contains(dialect.prefix_marker, literal=True))
    is_bare = ours["text"].str.contains(f"^(?:{dialect.prefix_regex})")
    buried = ours.filter(~is_bare)
    buried = buried.filter(pl.col("text").str.contains(dialect.prefix_regex))
    bare = set(ours.filter(is_bare)["source"]) - set(buried["source"])
    return sorted(set(samples["source"]) - bare)


def _is_bare(texts: pl.Series, dialect: Dialect) -> bool:
    """Whether nothing stands in front of any line of ours, and there are such lines."""
    ours = texts.filter(texts.str.contains(dialect.prefix_regex))
    return bool(ours.len()) and bool(ours.str.contains(f"^(?:{dialect.prefix_regex})").all())


def _share(hits: pl.Series) -> float:
    return float(cast(float, hits.mean() or 0))


def strip_prefixes(rows: pl.DataFrame, dialect: Dialect, patterns: Iterable[Pattern]) -> pl.DataFrame:
    """The lines without what stands in front of them; what it says is kept (columns: some of `language.labels`)."""
    for pattern in patterns:
        fields = rows["text"].str.extract_groups(pattern.regex).struct.unnest()
        bare = pl.when(_is_hit(fields)).then(fields[REST].fill_null("")).otherwise(rows["text"])
        labels = fields.select(base.cast(pl.col(name)) for name, base in dialect.labels.items() if name in fields)
        # The inner of two is the one that the program itself was started by.
        known = [pl.coalesce(label, label.name) if label.name in rows else label for label in labels]
        rows = rows.with_columns(*known, text=bare)
    return rows


def _is_hit(fields: pl.DataFrame) -> pl.Series:
    return fields.select(pl.any_horizontal(pl.all().is_not_null())).to_series()
