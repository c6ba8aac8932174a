"""Where each dumped process stands: its class, the call, the line of the user's own code, and its rank.

The class comes from the functions on the stack of the main thread (`data/stack_classes.py`). The deepest frame of the
user's own code is what a reader looks for; the call of a library below it is what the process waits in.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import PurePath

import polars as pl

from ncclforensics.data.stack_classes import (
    BACKWARD,
    COLLECTIVE,
    CUT,
    DRIVER,
    GPU,
    IN_ORDER,
    MOMENTS,
    NATIVE_MEANS,
    NO_RANK,
    PLACES,
    PYTHON,
    STARTS_OF_LIBRARIES,
    TEARDOWN,
    THREAD,
    THREAD_OF_NCCL,
    THREAD_STARTS,
    WAITING,
    Place,
    is_c_library,
    is_installed,
    is_library,
    is_of_driver_lock,
    native_kind,
    place_of,
    short_name,
    system_call,
)
from ncclforensics.frames.columns import Row, frame_of_rows, may_be_one_host
from ncclforensics.frames.registry import analysis

STACK_PROCESS = {
    "dump": pl.Int32(),
    "first_dump": pl.Int32(),  # of the same process, by the handle of its main thread
    "tool": pl.String(),
    "rank": pl.Int32(),  # null where nothing names it
    "host": pl.String(),
    "pid": pl.Int32(),
    "is_helper": pl.Boolean(),  # no rank: a launcher, or a worker that a rank started
    "kind": pl.String(),  # class of its main thread; null where that has no frames
    "is_locked": pl.Boolean(),  # it waits for a lock of the CUDA driver
    "call": pl.String(),  # the function of a library that it called
    "function": pl.String(),  # of the user's own code, the deepest; of a library where there is none
    "file": pl.String(),
    "number": pl.Int32(),
    "state": pl.String(),
    "gil_owner": pl.String(),  # the thread that holds the interpreter's lock
    "frames": pl.String(),  # all of its main thread, to compare
    "by_watchdog": pl.Boolean(),
    "source": pl.Int32(),
    "line": pl.Int32(),  # of the frame that `file` and `number` are of
}

PY_SPY = "py-spy"
AGENT = "pt_elastic"  # torch/distributed/run.py
DEBUGGERS = ("gdb", "eu-stack", "lldb")  # that show all threads
FIRST_PROCESS = 1  # of a system, and so of each container

# A forked process has the frames of its parent below its own; this one is where its own begin.
_FORKED = Place("multiprocessing/popen_fork.py", frozenset({"_launch"}), PYTHON, "")

# Decorators of libraries, which tell nothing of a call.
_WRAPPERS = frozenset({"wrapper", "log_wrapper", "_fn", "wrapped_fn", "decorate_context", "inner", "_call_impl"})

# Where a thread waits while those of autograd compute gradients.
_BACKWARD = frozenset({"backward", "_engine_run_backward", "grad"})


@analysis(STACK_PROCESS, of=("stack_dump",))
def stack_process(
    stack_dump: pl.DataFrame, stack_thread: pl.DataFrame, stack_frame: pl.DataFrame, source: pl.DataFrame
) -> pl.DataFrame:
    """One row per dump of a process that did not crash: the rank, and where the main thread stands."""
    main = dict(stack_thread.filter("is_main").select("dump", "stack").iter_rows())
    beside = {*stack_thread.filter("is_main", "is_beside")["dump"]}
    states = dict(stack_thread.filter("is_main").select("dump", "state").iter_rows())
    handles = dict(
        stack_thread.filter("is_main").select("dump", pl.concat_str("source", pl.lit(" "), "thread")).iter_rows()
    )
    first_dumps: dict[str | None, int] = {}
    owners = stack_thread.filter(pl.col("state").str.ends_with("+gil")).select("dump", pl.coalesce("name", "thread"))
    gil_owners = dict(owners.iter_rows())
    frames: dict[int, list[Row]] = defaultdict(list)
    for frame in stack_frame.join(stack_thread.filter("is_main"), on="stack", how="semi").iter_rows(named=True):
        frames[frame["stack"]].append(frame)
    rows = []
    dumps = stack_dump.filter(~pl.col("of_crash")).to_dicts()
    in_backward = [dump["dump"] for dump in dumps if _is_in_backward(frames[main[dump["dump"]]])]
    hooks = _stacks_of_hooks(in_backward, stack_thread, stack_frame) if in_backward else {}
    for dump in dumps:
        own_frames = [*hooks.get(dump["dump"], []), *_own_process(frames[main[dump["dump"]]])]
        position = _position(own_frames, is_beside=dump["dump"] in beside)
        if position.get("kind") == BACKWARD and dump["dump"] in hooks:
            position["call"] = short_name(hooks[dump["dump"]][0]["function"])
        if position.get("kind") == PYTHON and dump["tool"] == PY_SPY and states[dump["dump"]] is None:
            position["kind"] = CUT  # py-spy prints the state of each thread, in the line above its frames
        rows.append(
            {
                **dump,
                **position,
                "first_dump": first_dumps.setdefault(handles[dump["dump"]], dump["dump"]),
                "is_helper": any(_place(NO_RANK, frame) for frame in own_frames),
                "program": next((frame["file"] for frame in reversed(own_frames) if _is_script(frame)), None),
                "is_torchrun": any(_place(IN_ORDER, frame) for frame in own_frames),
                "state": states[dump["dump"]],
                "gil_owner": gil_owners.get(dump["dump"]),
                "host": dump["printed_host"],
                "rank": dump["printed_rank"],
            }
        )
    _separate_containers(rows, stack_thread)
    _mark_children(rows)
    _mark_other_programs(rows, stack_thread)
    _fill_ranks(rows, dict(source.select("source", "hint").drop_nulls().iter_rows()))
    _number_by_pid(rows)
    _separate_hosts(rows, dict(source.select("source", "path").iter_rows()))
    return frame_of_rows(rows, STACK_PROCESS)


def _own_process(frames: list[Row]) -> list[Row]:
    """Return the frames of this process, without those of the parent that it was forked from."""
    forked = next((number for number, frame in enumerate(frames) if _place((_FORKED,), frame)), len(frames))
    return frames[:forked]


def _is_in_backward(frames: list[Row]) -> bool:
    """Whether a thread waits for the threads of autograd, which run the hooks of the backward pass."""
    first = next(iter(frames), {"function": "", "file": ""})
    return first["function"] in _BACKWARD and "torch/autograd/" in (first["file"] or "")


def _stacks_of_hooks(dumps: list[int], stack_thread: pl.DataFrame, stack_frame: pl.DataFrame) -> dict[int, list[Row]]:
    """Return by dump the frames of the other thread that autograd runs hooks in for the main one.

    It makes a collective call, or it alone is active in Python's functions.
    """
    others = stack_thread.filter(pl.col("dump").is_in(dumps) & ~pl.col("is_main")).select("dump", "stack", "state")
    called: dict[int, dict[int, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for frame in stack_frame.join(others, on="stack").iter_rows(named=True):
        called[frame["dump"]][frame["stack"]].append(frame)
    found: dict[int, list[Row]] = {}
    for dump, stacks in called.items():
        in_call = [frames for frames in stacks.values() if any(map(_is_collective, frames))]
        active = [frames for frames in stacks.values() if (frames[0]["state"] or "").startswith("active")]
        hooks = in_call or [frames for frames in active if any(map(_is_python, frames))]
        if len(hooks) == 1:
            found[dump] = [frame for frame in hooks[0] if _is_python(frame)]
    return found


def _is_collective(frame: Row) -> bool:
    place = _place(PLACES, frame)
    return place is not None and place.kind == COLLECTIVE


def _place(places: tuple[Place, ...], frame: Row) -> Place | None:
    return place_of(places, frame["function"] or "", frame["file"]) if _is_python(frame) else None


def _is_python(frame: Row) -> bool:
    return (frame["file"] or "").endswith(">") or (frame["file"] or "").endswith(".py")


def _position(frames: list[Row], *, is_beside: bool) -> Row:
    """Return class, call and own code of a stack, deepest frame first. `is_beside`: it is not of the main thread."""
    if not frames:
        return {}
    frames = [{**frame, **_library_for_name(frame)} for frame in frames]
    known: list[tuple[Row, str, bool]] = []  # frames in a known place: the class, and whether that place is general
    for frame in frames:
        place = _place(PLACES, frame)
        kind = place.kind if place else None if _is_python(frame) else native_kind(frame["function"] or "")
        if kind is not None:
            is_general = place.is_general if place else kind in NATIVE_MEANS or frame["function"] == DRIVER
            known.append((frame, kind, is_general))
    kind = next((kind for _, kind, is_general in known if not is_general), known[0][1] if known else PYTHON)
    in_python = [frame for frame in frames if _is_python(frame)]
    if is_beside:
        # Of such a thread, the call of NCCL or PyTorch says most, or what the thread was started for.
        calls_of_nccl = [frame for frame, frame_kind, _ in known if frame_kind in (COLLECTIVE, TEARDOWN)]
        named = [frame for frame in frames if system_call(frame["function"] or "") not in THREAD_STARTS]
        if not (named and (named[-1]["function"] or "").startswith("nccl")):
            named += [frame for frame in frames if (frame["function"] or "").startswith("nccl")][-1:]
        fallback = in_python or (calls_of_nccl or named)[-1:] or frames
        kind, known = THREAD_OF_NCCL if _is_started_by_nccl(frames) else THREAD, []
    else:
        fallback = [frame for frame, frame_kind, _ in known if frame_kind == kind] or in_python or frames
        if kind == GPU and not in_python:  # a kernel that a call of NCCL launches
            fallback = [frame for frame, _, _ in known if (frame["function"] or "").startswith("nccl")] or fallback
    outside = [frame for frame in in_python if not is_installed(frame["file"])]
    own = next((frame for frame in outside if not is_library(frame["file"])), next(iter(outside), None))
    called = in_python[: in_python.index(own)] if own else []
    is_native_wait = kind in (COLLECTIVE, GPU) and not in_python
    own = own or fallback[-1 if is_native_wait else 0]  # the call of NCCL, not a step of it
    calls = [frame for frame, frame_kind, _ in known if frame_kind == kind and frame in called] or called
    # The function that the program called; wrappers such as loggers stand between, or end an excerpt.
    calls = [frame for frame in calls if short_name(frame["function"]) not in _WRAPPERS] or calls
    call = short_name(calls[-1]["function"]) if calls else None
    texts = [f"{frame['function']} {frame['file']}:{frame['number']}" for frame in frames]
    if is_c_library(own["file"] or ""):  # its sources are of no use to those who look for the program's
        own = {**own, "function": system_call(own["function"] or ""), "file": None, "number": None}
    return {
        "kind": kind,
        "is_locked": is_of_driver_lock((frame["function"] or "", frame["library"] or "") for frame in frames),
        "call": call,
        **{name: own[name] for name in ("function", "file", "number", "line")},
        "frames": "\n".join(texts),
    }


def _is_started_by_nccl(frames: list[Row]) -> bool:
    """Whether a thread begins in NCCL, below the functions of the C library that start it."""
    functions = (system_call(frame["function"] or "") for frame in reversed(frames))
    first = next((function for function in functions if function not in STARTS_OF_LIBRARIES), "")
    return first.removeprefix("lib").startswith("nccl")


def _library_for_name(frame: Row) -> Row:
    """Return the name of its library for the function of a frame that the debugger found no name of."""
    is_unnamed = frame["function"] in ("?", "??") and frame["library"]
    return {"function": frame["library"].rpartition("/")[2].partition(".")[0]} if is_unnamed else {}


def _mark_children(rows: list[Row]) -> None:
    """Mark the processes that a rank started: their parent is dumped, too, and is no launcher."""
    ranks = {(row["source"], row["pid"]) for row in rows if not row["is_helper"]}
    for row in rows:
        row["is_helper"] |= row["parent"] is not None and (row["source"], row["parent"]) in ranks


def _is_script(frame: Row) -> bool:
    return frame["function"] == "<module>" and (frame["file"] or "").endswith(".py")


def _mark_other_programs(rows: list[Row], stack_thread: pl.DataFrame) -> None:
    """Mark processes of another program than the ranks, such as a script that started the launcher.

    The ranks of a job run the same script, and each has threads of PyTorch, gloo or NCCL beside its main one: where a
    debugger shows a process of one thread among others, that is no rank. PyTorch names the thread of torchrun's agent.
    """
    ranks = [row for row in rows if not row["is_helper"]]
    scripts = Counter(PurePath(row["program"]).name for row in ranks if row["program"])
    script, often = max(scripts.items(), key=lambda item: item[1], default=("", 0))
    has_most = often > 1 and 2 * often > scripts.total()
    threads = Counter(stack_thread["dump"])
    agents = {*stack_thread.filter("is_main", title=AGENT)["dump"]}
    most = max((threads[row["dump"]] for row in ranks if row["tool"] in DEBUGGERS), default=0)
    for row in ranks:
        is_other = has_most and row["program"] is not None and PurePath(row["program"]).name != script
        is_bare = row["tool"] in DEBUGGERS and threads[row["dump"]] == 1 < most
        row["is_helper"] = row["dump"] in agents or ((is_other or is_bare) and row.get("kind") not in WAITING)


def _fill_ranks(rows: list[Row], hints: dict[int, int]) -> None:
    """Set ranks from a launcher's tag or the name of the file, where only one process of the job has it."""
    processes: dict[tuple[int, int | None], set[int | None]] = defaultdict(set)
    ranks = [row for row in rows if not row["is_helper"]]
    for row in ranks:
        processes[row["source"], row["launcher_rank"]].add(row["pid"])
    for row in ranks:
        is_only = len(processes[row["source"], row["launcher_rank"]]) == 1
        if row["rank"] is None and is_only:
            row["rank"] = hints.get(row["source"]) if row["launcher_rank"] is None else row["launcher_rank"]


