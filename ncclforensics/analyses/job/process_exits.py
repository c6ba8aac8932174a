"""Processes that ended, as launchers, the kernel and the application itself tell it, and which of them ended first.

A launcher that lost one process ends the others: what is told to end, or aborts after a time-out, or passes on an error
of NCCL's, did not begin it. A launcher numbers its own children, which need not be ranks (torchrun under srun).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from ncclforensics.analyses.job.failure_events import LOST
from ncclforensics.data.processes import (
    ABORT,
    KILL,
    OUT_OF_MEMORY,
    REASONS,
    SECOND_HAND_CLASSES,
    SECOND_HAND_MESSAGES,
    SHELL,
    STORE,
    TOLD,
    signal_name,
)
from ncclforensics.frames.columns import text_of
from ncclforensics.frames.registry import analysis

Row = dict[str, Any]
Owner = tuple[str, int]

EXCEPTION = "exception"  # Python's, which nobody caught
GPU_MEMORY = "gpu-memory"  # no memory left on the GPU
GPU_ERROR = "gpu-error"  # a CUDA call of the application failed
HOST_MEMORY = "host-memory"  # ended because the host, the container or the job had no memory left
SIGNAL = "signal"  # killed or crashed
EXIT = "exit"  # ended by itself, and not with success
NODE = "node"  # went away with its node
KERNEL = "the kernel"
CAPTURE = "capture"
STRENGTH = (HOST_MEMORY, NODE, GPU_MEMORY, GPU_ERROR, EXCEPTION, SIGNAL, EXIT)  # the more telling first

DEATH = {
    "job": pl.Int32(),
    "rank_id": pl.Int32(),  # null where the line names no process that is known
    "rank": pl.Int32(),
    "host": pl.Categorical(),
    "pid": pl.Int32(),
    "child": pl.Int32(),  # as the launcher numbers it, where that is not known to be a rank
    "node": pl.String(),  # as the launcher names it
    "how": pl.String(),
    "signal": pl.Int64(),
    "exit_code": pl.Int64(),
    "reporter": pl.String(),  # srun, mpirun, torchrun, the kernel, …
    "name": pl.String(),  # class of the exception
    "says": pl.String(),
    "where": pl.String(),  # library in which it crashed
    "is_first": pl.Boolean(),  # it ended of itself; false for what follows from another's end
    "is_final": pl.Boolean(),  # that the process ended is certain; an exception without a rank may have been caught
    "source": pl.Int32(),
    "line": pl.Int32(),
    "pos": pl.Int64(),
}


@dataclass(slots=True)
class _Told:
    """One statement on one process, before it is known which rank that is."""

    how: str
    row: Row
    reporter: str
    rank: int | None = None  # in the job
    child: int | None = None  # as the launcher numbers its children: a rank only if the node fits
    node: str | None = None
    pid: int | None = None
    signal: int | None = None
    code: int | None = None
    name: str = ""
    says: str = ""
    where: str = ""
    time: str = ""
    follows: bool = False
    final: bool = True
    owner: Owner | None = field(default=None)


SAID = (
    "process_end",
    "elastic_failure",
    "job_end",
    "worker_end",
    "kernel_kill",
    "crash",
    "exception",
    "gpu_exception",
    "journal_exit",
)


@analysis(DEATH, of=SAID)
def process_exit(
    process_end: pl.DataFrame,
    elastic_failure: pl.DataFrame,
    job_end: pl.DataFrame,
    worker_end: pl.DataFrame,
    kernel_kill: pl.DataFrame,
    crash: pl.DataFrame,
    exception: pl.DataFrame,
    gpu_exception: pl.DataFrame,
    journal_exit: pl.DataFrame,
    watchdog: pl.DataFrame,
    call_error: pl.DataFrame,
    work: pl.DataFrame,
    rank: pl.DataFrame,
    process: pl.DataFrame,
    failure_event: pl.DataFrame,
    test_failure: pl.DataFrame,
    source: pl.DataFrame,
) -> pl.DataFrame:
    """One row per process and statement; those of one process have the same `rank_id`."""
    told = [
        *_launched(process_end, job_end),
        *_elastic(elastic_failure),
        *_taken(job_end, worker_end, kernel_kill),
        *_crashed(crash),
        *_thrown(exception, gpu_exception),
        *_captured(journal_exit),
    ]
    if not told:
        return pl.DataFrame(schema=DEATH)
    who = _Who(rank, process, has_agents=elastic_failure.height > 0)
    for each in told:
        each.owner = who.owner(each)
        if each.reporter == KERNEL:  # which tells of every program of the host, and of other days
            each.final = each.owner is not None
    spoke = set(failure_event.filter(~pl.col("at_exit")).select(text_of("host"), "pid").iter_rows())
    errors = bool(call_error.height or test_failure.height)
    _order(told, aborts=bool(watchdog.height or work.height or errors), errors=errors, spoke=spoke)
    _settle(told, source, is_over=bool(errors or not failure_event.filter(kind=LOST, at_exit=False).is_empty()))
    rows = [_row(each, rank_id) for each in told for rank_id in who.rank_ids(each)]
    return pl.DataFrame(rows, schema=DEATH).sort("source", "line")


def _row(each: _Told, rank_id: Row) -> Row:
    place = {name: each.row[name] for name in ("source", "line", "pos")}
    host, pid = each.owner or (each.node, each.pid)
    return {
        "job": rank_id.get("job"),
        "rank_id": rank_id.get("rank_id"),
        "rank": rank_id.get("rank", each.rank),
        "host": rank_id.get("host", host),
        "pid": rank_id.get("pid", pid),
        "child": each.child,
        "node": each.node,
        "how": each.how,
        "signal": each.signal,
        "exit_code": each.code,
        "reporter": each.reporter,
        "name": each.name,
        "says": each.says,
        "where": each.where,
        "is_first": not each.follows,
        "is_final": each.final,
        **place,
    }


class _Who:
    """Which process, and so which rank, a statement is about."""

    def __init__(self, rank: pl.DataFrame, process: pl.DataFrame, *, has_agents: bool) -> None:
        self._ranks = rank.to_dicts()
        self._by_owner: dict[Owner, list[Row]] = defaultdict(list)
        self._by_number: dict[int, list[Row]] = defaultdict(list)
        for row in self._ranks:
            if row["host"] is not None and row["pid"] is not None:
                self._by_owner[row["host"], row["pid"]].append(row)
            if row["rank"] is not None:
                self._by_number[row["rank"]].append(row)
        self._owners: dict[int, list[Owner]] = defaultdict(list)
        self._speakers: dict[int, list[Owner]] = defaultdict(list)
        for row in process.to_dicts():
            self._owners[row["pid"]].append((row["host"], row["pid"]))
            for source in row["sources"]:
                self._speakers[source].append((row["host"], row["pid"]))
        self._has_agents = has_agents

    def owner(self, each: _Told) -> Owner | None:
        """Host and pid of a process that NCCL's lines know."""
        if each.pid:
            ours = [owner for owner in self._owners[each.pid] if _same_host(each.node, owner[0])]
            return ours[0] if len(ours) == 1 else None
        number = each.rank
        if number is None and each.child is not None and not self._has_agents:
            # A launcher's child is a rank if it runs where that rank does, and each rank has a process of its own.
            fits = [row for row in self._by_number[each.child] if _same_host(each.node, row["host"] or "")]
            alone = all(len(rows) == 1 for rows in self._by_owner.values())
            number = each.child if fits and alone else None
        if number is None and each.child is None:
            number = each.row["launcher_rank"]
        if number is not None:
            found = self._by_number[number]
            return (found[0]["host"], found[0]["pid"]) if len(found) == 1 and found[0]["pid"] else None
        if each.child is None and each.node is None:
            speakers = self._speakers[each.row["source"]]
            return speakers[0] if len(speakers) == 1 else None
        return None

    def rank_ids(self, each: _Told) -> list[Row]:
        """The ranks of the process; all of its node for a node that went away; one row of nobody if unknown."""
        if each.how == NODE:
            return [row for row in self._ranks if row["host"] and _same_host(each.node, row["host"])] or [{}]
        if each.owner is not None:
            return self._by_owner.get(each.owner) or [{}]
        found = self._by_number[each.rank] if each.rank is not None else []
        return found if len(found) == 1 else [{}]


