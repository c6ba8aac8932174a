"""What is reported of the end of a process: the words for how it ended, who reports it, and rows of `process_exit`."""

from __future__ import annotations

from collections.abc import Iterable
from operator import itemgetter
from typing import Any, NamedTuple

import polars as pl

from ncclforensics.data.processes import signal_name
from ncclforensics.frames.columns import Category, Large, Row

EXCEPTION = "exception"  # an uncaught Python exception
GPU_MEMORY = "gpu-memory"  # the GPU ran out of memory
GPU_ERROR = "gpu-error"  # a CUDA call of the application failed, or ROCm ended it
HOST_MEMORY = "host-memory"  # the host, the container or the job ran out of memory
SIGNAL = "signal"  # killed or crashed
EXIT = "exit"  # exited with an error code
NODE = "node"  # its node failed
NOT_STARTED = "not-started"  # its launcher could not start it
RAISED = (EXCEPTION, GPU_MEMORY, GPU_ERROR)
KERNEL, RAY, ROCM = "the kernel", "Ray", "ROCm's runtime"  # reporters
BROKEN_MEMORY = "hardware memory corruption"  # the kernel ends a process that reads a damaged page
CAPTURE = "capture"
GAVE_UP, STALLED, TAKEN_DOWN = "gave-up", "stalled", "taken-down"  # as the journal of a capture says it
OF_HOST, OF_CONTAINER = "host", "container"  # whose memory ran out
PYTHON_ERROR = 1  # exit code of a Python program that an exception ends
UNSHOWN = "failed, and how is not shown"  # of a process without an exit code
UNCAUGHT = "C++ exception"  # `what()` names no class
INTERRUPTS = ("interrupt", "terminated")  # forms of `exception`: what ended the program came from outside
STRENGTH = (HOST_MEMORY, NODE, NOT_STARTED, GPU_MEMORY, GPU_ERROR, EXCEPTION, SIGNAL, EXIT)  # the most specific first
TORCHRUN = "torchrun"
IN_TABLE = ("exit_code", "first_entry", "entry")  # forms of `elastic_failure` in the table with which torchrun ends
OUT_OF_MEMORY = {
    OF_HOST: "the host ran out of memory",
    OF_CONTAINER: "its container or job reached its memory limit (cgroup)",
    "": "the memory of the host, the container or the job ran out",
}


class ProcessExit(NamedTuple):
    """A report of the end of a process: a row of `process_exit`."""

    job: int | None
    rank_id: int | None  # null where the line names no known process
    rank: int | None
    host: Category | None
    pid: int | None
    child: int | None  # the launcher's number of the process, which need not be a rank
    local_rank: int | None  # torchrun's number of the process on its node, where it prints no rank
    node: str | None  # as the launcher names it
    how: str
    signal: Large | None
    exit_code: Large | None
    reporter: str  # srun, mpirun, torchrun, the kernel, …
    name: str  # class of the exception
    message: str
    where: str  # library of the crash
    driver_call: str | None  # function of the CUDA driver in which NCCL crashed; empty: none
    place: str  # in the program: the call that raised
    worker: str  # as an engine or Ray names the process
    memory_of: str  # what ran out of memory: host, container; empty: no reporter knows
    printed: Large  # how often such an exception, which names no process, stands in its file
    is_first: bool  # it ended by itself; false if its end follows from that of another process
    is_by_clock: bool  # another process ended at about that time on another host, whose clock may differ
    is_placed: bool  # false: a line of the kernel of no known host or time, or NCCL shows another process of this rank
    is_tied: bool  # NCCL's lines stand in its file, too, or it names a process or host of theirs; or there are none
    is_final: bool  # the process certainly ended; an exception without a rank may have been caught
    is_near_end: bool  # its file ends within the lines of a traceback, and shows no steps and no answers behind it
    is_outlived: bool  # so much stands behind it in its file that it did not end the job, or ended an earlier one
    last_line: int | None  # of an exception: where one like it, or raised from it, stands last
    source: int
    line: int
    pos: Large


