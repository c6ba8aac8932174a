"""Find the process, and so the ranks, that a report of an end is about."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import polars as pl

from ncclforensics.analyses.job.ends.exit_reports import ExitReport, Owner
from ncclforensics.analyses.job.ends.exit_rows import NODE, RAISED, TORCHRUN
from ncclforensics.frames.columns import Row, may_be_one_host, short_name

FENCES_OF_ONE = 2  # a page with more of them quotes several texts, which may be of several runs


class ProcessFinder:
    """Find the process, and so the ranks, that a report is about."""

    def __init__(
        self,
        rank: pl.DataFrame,
        process: pl.DataFrame,
        fence: pl.DataFrame,
        text_job: pl.DataFrame,
        *,
        has_agents: bool,
        nranks: int | None,
    ) -> None:
        """`nranks`: of the largest communicator."""
        self._job_of: dict[int, int] = dict(text_job.select("source", "job").iter_rows())
        counted = fence.group_by("source").len()
        self._quoting = set(counted.filter(pl.col("len") > FENCES_OF_ONE)["source"])
        self._ranks = rank.to_dicts()
        self._by_owner: dict[Owner, list[Row]] = defaultdict(list)
        self._by_number: dict[tuple[int | None, int], list[Row]] = defaultdict(list)
        for row in self._ranks:
            if row["host"] is not None and row["pid"] is not None:
                self._by_owner[row["host"], row["pid"]].append(row)
            if row["rank"] is not None:
                self._by_number[row["job"], row["rank"]].append(row)
        self._is_one_rank_each = all(len(rows) == 1 for rows in self._by_owner.values())
        self._owners: dict[int, list[Owner]] = defaultdict(list)
        self._speakers: dict[int, list[Owner]] = defaultdict(list)
        for row in process.to_dicts():
            self._owners[row["pid"]].append((row["host"], row["pid"]))
            for source in row["sources"]:
                self._speakers[source].append((row["host"], row["pid"]))
        for owner in self._by_owner:  # RAS and stacks show processes of which there is no log
            if owner not in self._owners[owner[1]]:
                self._owners[owner[1]].append(owner)
        self._has_agents = has_agents
        self._nranks = nranks

    def owner(self, report: ExitReport) -> Owner | None:
        """Return host and pid of the process if NCCL's lines or other sources show its rank, else None."""
        if report.pid:
            owners = [owner for owner in self._owners[report.pid] if may_be_one_host(report.node, owner[0])]
            return owners[0] if len(owners) == 1 else None
        number = report.rank
        if number is None and report.local_rank is not None:
            number = self._rank_on_host(report.local_rank, report.row["source"])
            if number is None:
                return None
        if number is None and report.child is not None and not self._has_agents:
            # A launcher's child number is a rank if the node fits and each process drives one rank.
            on_same_host = [
                row for row in self._numbered(report, report.child) if may_be_one_host(report.node, row["host"] or "")
            ]
            number = report.child if on_same_host and self._is_one_rank_each else None
        if number is None and report.child is None:
            number = report.row["launcher_rank"]
        if number is not None:
            candidates = self._numbered(report, number)
            return (
                (candidates[0]["host"], candidates[0]["pid"]) if len(candidates) == 1 and candidates[0]["pid"] else None
            )
        if report.child is None and report.node is None:
            speakers = self._speakers[report.row["source"]]
            return speakers[0] if len(speakers) == 1 and report.row["source"] not in self._quoting else None
        return None

    def _numbered(self, report: ExitReport, number: int) -> list[Row]:
        """Return the ranks of this number in the job of the report's source."""
        return self._by_number[self._job_of.get(report.row["source"]), number]

    def _rank_on_host(self, local_rank: int, source: int) -> int | None:
        """Return the rank of a process by its number on its node, if all ranks are known and all nodes have as many.

        The node is the only one, or the one whose processes print into the same file.
        """
        numbers = sorted(row["rank"] for row in self._ranks if row["rank"] is not None)
        if numbers != list(range(self._nranks or len(self._ranks))):
            return None
        numbers_of: dict[str | None, list[int]] = defaultdict(list)
        for row in self._ranks:
            numbers_of[row["host"]].append(row["rank"])
        hosts_of_file = {host for host, _ in self._speakers[source]}
        own = numbers_of if len(numbers_of) == 1 else hosts_of_file.intersection(numbers_of)
        if len(own) != 1 or len({len(on_host) for on_host in numbers_of.values()}) != 1:
            return None
        on_host = sorted(numbers_of[next(iter(own))])
        is_block = on_host[-1] - on_host[0] == len(on_host) - 1
        return on_host[local_rank] if is_block and local_rank < len(on_host) else None

    def rank_ids(self, report: ExitReport) -> list[Row]:
        """Return the ranks of the process, or of a lost node; one empty row if they are unknown."""
        if report.how == NODE:
            return [row for row in self._ranks if row["host"] and may_be_one_host(report.node, row["host"])] or [{}]
        if report.owner is not None:
            return self._by_owner.get(report.owner) or [{}]
        candidates = self._numbered(report, report.rank) if report.rank is not None else []
        return candidates if len(candidates) == 1 and not _is_of_another(report, candidates[0]) else [{}]

    def mark_other_launches(self, rows: Sequence[Row], reports: Iterable[ExitReport]) -> None:
        """Take `is_placed` from rows of `process_exit` that torchrun's process ids show to be of other processes.

        Torchrun starts the ranks itself, and names its children by their ids: another id for a rank than NCCL prints,
        or none of NCCL's where all ranks are known, is that of another launch, as in an old error file, or of a script
        that starts the rank. An exception of the same rank and words is that of the same launch, wherever it stands.
        """
        named: dict[int, dict[int, int | None]] = defaultdict(dict)  # source -> process id -> rank
        for report in reports:
            if report.reporter == TORCHRUN and report.pid:
                named[report.row["source"]][report.pid] = report.rank
        known = [row for row in self._ranks if None not in (row["rank"], row["pid"])]
        pid_of = {(row["job"], row["rank"]): row["pid"] for row in known}
        for row in rows:
            pids = named.get(row["source"], {})
            own = {pid for pid, number in pids.items() if number == row["rank"]} if row["rank"] is not None else set()
            of_rank = pid_of.get((self._job_of.get(row["source"]), row["rank"]))
            is_other = of_rank is not None and bool(own) and of_rank not in own
            is_other |= len(pid_of) == self._nranks and bool(pids) and pids.keys().isdisjoint(pid_of.values())
            row["is_placed"] &= not is_other
        raised_elsewhere = {_words(row) for row in rows if row["how"] in RAISED and not row["is_placed"]}
        for row in rows:
            row["is_placed"] &= row["is_tied"] or _words(row) not in raised_elsewhere

    def tied_sources(self, reports: Iterable[ExitReport]) -> set[int]:
        """Return the sources that are surely of the job of NCCL's lines: these stand there, too, or name a host or pid.

        A rank has its number in every job.
        """
        hosts = {short_name(host) for owners in self._speakers.values() for host, _ in owners}

        def names_process(report: ExitReport) -> bool:
            node = report.node or report.row.get("launcher_node")
            is_known_host = node is not None and short_name(node) in hosts
            return is_known_host or (report.pid is not None and report.owner is not None)

        return {*self._speakers, *(report.row["source"] for report in reports if names_process(report))}


def _words(row: Row) -> tuple[int | None, str, str]:
    return row["rank"], row["name"], row["message"]


def _is_of_another(report: ExitReport, rank: Row) -> bool:
    """Whether a report names another host and another process than those that NCCL shows for its rank.

    A launcher knows a host by an alias, and torchrun the pid of a script that starts the rank; not both at once.
    """
    hosts, pids = (report.node, rank["host"]), (report.pid, rank["pid"])
    return all((*hosts, *pids)) and not may_be_one_host(*hosts) and report.pid != rank["pid"]
