"""Rows of frames as dictionaries, which all jobs of a run share: each frame is converted and divided once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import polars as pl

from ncclforensics.analyses.hang.wait_graph import Edge, edges_of
from ncclforensics.analyses.job.calls.calls import ARGUMENTS
from ncclforensics.analyses.verdict.answer import Operation
from ncclforensics.data.names import ranks_text
from ncclforensics.frames.columns import Owner, Row, text_of, typed_rows
from ncclforensics.grammar.values import numbers_of_ranges

if TYPE_CHECKING:
    from ncclforensics.analyses.hang.recorder_graph import Recordings

R = TypeVar("R", bound=NamedTuple)
# Forms of `job_end` of a job that its scheduler or a user ended.
ENDED_FROM_OUTSIDE = ("cancelled", "lsf_killed", "lsf_limit", "lsf_ended", "pbs_deleted", "time_limit")

STANDING, NEAR = "standing", 100  # a topic of statements of programs; lines behind one at the end of a file

# Frames of PyTorch's and torchrun's text whose rows have no class.
PYTORCH_FRAMES = (
    "monitored_barrier",
    "model_difference",
    "fingerprint",
    "elastic_failure",
    "announced_position",
    "watchdog",
)
# Frames that name no job: they are of the job of their input.
OF_NO_JOB = (
    *PYTORCH_FRAMES, "torch_error", "torch_source", "store_error", "work", "desync", "early_timeout", "recorded_rank",
    "recorded_position", "recorded_call", "recorder_file", "unranked_stack", "ras_snapshot", "ras_state", "job_end",
    "journal_exit", "program_failure", "reported_success", "group_note", "stated_stand",
)  # fmt: skip


class Member(NamedTuple):
    """The membership of a rank in a communicator: a row of `member`."""

    job: int
    key: str
    rank_id: int
    rank: int | None  # in the communicator
    nranks: int
    is_inferred: bool
    is_complete: bool
    end: str | None
    end_pos: int | None
    created_pos: int
    host: str
    pid: int
    has_met: bool  # its lines show that its ranks exchanged data
    source: int
    line: int | None
    end_source: int | None
    end_line: int | None

    @property
    def place_of_end(self) -> Row:
        """The line of its end."""
        return {"rank_id": self.rank_id, "source": self.end_source, "line": self.end_line}


@dataclass(frozen=True, slots=True, kw_only=True)
class Called(Operation):
    """A call of a rank: what its line says, and its place on its communicator."""

    name: str
    rank_id: int
    key: str
    nth: int | None
    pos: int
    nranks: int
    signature: int
    source: int
    line: int


class Rows:
    """The rows of some frames, by the values of some columns; each frame is converted once."""

    def __init__(self, frames: dict[str, pl.DataFrame]) -> None:
        self.frames = frames
        self._rows: dict[str, list[Row]] = {}
        self._typed: dict[str, list[Any]] = {}
        self._divided: dict[tuple[str, ...], dict[tuple[Any, ...], list[Any]]] = {}

    def of(self, name: str) -> list[Row]:
        """All rows of a frame."""
        if name not in self._rows:
            self._rows[name] = self.frames[name].to_dicts()
        return self._rows[name]

    def where(self, name: str, **values: Any) -> list[Row]:
        """The rows of a frame that have these values."""
        if (name, *values) not in self._divided:
            rows = self.of(name)
            self._divided[name, *values] = _divide((tuple(row[column] for column in values) for row in rows), rows)
        return self._divided[name, *values].get(tuple(values.values()), [])

    def typed(self, name: str, of: type[R]) -> list[R]:
        """The rows of a frame as values of a class whose fields are columns."""
        if name not in self._typed:
            self._typed[name] = typed_rows(self.frames[name], of)
        return self._typed[name]


class TextRows(Rows):
    """The rows that name no job, of the inputs of one."""

    @cached_property
    def desyncs(self) -> list[Row]:
        """The reports of PyTorch that name lagging ranks, with `ranks` as numbers."""
        rows = [row for row in self.of("desync") if row["form"] in ("never_joined", "not_joined")]
        return [{**row, "ranks": [*numbers_of_ranges(row["ranks"])]} for row in rows]

    @cached_property
    def joined_works(self) -> dict[int | None, Row]:
        """Number of a work -> `ranks` of a group that joined it, `operation`, `lines`.

        PyTorch's desync reports number ranks within one process group and do not say which.
        """
        names = {row["sequence"]: row["operation"] for row in self.where("desync", form="timeout") if row["operation"]}
        works: dict[int | None, Row] = {}
        for row in self.where("desync", form="unfinished"):
            number = row["sequence"]
            work = works.setdefault(number, {"ranks": set(), "operation": names.get(number), "lines": []})
            work["ranks"].update(numbers_of_ranges(row["ranks"]))
            work["lines"].append({**row, "rank_id": None})
        return works

    @cached_property
    def recordings(self) -> Recordings | None:
        """What the Flight Recorder dumps of the job show."""
        frames = self.frames
        if not frames["recorded_rank"]["is_used"].any():
            return None
        from ncclforensics.analyses.hang.recorder_graph import Recordings  # most jobs have no dumps

        return Recordings(frames["recorded_position"], frames["recorded_call"], frames["recorded_rank"])

    @cached_property
    def left_out(self) -> list[str]:
        """What is said of time-outs that are not of the run that NCCL's lines show."""
        early = self.of("early_timeout")
        ranks = ranks_text(row["rank"] for row in early)
        return [f"the time-outs that {ranks} reported are of an earlier run"] if early else []

    @cached_property
    def old_dumps(self) -> list[Row]:
        """Of every rank of the job whose dumps are all of an earlier run, one of them."""
        dumps = self.frames["recorded_rank"].drop_nulls("rank")
        used = dumps.filter("is_used")["rank"].unique()
        old = dumps.filter(~pl.col("rank").is_in(used.implode())).drop_nulls("older_ns")
        return old.sort("rank", "older_ns").unique("rank", maintain_order=True).to_dicts()

    @cached_property
    def is_cancelled(self) -> bool:
        """Whether a line says that the job was cancelled, or reached its time limit."""
        return any(row["form"] in ENDED_FROM_OUTSIDE for row in self.of("job_end"))

    @cached_property
    def captured_ends(self) -> set[str]:
        """How the ranks of the job ended, if a capture started them."""
        return set(self.frames["journal_exit"]["how"].cast(pl.String))

    @cached_property
    def reports_stall(self) -> bool:
        """Whether the program of the job says, near the end of a file, that it makes no progress."""
        is_stated = (pl.col("topic") == STANDING) & pl.col("is_signed") & (pl.col("lines_behind") < NEAR)
        return not self.frames["program_failure"].filter(is_stated).is_empty()

    @cached_property
    def successes(self) -> list[Row]:
        """The lines which say that the program of the job ended well."""
        return self.frames["reported_success"].sort("pos").to_dicts()

    @cached_property
    def ended_programs(self) -> list[Row]:
        """The lines by which PyTorch marks that the program of a rank of the job ended, with its `rank`."""
        ends = self.frames["group_note"].filter(form="not_destroyed")
        ranked = ends.with_columns(rank=pl.coalesce("global_rank", "launcher_rank")).drop_nulls("rank").sort("pos")
        return ranked.to_dicts()


