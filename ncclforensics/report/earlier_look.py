"""Compare a run with a saved run of the same logs from earlier: a job that makes no further calls stands still.

NCCL prints a call when it is enqueued. So a rank whose last call stands in the same line as before has made none since,
if its log is the file that the job writes to. A copy of a log stands still while the job goes on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import NamedTuple

import polars as pl

from ncclforensics.analyses.verdict.answer import Answer
from ncclforensics.analyses.verdict.doubts import Doubt
from ncclforensics.analyses.verdict.explanation import certainty_of
from ncclforensics.analyses.verdict.vocabulary import FROM_ENDS, Sign
from ncclforensics.archive import parquet
from ncclforensics.archive.manifest import Saved, is_saved
from ncclforensics.errors import UsageError
from ncclforensics.frames.columns import with_line
from ncclforensics.frames.protocol import Frames
from ncclforensics.inputs.file_state import FileState, state_in
from ncclforensics.inputs.sources import Source
from ncclforensics.report.live_files import doubt_of_files, was_ended

OF_RUNNING_JOB = (Doubt.RUNS_ON, Doubt.COPIED_WHILE_RUNNING)  # what two looks remove
SHORTEST = 60.0  # seconds between two looks; a step of a training may take that long
POSITIONS = {"pos": pl.Int64()}


class Comparison(NamedTuple):
    """What two looks show of one job."""

    has_moved: bool | None  # whether its ranks made further calls; None where the looks do not show it
    text: str  # a clause that says so, or why they do not show it


MOVED = Comparison(True, "ranks made further calls since the earlier look")


class EarlierLook(ABC):
    """What an earlier look shows of the same logs."""

    @abstractmethod
    def compare(self, run: Frames, job: int) -> Comparison:
        """Compare with a run in which a job makes a verdict that rests on where the logs end."""

    def compare_all(self, run: Frames) -> dict[int, Comparison]:
        """Compare each job whose verdict rests on where the logs end."""
        verdicts = run["verdict"].filter(pl.col("verdict").is_in(FROM_ENDS))
        return {job: self.compare(run, job) for job in verdicts["job"]}


def with_looks(answers: Iterable[Answer], looks: Mapping[int, Comparison]) -> list[Answer]:
    """Return the answers with what two looks show of their jobs."""
    return [_with_look(answer, looks[answer.job]) if answer.job in looks else answer for answer in answers]


def _with_look(answer: Answer, look: Comparison) -> Answer:
    doubts, shown_by = answer.doubts, answer.stall_evidence
    if look.has_moved:
        doubts = (*doubts, Doubt.COPIED_WHILE_RUNNING)
    elif look.has_moved is False:
        doubts = tuple(doubt for doubt in doubts if doubt not in OF_RUNNING_JOB)
        shown_by = (*shown_by, Sign.LOOKS)
    return answer._replace(
        remarks=(*answer.remarks, look.text),
        reason=f"{answer.reason}; {look.text}",
        doubts=doubts,
        certainty=answer.certainty if look.has_moved is None else certainty_of(doubts),
        stall_evidence=shown_by,
        rests_on_stall=answer.rests_on_stall and look.has_moved is not False,
    )


class SavedFile(NamedTuple):
    """What a saved run holds of one file."""

    last_line: int  # of the last call in it; 0 without calls
    size: int  # bytes
    state: FileState | None  # None: no file that lines could be appended to, or an older version has saved it


class _Pair(NamedTuple):
    """A file with last calls of a job, now and at the earlier look."""

    now: Source
    line: int  # of the last call now
    then: SavedFile

    @property
    def is_same_file(self) -> bool:
        """Whether both looks were at one file, as far as the earlier one shows which it was."""
        now, then = self.now.state, self.then.state
        return then is None or (now is not None and now.inode == then.inode)

    @property
    def has_grown(self) -> bool:
        """Whether lines were appended to the file."""
        return self.then.state is not None and self.is_same_file and self.now.size > self.then.size


@dataclass(frozen=True, slots=True)
class SavedLook(EarlierLook):
    """An earlier look at files that a saved run holds."""

    files: Mapping[str, SavedFile]  # by path

    def compare(self, run: Frames, job: int) -> Comparison:
        """Compare the lines of the last calls, and judge by the files whether the job wrote to them."""
        last = _last_calls(run, ranks_of(run, job)).sort("pos")
        places = last.group_by("source", maintain_order=True).agg(pl.col("line").last()).iter_rows()
        lines = {source: line for (source, _), (line, _) in run.quote(places).items()}
        pairs = self._pairs(run, lines)
        if any(pair.line > pair.then.last_line for pair in pairs):
            return MOVED
        why = "no call was read"
        if absent := sorted({run.inputs[source].source.path for source in lines} - {pair.now.path for pair in pairs}):
            why = f"{absent[0]} was not there at the earlier one"
        elif pairs:
            beside = {PurePath(pair.now.path).parent for pair in pairs}
            others = {reading.number: 0 for reading in run.inputs if PurePath(reading.source.path).parent in beside}
            have_grown = any(pair.has_grown for pair in self._pairs(run, others))
            why = "a launcher reports that it ended the job" if was_ended(run) else _doubt(pairs, have_grown=have_grown)
        return Comparison(None, f"the second look shows nothing: {why}") if why else _of_silence(_seconds(pairs))

    def _pairs(self, run: Frames, lines: Mapping[int, int]) -> list[_Pair]:
        """Return those of these files, each with the line of its last call, that the earlier look has."""
        sources = [(run.inputs[number].source, line) for number, line in lines.items()]
        return [_Pair(now, line, then) for now, line in sources if (then := self._file_of(now.path))]

    def _file_of(self, path: str) -> SavedFile | None:
        """Return the file of this path, or the only one of its name; None where the earlier look has no such file."""
        alike = [file for known, file in self.files.items() if PurePath(known).name == PurePath(path).name]
        return self.files.get(path) or (alike[0] if len(alike) == 1 else None)


def _doubt(pairs: list[_Pair], *, have_grown: bool) -> str:
    """Return why it shows nothing that the last calls of all these files stand where they stood; empty if it does."""
    for pair in pairs:
        if pair.line < pair.then.last_line:
            return f"{pair.now.path} shows fewer calls than before"
        if not pair.is_same_file:
            return f"{pair.now.path} is not the file that the earlier one read, but may be a copy of it"
    why = doubt_of_files([(pair.now.path, pair.then.state) for pair in pairs], have_grown=have_grown)
    if why or _seconds(pairs) >= SHORTEST:
        return why
    return f"it was taken {_seconds(pairs):.0f} s after the earlier one, and {SHORTEST:.0f} s are needed"


def _seconds(pairs: list[_Pair]) -> float:
    """Return how many seconds the two looks are apart."""
    states = [(pair.now.state, pair.then.state) for pair in pairs]
    return min(now.observed - then.observed for now, then in states if now and then)


def _of_silence(seconds: float) -> Comparison:
    return Comparison(False, f"no rank made a call in the {seconds:.0f} seconds since the earlier look")


@dataclass(frozen=True, slots=True)
class FollowedLook(EarlierLook):
    """An earlier look at logs that were followed since: it is known which of them got calls."""

    seconds: float  # since that look
    with_calls: frozenset[str]  # paths of the logs that got calls since

    def compare(self, run: Frames, job: int) -> Comparison:
        """Return whether any log of the job got a call."""
        if self.with_calls.isdisjoint(paths_of(run, ranks_of(run, job))):
            return _of_silence(self.seconds)
        return MOVED


def paths_of(run: Frames, rank_ids: pl.Series) -> set[str]:
    """The files that hold the last calls of ranks."""
    return {run.inputs[source].source.path for source in _last_calls(run, rank_ids)["source"].unique()}


def ranks_of(run: Frames, job: int) -> pl.Series:
    """The `rank_id` of every rank of a job."""
    return run["rank"].filter(pl.col("job") == job)["rank_id"]


def _last_calls(run: Frames, rank_ids: pl.Series) -> pl.DataFrame:
    return with_line(run["last_call"].filter(pl.col("rank_id").is_in(rank_ids.implode())).select("pos"))


def read_earlier_look(path: str) -> SavedLook:
    """Read a saved run for comparison. Raises UsageError, SavedError."""
    file = Path(path)
    try:
        with open(file, "rb") as stream:
            is_run = is_saved(stream.read(1 << 10))
    except OSError as error:
        raise UsageError(f"--since-look {path}: {error.strerror}") from error
    if not is_run:
        raise UsageError(f"--since-look {path}: is not a saved run; make one with `ncclforensics save`")
    saved = Saved(file)
    last = parquet.frame(saved, "last_call", POSITIONS) if saved.holds("last_call") else pl.DataFrame(schema=POSITIONS)
    lines = dict(with_line(last).group_by("source").agg(pl.col("line").max()).iter_rows())
    return SavedLook(
        {
            entry["path"]: SavedFile(lines.get(number, 0), entry["bytes"], state_in(entry))
            for number, entry in enumerate(saved.inputs)
        }
    )
