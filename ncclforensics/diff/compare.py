"""Compare two reports topic by topic, and order the differences by how much they explain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import polars as pl

from ncclforensics.data.difference_weights import FOLLOWS, FOLLOWS_VARIABLE, SHARE, WEIGHT
from ncclforensics.data.names import bytes_text
from ncclforensics.diff import (
    FACT,
    FIGURE,
    Comparison,
    Curve,
    Difference,
    Kind,
    NotCompared,
    Side,
    Topic,
    figures,
    topics,
)
from ncclforensics.diff.ranks import communicator_kinds
from ncclforensics.diff.result import finding_differences, is_decided, verdict_differences
from ncclforensics.errors import BrokenFrameError, Defect
from ncclforensics.frames.columns import text_of, with_all_columns
from ncclforensics.frames.protocol import call_with
from ncclforensics.parsing.concurrency import DEFECTS
from ncclforensics.report.build import Report
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


SHOWN = 3  # values of a topic that only one run has
VERDICT = "verdict"
ENVIRONMENTS = ("environment", "exported-environment")  # topics whose facts are variables


def compare_reports(good: Report, bad: Report) -> Comparison:
    """Compare two runs; both reports must have been made by the same rules and with the same selection."""
    differences: list[Difference] = []
    not_compared: list[NotCompared] = []
    common: list[str] = []
    curves: list[Curve] = []
    for result in verdict_differences(good, bad):
        if isinstance(result, NotCompared):
            not_compared.append(result)
        else:
            differences.append(result)
    if is_decided(good) and is_decided(bad):
        common.append(VERDICT)
    differences += finding_differences(good, bad)
    good_keys, bad_keys = _selected_communicators(good, bad)
    for topic in topics():
        try:
            good_rows, bad_rows = _topic_rows(topic, good, good_keys), _topic_rows(topic, bad, bad_keys)
        except BrokenFrameError:  # the analysis that failed is named already
            continue
        except DEFECTS as error:  # a defect of one topic must not suppress the others
            bad.defects.append(Defect.of(f"the comparison of {topic.name}", error))
            continue
        if good_rows.is_empty() and bad_rows.is_empty():
            continue
        if good_rows.is_empty() or bad_rows.is_empty():
            not_compared.append(_missing_in_one(topic, good_rows, bad_rows))
            continue
        if not _is_common(topic, good_rows, bad_rows):
            not_compared.append(_nothing_in_common(topic, good_rows, bad_rows))
            continue
        common.append(topic.name)
        if topic.unit:
            differences += fact_differences(topic, good_rows, bad_rows)
        else:
            differences += figures.figure_differences(topic, good_rows, bad_rows)
            curves += figures.curves(good_rows, bad_rows)
    good.cite(line for difference in differences for line in difference.good.evidence)
    bad.cite(line for difference in differences for line in difference.bad.evidence)
    ordered = list(_ordered(differences, not_compared))
    return Comparison(good, bad, ordered, not_compared, common, curves)


def _topic_rows(topic: Topic, report: Report, keys: list[str]) -> pl.DataFrame:
    """Return the rows of a topic for one run, limited to the report's selection; `keys` are of communicators."""
    rows: pl.DataFrame = call_with(report.run, topic.function)
    selected = with_all_columns(rows, FACT if topic.unit else FIGURE).drop_nulls(["what", "value"])
    if not topic.unit:
        return selected
    selection = report.selection
    if selection.ranks:
        selected = selected.filter(pl.col("rank").is_null() | pl.col("rank").is_in(selection.ranks))
    if selection.host:
        selected = selected.filter(pl.col("host").is_null() | (pl.col("host") == selection.host))
    if selection.communicator:
        selected = selected.filter(pl.col("key").is_null() | pl.col("key").is_in(keys))
    return selected


def _selected_communicators(good: Report, bad: Report) -> tuple[list[str], list[str]]:
    """Return the keys of each run's communicators of the selected kind: the selected key exists in one run only."""
    kinds = [communicator_kinds(report.run["member"]).with_columns(text_of("key")) for report in (good, bad)]
    is_selected = pl.col("key") == pl.lit(good.selection.communicator, pl.String)
    wanted = pl.concat([of_run.filter(is_selected) for of_run in kinds])["kind"].implode()
    good_keys, bad_keys = (of_run.filter(pl.col("kind").is_in(wanted))["key"].to_list() for of_run in kinds)
    return good_keys, bad_keys


def _missing_in_one(topic: Topic, good: pl.DataFrame, bad: pl.DataFrame) -> NotCompared:
    absent, present = ("good", bad) if good.is_empty() else ("bad", good)
    named = present.select("what", "value").unique(maintain_order=True).group_by("what", maintain_order=True)
    if not topic.unit:
        return NotCompared(topic.name, absent, topic.needs, [what for (what,), _ in named])
    values = named.agg(pl.col("value").head(SHOWN).str.join(", "))
    return NotCompared(topic.name, absent, topic.needs, [f"{what}: {value}" for what, value in values.iter_rows()])


def _is_common(topic: Topic, good: pl.DataFrame, bad: pl.DataFrame) -> bool:
    """Whether both runs have a row on the same subject and size, not merely rows of the same topic."""
    if topic.is_absence_different:
        return True
    columns = ["what", "size"] if topic.unit else ["what", "side", "unit", "size"]
    return good.join(bad, on=columns, how="semi", nulls_equal=True).height > 0


def _nothing_in_common(topic: Topic, good: pl.DataFrame, bad: pl.DataFrame) -> NotCompared:
    sides = (("GOOD", good), ("BAD", bad))
    values = [f"{side}: {', '.join(rows['what'].unique(maintain_order=True).head(SHOWN))}" for side, rows in sides]
    return NotCompared(topic.name, "common", topic.needs, values)


def _ordered(differences: list[Difference], not_compared: list[NotCompared]) -> Iterator[Difference]:
    """Set weights and causes, and yield symptoms, independent differences, those that may follow from them, context."""
    candidates = [difference for difference in differences if difference.kind is Kind.DIFFERENCE]
    causes = [(_cause_name(difference), _consequences(difference)) for difference in candidates]
    variables = [
        value.partition(":")[0] for topic in not_compared if topic.topic in ENVIRONMENTS for value in topic.other_values
    ]
    causes += [(f"{variable} (not compared)", FOLLOWS_VARIABLE.get(variable, ())) for variable in variables]
    for difference in differences:
        difference.weight = WEIGHT.get(difference.topic, 0)
        if difference.kind is Kind.DIFFERENCE:
            names = (name for name, consequences in causes if difference.topic in consequences)
            difference.follows = list(dict.fromkeys(names))
    explained = Counter(name for difference in candidates for name in difference.follows)
    kinds = list(Kind)
    yield from sorted(
        differences,
        key=lambda difference: (
            kinds.index(difference.kind),
            bool(difference.follows),
            -difference.weight,
            -explained[_cause_name(difference)],
            -len(_consequences(difference)),
            "world" not in difference.what,  # the largest communicator before its parts
            difference.what,
        ),
    )


def _cause_name(difference: Difference) -> str:
    """Return the name under which other differences follow from this one: its variable, or its topic."""
    return difference.what if difference.topic in ENVIRONMENTS else difference.topic


def _consequences(difference: Difference) -> tuple[str, ...]:
    """List the topics whose differences may follow from this one."""
    return (FOLLOWS_VARIABLE if difference.topic in ENVIRONMENTS else FOLLOWS).get(_cause_name(difference), ())
