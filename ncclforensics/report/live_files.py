"""Tell logs that a job may still write to from copies, which never grow, whatever the job does.

A program that copies a file either sets the times of the original, so that the file's `changed` is not its `modified`,
or creates a file and writes it at once, so that its folder changed about when it was last written to. A log that a job
writes to was created when the job began, and nothing set its times. What cannot be told from a copy counts as one.
"""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from ncclforensics.analyses.job.ends.exit_rows import IN_TABLE
from ncclforensics.frames.columns import source_of
from ncclforensics.frames.protocol import Frames
from ncclforensics.inputs.file_state import FileState

LOOK_AGAIN = "run this command again in a minute: if no log has grown, the job stands still"
GROWING = ("nccl-log", "pytorch-log", "capture-journal")  # `inputs[].kind` of what is written while a job runs
# A healthy job is hardly silent for longer: after this time PyTorch ends a collective by default
# (torch.distributed.constants.default_pg_nccl_timeout).
RECENT = 600.0  # seconds before a look, or after it if the clocks of file server and machine differ
WRITTEN_FOR = 60.0  # seconds from the last change of the folder to the last write; to copy one log takes less


def doubt_of_files(files: Iterable[tuple[str, FileState | None]], *, have_grown: bool = False) -> str:
    """Return why these files, each with its path, may not be those that a job wrote to when they were looked at.

    Empty if they were. `have_grown`: a log beside them has grown since.
    """
    states: list[FileState] = []
    for path, state in files:
        if state is None:
            return f"nothing shows whether {path} was still written to then"
        if state.changed != state.modified:
            return f"{path} is a copy, for its times were set after it was written"
        if not have_grown and state.modified - state.folder_modified < WRITTEN_FOR:
            return f"{path} may be a copy, for its folder changed when it was last written to, or later"
        states.append(state)
    if have_grown or any(abs(state.observed - state.modified) <= RECENT for state in states):
        return ""
    return f"no log of the job was written to in the {RECENT / 60:.0f} minutes before, so that they may be copies"


def may_grow(run: Frames, job: int) -> bool:
    """Whether the job may still write to its logs, so that a further look would show whether it stands still."""
    logs = [run.inputs[number].source for number in _files_of(run, job) if run.kinds.get(number) in GROWING]
    if not logs or was_ended(run) or any(source.saved for source in logs):
        return False
    return not doubt_of_files((source.path, source.state) for source in logs)


def _files_of(run: Frames, job: int) -> list[int]:
    """Return the numbers of the files with the last calls of a job; without any calls, of those of its ranks."""
    ranks = run["rank"].filter(pl.col("job") == job)
    last = run["last_call"].join(ranks, on="rank_id", how="semi")
    rows = last.select(source_of(pl.col("pos"))) if last.height else ranks
    return rows["source"].unique().sort().to_list()


def was_ended(run: Frames) -> bool:
    """Whether a launcher says that it ended the job: then no log grows, whatever the job did."""
    failures = run["elastic_failure"]
    if run["job_end"].height or failures.is_empty():
        return not run["job_end"].is_empty()
    return not failures.filter(pl.col("form").is_in(["terminated", "signal", *IN_TABLE])).is_empty()
