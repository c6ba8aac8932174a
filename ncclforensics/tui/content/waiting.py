"""Who waits for whom, as a tree: at the root who waits for nobody, below each those who wait for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import polars as pl

from ncclforensics.data.names import operation_text, printable, ranks_text
from ncclforensics.report.build import Report
from ncclforensics.tui.content.evidence import Cited, Citer

LONGEST = 32  # characters of a list of ranks
DEEPEST = 40  # steps; what waits further behind stands below one another


@dataclass(frozen=True, slots=True)
class Waiters:
    """Ranks that wait in the same call for the same ranks; or the root of a tree, which waits for nobody."""

    rank_ids: tuple[int, ...]
    title: str
    full: str  # with all their numbers
    at: Cited | None = None
    below: list[Waiters] = field(default_factory=list)
    is_culprit: bool = False
    is_cycle: bool = False  # it stands further up: who waits here is waited for by itself
    is_above: bool = False  # what is below it has been shown already


@dataclass(frozen=True, slots=True)
class _Group:
    rank_ids: tuple[int, ...]
    what: str
    waits_for: frozenset[int]
    at: Cited


def waiting(report: Report, citer: Citer) -> list[Waiters]:
    """A tree for each that is waited for, by job."""
    names = _Names(report)
    trees: list[Waiters] = []
    for verdict in report.verdicts:
        job = _Job(_groups(report, citer, verdict["job"]), names, set(verdict["culprits"]))
        trees += job.trees()
        if verdict["missing"]:
            told = f"{ranks_text(verdict['missing'])}: to blame; no log shows it"
            trees.append(Waiters((), told, told, is_culprit=True))
    return trees


class _Job:
    """The trees of one job; each group of ranks is unfolded once."""

    def __init__(self, groups: list[_Group], names: _Names, culprits: set[int]) -> None:
        self._groups, self._names, self._culprits = groups, names, culprits
        self._behind: dict[int, list[_Group]] = {}  # actor -> who waits for it
        for group in groups:
            for rank_id in group.waits_for:
                self._behind.setdefault(rank_id, []).append(group)
        self._shown: set[_Group] = set()

    def trees(self) -> list[Waiters]:
        """First those at whose root ranks wait for nobody; then circles."""
        waiters = {rank_id for group in self._groups for rank_id in group.rank_ids}
        alike: dict[tuple[bool, tuple[_Group, ...]], list[int]] = {}
        for rank_id in sorted(set(self._behind) - waiters):
            alike.setdefault((rank_id not in self._culprits, tuple(self._behind[rank_id])), []).append(rank_id)
        trees = []
        for (is_innocent, groups), rank_ids in sorted(alike.items(), key=lambda item: item[0][0]):
            state = "waits for nobody" if is_innocent else "to blame; waits for nobody"
            who, full = self._names.of(rank_ids), self._names.of(rank_ids, in_full=True)
            root = Waiters(tuple(rank_ids), f"{who}: {state}", f"{full}: {state}", is_culprit=not is_innocent)
            self._unfold(list(groups), root.below)
            trees.append(root)
        in_circles = sorted(self._groups, key=lambda one: (not self._culprits & set(one.rank_ids), one.rank_ids))
        for group in in_circles:
            if group not in self._shown:
                self._unfold([group], trees)
        return trees

    def _unfold(self, groups: list[_Group], into: list[Waiters]) -> None:
        """Append groups with all that wait for them. No recursion: a pipeline may wait in a row of a thousand ranks."""
        path: tuple[_Group, ...] = ()
        left = [(group, into, path) for group in reversed(groups)]
        while left:
            group, above, path = left.pop()
            title, full = (f"{self._names.of(group.rank_ids, in_full=each)} in {group.what}" for each in (False, True))
            is_cycle = group in path
            is_culprit = not path and above is into and bool(self._culprits & set(group.rank_ids))
            node = Waiters(
                group.rank_ids, title, full, group.at, [], is_culprit, is_cycle, group in self._shown and not is_cycle
            )
            above.append(node)
            if group in self._shown:
                continue
            self._shown.add(group)
            follows = dict.fromkeys(one for rank_id in group.rank_ids for one in self._behind.get(rank_id, ()))
            below = node.below if len(path) < DEEPEST else above
            left += [(one, below, (*path, group)) for one in reversed(follows)]


class _Names:
    def __init__(self, report: Report) -> None:
        rows = report.run["rank"].select("rank_id", "rank", "host").to_dicts()
        self._rows = {row["rank_id"]: row for row in rows}

    def of(self, rank_ids: Sequence[int], *, in_full: bool = False) -> str:
        numbers = [self._rows[rank_id]["rank"] for rank_id in rank_ids if self._rows[rank_id]["rank"] is not None]
        hosts = sorted({str(self._rows[rank_id]["host"]) for rank_id in rank_ids})
        where = f" on {hosts[0]}" if len(hosts) == 1 else f" on {len(hosts)} hosts"
        told = ranks_text(numbers) or f"{len(rank_ids)} ranks"
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
