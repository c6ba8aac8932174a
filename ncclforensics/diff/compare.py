"""Two runs compared: every topic asked of both, and what differs put into the order of what it explains."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.data.difference_weights import FOLLOWS, FOLLOWS_VARIABLE, WEIGHT
from ncclforensics.diff import Comparison, Curve, Difference, Kind, NotCompared, Topic, facts, figures, topics
from ncclforensics.diff.ranks import roles
from ncclforensics.diff.result import finding_differences, is_decided, verdict_differences
from ncclforensics.frames.columns import text_of
from ncclforensics.frames.protocol import call_with
from ncclforensics.report.build import Report

SHOWN = 3  # values of what only one run tells
VERDICT, ENVIRONMENT = "verdict", "environment"


def compared(good: Report, bad: Report) -> Comparison:
    """What differs between two runs; both reports must have been made by the same rules and the same selection."""
    found: list[Difference] = []
    absent: list[NotCompared] = []
    both: list[str] = []
    drawn: list[Curve] = []
    for each in verdict_differences(good, bad):
        if isinstance(each, NotCompared):
            absent.append(each)
        else:
            found.append(each)
    if is_decided(good) and is_decided(bad):
        both.append(VERDICT)
    found += finding_differences(good, bad)
    alike = _alike(good, bad)
    for topic in topics():
        ours, theirs = _asked(topic, good, alike[0]), _asked(topic, bad, alike[1])
        if ours.is_empty() and theirs.is_empty():
            continue
        if ours.is_empty() or theirs.is_empty():
            absent.append(_not_compared(topic, ours, theirs))
            continue
        if not _is_common(topic, ours, theirs):
            absent.append(_nothing_in_common(topic, ours, theirs))
            continue
        both.append(topic.name)
        if topic.unit:
            found += facts.fact_differences(topic, ours, theirs)
        else:
            found += figures.figure_differences(topic, ours, theirs)
            drawn += figures.curves(ours, theirs)
    good.cite(line for one in found for line in one.good.evidence)
    bad.cite(line for one in found for line in one.bad.evidence)
    return Comparison(good, bad, list(_ordered(found, absent)), absent, both, drawn)


def _asked(topic: Topic, report: Report, alike: list[str]) -> pl.DataFrame:
    """What a run says to a topic, as far as it is to be shown."""
    rows: pl.DataFrame = call_with(report.run, topic.function)
    if not topic.unit:
        return figures.in_full(rows)
    told = facts.in_full(rows)
    shown = report.selection
    if shown.ranks:
        told = told.filter(pl.col("rank").is_null() | pl.col("rank").is_in(shown.ranks))
    if shown.host:
        told = told.filter(pl.col("host").is_null() | (pl.col("host") == shown.host))
    if shown.communicator:
        told = told.filter(pl.col("key").is_null() | pl.col("key").is_in(alike))
    return told


def _alike(good: Report, bad: Report) -> tuple[list[str], list[str]]:
    """The communicators of each run that play the role of the one to be shown: its name is of one run alone."""
    named = [roles(report.run["member"]).with_columns(text_of("key")) for report in (good, bad)]
    is_meant = pl.col("key") == pl.lit(good.selection.communicator, pl.String)
    wanted = pl.concat([each.filter(is_meant) for each in named])["role"]
    ours, theirs = (each.filter(pl.col("role").is_in(wanted.implode()))["key"].to_list() for each in named)
    return ours, theirs


def _not_compared(topic: Topic, good: pl.DataFrame, bad: pl.DataFrame) -> NotCompared:
    absent, told = ("good", bad) if good.is_empty() else ("bad", good)
    named = told.select("what", "value").unique(maintain_order=True).group_by("what", maintain_order=True)
    if not topic.unit:
        return NotCompared(topic.name, absent, topic.needs, [what for (what,), _ in named])
    values = named.agg(pl.col("value").head(SHOWN).str.join(", "))
    return NotCompared(topic.name, absent, topic.needs, [f"{what}: {value}" for what, value in values.iter_rows()])


def _is_common(topic: Topic, good: pl.DataFrame, bad: pl.DataFrame) -> bool:
    """Whether both tell of the same thing, and not merely of the same kind of thing."""
    if topic.absence_tells:
        return True
    columns = ["what", "size"] if topic.unit else ["what", "side", "unit", "size"]
    return good.join(bad, on=columns, how="semi", nulls_equal=True).height > 0


def _nothing_in_common(topic: Topic, good: pl.DataFrame, bad: pl.DataFrame) -> NotCompared:
    named = (("GOOD", good), ("BAD", bad))
    told = [f"{side}: {', '.join(rows['what'].unique(maintain_order=True).head(SHOWN))}" for side, rows in named]
    return NotCompared(topic.name, "common", topic.needs, told)


def _ordered(found: list[Difference], absent: list[NotCompared]) -> Iterator[Difference]:
    """Symptoms, then what follows from nothing else, then what may; within each what explains most."""
    reasons = [one for one in found if one.kind is Kind.DIFFERENCE]
    moves = [(_called(one), _followers(one)) for one in reasons]
    moves += [
        (f"{told.partition(':')[0]} (not compared)", FOLLOWS_VARIABLE.get(told.partition(":")[0], ()))
        for each in absent
        if each.topic == ENVIRONMENT
        for told in each.told
    ]
    for one in found:
        one.weight = WEIGHT.get(one.topic, 0)
        if one.kind is Kind.DIFFERENCE:
            one.follows = list(dict.fromkeys(name for name, followers in moves if one.topic in followers))
    explained = {_called(one): sum(_called(one) in each.follows for each in reasons) for one in reasons}
    kinds = list(Kind)
    yield from sorted(
        found,
        key=lambda one: (
            kinds.index(one.kind),
            bool(one.follows),
            -one.weight,
            -explained.get(_called(one), 0),
            "world" not in one.what,  # the largest communicator before its parts
            one.what,
        ),
    )


def _called(one: Difference) -> str:
    """As what others follow from it: a variable by its name, everything else by its topic."""
    return one.what if one.topic == ENVIRONMENT else one.topic


def _followers(one: Difference) -> tuple[str, ...]:
    return (FOLLOWS_VARIABLE if one.topic == ENVIRONMENT else FOLLOWS).get(_called(one), ())