class JobRows(Rows):
    """The rows of the frames that verdicts rest on; what names no job is of the job of its input (`text_of`).

    A run may hold thousands of jobs: what is the same for all of them is computed once.
    """

    def __init__(self, frames: dict[str, pl.DataFrame]) -> None:
        super().__init__(frames)
        self.is_only_job = frames["rank"]["job"].n_unique() == 1

    def text_of(self, job: int) -> TextRows:
        """The rows that name no job of the inputs that are of this one."""
        if self.is_only_job:
            return TextRows({name: self.frames[name] for name in OF_NO_JOB})
        own = {row["source"] for row in self.where("text_job", job=job)}
        if own.isdisjoint(self._with_text):
            return self._without_text
        of_job = pl.col("source").is_in(list(own))
        return TextRows({name: self.frames[name].filter(of_job) for name in OF_NO_JOB})

    @cached_property
    def _without_text(self) -> TextRows:
        """The rows of an input that has none."""
        return TextRows({name: self.frames[name].clear() for name in OF_NO_JOB})

    @cached_property
    def _with_text(self) -> set[int]:
        """The inputs with rows that name no job."""
        return {number for name in OF_NO_JOB for number in self.frames[name]["source"].unique()}

    def typed_of_job(self, name: str, of: type[R], job: int) -> list[R]:
        """The rows of a frame that concern a job, as values of a class whose fields are columns."""
        if (name, "typed") not in self._divided:
            jobs = ((number,) for number in self.frames[name]["job"])
            self._divided[name, "typed"] = _divide(jobs, self.typed(name, of))
        return self._divided[name, "typed"].get((job,), [])

    def waits(self, job: int) -> list[Edge]:
        """The edges of a job's wait graph; those of the same call share their tuple of ranks."""
        rows = self._waits_by_job.get((job,))
        return [] if rows is None else edges_of(rows)

    @cached_property
    def _waits_by_job(self) -> dict[tuple[object, ...], pl.DataFrame]:
        return self.frames["wait"].partition_by("job", as_dict=True)

    @cached_property
    def ras_nranks(self) -> int | None:
        """Size of the job in RAS reports."""
        size: Any = self.frames["ras_member"]["nranks"].max()
        return None if size is None else int(size)

    @cached_property
    def last_call_pos(self) -> dict[int, int]:
        """Rank id -> position of its last call."""
        return dict(self.frames["last_call"].group_by("rank_id").agg(pl.col("pos").max()).iter_rows())

    @cached_property
    def collectives_made(self) -> dict[int, dict[str, int]]:
        """Rank id -> communicator -> how many collectives its log shows there."""
        made: dict[int, dict[str, int]] = defaultdict(dict)
        for rank_id, key, calls in self.frames["last_call"].select("rank_id", text_of("key"), "calls").iter_rows():
            made[rank_id][key] = calls
        return made

    @cached_property
    def last_lines(self) -> dict[int, int]:
        """Source -> its last line of NCCL."""
        process = self.frames["process"]
        return dict(process.group_by("last_source").agg(pl.col("last_line").sort_by("last_pos").last()).iter_rows())

    @cached_property
    def duplicate_sources(self) -> set[tuple[Any, ...]]:
        """Processes and sources that hold their lines a second time."""
        return set(self.frames["duplicate_source"].iter_rows())

    @cached_property
    def unplaced(self) -> set[tuple[int, str, bool]]:
        """Memberships whose number of calls is unknown: rank id, communicator key, whether the logs begin together."""
        return set(self.frames["unplaced_member"].iter_rows())

    @cached_property
    def last_omission(self) -> dict[int, int]:
        """Source -> position of the last line which says that lines were left out."""
        return dict(self.frames["omission"].group_by("source").agg(pl.col("pos").max()).iter_rows())

    @cached_property
    def last_split(self) -> dict[Owner, int]:
        """Host and pid -> position of the last line which says that the process splits a communicator."""
        last = self.frames["branch"].group_by(text_of("host"), "pid").agg(pl.col("pos").max())
        return {(host, pid): pos for host, pid, pos in last.iter_rows()}

    def last_of_ranks(self, name: str, rank_ids: Iterable[int]) -> dict[int, Row]:
        """The last row of a frame about each of these ranks, by rank id."""
        return {rank_id: rows[-1] for rank_id in rank_ids if (rows := self.where(name, rank_id=rank_id))}

    @cached_property
    def call_lines(self) -> pl.DataFrame:
        """What distinct lines of calls say, in their order."""
        return self.frames["call_line"].select("name", *ARGUMENTS, "signature", stated="nranks")

    @cached_property
    def rank_id_of(self) -> dict[tuple[str, int | None], int]:
        """Communicator and rank in it -> rank id; of several, the first."""
        return {(member.key, member.rank): member.rank_id for member in reversed(self.typed("member", Member))}

    @cached_property
    def line_faults(self) -> dict[Owner, set[str]]:
        """Host and pid -> what happened to the lines of the process's log."""
        faults: dict[Owner, set[str]] = defaultdict(set)
        for row in self.of("line_fault"):
            faults[row["host"], row["pid"]].add(row["kind"])
        return faults

    @cached_property
    def sources(self) -> dict[int, Row]:
        """Source -> its row."""
        return {row["source"]: row for row in self.of("source")}

    @cached_property
    def shows_an_end(self) -> bool:
        """Whether a line reports the end of a process, whichever it was: launchers need not name it."""
        return not self.frames["process_exit"].filter("is_final").is_empty()

    @cached_property
    def laid_out(self) -> set[tuple[str | None, int | None]]:
        """Host and pid of processes that show rings, trees or connections: NCCL makes them after the bootstrap."""
        return self._owners("ring", "tree", "connection")

    @cached_property
    def past_bootstrap(self) -> set[tuple[str | None, int | None]]:
        """Host and pid of processes that show what NCCL does with what it learned of the others in the bootstrap."""
        return self.laid_out | self._owners("p2p_access")

    def _owners(self, *names: str) -> set[tuple[str | None, int | None]]:
        shown = [self.frames[name].select(text_of("host"), "pid").unique() for name in names]
        return {owner for rows in shown for owner in rows.iter_rows()}

    @cached_property
    def releases(self) -> list[str]:
        """The releases of NCCL, sorted."""
        return sorted(self.frames["version"]["version"].cast(pl.String).unique().to_list())


def _divide(keys: Iterable[tuple[Any, ...]], rows: list[Any]) -> dict[tuple[Any, ...], list[Any]]:
    """The rows of each key, in their order."""
    divided: dict[tuple[Any, ...], list[Any]] = defaultdict(list)
    for key, row in zip(keys, rows, strict=True):
        divided[key].append(row)
    return divided
