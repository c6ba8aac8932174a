"""Compare a run with a saved run of the same logs from earlier: a job that makes no further calls stands still.

NCCL prints a call when it is enqueued. So a rank whose last call stands in the same line as before has made none since.
"""

from __future__ import annotations

import time
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
class EarlierLook:
    """Where the last call of each file stood, and how many seconds ago that was at least."""

    last_lines: dict[str, int]  # path -> line
    seconds: float

    def moved(self, run: Frames, job: int) -> bool | None:
        """Whether ranks of a job have made calls since; None where the looks do not show it."""
        ranks = run["rank"].filter(pl.col("job") == job).select("rank_id")
        last = with_line(run["last_call"].join(ranks, on="rank_id", how="semi").select("pos"))
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


def read_earlier_look(path: str) -> EarlierLook:
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
    return EarlierLook({saved.inputs[source]["path"]: line for source, line in lines.iter_rows()}, age)
