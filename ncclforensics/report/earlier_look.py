"""Compare a run with a saved run of the same logs from earlier: a job that makes no further calls stands still.

NCCL prints a call when it is enqueued. So a rank whose last call stands in the same line as before has made none since.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path, PurePath

import polars as pl

from ncclforensics.analyses.hang.stall import FROM_ENDS, NOT_SHOWN
from ncclforensics.archive import parquet
from ncclforensics.archive.manifest import Saved, is_saved
from ncclforensics.errors import UsageError
from ncclforensics.frames.columns import with_line
from ncclforensics.frames.protocol import Frames

BY_LOOKS = "two-looks"  # in the contract's `standstill.by`
SHORTEST = 60.0  # seconds between two looks; a step of a training may take that long
POSITIONS = {"pos": pl.Int64()}


@dataclass(frozen=True, slots=True)
class EarlierLook(ABC):
    """What an earlier look shows of the same logs, and how many seconds ago that was at least."""

    seconds: float

    @abstractmethod
    def moved(self, run: Frames, job: int) -> bool | None:
        """Whether ranks of a job have made calls since; None where the looks do not show it."""

    def weigh(self, run: Frames, verdicts: pl.DataFrame) -> pl.DataFrame:
        """The verdicts that rest on where the logs end, with what the two looks show."""
        rows = verdicts.to_dicts()
        for row in rows:
            moved = self.moved(run, row["job"]) if row["verdict"] in FROM_ENDS else None
            if moved:
                row["certainty"] = "possible"
                row["reason"] = (
                    f"{row['reason'].removesuffix(NOT_SHOWN)}; ranks made further calls since the earlier look"
                )
            elif moved is False:
                shown = f"; no rank made a call in the {int(self.seconds)} seconds since the earlier look"
                row["reason"] = row["reason"].removesuffix(NOT_SHOWN) + shown
                row["stall_evidence"] = [*row["stall_evidence"], BY_LOOKS]
                row["rests_on_stall"] = False
        return pl.DataFrame(rows, schema=verdicts.schema)


@dataclass(frozen=True, slots=True)
class SavedLook(EarlierLook):
    """Where the last call of each file stood in a saved run."""

    last_lines: dict[str, int]  # path -> line

    def moved(self, run: Frames, job: int) -> bool | None:
        """Whether the last call of any file of the job stands in a later line than before."""
        last = _last_calls(run, ranks_of(run, job))
        places = last.sort("pos").group_by("source").agg(pl.col("line").last()).iter_rows()
        quotes = run.quote(places)
        steps = [self._step(run.inputs[source].source.path, line) for (source, _), (line, _) in quotes.items()]
        known = [step for step in steps if step is not None]
        if any(step > 0 for step in known):
            return True
        is_still = bool(known) and len(known) == len(steps) and not any(known)
        return False if is_still and self.seconds >= SHORTEST else None

    def _step(self, path: str, line: int) -> int | None:
        """By how many lines the last call of a file has moved; None where the earlier look has no such file."""
        then = self.last_lines.get(path)
        if then is None:
            alike = [at for known, at in self.last_lines.items() if PurePath(known).name == PurePath(path).name]
            then = alike[0] if len(alike) == 1 else None
        return None if then is None else line - then


@dataclass(frozen=True, slots=True)
class FollowedLook(EarlierLook):
    """An earlier look at logs that were followed since: it is known which of them got calls, and what is long."""

    with_calls: frozenset[str]  # paths of the logs that got calls since

    def moved(self, run: Frames, job: int) -> bool:
        """Whether any log of the job got a call."""
        return not self.with_calls.isdisjoint(paths_of(run, ranks_of(run, job)))


def paths_of(run: Frames, rank_ids: pl.Series) -> set[str]:
    """The files that hold the last calls of ranks."""
    return {run.inputs[source].source.path for source in _last_calls(run, rank_ids)["source"].unique()}


def ranks_of(run: Frames, job: int) -> pl.Series:
    """The `rank_id` of every rank of a job."""
    return run["rank"].filter(pl.col("job") == job)["rank_id"]


def _last_calls(run: Frames, rank_ids: pl.Series) -> pl.DataFrame:
    return with_line(run["last_call"].filter(pl.col("rank_id").is_in(rank_ids.implode())).select("pos"))


def read_earlier_look(path: str) -> SavedLook:
    """Read a saved run for comparison; it is as old as its file. Raises UsageError, SavedError."""
    file = Path(path)
    try:
        with open(file, "rb") as stream:
            is_run = is_saved(stream.read(1 << 10))
        age = time.time() - file.stat().st_mtime
    except OSError as error:
        raise UsageError(f"--since-look {path}: {error.strerror}") from error
    if not is_run:
        raise UsageError(f"--since-look {path}: is not a saved run; make one with `ncclforensics save`")
    saved = Saved(file)
    last = parquet.frame(saved, "last_call", POSITIONS) if saved.holds("last_call") else pl.DataFrame(schema=POSITIONS)
    lines = with_line(last).group_by("source").agg(pl.col("line").max())
    return SavedLook(age, {saved.inputs[source]["path"]: line for source, line in lines.iter_rows()})
