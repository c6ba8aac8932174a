"""Facts of two runs: the same thing told with other values, or by other shares of the ranks."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.data.difference_weights import SHARE
from ncclforensics.data.names import bytes_text
from ncclforensics.diff import FACT, Difference, Side, Topic
from ncclforensics.rules.finding import Line

SHOWN = 2  # lines of evidence of a run, one for each of the commonest values
ABSENT = "not set"


def fact_differences(topic: Topic, good: pl.DataFrame, bad: pl.DataFrame) -> Iterator[Difference]:
    """What both runs tell of this topic and tell otherwise."""
    series: dict[tuple[str, tuple[str, ...], tuple[str, ...]], tuple[Difference, list[int]]] = {}
    ours, theirs = _told(good), _told(bad)
    names = [name for name in ours if name in theirs]
    if topic.absence_tells:
        names = list(dict.fromkeys([*ours, *theirs]))
    for what, size in sorted(names, key=lambda name: (name[0], name[1] or 0)):
        one, other = ours.get((what, size)), theirs.get((what, size))
        if one is not None and other is not None and not _is_other(_counts(one), _counts(other)):
            continue
        sides = _side(one, good), _side(other, bad)
        key = what, tuple(value for value, _ in sides[0].values), tuple(value for value, _ in sides[1].values)
        if size is not None and key in series:
            series[key][1].append(size)
            continue
        certainty = "likely" if one is None or other is None else "certain"
        told = Difference(topic.name, what, topic.kind, *sides, topic.unit, topic.means, certainty)
        series[key if size is not None else (*key[:2], (*key[2], str(len(series))))] = told, [size or 0]
    for told, sizes in series.values():
        if sizes[-1]:
            told.what += f" of {' to '.join(dict.fromkeys(map(bytes_text, (sizes[0], sizes[-1]))))}"
        yield told


def _told(rows: pl.DataFrame) -> dict[tuple[str, int | None], pl.DataFrame]:
    """The rows of each thing, in the order of reading."""
    groups = rows.group_by("what", "size", maintain_order=True)
    return {(str(what), None if size is None else int(str(size))): each for (what, size), each in groups}


def _counts(rows: pl.DataFrame) -> dict[str, int]:
    return dict(rows["value"].value_counts().iter_rows())


def _is_other(good: dict[str, int], bad: dict[str, int]) -> bool:
    """Whether values were added or lost, or were told by another share of those who tell any."""
    if set(good) != set(bad):
        return True
    all_good, all_bad = sum(good.values()), sum(bad.values())
    return any(abs(good[value] / all_good - bad[value] / all_bad) > SHARE for value in good)


def _side(rows: pl.DataFrame | None, all_of_topic: pl.DataFrame) -> Side:
    if rows is None:  # the lines of what is set stand for those of what is not
        several = all_of_topic.select("source", "line").head(1)
        return Side([(ABSENT, 0)], [Line(source, line, "others are") for source, line in several.iter_rows()])
    counted = rows.group_by("value", maintain_order=True).agg(pl.len(), pl.col("source", "line").first())
    ordered = counted.sort("len", "value", descending=[True, False])
    values = list(ordered.select("value", "len").iter_rows())
    cited = ordered.head(SHOWN).select("source", "line", "value").iter_rows()
    return Side(values, [Line(source, line, value) for source, line, value in cited])


def in_full(rows: pl.DataFrame) -> pl.DataFrame:
    """Rows of a topic with every column of a fact; rows without a value are left out."""
    absent = [pl.lit(None, dtype).alias(name) for name, dtype in FACT.items() if name not in rows.columns]
    return rows.with_columns(absent).select(list(FACT)).cast(pl.Schema(FACT)).drop_nulls(["what", "value"])
