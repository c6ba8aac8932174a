"""The cause of a verdict, and what was found that concerns no job: one relation for all views.

A finding is the cause of a failure if it cites a condition that explains it, or is about ranks or hosts at which the
job failed. What concerns another host, another time or another job is no cause: it is listed as found elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import NamedTuple

import polars as pl

from ncclforensics.analyses.verdict.answer import Answer
from ncclforensics.data.names import CERTAINTIES, with_stop
from ncclforensics.frames.columns import OWNER, Row, printed_hosts, short_name
from ncclforensics.frames.protocol import Frames
from ncclforensics.rules.finding import Finding, Role, Severity

Place = tuple[int, int]  # source and line
LIKELY, POSSIBLE = CERTAINTIES[1:]
_OF_JOBS = ("verdict_evidence", "failure_event", "completion_error", "process_exit")  # frames whose lines have a job


class Cause(NamedTuple):
    """A finding that explains a verdict, and how sure it is that it does."""

    finding: Finding
    certainty: str
    parts: list[tuple[str, str]]  # host and kind of the conditions that it cites: the end that failed

    @property
    def is_condition(self) -> bool:
        """Whether it is the condition of a machine."""
        return bool(self.parts)

    @property
    def title(self) -> str:
        """What happened."""
        return self.finding.title

    @property
    def text(self) -> str:
        """What happened, and where in the program where that is known."""
        return f"{with_stop(self.title)} In {self.finding.place}" if self.finding.place else self.title

    def label(self, answer: Answer) -> str:
        """`Cause`, and how sure it is where that is less sure than the verdict that it explains."""
        is_less = CERTAINTIES.index(self.certainty) > CERTAINTIES.index(answer.certainty)
        return f"Cause ({self.certainty})" if is_less else "Cause"


class Relations:
    """Which jobs of a run a finding concerns, and which failures it explains."""

    def __init__(self, run: Frames) -> None:
        self._run = run

    def causes(self, findings: Iterable[Finding], answer: Answer) -> list[Cause]:
        """Return what explains the failure of a job, conditions of machines first."""
        found = [
            cause
            for finding in findings
            if finding.job is None and finding.role is Role.CAUSE and finding.severity is Severity.ERROR
            for cause in self._explaining(finding, answer)
            if cause.certainty != POSSIBLE
        ]
        return sorted(found, key=lambda cause: not cause.is_condition)

    def is_elsewhere(self, finding: Finding) -> bool:
        """Whether a finding concerns no job of the run: only other hosts, other times, or ports of other hosts."""
        if finding.job is not None or self._run["verdict"].is_empty():
            return False
        if cited := self._cited(finding):
            return all(row["is_in_time"] is False for rows in self._of_job.values() for row in _rows(rows, cited))
        if finding.ranks or self._jobs(finding):
            return False
        hosts = {short_name(host) for host in finding.hosts} or self._hosts_of_dumps(finding)
        return bool(hosts) and self._has_all_names and hosts.isdisjoint(self._hosts)

    def is_outlived(self, finding: Finding) -> bool:
        """Whether the ends of processes that a finding cites ended no job: work goes on behind them."""
        if finding.job is not None or finding.severity is Severity.INFO:
            return False
        cited = [
            outlived
            for line in finding.evidence
            if (outlived := self._outlived.get((line.source, line.line))) is not None
        ]
        return bool(cited) and all(cited)

    @cached_property
    def _outlived(self) -> dict[tuple[int, int], bool]:
        return {
            row[:2]: row[2] for row in self._run["process_exit"].select("source", "line", "is_outlived").iter_rows()
        }

    def is_of_job(self, finding: Finding, job: int) -> bool:
        """Whether the lines of a finding are of a job, or of no process where there is no other job."""
        jobs = self._jobs(finding)
        return job in jobs if jobs else self._run["verdict"].height == 1

    def _explaining(self, finding: Finding, answer: Answer) -> list[Cause]:
        """Return the finding as a cause of the failure of a job; nothing if it does not explain it."""
        if cited := self._cited(finding):
            rows = _rows(self._of_job.get(answer.job, {}), cited)
            at_ends = [place for place in rows if place["is_at_end"] and place["is_in_time"] is not False]
            # A line that names the process was printed while it ran, whatever the clocks say.
            is_sure = any(place["host"] and (place["is_in_time"] or place["shared"] == "pid") for place in at_ends)
            certainty = finding.certainty if is_sure else max(finding.certainty, LIKELY, key=CERTAINTIES.index)
            parts = sorted({(place["host"], place["kind"]) for place in at_ends if place["host"]})
            return [Cause(finding, certainty, parts)] if at_ends else []
        is_explaining = self.is_of_job(finding, answer.job) and self._is_at_end(finding, answer)
        return [Cause(finding, finding.certainty, [])] if is_explaining else []

    def _is_at_end(self, finding: Finding, answer: Answer) -> bool:
        """Whether a finding is about a rank or a host at which a job failed; about any where none is known."""
        numbers, hosts = self._ends.get(answer.job, (set(), set()))
        if finding.ranks:
            at_fault = {*numbers, *answer.missing}
            return not at_fault or not at_fault.isdisjoint(finding.ranks)
        named = {short_name(host) for host in finding.hosts}
        return not (hosts and named) or not hosts.isdisjoint(named)

    @cached_property
    def _ends(self) -> dict[int, tuple[set[int], set[str]]]:
        """Job -> numbers of the ranks, and hosts, at which it failed."""
        numbers = self._run["rank"].select("rank_id", "rank")
        ends = self._run["failing_end"].join(numbers, on="rank_id", how="left").group_by("job")
        sets = ends.agg(pl.col("rank", "host").drop_nulls().unique())
        return {job: (set(ranks), set(hosts)) for job, ranks, hosts in sets.iter_rows()}

    def _cited(self, finding: Finding) -> list[Place]:
        """Return the places of conditions that a finding cites."""
        return [place for line in finding.evidence if (place := (line.source, line.line)) in self._conditions]

    @cached_property
    def _conditions(self) -> set[Place]:
        return set(self._run["condition"].select("source", "line").iter_rows())

    @cached_property
    def _of_job(self) -> dict[int, dict[Place, list[Row]]]:
        """Job -> place of a condition -> what it shares with the job."""
        found: dict[int, dict[Place, list[Row]]] = {}
        for row in self._run["condition_of_job"].to_dicts():
            found.setdefault(row["job"], {}).setdefault((row["source"], row["line"]), []).append(row)
        return found

    def _jobs(self, finding: Finding) -> set[int]:
        """Return the jobs that printed the lines of a finding; none where the lines are of no process."""
        places = [(line.source, line.line) for line in finding.evidence]
        exact = {self._job_of_line[place] for place in places if place in self._job_of_line}
        return exact or {job for source, _ in places for job in self._jobs_of_source.get(source, ())}

    @cached_property
    def _job_of_line(self) -> dict[Place, int]:
        frames = [self._run[name].select("source", "line", "job").drop_nulls() for name in _OF_JOBS]
        return {(source, line): job for frame in frames for source, line, job in frame.iter_rows()}

    @cached_property
    def _jobs_of_source(self) -> dict[int, list[int]]:
        files = self._run["process"].select(*OWNER, source="sources").explode("source")
        jobs = files.join(self._run["rank"].select(*OWNER, "job"), on=OWNER, nulls_equal=True).select("source", "job")
        return dict(jobs.drop_nulls().group_by("source").agg(pl.col("job").unique()).iter_rows())

    @cached_property
    def _hosts(self) -> set[str]:
        """Names of the hosts that a process or a benchmark of the run names."""
        run = self._run
        columns = [run["rank"]["host"], run["process"]["host"], run["benchmark"]["hosts"].explode()]
        return {short_name(host) for column in columns for host in column.cast(pl.String).drop_nulls()}

    @cached_property
    def _has_all_names(self) -> bool:
        """Whether the hosts of all ranks are known by the names that other tools print."""
        hosts = self._run["rank"]["host"].cast(pl.String)
        names = {short_name(host) for host in hosts.drop_nulls()}
        return not hosts.has_nulls() and len(printed_hosts(names)) == len(names) and not any("." in n for n in names)

    def _hosts_of_dumps(self, finding: Finding) -> set[str]:
        """Return the hosts whose ports stand in the dumps that a finding cites."""
        sources = {line.source for line in finding.evidence}
        ports = self._run["port_state"].filter(pl.col("source").is_in(sources))
        return {short_name(host) for host in ports["host"].drop_nulls()}


def _rows(of_job: dict[Place, list[Row]], cited: Iterable[Place]) -> list[Row]:
    return [row for place in cited for row in of_job.get(place, ())]
