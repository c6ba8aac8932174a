"""The whole answer: what was read, what the run is, what the rules say, and the verdict of each job."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import polars as pl

from ncclforensics.data.names import datatype, reduction
from ncclforensics.frames.protocol import Frames, call_with
from ncclforensics.report.selection import Selection
from ncclforensics.rules.finding import Finding, Line
from ncclforensics.rules.registry import Rule, chosen, findings

Row = dict[str, Any]
# The worst verdict first: with several jobs in a folder it is the one that is reported as `hang`.
BADNESS = (
    "init-failed",
    "rank-died",
    "collective-mismatch",
    "cross-communicator-deadlock",
    "lagging-ranks",
    "p2p-unmatched",
    "rank-missing",
    "init-incomplete",
    "stuck-together",
    "undecidable",
    "no-hang",
)


@dataclass(slots=True)
class Report:
    """Everything a view shows; text of evidence is read when it is asked for."""

    run: Frames
    findings: list[Finding]
    quotes: dict[tuple[int, int], tuple[int, str]]
    selection: Selection
    asked: list[Rule]
    hashes: dict[int, str] = field(default_factory=dict)  # source -> SHA-256 of its bytes, where they were wanted

    def hash_inputs(self) -> None:
        """Read every file once more, for a document that says what it was made of."""
        self.hashes |= self.run.hashes
        for reading in self.run.inputs:
            if not reading.source.problem and reading.number not in self.hashes:
                with suppress(OSError), open(reading.source.file, "rb") as stream:
                    self.hashes[reading.number] = hashlib.file_digest(stream, "sha256").hexdigest()

    @property
    def verdicts(self) -> list[Row]:
        """One per job that has a selected rank, worst first; among equals the job with most ranks."""
        sizes = dict(self.run["rank"].group_by("job").len().iter_rows())
        memberships = self.run["rank"].join(self.run["member"].select("rank_id", "key"), on="rank_id", how="left")
        shown = {each["job"] for each in self._selected(memberships)}
        rows = [row for row in self.run["verdict"].to_dicts() if row["job"] in shown]
        return sorted(rows, key=lambda row: (BADNESS.index(row["verdict"]), -sizes[row["job"]], row["job"]))

    def evidence(self, finding: Finding) -> list[Row]:
        """Path, line and text of a finding's lines."""
        return [self.cited(line.source, line.line) | {"what": line.what} for line in finding.evidence]

    def cited(self, source: int, line: int) -> Row:
        """Path, line and text of one line; the text is empty for lines that no finding cites."""
        true, text = self.quotes.get((source, line), (line if line > 0 else None, ""))
        return {"path": self.run.inputs[source].source.path, "line": true, "text": text}

    def cite(self, lines: Iterable[Line]) -> None:
        """Read the text of more lines than the findings cite."""
        self.quotes |= self.run.quote({(line.source, line.line) for line in lines} - set(self.quotes))

    def path_of(self, source: int) -> str:
        """The path of a source, as the user gave it."""
        return self.run.inputs[source].source.path

    def problems(self, source: int) -> list[str]:
        """What is wrong with one source: with reading it, and with the dumps that it holds."""
        own = self.run.inputs[source].problems
        return [*own, *self.run["dump_damage"].filter(source=source)["problem"]] if self.run.has("dump_damage") else own

    def input_problems(self) -> list[tuple[str, str]]:
        """Path and problem of the first source that has it, and how many more have the same."""
        having: dict[str, list[str]] = {}
        for reading in self.run.inputs:
            for problem in self.problems(reading.number):
                having.setdefault(problem, []).append(reading.source.path)
        return [
            (paths[0], f"{problem} (and {len(paths) - 1} more like it)" if len(paths) > 1 else problem)
            for problem, paths in having.items()
        ]

    def finding_of(self, row: Row) -> Finding | None:
        """The finding that puts a job's verdict into words."""
        return next((finding for finding in self.findings if finding.job == row["job"]), None)

    def numbers(self, rank_ids: list[int]) -> list[int]:
        """Rank numbers of actors, known ones only."""
        number = dict(self.run["rank"].select("rank_id", "rank").iter_rows())
        return sorted({number[rank_id] for rank_id in rank_ids if number.get(rank_id) is not None})

    def last_calls(self, job: int) -> list[Row]:
        """The last call of every rank of a job, in the order of ranks."""
        last = self.run["shown_call"].filter((pl.col("job") == job) & pl.col("is_last"))
        ranks = self.run["rank"].select("rank_id", "rank", "host", "pid", "cudadev")
        return self._selected(last.join(ranks, on="rank_id", how="left").sort("rank", nulls_last=True))

    def _selected(self, rows: pl.DataFrame) -> list[Row]:
        """Of rows with `rank`, `host` and `key`, those that are to be shown."""
        shows = self.selection.shows
        return [
            row
            for row in rows.to_dicts()
            if shows([] if row["rank"] is None else [row["rank"]], [row["host"]], row["key"])
        ]

    def waits(self, job: int) -> list[Row]:
        """Who waits for whom, the waiter's first wait only: columns of `wait`, `for` a list of actors."""
        edges = self.run["wait"].filter(pl.col("job") == job).sort("pos")
        waits = (
            edges.group_by("waiter", "key", "nth", "kind", maintain_order=True)
            .agg(pl.col("waits_for"), pl.col("source").first(), pl.col("line").first())
            .unique("waiter", keep="first", maintain_order=True)
        )
        place = self.run["rank"].select("rank", "host", waiter="rank_id")
        return self._selected(waits.join(place, on="waiter", how="left", maintain_order="left"))

    def collect_next(self, row: Row) -> list[str]:
        """What to run now on the hosts of the culprits, and what to collect."""
        wanted = list(row["collect"])
        if row["verdict"] == "rank-missing":
            wanted += _WHERE_MISSING
        elif row["verdict"] == "stuck-together":
            wanted += _WHERE_STUCK
        culprits = self.run["rank"].filter(pl.col("rank_id").is_in(row["culprits"])).sort("rank")
        for process in culprits.unique(["host", "pid"], maintain_order=True).head(SHOWN_HOSTS).to_dicts():
            wanted += _commands(process, row["verdict"])
        if culprits.height > SHOWN_HOSTS:
            wanted.append(f"the same for the other {culprits.height - SHOWN_HOSTS} ranks")
        return wanted