def ended_text(row: ProcessExit) -> str:
    """Describe how a process ended and what followed, as the predicate of a sentence."""
    return f"{end_text(row)}; the other ranks lost their connection to it or wait for it"


def end_text(row: ProcessExit) -> str:
    """Describe how a process ended, as the predicate of a sentence."""
    match row.how:
        case "exception":
            predicate = f"raised {row.name} and ended"
        case "gpu-memory":
            predicate = "ran out of GPU memory and ended"
        case "gpu-error":
            cause = f"{row.reporter} because of a GPU error" if row.reporter == ROCM else "a CUDA error"
            predicate = f"was ended by {cause} ({row.message.rstrip('.')})"
        case "host-memory":
            predicate = f"was killed because {OUT_OF_MEMORY[row.memory_of]}, as {row.reporter} reports"
        case "not-started":
            predicate = f"did not start, as {row.reporter} reports"
        case "node":
            predicate = "ended with its node"
        case "signal" if row.signal is None:
            predicate = f"received a signal, as {row.reporter} reports"
        case "signal":
            predicate = f"ended by {signal_name(row.signal or 0)}, as {row.reporter} reports"
        case _ if row.exit_code is None:
            predicate = "ended first" + f": {row.message}" * bool(row.message) + f", as {row.reporter} reports"
        case _:
            predicate = f"ended first, with exit code {row.exit_code}, as {row.reporter} reports"
    return predicate


def strongest_of(process_exit: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of `process_exit` that `strongest_reports` keeps."""
    is_unknown = pl.col("rank_id").is_null()
    is_unnamed = is_unknown & pl.col("pid").is_null()
    unknown = [pl.when(is_unknown).then(name).alias(f"_{name}") for name in ("source", "host", "pid")]
    unknown += [pl.when(is_unnamed).then(name).alias(f"_{name}") for name in ("line", "child")]
    strength = pl.col("how").replace_strict(list(STRENGTH), range(len(STRENGTH)), return_dtype=pl.Int32)
    ordered = process_exit.with_columns(*unknown).sort(
        strength, pl.col("where") == "", "reporter", pl.col("line") < 0, "line", "message", maintain_order=True
    )
    key = ["rank_id", "_source", "_host", "_pid", "_line", "_child"]
    return ordered.unique(key, keep="first", maintain_order=True).select(process_exit.columns)


def strongest_reports(rows: Iterable[ProcessExit]) -> list[ProcessExit]:
    """Return the strongest report of each process; of one that no line names, all are kept."""
    strongest: dict[Any, ProcessExit] = {}
    for row in rows:
        named = (row.source, row.host, row.pid) if row.pid is not None else (row.source, row.line, row.child)
        process_key = row.rank_id if row.rank_id is not None else named
        if process_key not in strongest or _strength(row) < _strength(strongest[process_key]):
            strongest[process_key] = row
    return list(strongest.values())


def _strength(row: ProcessExit) -> tuple[int, bool, str, bool, int, str]:
    """Sort key: the smaller, the more specific the reason; independent of the order of files."""
    line = row.line
    return STRENGTH.index(row.how), not row.where, row.reporter, line < 0, line, row.message


def seen_first(elastic_failure: Iterable[Row]) -> set[tuple[int, int]]:
    """Return source and line of the ends that torchrun's tables set apart as the first that it saw, one of a node."""
    places: set[tuple[int, int]] = set()
    below_heading: set[int] = set()
    for row in sorted(elastic_failure, key=itemgetter("pos")):
        if row["form"] == "root_cause":
            below_heading.add(row["source"])
        elif row["form"] == "first_entry" or (row["form"] == "exit_code" and row["source"] in below_heading):
            places.add((row["source"], row["line"]))
            below_heading.discard(row["source"])
    return places