def _same_host(node: str | None, host: str) -> bool:
    return node is None or node.split(".")[0] == host.split(".")[0]


def _of_code(code: int | None) -> int | None:
    """The signal behind an exit code of a shell's or of Python's subprocess."""
    if code is None:
        return None
    return -code if code < 0 else code - SHELL if SHELL < code < SHELL + 65 else None


def _ended(row: Row, reporter: str, code: int | None, signal: int | None = None, **more: Any) -> _Told:
    signal = signal or _of_code(code)
    return _Told(SIGNAL if signal else EXIT, row, reporter, signal=signal, code=code, **more)


_TAKEN_DOWN = ["step_aborted", "terminated", "cancelled", "mpirun"]


def _launched(process_end: pl.DataFrame, job_end: pl.DataFrame) -> Iterator[_Told]:
    """What srun, mpirun and their like say. Behind `Job step aborted` come those that were taken down."""
    down: dict[int, int] = {}
    for row in job_end.sort("pos").to_dicts():
        if row["form"] in _TAKEN_DOWN:
            down.setdefault(row["source"], row["pos"])
    before: Row = {}
    first_code: dict[int, bool] = {}
    for row in process_end.sort("pos").to_dicts():
        node, code = row["node"], row["exit_code"]
        match row["form"]:
            case "" | None | "signal":
                if row["form"] == "signal" and row["reason"] in OUT_OF_MEMORY:
                    each = _Told(HOST_MEMORY, row, "Slurm", signal=KILL)
                elif row["form"] == "signal" and row["reason"] not in REASONS:
                    continue
                else:
                    each = _ended(row, "srun", code, REASONS.get(row["reason"]))
                each.node, each.follows = node, row["pos"] > down.get(row["source"], row["pos"])
                for child in _numbers(row["tasks"]):
                    yield _Told(
                        each.how, row, each.reporter, child=child, node=_plain(node), signal=each.signal,
                        code=each.code, follows=each.follows,
                    )  # fmt: skip
            case "mpirun":
                yield _ended(row, "mpirun", None, row["signal"], child=row["rank"], node=node, pid=row["pid"] or None)
            case "mpirun_code" if before.get("form") == "mpirun_process" and _next_to(before, row):
                yield _ended(row, "mpirun", code, child=before["rank"])
            case "mpi_abort":
                yield _Told(EXIT, row, "MPI", child=row["rank"], says="MPI_Abort was called")
            case "pals_signal" | "pals":
                ended = _ended(row, "the launcher (PALS)", code, row["signal"], child=row["rank"], node=node)
                # It reports a process per node, in the order of their ends.
                ended.follows = first_code.setdefault(row["source"], False)
                first_code[row["source"]] = True
                yield ended
            case "hydra_code" if before.get("form") == "hydra" and _next_to(before, row):
                yield _ended(row, "mpirun", code, node=before["node"], pid=before["pid"])
            case "pdsh" | "clush":
                yield _ended(row, row["form"], code, node=node)
            case "deepspeed":
                yield _ended(row, "DeepSpeed's launcher", code)
        before = row


