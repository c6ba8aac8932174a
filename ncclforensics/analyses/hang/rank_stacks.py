"""Where each rank stands by its stacks, over all dumps of it, and whether it moved from one dump to the next."""

from __future__ import annotations

from typing import NamedTuple

import polars as pl

from ncclforensics.data.stack_classes import (
    BLOCKED,
    MEETINGS,
    PYTHON,
    THREAD,
    THREAD_OF_NCCL,
    TRACEBACK,
    WAITING,
    short_name,
)
from ncclforensics.frames.columns import Row, columns_of, typed_rows
from ncclforensics.frames.registry import analysis


class RankStack(NamedTuple):
    """Where a rank stands: a row of `rank_stack`, or of `unranked_stack`, with -1 as `job` and `rank_id`."""

    job: int
    rank_id: int
    pid: int | None
    kind: str  # class of its main thread (data/stack_classes.py)
    is_locked: bool  # it waits for a lock of the CUDA driver
    call: str | None  # the function of a library that its own code called
    function: str
    file: str | None
    number: int | None
    is_waiting: bool  # in a collective, the backward pass, a wait for a GPU, or a meeting of all ranks
    is_blocked: bool | None  # py-spy saw it idle, or the stack shows a call that waits; null where neither is known
    dumps: int  # in which it was found
    has_moved: bool  # it stood elsewhere in the dump before the last one
    is_still: bool  # it stood at the same place in the dump before the last one
    by_watchdog: bool
    has_ended: bool  # an interruption of the process shows it, and no tool
    gil_owner: str | None
    frames: str
    source: int
    line: int


def stacks_in(rows: pl.DataFrame) -> list[RankStack]:
    """Return the rows of `rank_stack` or `unranked_stack`."""
    if rows.is_empty():
        return []
    unknown = [pl.lit(-1).alias(name) for name in ("job", "rank_id") if name not in rows.columns]
    return typed_rows(rows.with_columns(unknown), RankStack)


OF_THREADS = (THREAD, THREAD_OF_NCCL)
_TOOLS = ("py-spy", "faulthandler", TRACEBACK, "gdb", "eu-stack", "lldb")  # those that show Python's functions first


@analysis(RankStack, of=("stack_process",))
def rank_stack(stack_process: pl.DataFrame, rank: pl.DataFrame) -> pl.DataFrame:
    """One row per rank of which there is a stack with frames."""
    from ncclforensics.analyses.job.text.stack_processes import RankIndex  # most jobs have no stacks

    ranks = rank.with_columns(pl.col("host").cast(pl.String)).to_dicts()
    index = RankIndex(ranks)
    jobs = {row["rank_id"]: row["job"] for row in ranks}
    dumps_of: dict[int, list[Row]] = {}
    for process in stack_process.filter(~pl.col("is_helper") & pl.col("kind").is_not_null()).to_dicts():
        if found := index.find(process):
            dumps_of.setdefault(found["rank_id"], []).append(process)
    rows = [{**_where(dumps), "job": jobs[rank_id], "rank_id": rank_id} for rank_id, dumps in sorted(dumps_of.items())]
    return pl.DataFrame(rows, schema=columns_of(RankStack))


UNRANKED_STACK = {name: dtype for name, dtype in columns_of(RankStack).items() if name not in ("job", "rank_id")}


@analysis(UNRANKED_STACK, of=("stack_process",))
def unranked_stack(stack_process: pl.DataFrame, rank: pl.DataFrame) -> pl.DataFrame:
    """One row per process of which there is a stack, and of which no line shows which rank it is.

    Folders with equal process ids are of several moments, and not of several hosts, if one of them has all ranks. Where
    no process id is printed, as by faulthandler, the handle of the main thread tells processes apart.
    """
    from ncclforensics.analyses.job.text.stack_processes import RankIndex  # most jobs have no stacks

    index = RankIndex(rank.with_columns(pl.col("host").cast(pl.String)).to_dicts())
    known = stack_process.filter(~pl.col("is_helper") & pl.col("kind").is_not_null())
    unranked = [process for process in known.to_dicts() if index.find(process) is None]
    are_moments = len({process["pid"] for process in unranked if process["pid"] is not None}) >= rank.height
    dumps_of: dict[tuple[str | None, int | None, int | None], list[Row]] = {}
    for process in unranked:
        host, pid = None if are_moments else process["host"], process["pid"]
        dumps_of.setdefault((host, pid, process["first_dump"] if pid is None else None), []).append(process)
    return pl.DataFrame([_where(dumps) for dumps in dumps_of.values()], schema=UNRANKED_STACK)


def _where(dumps: list[Row]) -> Row:
    """Return where a rank stands by its last dump of the tool that shows most."""
    # Threads beside the main one are several.
    dumps = [dump for dump in dumps if dump["kind"] not in OF_THREADS] or dumps[-1:]
    tools = sorted({dump["tool"] for dump in dumps}, key=_TOOLS.index)
    in_python = [dump for dump in dumps if (dump["file"] or "").endswith(".py")]
    best = [dump for dump in in_python or dumps if dump["tool"] == tools[0]] or in_python or dumps
    last = best[-1]
    # Dumps are in the order of the names of their files; those of a debug server begin while the job still ran.
    places = [(short_name(dump["function"]), _name(dump["file"]), dump["number"]) for dump in in_python or dumps][-2:]
    # A dump with native frames may show what the others do not: what a function of C waits for.
    kinds = [dump["kind"] for dump in (last, *best, *dumps)]
    kind = next((kind for kind in kinds if kind != PYTHON), PYTHON)
    states = [dump["state"] for dump in dumps if dump["state"]]
    return {
        **last,
        "kind": kind,
        "is_waiting": kind in WAITING or last["call"] in MEETINGS,
        "is_blocked": kind in BLOCKED or (all(state.startswith("idle") for state in states) if states else None),
        "dumps": len(dumps),
        "has_moved": len(set(places)) > 1,
        "is_still": len(places) > 1 and len(set(places)) == 1,
        "by_watchdog": any(dump["by_watchdog"] for dump in dumps),
        "has_ended": all(dump["tool"] == TRACEBACK for dump in dumps),
        "gil_owner": next((dump["gil_owner"] for dump in dumps if dump["gil_owner"]), None),
    }


def _name(path: str | None) -> str | None:
    """Return the name of a file: tools print paths of different length."""
    return path.rpartition("/")[2] if path else None
