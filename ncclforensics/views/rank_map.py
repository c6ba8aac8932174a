"""The ranks of a job by host, each with its part in the verdict: one row per host, or one cell where hosts are many."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

import polars as pl

from ncclforensics.analyses.verdict.answer import Answer
from ncclforensics.data.names import ranks_text
from ncclforensics.report.build import Report

MOST_ROWS = 16  # hosts that are shown as rows of ranks
MOST_CELLS = 64  # ranks in such a row
LINE, LONG_LINE = 32, 64  # cells in a line of a map of hosts
MOST_SHORT_LINES = 16
NO_LOG = "no log"


class Part(StrEnum):
    """What a verdict makes of a rank."""

    CULPRIT = "culprit"
    WAITS = "waits"
    NEITHER = "neither"


@dataclass(frozen=True, slots=True)
class HostRanks:
    """One host, or the ranks without a log: (number, part) of each rank."""

    name: str
    ranks: list[tuple[int | None, Part]]

    @property
    def part(self) -> Part:
        """Return the worst part of its ranks."""
        parts = {part for _, part in self.ranks}
        return next(part for part in Part if part in parts)

    @property
    def is_wide(self) -> bool:
        """Whether the ranks are too many for one row of cells."""
        return len(self.ranks) > MOST_CELLS

    def text(self, part: Part | None = None) -> str:
        """Return the numbers of all ranks, or of those with this part."""
        return ranks_text(n for n, of_rank in self.ranks if n is not None and part in (None, of_rank))


@dataclass(frozen=True, slots=True)
class RankMap:
    """All hosts in the order of their ranks, and those shown as rows: all if few, otherwise those with culprits."""

    hosts: list[HostRanks]

    @property
    def rows(self) -> list[HostRanks]:
        """Return the hosts to show rank by rank."""
        if not self.is_folded:
            return self.hosts
        return [host for host in self.hosts if host.part is Part.CULPRIT][:MOST_ROWS]

    @property
    def is_folded(self) -> bool:
        """Whether the hosts are too many to show the ranks of each."""
        return len(self.hosts) > MOST_ROWS

    @property
    def lines(self) -> Iterator[tuple[str, str, list[HostRanks]]]:
        """Yield the hosts of each line of cells, behind the names of its first and its last host."""
        size = LINE if len(self.hosts) <= MOST_SHORT_LINES * LINE else LONG_LINE
        for start in range(0, len(self.hosts), size):
            hosts = self.hosts[start : start + size]
            yield hosts[0].name, hosts[-1].name, hosts

    def text(self) -> str:
        """Say how many hosts have culprits, and how many only wait."""
        hosts = [host for host in self.hosts if host.name != NO_LOG]
        counts = {part: sum(host.part is part for host in hosts) for part in Part}
        words = {Part.CULPRIT: "with a culprit", Part.WAITS: "where ranks wait", Part.NEITHER: "with neither"}
        shown = [f"{count} {words[part]}" for part, count in counts.items() if count]
        without_log = [f"ranks without a log: {host.text()}" for host in self.hosts if host.name == NO_LOG]
        return "; ".join([f"{len(hosts)} hosts: {', '.join(shown)}", *without_log])


def rank_map(report: Report, answer: Answer) -> RankMap:
    """Return the hosts of a job with their ranks; ranks without a log come last, as a host of their own."""
    part = {**dict.fromkeys(answer.victims, Part.WAITS), **dict.fromkeys(answer.culprits, Part.CULPRIT)}
    ranks = report.run["rank"].filter(pl.col("job") == answer.job).sort("rank", nulls_last=True)
    by_host: dict[str, list[tuple[int | None, Part]]] = {}
    for host, rank, rank_id in ranks.select(pl.col("host").cast(pl.String), "rank", "rank_id").iter_rows():
        by_host.setdefault(host or "?", []).append((rank, part.get(rank_id, Part.NEITHER)))
    missing = set(answer.missing)
    absent: list[tuple[int | None, Part]] = [
        (rank, Part.CULPRIT if rank in missing else Part.NEITHER) for rank in answer.absent
    ]
    hosts = [HostRanks(name, members) for name, members in by_host.items()]
    return RankMap([*hosts, HostRanks(NO_LOG, absent)] if absent else hosts)