def _plain(node: str) -> str | None:
    """A node's name; nothing for a list of nodes."""
    return None if "[" in node else node


def _numbers(tasks: str) -> Iterator[int]:
    for part in tasks.split(","):
        first, _, last = part.partition("-")
        if first.isdigit():
            yield from range(int(first), int(last if last.isdigit() else first) + 1)


def _next_to(one: Row, other: Row) -> bool:
    return bool(one["source"] == other["source"] and 0 < other["line"] - one["line"] <= NEAR)


NEAR = 2  # lines; of a table that several launchers print at once only few are torn apart


def _elastic(elastic_failure: pl.DataFrame) -> Iterator[_Told]:
    """Torchrun's own lines: the first to fail on each node, its table, and those it ended."""
    rows = elastic_failure.sort("pos").to_dicts()
    ended = {row["pid"] for row in rows if row["form"] in ("closing", "stuck")}
    tables = {row["source"] for row in rows if row["form"] == "exit_code"}
    part: dict[int, dict[str, Row]] = defaultdict(dict)  # of the block that is being read, by source
    for row in rows:
        block = part[row["source"]]
        if row["form"] in ("time", "host", "rank"):
            block[row["form"]] = row
        elif row["form"] == "exit_code":
            whose, host, time = block.get("rank"), block.get("host"), block.get("time")
            fits = whose is not None and _next_to(whose, row)
            yield _ended(
                row,
                "torchrun",
                row["exit_code"],
                rank=whose["rank"] if whose and fits else None,
                node=host["node"] if host and fits else None,
                pid=row["pid"],
                time=time["time"] if time and fits else "",
                follows=row["pid"] in ended,
            )
            block.clear()
        elif row["form"] == "failed" and row["source"] not in tables:
            yield _ended(row, "torchrun", row["exit_code"], pid=row["pid"], follows=row["pid"] in ended)