SHOWN_HOSTS = 4


_WHERE_MISSING = [
    "where these ranks should run: ps aux | grep python, and what the launcher printed for them",
    "from there: whether the bootstrap address of rank 0 can be reached (the `Bootstrap` line of its log)",
]
_WHERE_STUCK = [
    "on the hosts cited: ibstat; perfquery -x; dmesg -T | grep -iE 'mlx5|xid'",
    "on the hosts cited: nvidia-smi; py-spy dump --native of one rank",
]


def _commands(process: Row, verdict: str) -> list[str]:
    host, pid = process["host"], process["pid"]
    if host is None:
        return [f"on the host of rank {process['rank']}: py-spy dump --native of its process; nvidia-smi; dmesg -T"]
    if verdict == "rank-died":
        return [
            f"on {host}: dmesg -T | grep -iE 'oom|xid|segfault|{pid}'",
            f"on {host}: the exit code of process {pid}",
        ]
    if verdict == "init-failed":
        return [f"on {host}: tr '\\0' '\\n' < /proc/{pid}/environ | grep -E 'RANK|WORLD_SIZE|CUDA_VISIBLE|NCCL_'"]
    return [
        f"on {host}: py-spy dump --native --pid {pid}",
        f"on {host}: gdb -p {pid} -batch -ex 'thread apply all bt'",
        f"on {host}: nvidia-smi; dmesg -T | tail -50",
    ]


def report(run: Frames, selection: Selection | None = None, asked: list[Rule] | None = None) -> Report:
    """Ask the rules (those on a hang if none are given), and read the lines that they cite."""
    selection = selection or Selection()
    asked = chosen(everything=False) if asked is None else asked
    said = [
        each
        for each in findings(partial(call_with, run), asked)
        if selection.shows(each.ranks, each.hosts, each.communicator)
    ]
    cited = {(line.source, line.line) for finding in said for line in finding.evidence}
    return Report(run, said, run.quote(cited), selection, asked)


def operation(row: Row) -> Row:
    """A call in the contract's words."""
    return {
        "name": row["name"],
        "ordinal": row["ordinal"],
        "count": row["count"],
        "datatype": datatype(row["datatype"]),
        "op": reduction(row["name"], row["op"]),
        "root": row["root"],
    }
