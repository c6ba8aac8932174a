"""Index the frames of one job by rank and communicator, for the checks that compute its verdict."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from functools import cached_property
from itertools import islice
from operator import itemgetter
from typing import NamedTuple, Unpack

import polars as pl

from ncclforensics.analyses.hang.rank_stacks import stacks_in
from ncclforensics.analyses.hang.ras_reports import may_be_of
from ncclforensics.analyses.hang.recorder_roots import Roots, find_roots
from ncclforensics.analyses.hang.wait_graph import Edge
from ncclforensics.analyses.hang.watchdog_works import Timeout
from ncclforensics.analyses.job.calls.call_alignment import Gap
from ncclforensics.analyses.job.ends.exit_rows import ProcessExit, strongest_reports
from ncclforensics.analyses.job.ends.failure_events import FailureEvent
from ncclforensics.analyses.job.identity.identity import Rank
from ncclforensics.analyses.job.identity.rank_numbers import missing_numbers
from ncclforensics.analyses.job.text.torch_text import StoreError, TorchError, TorchSource
from ncclforensics.analyses.verdict.doubts import Doubt
from ncclforensics.analyses.verdict.explanation import Explanation, FieldsAndAdvice
from ncclforensics.analyses.verdict.job_rows import PYTORCH_FRAMES, Called, JobRows, Member
from ncclforensics.analyses.verdict.vocabulary import Kind, Sign
from ncclforensics.data.names import MESSAGES, ranks_text
from ncclforensics.frames.columns import MADE_UP, Row, lines_behind, place_of

Frames = dict[str, pl.DataFrame]
MOST_CITED = 4  # lines


class Job:
    """The rows of every frame that concern one job, by rank and by communicator."""

    def __init__(self, number: int, rows: JobRows) -> None:
        frames = rows.frames
        self.number, self.run = number, rows
        self.text = text = rows.text_of(number)
        self.rank_ids = {row.rank_id: row for row in rows.typed_of_job("rank", Rank, number)}
        self.members: dict[str, list[Member]] = defaultdict(list)
        self.memberships = rows.typed_of_job("member", Member, number)
        for member in self.memberships:
            self.members[member.key].append(member)
        self.waits = rows.waits(number)
        self.failure_events = rows.typed_of_job("failure_event", FailureEvent, number)
        self.process_exits = rows.typed_of_job("process_exit", ProcessExit, number)
        self.all_exits = rows.typed("process_exit", ProcessExit)  # also of processes that no other line shows
        self.timeouts = text.typed("work", Timeout)
        self.torch_errors = text.typed("torch_error", TorchError)
        self.torch_sources = text.typed("torch_source", TorchSource)
        self.store_errors = text.typed("store_error", StoreError)
        self.pytorch = {name: text.of(name) for name in PYTORCH_FRAMES}
        self.stacks = stacks_in(frames["rank_stack"].filter(job=number))  # where its ranks stand, by rank id
        self.unranked_stacks = stacks_in(text.frames["unranked_stack"])
        self.recordings = text.recordings
        self.left_out = list(text.left_out)  # what is said of sources that are left out
        self.communicators_of_groups: dict[str, str] = {}  # process group of the dumps -> key with the same members
        self.stall_evidence: list[Sign] = []  # what shows that it stood still, once its sources were compared
        self.differences: list[Explanation] | None = None  # between the calls of its ranks, once they were judged
        self.doubts: dict[str, str] = {}  # sources that may be of another run than NCCL's lines -> why
        self.ras_nranks = rows.ras_nranks
        has_ras = may_be_of(text.frames["ras_state"], frames["member"], self.ras_nranks, self.nranks)
        self.snapshots = text.of("ras_snapshot") if has_ras else []
        self.states = text.of("ras_state") if has_ras else []
        self.counted_calls = [row for rank_id in self.rank_ids for row in rows.where("counted_call", rank_id=rank_id)]
        self._call_line = frames["call_line"]
        self._calls_by_rank: dict[int, pl.DataFrame] = {}
        self._last_pos = rows.last_call_pos
        diverged = [row for key in self.members for row in rows.where("divergence", key=key)]
        self.divergence = {row["key"]: row["nth"] for row in diverged}
        self.gaps = [gap for gap in rows.typed("call_gap", Gap) if gap.rank_id in self.rank_ids]
        # Of ranks whose log ends while NCCL sets up connections: the last of these.
        self.unfinished_setups = rows.last_of_ranks("unfinished_setup", self.rank_ids)
        owners = dict.fromkeys(row.owner for row in self.rank_ids.values())
        self.processes = {owner: row for owner in owners for row in rows.where("process", host=owner[0], pid=owner[1])}
        # source -> the last lines of the processes of this job
        self._own_last_lines: dict[int, set[int | None]] = defaultdict(set)
        for row in self.processes.values():
            self._own_last_lines[row["last_source"]].add(row["last_line"])
        milestones = [row for host, pid in owners for row in rows.where("milestone", host=host, pid=pid)]
        duplicates = rows.duplicate_sources
        milestones = [row for row in milestones if (row["host"], row["pid"], row["source"]) not in duplicates]
        self.milestones = sorted(milestones, key=itemgetter("pos"))
        self.visibility = {
            rank_id: row for rank_id in self.rank_ids for row in rows.where("visibility", rank_id=rank_id)
        }
        self.unplaced = [row for row in rows.unplaced if row[0] in self.rank_ids]
        # Of ranks whose calls are counted on over lines that their logs lack: the first call behind the last of these.
        self.counter_jumps = rows.last_of_ranks("counter_jump", self.rank_ids)
        self.line_faults = {owner: rows.line_faults[owner] for owner in owners if owner in rows.line_faults}
        self.last_times = {row["rank_id"]: row for row in rows.where("last_time", job=number)}
        self.has_layout = not rows.laid_out.isdisjoint([*owners, (None, None)])
        self.is_past_bootstrap = not rows.past_bootstrap.isdisjoint([*owners, (None, None)])

    @cached_property
    def calls(self) -> pl.DataFrame:
        """The calls of its ranks."""
        calls = self.run.frames["call"]
        return calls if self.run.is_only_job else calls.filter(pl.col("rank_id").is_in(list(self.rank_ids)))

    @cached_property
    def communicator_index(self) -> dict[tuple[int, str], int]:
        """(Rank id, communicator key) -> position among the rank's communicators, from 0 in the order of creation."""
        index: dict[tuple[int, str], int] = {}
        created: dict[int, int] = defaultdict(int)
        for row in self.memberships:
            index[row.rank_id, row.key] = created[row.rank_id]
            created[row.rank_id] += 1
        return index

    @property
    def is_text_only(self) -> bool:
        """Whether only PyTorch, a launcher or the application speak of this job, and neither NCCL nor RAS."""
        return not self.processes and not self.snapshots

    @cached_property
    def recorded_roots(self) -> Roots:
        """The ranks at the root of the hang, by the Flight Recorder dumps."""
        return find_roots(self.recordings) if self.recordings else Roots()

    @cached_property
    def awaited_calls(self) -> list[Edge]:
        """One edge of `waits`, the first, for every call and set of ranks that are waited for."""
        calls: dict[int, Edge] = {}
        for edge in self.waits:
            calls.setdefault(id(edge.waits_for), edge)
        return list(calls.values())

    @cached_property
    def awaited_ranks(self) -> set[int]:
        """The ranks that others wait for."""
        return {rank_id for edge in self.awaited_calls for rank_id in edge.waits_for}

    @cached_property
    def sets_awaited_by(self) -> dict[int, list[tuple[int, ...]]]:
        """Rank id -> the sets of ranks it waits for, one for each of its calls."""
        awaited: dict[int, list[tuple[int, ...]]] = defaultdict(list)
        for edge in self.waits:
            awaited[edge.waiter].append(edge.waits_for)
        return awaited

    @cached_property
    def cut_logs(self) -> set[int]:
        """The ranks whose logs end inside a line."""
        return {rank_id for rank_id in self.rank_ids if self.process(rank_id)["is_cut"]}

    @cached_property
    def begin_later(self) -> set[int]:
        """The ranks whose logs begin in the middle of the run, and later than those of others."""
        return {rank_id for rank_id, _, begins_together in self.unplaced if not begins_together}

    @cached_property
    def reporting(self) -> set[int | None]:
        """The ranks that report a failure; None stands for a process that drives several."""
        return {event.rank_id for event in self.failure_events}

    @cached_property
    def is_finished(self) -> bool:
        """Whether every rank in the logs destroyed all its communicators."""
        return bool(self.memberships) and all(row.end == "Destroy" for row in self.memberships)

    @cached_property
    def is_ended(self) -> bool:
        """Whether every rank in the logs destroyed or aborted a communicator after its last call."""
        ends: dict[int, int] = defaultdict(lambda: -1)
        for row in self.memberships:
            ends[row.rank_id] = max(ends[row.rank_id], row.end_pos or -1)
        return bool(ends) and all(pos > self._last_pos.get(rank_id, 0) for rank_id, pos in ends.items())

    @cached_property
    def nranks(self) -> int | None:
        """Size of the largest communicator, as the log states it."""
        return max((row.nranks for row in self.memberships), default=None)

    @property
    def is_size_stated(self) -> bool:
        """Whether a source states how many ranks the job has; the highest number that is seen is a lower bound."""
        return self.nranks is not None or self.recordings is not None

    @cached_property
    def absent(self) -> list[int]:
        """Rank numbers of the largest communicator that have no log."""
        numbers = {row.rank for row in self.rank_ids.values()}
        if self.recordings and not self.memberships:
            return sorted(set(self.recordings.without_dump) - numbers)
        return missing_numbers(self.nranks or 0, numbers) if None not in numbers else []

    def rank_number(self, rank_id: int) -> int | None:
        """Return the rank's number in the job."""
        return self.rank_ids[rank_id].rank

    @cached_property
    def first_ends(self) -> dict[int, ProcessExit]:
        """Of every rank whose process certainly ended by itself, the most specific report of that."""
        ends = strongest_reports(row for row in self.process_exits if row.is_first and row.is_final)
        return {row.rank_id: row for row in ends if row.rank_id is not None}

    def order_of(self, rank_id: int) -> tuple[bool, int]:
        """Return what sorts ranks by their number, those without one last: it does not depend on names of files."""
        number = self.rank_number(rank_id)
        return number is None, rank_id if number is None else number

    def rank_numbers(self, rank_ids: Iterable[int]) -> list[int]:
        """Return the ranks' known numbers in ascending order, each once: several may take themselves for one."""
        return sorted({number for number in map(self.rank_number, rank_ids) if number is not None})

    def names(self, rank_ids: Iterable[int]) -> str:
        """Name ranks by their numbers, as in `ranks 0-2`; `some ranks` where none is known."""
        return ranks_text(self.rank_numbers(rank_ids)) or "some ranks"

    def ranks_on_hosts_of(self, rank_ids: Iterable[int]) -> set[int]:
        """Return all ranks on the hosts of some ranks."""
        hosts = {self.rank_ids[rank_id].host for rank_id in rank_ids}
        return {rank_id for rank_id, row in self.rank_ids.items() if row.host in hosts}

    @cached_property
    def rank_id_of(self) -> dict[int, int]:
        """Number of a rank -> its id."""
        return {row.rank: rank_id for rank_id, row in self.rank_ids.items() if row.rank is not None}

    def explanation_by(
        self, verdict: Kind, claim: str, ranks: Iterable[int], *doubts: Doubt, **more: Unpack[FieldsAndAdvice]
    ) -> Explanation:
        """Return an explanation by ranks of these numbers: the culprits, or missing without a log; the others wait."""
        numbers, known = {*ranks}, self.rank_id_of
        ids = [known[number] for number in numbers & known.keys()]
        explanation = self.explanation_of(verdict, claim, ids, *doubts, **more)
        explanation.missing = sorted(numbers - known.keys())
        return explanation

    def explanation_of(
        self, verdict: Kind, claim: str, ids: Iterable[int], *doubts: Doubt, **more: Unpack[FieldsAndAdvice]
    ) -> Explanation:
        """Return an explanation by these ranks, which all others wait for."""
        culprits = sorted({*ids})
        return Explanation(verdict, claim, [*doubts], culprits, sorted(self.rank_ids.keys() - culprits), **more)

    def cite(self, diagnosis: Explanation, **rows: Iterable[Row | NamedTuple]) -> Explanation:
        """Cite lines of sources that know ranks by their numbers alone."""
        for what, of_this in rows.items():
            first = (row if isinstance(row, dict) else row._asdict() for row in islice(of_this, MOST_CITED))
            numbers = ((row, row["rank"] if "rank" in row else row["global_rank"]) for row in first)
            cited: list[Row] = [{**row, "rank_id": self.rank_id_of.get(number)} for row, number in numbers]
            diagnosis.add_evidence(**{what: cited})
        return diagnosis

    def numbers_blamed(self, diagnosis: Explanation) -> frozenset[int]:
        """Return the known numbers of the culprits, and of ranks without a log."""
        return frozenset([*self.rank_numbers(diagnosis.culprits), *diagnosis.missing])

    def process(self, rank_id: int) -> Row:
        """Return the process that drives a rank."""
        row = self.rank_ids[rank_id]
        no_process = {"source": row.source, "sources": [row.source], "is_cut": False}
        no_process |= {"last_source": row.source, "last_line": None}
        return self.processes.get(row.owner, no_process)

    def last_line(self, rank_id: int) -> Row:
        """Return the place of the last line in a rank's log."""
        process = self.process(rank_id)
        return {"rank_id": rank_id, "source": process["last_source"], "line": process["last_line"]}

    def application_lines_after(self, rank_id: int) -> int:
        """Count the lines of the rank's file behind the last line of NCCL; 0 where another job prints there."""
        process = self.process(rank_id)
        source, last = process["last_source"], self.run.last_lines.get(process["last_source"])
        if last is None or process["last_line"] is None or last not in self._own_last_lines[source]:
            return 0
        return lines_behind(last, self.run.sources[source]["lines"])

    def lag(self, rank_ids: Iterable[int]) -> int:
        """Count the collectives by which one of some ranks is behind the furthest member that waits for it."""
        ranks = {*rank_ids}
        collectives = (edge for edge in self.awaited_calls if edge.kind == "collective")
        lacking = [edge for edge in collectives if not ranks.isdisjoint(edge.waits_for)]
        most = {key: max(self.made_by_members(key)) for key in {edge.key for edge in lacking}}
        return max((most[edge.key] - edge.nth for edge in lacking), default=0)

    def made_by_members(self, key: str) -> list[int]:
        """Return how many collectives each member made on a communicator, of those whose logs show one."""
        made = (self.run.collectives_made[row.rank_id] for row in self.members[key])
        return [of_rank[key] for of_rank in made if key in of_rank]

    def is_fatal(self, event: FailureEvent) -> bool:
        """Whether the rank made no call after a failure line; one that it survived is no fault."""
        last = -1 if event.rank_id is None else self._last_pos.get(event.rank_id, -1)
        return not event.at_exit and event.pos > last

    def calls_of(self, rank_id: int) -> pl.DataFrame:
        """Return all calls of a rank, in order."""
        if rank_id not in self._calls_by_rank:
            self._calls_by_rank[rank_id] = self.calls.filter(pl.col("rank_id") == rank_id)
        return self._calls_by_rank[rank_id]

    def messages(self, key: str, rank_id: int, peer: int, name: str) -> list[Row]:
        """Return the Sends or Recvs of a rank with a peer on a communicator, in order: rows of `message`."""
        return self.run.frames["message"].filter(key=key, rank_id=rank_id, peer=peer, name=name).sort("pos").to_dicts()

    def signatures_of_last_calls(self, number: int) -> dict[int, tuple[int, ...]]:
        """Return the signatures of each rank's last calls, of any communicator."""
        lines = self.calls.select("rank_id", self.signatures_of(self.calls))
        last_calls = lines.group_by("rank_id", maintain_order=True).agg(pl.col("signature").tail(number))
        return {rank_id: tuple(signatures) for rank_id, signatures in last_calls.iter_rows()}

    def signatures(self, keys: list[str]) -> pl.DataFrame:
        """Return what each member called on some communicators: columns rank_id, nth, signature."""
        calls = self.calls.filter(pl.col("key").is_in(keys) & pl.col("nth").is_not_null())
        return calls.select("rank_id", "nth", self.signatures_of(calls))

    def signatures_of(self, calls: pl.DataFrame) -> pl.Series:
        """Return the signatures of calls."""
        return self._call_line["signature"].gather(calls["call_line"])

    def last_call(self, rank_id: int) -> Called | None:
        """Return the last call of a rank, on any communicator."""
        return self._last_call_by_rank.get(rank_id)

    @cached_property
    def _last_call_by_rank(self) -> dict[int, Called]:
        last = self.calls.filter(pl.col("pos").is_in(list(self._last_pos.values())))
        return {row.rank_id: row for row in self.describe(last)}

    def shared_last_call(self) -> Called | None:
        """Return the call that every rank with calls made as its last one on any communicator; None if they differ."""
        last = {pos for rank_id, pos in self._last_pos.items() if rank_id in self.rank_ids}
        calls = self.calls.filter(pl.col("pos").is_in(list(last)))
        if calls.height < len(self.rank_ids) or calls.select("key", "ordinal").n_unique() > 1:
            return None
        return self.describe(calls.head(1))[0]

    def collectives_at(self, key: str, nth: int) -> list[Called]:
        """Return what each member called as the nth collective of a communicator."""
        return self.describe(self.calls.filter((pl.col("key") == key) & (pl.col("nth") == nth)))

    def describe(self, calls: pl.DataFrame) -> list[Called]:
        """Join a few calls with their lines, memberships and the rank of the job that is their root."""
        lines = self.run.call_lines[calls["call_line"]].to_dicts()
        return [self._described({**call, **line}) for call, line in zip(calls.to_dicts(), lines, strict=True)]

    def _described(self, call: Row) -> Called:
        """Join one call as `describe_calls` does many; a join of frames takes a hundred times as long."""
        root_id = self.run.rank_id_of.get((call["key"], call["root"]))
        is_message = call["name"] in MESSAGES and call["rank_id"] in self.rank_ids
        call["source"], call["line"] = place_of(call["pos"])
        call["root_rank"] = self.rank_number(root_id) if root_id in self.rank_ids else None
        call["nranks"] = call["stated"] or self.run.typed("member", Member)[call["member"]].nranks
        call["caller"] = self.rank_number(call["rank_id"]) if is_message else None
        return Called(**{name: call[name] for name in Called.__dataclass_fields__})

    def names_of(self, calls: pl.DataFrame) -> pl.Series:
        """Return the names of calls."""
        return self._call_line["name"].gather(calls["call_line"]).cast(pl.String)

    def seen_members(self, key: str | None) -> list[int]:
        """Return the members of a communicator that have a log; none where the key is None."""
        return [row.rank_id for row in self.members.get(str(key), [])]

    def holds_several(self, key: str) -> bool:
        """Whether several communicators stand under one key, and nothing tells them apart."""
        return len(self.members[key]) > self.members[key][0].nranks

    def count_unseen_members(self, key: str) -> int:
        """Count the members of a communicator that have no log."""
        rows = self.members[key]
        ranks = {row.rank for row in rows}
        return max(0, rows[0].nranks - (len(rows) if None in ranks else len(ranks)))

    @cached_property
    def inside_completed_init(self) -> set[int]:
        """The ranks whose last init was completed by another member, and not by them."""
        completed = {row.key for row in self.memberships if row.is_complete}
        open_keys = {row.rank_id: row.key for row in self.memberships if not row.is_complete}
        return {rank_id for rank_id, key in open_keys.items() if key in completed}

    def may_lack_lines(self, rank_id: int) -> bool:
        """Whether lines of this rank may be lost: its file is cut, damaged or ends early, or lines were lost or moved.

        All members end an init together: a log that ends inside of one lacks lines. Those without a process are of any.
        """
        is_partial = rank_id in self.cut_logs | self.inside_completed_init or bool(self.line_faults)
        is_partial |= self.rank_ids[rank_id].rank is None and self.rank_ids[rank_id].owner[0].startswith(MADE_UP)
        return is_partial or self.has_omission(rank_id) or self.count_lines(rank_id, "damaged", "dropped") > 0

    def count_lines(self, rank_id: int, *kinds: str) -> int:
        """Count the lines of some kinds in the rank's files."""
        return sum(self.run.sources[source][kind] for source in self.process(rank_id)["sources"] for kind in kinds)

    def has_omission(self, rank_id: int) -> bool:
        """Whether a line in the rank's files says that lines were left out there."""
        return not self.run.last_omission.keys().isdisjoint(self.process(rank_id)["sources"])


def all_jobs(frames: Frames) -> list[Job]:
    """Return every job of the run."""
    rows = JobRows(frames)
    return [Job(int(number), rows) for number in frames["rank"]["job"].unique().sort()]