def _taken(job_end: pl.DataFrame, worker_end: pl.DataFrame, kernel_kill: pl.DataFrame) -> Iterator[_Told]:
    """Processes that the system took: for want of memory, with their node, or for a fault of their own."""
    for row in kernel_kill.to_dicts():
        whose = {"node": row["node"], "pid": row["pid"]}
        if row["form"] in ("out_of_memory", "chosen"):
            yield _Told(HOST_MEMORY, row, KERNEL, signal=KILL, says=row["program"], **whose)
        elif row["form"] in ("segfault", "protection_fault"):
            yield _Told(SIGNAL, row, KERNEL, signal=11, says=row["program"], where=row["where"], **whose)
    for row in job_end.to_dicts():
        if row["form"] == "out_of_memory":
            yield _Told(HOST_MEMORY, row, "Slurm", signal=KILL)
        elif row["form"] == "node_failure":
            yield _Told(NODE, row, "Slurm", node=row["node"])
    for row in worker_end.to_dicts():
        if row["form"].startswith("kubernetes"):
            yield _Told(HOST_MEMORY, row, "Kubernetes", signal=KILL, says=row["pod"] or "")
        elif row["exception"] == "OutOfMemory":
            yield _Told(HOST_MEMORY, row, "Ray", signal=KILL, says=row["says"])


def _crashed(crash: pl.DataFrame) -> Iterator[_Told]:
    """Last words of processes that the system ended."""
    for row in crash.to_dicts():
        whose = {"node": row["node"], "pid": row["pid"], "rank": row["rank"]}
        match row["form"]:
            case "mpi_signal" | "ucx":
                yield _ended(row, "the process", None, row["signal"], **whose)
            case "python":
                reason = next((number for text, number in REASONS.items() if row["says"].startswith(text)), ABORT)
                yield _ended(row, "Python", None, reason, says=row["says"], **whose)
            case "shell" if row["reason"] in REASONS:
                yield _ended(row, "the shell", None, REASONS[row["reason"]], **whose)
            case "heap":
                yield _Told(SIGNAL, row, "the C library", signal=ABORT, says=row["says"] or "corrupted heap", **whose)


_DISTINCT = ["source", "rank", "launcher_rank", "exception", "says"]


def _thrown(exception: pl.DataFrame, gpu_exception: pl.DataFrame) -> Iterator[_Told]:
    """Exceptions by which the application ended; one that no rank is printed for may have been caught."""
    errors = exception.filter(pl.col("form") == "error").unique(_DISTINCT, keep="first")
    for row in errors.to_dicts():
        name = row["exception"].rpartition(".")[2]
        second = name in SECOND_HAND_CLASSES or row["says"].startswith(SECOND_HAND_MESSAGES) or STORE in row["says"]
        yield _Told(
            EXCEPTION, row, "Python", rank=row["rank"], name=f"{name}Error", says=row["says"],
            follows=second, final=row["rank"] is not None,
        )  # fmt: skip
    for row in gpu_exception.unique(["source", "rank", "launcher_rank", "form"], keep="first").to_dicts():
        how, says = (GPU_MEMORY, "CUDA out of memory") if row["form"] == "memory" else (GPU_ERROR, row["says"])
        yield _Told(how, row, "Python", rank=row["rank"], says=says, final=row["rank"] is not None)


