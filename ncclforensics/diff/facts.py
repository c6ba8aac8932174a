"""Differences between the facts of two runs: other values, or another share of ranks with a value."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.data.difference_weights import SHARE
from ncclforensics.data.names import bytes_text
from ncclforensics.diff import Difference, Side, Topic
from ncclforensics.rules.finding import Line

SHOWN = 2  # lines of evidence per run, one for each of the commonest values
ABSENT = "not set"


def fact_differences(topic: Topic, good: pl.DataFrame, bad: pl.DataFrame) -> Iterator[Difference]:
    """Yield the differences in one topic; adjacent sizes with equal values become one difference."""
    series: dict[tuple[str, tuple[str, ...], tuple[str, ...]], tuple[Difference, list[int]]] = {}
    good_rows, bad_rows = _rows_by_subject(good), _rows_by_subject(bad)
    subjects = [subject for subject in good_rows if subject in bad_rows]
    if topic.is_absence_different:
        subjects = list(dict.fromkeys([*good_rows, *bad_rows]))
    for what, size in sorted(subjects, key=lambda subject: (subject[0], subject[1] or 0)):
        of_good, of_bad = good_rows.get((what, size)), bad_rows.get((what, size))
        if of_good is not None and of_bad is not None and not _is_different(_counts(of_good), _counts(of_bad)):
            continue
        sides = _side(of_good, good), _side(of_bad, bad)
        key = what, tuple(value for value, _ in sides[0].values), tuple(value for value, _ in sides[1].values)
        if size is not None and key in series:
            series[key][1].append(size)
            continue
        certainty = "likely" if of_good is None or of_bad is None else "certain"
        difference = Difference(topic.name, what, topic.kind, *sides, topic.unit, topic.means, certainty)
        series[key if size is not None else (*key[:2], (*key[2], str(len(series))))] = difference, [size or 0]
    for difference, sizes in series.values():
        if sizes[-1]:
            difference.what += f" of {' to '.join(dict.fromkeys(map(bytes_text, (sizes[0], sizes[-1]))))}"
        yield difference


def _rows_by_subject(rows: pl.DataFrame) -> dict[tuple[str, int | None], pl.DataFrame]:
    """Group the rows by subject and size, in the order of reading."""
    groups = rows.group_by("what", "size", maintain_order=True)
    return {(str(what), None if size is None else int(str(size))): group for (what, size), group in groups}


def _counts(rows: pl.DataFrame) -> dict[str, int]:
    return dict(rows["value"].value_counts().iter_rows())


def _is_different(good: dict[str, int], bad: dict[str, int]) -> bool:
    """Whether the sets of values differ, or the share of any value differs by more than SHARE."""
    if set(good) != set(bad):
        return True
    all_good, all_bad = sum(good.values()), sum(bad.values())
    return any(abs(good[value] / all_good - bad[value] / all_bad) > SHARE for value in good)


def _side(rows: pl.DataFrame | None, all_of_topic: pl.DataFrame) -> Side:
    if rows is None:  # the first line of the topic shows that this run prints such facts
        first = all_of_topic.select("source", "line").drop_nulls().head(1)
        return Side([(ABSENT, 0)], [Line(source, line, "others are") for source, line in first.iter_rows()])
    counted = rows.group_by("value", maintain_order=True).agg(pl.len(), pl.col("source", "line").first())
    ordered = counted.sort("len", "value", descending=[True, False])
    values = list(ordered.select("value", "len").iter_rows())
    # A value that was concluded from other lines has none of its own.
    cited = ordered.head(SHOWN).select("source", "line", "value").drop_nulls(["source", "line"]).iter_rows()
    return Side(values, [Line(source, line, value) for source, line, value in cited])
