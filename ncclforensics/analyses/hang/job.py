"""One job as its judges see it: small tables by rank and communicator, and the judgement they give."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import polars as pl

from ncclforensics.analyses.job.calls import described

Row = dict[str, Any]
Frames = dict[str, pl.DataFrame]
CERTAINTIES = ("certain", "likely", "possible")

ACCUSING = pl.Series(["never_joined", "not_joined"], dtype=pl.Categorical()).implode()  # forms of a desync report

EVIDENCE_LINE = {
    "what": pl.String(),  # culprit, waiting, majority, minority, failure, context
    "rank_id": pl.Int32(),
    "source": pl.Int32(),
    "line": pl.Int32(),
}


@dataclass(slots=True)
class Diagnosis:
    """A verdict and its grounds. `culprits` and `victims` are actors; `call` is a call, described."""

    verdict: str
    reason: str
    certainty: str = "certain"
    culprits: list[int] = field(default_factory=list)
    victims: list[int] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)  # rank numbers that are to blame and that no log shows
    key: str | None = None
    call: Row | None = None
    how: str = ""
    fields: list[str] = field(default_factory=list)
    collect: list[str] = field(default_factory=list)
    evidence_lines: list[Row] = field(default_factory=list)

    def row(self, job: int) -> Row:
        """As a row of the frame `diagnosis`."""
        call = self.call or {}
        operation = {name: call.get(name) for name in ("ordinal", "name", "count", "datatype", "op", "root")}
        return {
            "job": job,
            **operation,
            **{name: getattr(self, name) for name in ("verdict", "certainty", "key", "how", "fields", "reason")},
            **{name: getattr(self, name) for name in ("culprits", "victims", "missing", "collect", "evidence_lines")},
        }

    def doubt(self, certainty: str) -> None:
        """Be no surer than this."""
        self.certainty = max(self.certainty, certainty, key=CERTAINTIES.index)

    def show(self, what: str, rows: Iterable[Row]) -> None:
        """Cite the lines of these rows."""
        for row in rows:
            if row.get("line") is not None:
                place = {"rank_id": row.get("rank_id"), "source": row["source"], "line": row["line"]}
                if not any({**e, "what": ""} == {**place, "what": ""} for e in self.evidence_lines):
                    self.evidence_lines.append({"what": what, **place})


class Case:
    """The rows of every frame that concern one job, by rank and by communicator."""

    def __init__(self, job: int, frames: Frames) -> None:
        def ours(name: str) -> list[Row]:
            return frames[name].filter(pl.col("job") == job).to_dicts()

        self.job = job
        self.rank_ids: dict[int, Row] = {row["rank_id"]: row for row in ours("rank")}
        self.members: dict[str, list[Row]] = defaultdict(list)
        self.roles: dict[tuple[int, str], int] = {}  # which of its communicators this is to a rank: 0 the first made
        made: dict[int, int] = defaultdict(int)
        for row in ours("member"):
            self.members[row["key"]].append(row)
            if (row["rank_id"], row["key"]) not in self.roles:
                self.roles[row["rank_id"], row["key"]] = made[row["rank_id"]]
                made[row["rank_id"]] += 1
        self.waits = ours("wait")
        self.failure_events = ours("failure_event")
        self.process_exits = ours("process_exit")
        only = frames["rank"]["job"].n_unique() == 1  # PyTorch's reports name no job
        self.works = frames["work"].to_dicts() if only else []
        self.desyncs = [
            {**row, "ranks": [int(number) for number in row["ranks"].split(",")]}
            for row in (frames["desync"].filter(pl.col("form").is_in(ACCUSING)).to_dicts() if only else [])
        ]
        self.shown = frames["ras_member"]["nranks"].max()  # size of the job as RAS shows it
        fits = only and (None in (self.world, self.shown) or self.world == self.shown)  # or they are of another job
        self.snapshots = frames["ras_snapshot"].to_dicts() if fits else []
        self.states = frames["ras_state"].to_dicts() if fits else []
        self._call_line, self._member = frames["call_line"], frames["member"]
        calls, last = frames["call"], frames["last_call"]
        self.calls = calls if only else calls.filter(pl.col("rank_id").is_in(list(self.rank_ids)))
        self._calls_of: dict[int, pl.DataFrame] = {}
        self._last: dict[int, int] = dict(last.group_by("rank_id").agg(pl.col("pos").max()).iter_rows())
        self.divergence = {
            row["key"]: row["nth"] for row in frames["divergence"].to_dicts() if row["key"] in self.members
        }
        owners = {(row["host"], row["pid"]) for row in self.rank_ids.values()}
        self.processes = {
            (row["host"], row["pid"]): row
            for row in frames["process"].to_dicts()
            if (row["host"], row["pid"]) in owners
        }
        self.milestones = [row for row in frames["milestone"].to_dicts() if (row["host"], row["pid"]) in owners]
        self.visibility = {
            row["rank_id"]: row for row in frames["visibility"].to_dicts() if row["rank_id"] in self.rank_ids
        }
        self.sources = {row["source"]: row for row in frames["source"].to_dicts()}
        self.releases = sorted(frames["version"]["version"].cast(pl.String).unique().to_list())

    @cached_property
    def memberships(self) -> list[Row]:
        """Every membership of a rank in a communicator."""
        return [row for rows in self.members.values() for row in rows]

    @cached_property
    def is_finished(self) -> bool:
        """Whether every rank seen destroyed all its communicators."""
        return bool(self.memberships) and all(row["end"] == "Destroy" for row in self.memberships)

    @cached_property
    def world(self) -> int | None:
        """Size of the largest communicator, as the log states it."""
        return max((row["nranks"] for row in self.memberships), default=None)

    @cached_property
    def absent(self) -> list[int]:
        """Numbers of ranks that the largest communicator has and no log shows."""
        seen = {row["rank"] for row in self.rank_ids.values()}
        return numbers_but(self.world or 0, seen) if None not in seen else []

    def number(self, rank_id: int) -> int | None:
        """The rank's number in the job."""
        number: int | None = self.rank_ids[rank_id]["rank"]
        return number

    def numbers(self, rank_ids: Iterable[int]) -> list[int]:
        """The ranks' numbers, in order; unknown ones left out."""
        return sorted(n for n in (self.number(rank_id) for rank_id in rank_ids) if n is not None)

    def process(self, rank_id: int) -> Row:
        """The process that drives a rank."""
        row = self.rank_ids[rank_id]
        silent = {"source": row["source"], "sources": [row["source"]], "is_cut": False, "last_source": row["source"]}
        return self.processes.get((row["host"], row["pid"]), {**silent, "last_line": None})

    def last_line(self, rank_id: int) -> Row:
        """Where the log of a rank ends."""
        process = self.process(rank_id)
        return {"rank_id": rank_id, "source": process["last_source"], "line": process["last_line"]}

    def calls_of(self, rank_id: int) -> pl.DataFrame:
        """All calls of a rank, in order."""
        if rank_id not in self._calls_of:
            self._calls_of[rank_id] = self.calls.filter(pl.col("rank_id") == rank_id)
        return self._calls_of[rank_id]

    def last_call(self, rank_id: int) -> Row | None:
        """The last call of a rank, on any communicator."""
        if rank_id not in self._last:
            return None
        return self.told(self.calls.filter((pl.col("pos") == self._last[rank_id]) & (pl.col("rank_id") == rank_id)))[-1]

    def collectives_at(self, key: str, nth: int) -> list[Row]:
        """What each member called as the nth collective of a communicator."""
        return self.told(self.calls.filter((pl.col("key") == key) & (pl.col("nth") == nth)))

    def told(self, calls: pl.DataFrame) -> list[Row]:
        """A few calls with all that is known of them."""
        return described(calls, self._call_line, self._member).to_dicts()

    def unseen(self, key: str) -> int:
        """How many members of a communicator no log shows."""
        rows = self.members[key]
        return max(0, int(rows[0]["nranks"]) - len({row["rank"] for row in rows}))

    def lost_lines(self, rank_id: int) -> int:
        """Lines that a collector counted and did not pass on, in the files of this rank."""
        return sum(self.sources[source]["dropped"] for source in self.process(rank_id)["sources"])

    def is_doubtful(self, rank_id: int) -> bool:
        """Whether lines of this rank may have been lost: cut or damaged in its file, or dropped by a collector."""
        process = self.process(rank_id)
        is_damaged = any(self.sources[source]["damaged"] for source in process["sources"])
        return bool(process["is_cut"]) or is_damaged or self.lost_lines(rank_id) > 0


MOST_RANKS = 1 << 20  # of a communicator; a line that states more is damaged, and must not fill the memory


def numbers_but(nranks: int, seen: set[int]) -> list[int]:
    """The rank numbers of a communicator that are not among those seen."""
    return sorted(set(range(nranks)) - seen) if nranks <= MOST_RANKS else []


def cases(frames: Frames) -> list[Case]:
    """Every job of the run."""
    return [Case(int(job), frames) for job in frames["rank"]["job"].unique().sort()]