def _number_by_pid(rows: list[Row]) -> None:
    """Number the processes that the only torchrun agent started, all others, by their pids, if nothing else does."""
    agents = {(row["source"], row["pid"]) for row in rows if row["is_torchrun"]}
    started = [row for row in rows if (row["source"], row["parent"]) in agents and not row["is_torchrun"]]
    ranks = [row for row in rows if not row["is_helper"]]
    if len({pid for _, pid in agents}) != 1 or any(row["rank"] is not None for row in ranks):
        return
    order = sorted({row["pid"] for row in started})
    if not {row["pid"] for row in ranks if not row["is_torchrun"]}.issubset(order):
        return
    for row in started:
        if not row["is_helper"]:
            row["rank"] = order.index(row["pid"])


def _separate_containers(rows: list[Row], stack_thread: pl.DataFrame) -> None:
    """Take the process id from dumps of the first processes of containers, but for those that share another thread.

    Each container numbers its processes from 1, so that the number tells neither two of them nor two moments apart.
    """
    others = stack_thread.filter(~pl.col("is_main")).group_by("dump").agg("thread")
    threads = {dump: set(numbers) for dump, numbers in others.iter_rows()}
    earlier: list[Row] = []
    for row in rows:
        if row["pid"] == FIRST_PROCESS and row["rank"] is None and row["host"] is None:
            own = threads.get(row["dump"], set())
            same = next((other for other in earlier if own & threads.get(other["dump"], set())), row)
            row["first_dump"] = same["first_dump"] if same is not row else row["dump"]
            earlier.append(row)
    if len({row["first_dump"] for row in earlier}) > 1:
        for row in earlier:
            row["pid"] = None


