"""The content of the waiting screen: trees of waiting ranks. The roots do not wait."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ncclforensics.data.names import printable, ranks_text, short_ranks
from ncclforensics.report.build import Report
from ncclforensics.report.job_parts import Wait
from ncclforensics.tui.content.evidence import CitedLine, Citer

LONGEST = 32  # characters of a shortened list of ranks
DEEPEST = 40  # levels of a tree; deeper groups become siblings


@dataclass(frozen=True, slots=True)
class Waiters:
    """Ranks that wait in the same call for the same ranks; or the root of a tree, which does not wait."""

    rank_ids: tuple[int, ...]
    title: str
    full_title: str  # with all rank numbers
    cited: CitedLine | None = None
    children: list[Waiters] = field(default_factory=list)
    is_culprit: bool = False
    is_cycle: bool = False  # it is its own ancestor: these ranks wait for themselves
    is_listed_above: bool = False  # its children are shown in an earlier tree


@dataclass(frozen=True, slots=True)
class _Group:
    rank_ids: tuple[int, ...]
    call: str
    waits_for: frozenset[int]
    cited: CitedLine


def build_waiting_trees(report: Report, citer: Citer) -> list[Waiters]:
    """Build the trees of all jobs: one for each group of ranks that others wait for."""
    names = _Names(report)
    trees: list[Waiters] = []
    for verdict in report.verdicts:
        job = _Job(_groups(report, citer, verdict.job), names, set(verdict.culprits))
        trees += job.trees()
        if verdict.missing:
            title = f"{ranks_text(verdict.missing)}: culprit; there is no log of it"
            trees.append(Waiters((), title, title, is_culprit=True))
    return trees


class _Job:
    """The trees of one job; each group of ranks is expanded once."""

    def __init__(self, groups: list[_Group], names: _Names, culprits: set[int]) -> None:
        self._groups, self._names, self._culprits = groups, names, culprits
        self._waiters_of: dict[int, list[_Group]] = {}  # rank_id -> the groups that wait for it
        for group in groups:
            for rank_id in group.waits_for:
                self._waiters_of.setdefault(rank_id, []).append(group)
        self._shown: set[_Group] = set()

    def trees(self) -> list[Waiters]:
        """Build the trees whose root does not wait, and then those of cycles."""
        waiters = {rank_id for group in self._groups for rank_id in group.rank_ids}
        same_waiters: dict[tuple[bool, tuple[_Group, ...]], list[int]] = {}
        for rank_id in sorted(set(self._waiters_of) - waiters):
            same_waiters.setdefault((rank_id not in self._culprits, tuple(self._waiters_of[rank_id])), []).append(
                rank_id
            )
        trees = []
        for (is_no_culprit, groups), rank_ids in sorted(same_waiters.items(), key=lambda item: item[0][0]):
            state = "not waiting" if is_no_culprit else "culprit; not waiting"
            short, full = self._names.of(rank_ids), self._names.of(rank_ids, in_full=True)
            root = Waiters(tuple(rank_ids), f"{short}: {state}", f"{full}: {state}", is_culprit=not is_no_culprit)
            self._expand(list(groups), root.children)
            trees.append(root)
        by_culprit = sorted(self._groups, key=lambda group: (not self._culprits & set(group.rank_ids), group.rank_ids))
        for group in by_culprit:  # the groups that are left wait in a cycle
            if group not in self._shown:
                self._expand([group], trees)
        return trees

    def _expand(self, groups: list[_Group], siblings: list[Waiters]) -> None:
        """Append groups with all that wait for them. Not recursive: a pipeline may have a chain of a thousand ranks."""
        path: tuple[_Group, ...] = ()
        pending = [(group, siblings, path) for group in reversed(groups)]
        while pending:
            group, parents, path = pending.pop()
            title, full = (
                f"{self._names.of(group.rank_ids, in_full=in_full)} in {group.call}" for in_full in (False, True)
            )
            is_cycle = group in path
            is_culprit = not path and parents is siblings and bool(self._culprits & set(group.rank_ids))
            node = Waiters(
                group.rank_ids,
                title,
                full,
                group.cited,
                [],
                is_culprit,
                is_cycle,
                group in self._shown and not is_cycle,
            )
            parents.append(node)
            if group in self._shown:
                continue
            self._shown.add(group)
            waiters = dict.fromkeys(
                waiter for rank_id in group.rank_ids for waiter in self._waiters_of.get(rank_id, ())
            )
            children = node.children if len(path) < DEEPEST else parents
            pending += [(waiter, children, (*path, group)) for waiter in reversed(waiters)]


class _Names:
    def __init__(self, report: Report) -> None:
        rows = report.run["rank"].select("rank_id", "rank", "host").to_dicts()
        self._rows = {row["rank_id"]: row for row in rows}

    def of(self, rank_ids: Sequence[int], *, in_full: bool = False) -> str:
        numbers = [self._rows[rank_id]["rank"] for rank_id in rank_ids if self._rows[rank_id]["rank"] is not None]
        hosts = sorted({str(self._rows[rank_id]["host"]) for rank_id in rank_ids})
        where = f" on {hosts[0]}" if len(hosts) == 1 else f" on {len(hosts)} hosts"
        text = ranks_text(numbers) if in_full else short_ranks(numbers, LONGEST)
        return printable((text or f"{len(rank_ids)} ranks") + where)


def _groups(report: Report, citer: Citer, job: int) -> list[_Group]:
    groups: dict[tuple[str, frozenset[int]], list[Wait]] = {}
    for wait in report.job(job).waits:
        call_text = printable(wait.text(report.groups.text(wait.key)))
        groups.setdefault((call_text, frozenset(wait.waits_for)), []).append(wait)
    return [
        _Group(
            tuple(wait.waiter for wait in waits), call_text, waits_for, citer.cite(waits[0].source, waits[0].line),
        )
        for (call_text, waits_for), waits in groups.items()
    ]  # fmt: skip