def _captured(journal_exit: pl.DataFrame) -> Iterator[_Told]:
    """What `capture` saw of the ranks it started: those whose call failed, and those it took down, follow others."""
    for row in journal_exit.filter(pl.col("how") != "finished").drop_nulls("code").to_dicts():
        signal = -row["code"] if row["code"] < 0 else None
        follows = row["how"] in ("gave-up", "taken-down")
        whose = {"rank": row["rank"], "node": row["node"], "pid": row["process"]}
        yield _ended(row, CAPTURE, row["code"], signal, time=row["stamp"], follows=follows, **whose)


def _settle(told: list[_Told], source: pl.DataFrame, *, is_over: bool) -> None:
    """Whether a process ended by what may have been caught: if processes did end, or the log ends with it. What the
    kernel says of programs it numbers otherwise (in containers) is ours if it explains an end that is known.
    """
    lengths = dict(source.select("source", "lines").iter_rows())
    known = [each for each in told if each.final]
    for each in told:
        if each.reporter == KERNEL:
            others = [one for one in known if one.signal == each.signal and not one.follows]
            each.final |= bool(others) and not any(one.reporter == KERNEL for one in known)
        elif not each.final:
            line = each.row["line"]
            is_last = line >= -NEAR if line < 0 else line >= lengths[each.row["source"]] - NEAR
            each.final = is_over or bool(known) or is_last


def _order(told: list[_Told], *, aborts: bool, errors: bool, spoke: set[Owner]) -> None:
    """Mark what follows from something else."""
    thrown = [each for each in told if each.how in (EXCEPTION, GPU_MEMORY, GPU_ERROR)]
    # A process that ends by itself does so for a reason: one that stands elsewhere is the cause.
    explained = errors or any(not each.follows for each in thrown) or any(each.how == HOST_MEMORY for each in told)
    passes_on = {each.owner for each in thrown} | spoke
    first = min((each.time for each in told if each.time), default="")
    for each in told:
        if each.signal in TOLD:
            each.follows = True
        elif each.signal == ABORT:
            # A watchdog that timed out, or an uncaught error of NCCL's, aborts the process.
            each.follows |= aborts or each.owner in spoke
        elif each.how == EXIT:
            is_later = bool(each.time) and each.time > first  # of several nodes the one whose process failed first
            each.follows |= explained or is_later or each.owner in passes_on or (not each.owner and bool(spoke))


def ended_text(row: Row) -> str:
    """How a process ended, as the predicate of a sentence."""
    match row["how"]:
        case "exception":
            told = f"raised {row['name']} and ended"
        case "gpu-memory":
            told = "found no memory left on its GPU and ended"
        case "gpu-error":
            told = f"ended by a CUDA error ({row['says']})"
        case "host-memory":
            told = f"was killed for want of memory, as {row['reporter']} says"
        case "node":
            told = "went away with its node"
        case "signal":
            told = f"ended by {signal_name(row['signal'])}, as {row['reporter']} says"
        case _:
            told = f"ended first, with exit code {row['exit_code']}, as {row['reporter']} says"
    return told + "; the others lost it or wait for it"


def weighed(rows: Iterable[Row]) -> list[Row]:
    """One row for each process, the most telling one, those of unknown processes as they are."""
    best: dict[Any, Row] = {}
    for row in rows:
        whose = row["rank_id"] if row["rank_id"] is not None else (row["source"], row["line"], row["child"])
        if whose not in best or _telling(row) < _telling(best[whose]):
            best[whose] = row
    return list(best.values())


def _telling(row: Row) -> tuple[int, bool, str, str]:
    """The smaller, the more a statement tells of why a process ended; the same whatever the order of files."""
    return STRENGTH.index(row["how"]), not row["where"], row["reporter"], row["says"]