def _separate_hosts(rows: list[Row], paths: dict[int, str]) -> None:
    """Take the folder for the host of processes that nothing names and whose pid stands in several folders.

    Containers give their first processes equal pids. Folders such as `stacks-1` and `stacks-2` are of two moments.
    """
    folders: dict[int, set[str]] = defaultdict(set)
    unnamed = [row for row in rows if row["rank"] is None and row["host"] is None and row["pid"] is not None]
    for row in unnamed:
        folders[row["pid"]].add(_folder(paths[row["source"]]))
    for row in unnamed:
        if len(folders[row["pid"]]) > 1:
            row["host"] = _folder(paths[row["source"]])


def _folder(path: str) -> str:
    """Return the innermost folder of a path that is not of a moment."""
    names = [parent.name for parent in PurePath(path).parents]
    return next((name for name in names if name.lower().rstrip("0123456789-_.:") not in MOMENTS), "")


class RankIndex:
    """Ranks by what a dump may show of them."""

    def __init__(self, ranks: Iterable[Row]) -> None:
        """`ranks`: rows with `rank`, `host` and `pid`, and perhaps `dump`."""
        self._by: dict[tuple[str, int], list[Row]] = defaultdict(list)
        for rank in ranks:
            for name in ("rank", "pid", "dump"):
                if rank.get(name) is not None:
                    self._by[name, rank[name]].append(rank)

    def find(self, process: Row) -> Row | None:
        """Return the rank that a dumped process is: by its number, by pid and host, or because only its dump shows it.

        None if no rank fits, or several do.
        """
        by_number = self._by.get(("rank", process["rank"]), [])
        same_pid = self._by.get(("pid", process["pid"]), [])
        by_pid = [rank for rank in same_pid if may_be_one_host(rank["host"], process["host"])]
        both = [rank for rank in by_pid if rank["rank"] == process["rank"]]
        for fitting in (both, by_pid, by_number, self._by.get(("dump", process["first_dump"]), [])):
            if len(fitting) == 1:
                return fitting[0]
        return None
