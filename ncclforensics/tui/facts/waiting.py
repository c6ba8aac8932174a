"""Who waits for whom, as a tree: at the root who waits for nobody, below each those who wait for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import polars as pl

from ncclforensics.data.names import operation_text, printable, ranks_text
from ncclforensics.report import Report
from ncclforensics.tui.facts.cited import Cited, Citer

LONGEST = 32  # characters of a list of ranks


@dataclass(frozen=True, slots=True)
class Waiters:
    """Ranks that wait in the same call for the same ranks; or the root of a tree, which waits for nobody."""

    actors: tuple[int, ...]
    title: str
    full: str  # with all their numbers
    at: Cited | None = None
    below: list[Waiters] = field(default_factory=list)
    is_culprit: bool = False
    is_cycle: bool = False  # it stands further up: who waits here is waited for by itself
    is_above: bool = False  # what is below it has been shown already


@dataclass(frozen=True, slots=True)
class _Group:
    actors: tuple[int, ...]
    what: str
    waits_for: frozenset[int]
    at: Cited


def waiting(report: Report, citer: Citer) -> list[Waiters]:
    """A tree for each that is waited for, by job."""
    trees: list[Waiters] = []
    for verdict in report.verdicts:
        groups = _groups(report, citer, verdict["job"])
        names = _Names(report)
        culprits = set(verdict["culprits"])
        waiters = {actor for group in groups for actor in group.actors}
        ends = sorted({actor for group in groups for actor in group.waits_for} - waiters)
        shown: set[_Group] = set()
        alike: dict[tuple[frozenset[_Group], bool], list[int]] = {}
        for actor in ends:
            behind = frozenset(group for group in groups if actor in group.waits_for)
            alike.setdefault((behind, actor in culprits), []).append(actor)
        for (_, is_culprit), actors in sorted(alike.items(), key=lambda item: not item[0][1]):
            below = _below(groups, frozenset(actors), (), shown, names)
            state = "to blame; " * is_culprit + "waits for nobody"
            who, full = names.of(actors), names.of(actors, in_full=True)
            trees.append(Waiters(tuple(actors), f"{who}: {state}", f"{full}: {state}", None, below, is_culprit))
        while left := [group for group in groups if group not in shown]:  # nobody is at the end: they wait in a circle
            first = min(left, key=lambda group: (not culprits & set(group.actors), group.actors))
            trees.append(_node(groups, first, (), shown, names, culprits))
        if verdict["missing"]:
            told = f"{ranks_text(verdict['missing'])}: to blame; no log shows it"
            trees.append(Waiters((), told, told, is_culprit=True))
    return trees


class _Names:
    def __init__(self, report: Report) -> None:
        rows = report.run["rank"].select("actor", "rank", "host").to_dicts()
        self._rows = {row["actor"]: row for row in rows}

    def of(self, actors: Sequence[int], *, in_full: bool = False) -> str:
        numbers = [self._rows[actor]["rank"] for actor in actors if self._rows[actor]["rank"] is not None]
        hosts = sorted({str(self._rows[actor]["host"]) for actor in actors})
        where = f" on {hosts[0]}" if len(hosts) == 1 else f" on {len(hosts)} hosts"
        told = ranks_text(numbers) or f"{len(actors)} ranks"
        if len(told) > LONGEST and not in_full:
            told = f"{len(numbers)} ranks: {told[: told.rindex(',', 0, LONGEST)].removeprefix('ranks ')}, …"
        return printable(told + where)


def _groups(report: Report, citer: Citer, job: int) -> list[_Group]:
    cited = report.run["wait"].filter(pl.col("job") == job).select("source", "line").unique()
    calls = report.run["shown_call"].join(cited, on=["source", "line"], how="semi").to_dicts()
    call = {(row["source"], row["line"]): row for row in calls}
    alike: dict[tuple[str, frozenset[int]], list[dict[str, object]]] = {}
    for wait in report.waits(job):
        made = call.get((wait["source"], wait["line"]))
        what = f"{operation_text(made)} of {wait['key']}" if made else f"the init of {wait['key']}"
        alike.setdefault((printable(what), frozenset(wait["waits_for"])), []).append(wait)
    return [
        _Group(
            tuple(int(str(wait["waiter"])) for wait in waits), what, waits_for,
            citer.cite(int(str(waits[0]["source"])), int(str(waits[0]["line"]))),
        )
        for (what, waits_for), waits in alike.items()
    ]  # fmt: skip


def _below(
    groups: list[_Group], actors: frozenset[int], path: tuple[_Group, ...], shown: set[_Group], names: _Names
) -> list[Waiters]:
    return [_node(groups, group, path, shown, names, set()) for group in groups if group.waits_for & actors]


def _node(
    groups: list[_Group],
    group: _Group,
    path: tuple[_Group, ...],
    shown: set[_Group],
    names: _Names,
    culprits: set[int],
) -> Waiters:
    title, full = (f"{names.of(group.actors, in_full=each)} in {group.what}" for each in (False, True))
    is_culprit = bool(culprits & set(group.actors))
    if group in path:
        return Waiters(group.actors, title, full, group.at, is_cycle=True)
    if group in shown:
        return Waiters(group.actors, title, full, group.at, is_above=True)
    shown.add(group)
    below = _below(groups, frozenset(group.actors), (*path, group), shown, names)
    return Waiters(group.actors, title, full, group.at, below, is_culprit)
