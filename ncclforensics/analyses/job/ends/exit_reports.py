"""Read the reports of ended processes: from launchers, the kernel, the application, and the journal of a capture."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import polars as pl

from ncclforensics.analyses.job.ends.exit_rows import (
    BROKEN_MEMORY,
    CAPTURE,
    EXCEPTION,
    EXIT,
    GAVE_UP,
    GPU_ERROR,
    GPU_MEMORY,
    HOST_MEMORY,
    INTERRUPTS,
    KERNEL,
    NODE,
    OF_CONTAINER,
    OF_HOST,
    RAY,
    SIGNAL,
    STALLED,
    TAKEN_DOWN,
    UNCAUGHT,
)
from ncclforensics.analyses.job.ends.failed_commands import runs_no_rank, signal_of_command
from ncclforensics.analyses.job.text.program_failures import MILD_LEVELS, is_of_others
from ncclforensics.data.cuda import ERROR_NUMBERS
from ncclforensics.data.names import bytes_text
from ncclforensics.data.processes import (
    BUS_ERROR,
    ENDED_RANKS_CLASSES,
    KILL,
    OF_CONTROL_GROUP,
    OWN_CLASSES,
    OWN_PARTS,
    SECOND_HAND_CLASSES,
    SECOND_HAND_MESSAGES,
    SECOND_HAND_PARTS,
    SECOND_HAND_WITHOUT_MESSAGE,
    SHELL,
    SOCKET_CLASSES,
    STORE,
    TERMINATE,
    with_first_reason,
)
from ncclforensics.frames.columns import Row, text_of

Owner = tuple[str, int]


@dataclass(slots=True)
class ExitReport:
    """One report of the end of one process, before its rank is known."""

    how: str
    row: Row
    reporter: str
    rank: int | None = None  # in the job
    child: int | None = None  # the launcher's number of the process: a rank only if the node fits
    local_rank: int | None = None  # the launcher's number of the process on its node
    node: str | None = None
    pid: int | None = None
    signal: int | None = None
    code: int | None = None
    name: str = ""
    message: str = ""
    where: str = ""
    driver_call: str = ""  # function of the CUDA driver in which NCCL crashed
    place: str = ""  # in the program: the call that raised
    worker: str = ""  # as an engine or Ray names it
    memory_of: str = ""  # the host or its container, as the kernel says; other reporters do not know
    time: str = ""
    printed: int = 1  # how often such an exception, which names no process, stands in its file
    last_line: int | None = None  # of the last exception of its kind, or that was raised from it or as it was handled
    follows: bool = False
    final: bool = True
    is_unasked: bool = False  # the launcher did not send the signal that ended it, and got none itself
    is_by_clock: bool = False  # first, or not, only by clocks of hosts that may differ by as much
    is_placed: bool = True  # false: host or time do not join a line of the kernel
    is_tied: bool = True  # false: nothing but the number of its rank joins it to NCCL's lines
    left: int = 0  # lines behind it in its file, of its own process where the tags of Ray tell those of others
    went_on: bool = False  # behind it, its file shows steps, a new progress bar, or an answer of an engine
    is_outlived: bool = False  # so far behind it that it did not end the job, or ended an earlier one
    owner: Owner | None = None


def signal_of_code(code: int | None) -> int | None:
    """Return the signal that an exit code of a shell or of Python's subprocess stands for, or None."""
    return None if code is None else -code if code < 0 else code - SHELL if SHELL < code < SHELL + 65 else None


def exit_report(row: Row, reporter: str, code: int | None, signal: int | None = None, **more: Any) -> ExitReport:
    """Return the report of a process that ended by a signal or with an exit code."""
    signal = signal or signal_of_code(code)
    return ExitReport(SIGNAL if signal else EXIT, row, reporter, signal=signal, code=code, **more)


NEAR = 2  # lines between two lines of one table; several launchers may print at the same time


def is_next_line(earlier: Row, later: Row, most: int = NEAR) -> bool:
    """Whether a line stands right below another one, at most so many lines: another process may print between them."""
    return bool(earlier["source"] == later["source"] and 0 < later["line"] - earlier["line"] <= most)


_ACTOR_ERRORS = ("ActorDied", "RayActor")  # of Ray 2.8 and later, and before
ACTOR_FIELDS = 8  # most lines of the list below Ray's error of an actor
TRACEBACK_LINES = 100

# Forms of `job_end` -> who ended the job.
_MEMORY_LIMITS = {"out_of_memory": "Slurm", "lsf_memory": "LSF", "pbs_memory": "PBS"}
EVICTED = "a pod was evicted"
# Forms of `worker_end` -> what Kubernetes did with the pod.
_EVICTIONS = {
    "evicted": EVICTED,
    "evicted_pod": EVICTED,
    "low_resource": EVICTED,
    "node_shutdown": "a pod ended because its node shut down",
}


def system_reports(job_end: pl.DataFrame, worker_end: pl.DataFrame, kernel_kill: pl.DataFrame) -> Iterator[ExitReport]:
    """Yield processes that the system ended: out of memory, failed nodes, segmentation faults."""
    for row in kernel_kill.to_dicts():
        process_fields = {"node": row["node"], "pid": row["pid"]}
        if row["form"] in ("out_of_memory", "chosen", "oom_kill", "reaped"):
            limit = row["constraint"] or row["out_of_memory"]
            memory_of = OF_CONTAINER if limit in OF_CONTROL_GROUP else OF_HOST if limit else ""
            yield ExitReport(
                HOST_MEMORY, row, KERNEL, signal=KILL, message=row["program"], memory_of=memory_of, **process_fields
            )
        elif row["form"] == "memory_failure":
            yield ExitReport(SIGNAL, row, KERNEL, signal=BUS_ERROR, message=BROKEN_MEMORY, **process_fields)
        elif row["form"] in ("segfault", "protection_fault"):
            yield ExitReport(
                SIGNAL, row, KERNEL, signal=11, message=row["program"], where=row["where"], **process_fields
            )
    for row in job_end.filter(text_of("form").is_in(list(_MEMORY_LIMITS))).to_dicts():
        yield ExitReport(HOST_MEMORY, row, _MEMORY_LIMITS[row["form"]], signal=KILL)
    for row in job_end.filter(form="node_failure").to_dicts():
        yield ExitReport(NODE, row, "Slurm", node=row["node"])
    fields = worker_end.filter(
        pl.col("form").is_in(["ray_actor_pid", "ray_actor_ip", "ray_dead", "ray_dead_node", "ray_owner"])
    ).to_dicts()
    rows = worker_end.to_dicts()
    for row, below in zip_longest(rows, rows[1:]):
        if below and row["form"] == "evicted" and below["form"] in _EVICTIONS and is_next_line(row, below, 1):
            continue  # the message below it says why
        if event := _EVICTIONS.get(row["form"]):
            message = f"{event}: {row['resource']} ran out on the node" if row["resource"] else event
            yield ExitReport(EXIT, row, "Kubernetes", message=message, worker=row["described"] or "")
        elif row["form"].startswith("kubernetes"):
            pod, worker = row["pod"] or "", row["described"] or row["pod"] or ""
            yield ExitReport(HOST_MEMORY, row, "Kubernetes", signal=KILL, message=pod, worker=worker)
        elif row["form"] == "ray_node":
            message = f"Ray gave up node {row['ray_node'][:12]}, from which no heartbeat came"
            yield ExitReport(EXIT, row, RAY, node=row["address"], message=message)
        elif row["form"] in ("ray_memory", "ray_killed"):
            victim = below if below and below["form"] == "ray_victim" and below["source"] == row["source"] else row
            used = f"{row['memory_used']} of {row['memory_limit']} were used" if row["memory_used"] else ""
            yield ExitReport(HOST_MEMORY, row, RAY, pid=victim["pid"], node=row["address"], signal=KILL, message=used)
        elif row["exception"] == "OutOfMemory":
            if not (below and below["form"] == "ray_memory" and is_next_line(row, below)):
                yield ExitReport(HOST_MEMORY, row, RAY, signal=KILL)
        elif row["form"] == "ray_worker":
            message = with_first_reason("a worker died unexpectedly", row["message"])
            yield ExitReport(EXIT, row, RAY, pid=row["pid"], node=row["address"], message=message)
        elif row["exception"] in _ACTOR_ERRORS and row["message"].startswith("The actor died unexpectedly"):
            below = [e for e in fields if e["source"] == row["source"] and 0 < e["line"] - row["line"] <= ACTOR_FIELDS]
            pid, node, detail = (
                next((e[name] for e in below if e[name]), None) for name in ("pid", "address", "message")
            )
            owner = next((e["owner_address"] for e in below if e["owner_address"]), None)
            what = f"an actor died because its owner at {owner} did" if owner else "an actor died unexpectedly"
            if any(e["form"] == "ray_dead_node" for e in below):
                what = "an actor died because its node did"
            message = with_first_reason(what, detail)
            yield ExitReport(EXIT, row, RAY, pid=pid, node=node, message=message)


CLASSES = ("raised", "raised_class", "without_words", "ended_iteration")  # columns of classes that are no -Error
EXITED = "SystemExit"
OF_TRACEBACK = "its traceback"  # as a reporter
PARENT = "the program that started it"
TERM_HANDLERS = ("sigterm", "term_handler")  # in names of functions by which programs end when SIGTERM asks for it
LAUNCHER_HANDLERS = ("sigkill_handler ",)  # of signals: an error in it follows from the signal
KILLING = "kill_process_tree "  # by which SGLang and vLLM end all after one of their processes failed
LACKING = "object has no attribute"
SHUT_DOWN = ("shutdown ", "_shutdown ", "close ", "cleanup ", "__del__ ")
# A process that multiprocessing spawned reads what its parent sends (spawn.py, `_main`), which then had ended.
FROM_PARENT, CUT_OFF = "_main (spawn.py:", ("UnpicklingError", "EOFError")
# A program catches these to try what else there is; what it raises then tells more, and was not caught.
ASKED = ("KeyError", "ImportError", "ModuleNotFoundError", "AttributeError", "IndexError", "StopIteration")
CACHE_OF_PSUTIL = "wrapper (_common.py:"  # place of its look at a cache, which it may not have
ANNOUNCING = (":", "root error(s) found.")  # how messages end whose error stands below them (TensorFlow)
COUNTED = " validation error"  # of a message: how many there are
RECORDED = ("recorded", "recorded_memory", "recorded_error")  # forms of errors that torchrun's table repeats
_DISTINCT = ["source", "rank", "launcher_rank", "launcher_pid", "local_rank", "task_pid", "worker"]


def exception_reports(
    exception: pl.DataFrame, gpu_exception: pl.DataFrame, statements: Mapping[tuple[int, int], str]
) -> Iterator[ExitReport]:
    """Yield uncaught exceptions of the application; one that names no process may have been caught.

    Both frames with the `local_rank` of spawned processes, and what their tracebacks show. `statements`: of lines by
    themselves, by their place.
    """
    is_raised = ((pl.col("form") == "named") & pl.col("place").is_not_null()) | _ended_actors(exception)
    is_error = pl.col("form").is_in(["error", "what", "file", *INTERRUPTS])
    # A logger prints what the program caught, where it gives the level of a warning or less.
    is_caught = text_of("launcher_level").is_in(MILD_LEVELS) & ~pl.col("form").is_in(INTERRUPTS)
    is_success = (text_of("raised_class") == EXITED) & (text_of("message") == "0")
    is_survived = is_caught.fill_null(value=False) | is_success.fill_null(value=False) | pl.col("is_ignored")
    errors = exception.filter((is_error | is_raised) & ~is_survived).sort("pos")
    # torchrun prints an error file as it is; where its beginning was taken for a tag, the end of the quotation is left.
    unquoted = pl.coalesce(text_of("message").str.strip_suffix('",'), text_of("quoted_message"))
    errors = errors.with_columns(
        message=unquoted, raised=pl.coalesce(*map(text_of, CLASSES)), is_of_others=is_of_others("message"),
        is_requested=text_of("form") == "terminated",
    )  # fmt: skip
    errors = _first_of_alike(errors, ["exception", "raised", "message", "raised_in", "is_requested"])
    above: dict[tuple[Any, ...], ExitReport] = {}  # of each printer, the last error that was not passed on
    interrupted: dict[tuple[Any, ...], int] = {}  # and where its program was interrupted last
    rows = errors.to_dicts()
    at = {(_printer(row), row["line"]): row for row in rows}
    of_gpus = gpu_exception.filter(~text_of("form").is_in(RECORDED)).sort("pos")
    below_heading = {*of_gpus.select("source", "line").iter_rows()}
    joined: set[int] = set()  # lines of messages that begin on the line above, as of a compiler that wraps an error
    for row, below in zip_longest(rows, rows[1:]):
        printer = _printer(row)
        is_heading = (row["message"] or "").endswith(ANNOUNCING)
        if row["pos"] in joined or (is_heading and (row["source"], row["line"] + 1) in below_heading):
            continue
        if (row["message"] or "").endswith(":") and (reason := at.get((printer, row["line"] + 1))) is not None:
            joined.add(reason["pos"])
            row["message"] += f" {exception_report(reason, None).name}: {reason['message'] or ''}".removesuffix(": ")
        elif stated := _stated_below(row, statements):
            row["message"] = f"{row['message'].removesuffix(':')}: {stated}"
        elif (row["message"] or "").endswith(":") and below is not None and _printer(below) == printer:
            # The traceback of its reason stands below it.
            is_quoted = below["pos"] - row["pos"] <= TRACEBACK_LINES and not below["is_caused"]
            if is_quoted and below["form"] == "interrupt":
                continue
            row["is_passed_on"] |= is_quoted
        is_handler = row["raised"] == EXITED and any(name in (row["place"] or "").lower() for name in TERM_HANDLERS)
        if is_handler or row["form"] == "terminated":
            yield ExitReport(SIGNAL, row, OF_TRACEBACK, rank=row["rank"], signal=TERMINATE, **_place(row))
            continue
        if not _names_process(row) and (signal := signal_of_command(row["message"])) is not None:
            yield ExitReport(SIGNAL, row, PARENT, signal=signal)
            continue
        if row["form"] == "interrupt":
            interrupted[printer] = row["pos"]
            continue
        if row["is_handling"] and row["pos"] - interrupted.get(printer, row["pos"] - TRACEBACK_LINES) < TRACEBACK_LINES:
            continue  # it was raised because of the interruption
        report = exception_report(row, row["rank"])
        report.printed, report.last_line = 1 if _names_process(row) else row["printed"], row["last_line"]
        earlier = above.get(printer)
        is_near = earlier is not None and row["pos"] - earlier.row["pos"] <= TRACEBACK_LINES
        report.follows |= (row["place"] or "").startswith(LAUNCHER_HANDLERS) or _is_of_incomplete_object(row)
        report.follows |= row["raised"] == EXITED and (row["place"] or "").startswith(KILLING)
        report.follows |= report.name in CUT_OFF and (row["place"] or "").startswith(FROM_PARENT)
        report.follows |= row["is_passed_on"] or row["is_of_others"] or (is_near and row["is_caused"])
        if earlier is not None and is_near:
            earlier.follows |= row["is_handling"] and earlier.name in ASKED and not report.follows
            report.follows |= _names_process(row) and not earlier.follows
        if earlier is not None and is_near and (row["is_caused"] or row["is_handling"]):
            _join_chain(earlier, row)
        if not report.follows:
            above[printer] = report
        yield report
    for row in _first_of_alike(of_gpus, ["form"]).to_dicts():
        report = gpu_exception_report(row, row["rank"])
        report.last_line = row["last_line"]
        yield report


def _first_of_alike(errors: pl.DataFrame, columns: list[str]) -> pl.DataFrame:
    """The first of the errors of one printer that are alike in these columns: how often, and where last, it stands."""
    same = [*_DISTINCT, *columns]
    counted = errors.with_columns(printed=pl.len().over(same), last_line=pl.col("line").max().over(same))
    return counted.unique(same, keep="first", maintain_order=True)


def _stated_below(row: Row, statements: Mapping[tuple[int, int], str]) -> str | None:
    """What lines below an exception say that its message announces, or counts; a field may stand between (pydantic)."""
    message = row["message"] or ""
    below = (1,) if message.endswith(":") else (1, 2) if COUNTED in message else ()
    return next((found for n in below if (found := statements.get((row["source"], row["line"] + n)))), None)


def _ended_actors(exception: pl.DataFrame) -> pl.Expr:
    """Whether a row is the error that ended an actor of Monarch: of those in one text the last, or the one it wraps."""
    if exception.filter(form="of_actor").is_empty():
        return pl.lit(value=False)
    found = []
    text: list[Row] = []
    for row in [*exception.select("source", "pos", "form", "is_caused").sort("pos").to_dicts(), None]:
        if text and row is not None and row["form"] == "recorded" and row["source"] == text[0]["source"]:
            text.append(row)
            continue
        for last in reversed(text[1:]):
            if not last["is_caused"]:
                found.append(last["pos"])
                break
        text = [row] if row is not None and row["form"] == "of_actor" else []
    return pl.col("pos").is_in(found)


def gpu_exception_report(row: Row, rank: int | None) -> ExitReport:
    """Return the report of an error of the GPU: its memory ran out, or a CUDA call failed."""
    if row["form"].endswith("memory"):
        on_gpu = f" on GPU {row['full_gpu']}" if row["full_gpu"] is not None else ""
        amount = bytes_text(int(row["wanted"])) if row["unit"] == "bytes" else f"{row['wanted'] or 0:g} {row['unit']}"
        wanted = f"{amount} were" if row["unit"] else f"a tensor of shape [{row['tensor_shape'] or ''}] was"
        is_bare = row["unit"] is None and row["tensor_shape"] is None
        how, message = GPU_MEMORY, "" if is_bare else f"{wanted} asked for{on_gpu}"
    else:
        of_number = ERROR_NUMBERS.get(row["code"], "")
        how, message = GPU_ERROR, row["message"] or row["quoted"] or row["early_message"] or of_number
    is_final = row["form"] in ("uncaught", *RECORDED) or row["is_fatal"] or _names_process(row)
    return ExitReport(
        how, row, "Python", rank=rank, local_rank=row["local_rank"], message=message,
        final=not row["is_of_thread"] and is_final, **_place(row),
    )  # fmt: skip


def _is_of_incomplete_object(row: Row) -> bool:
    """Whether an object lacks an attribute as it is shut down: an earlier error had ended its creation.

    So does an object of psutil that has no cache, which it looks for at each call.
    """
    is_lacking = row["exception"] == "Attribute" and LACKING in (row["message"] or "")
    return is_lacking and (row["place"] or "").startswith((*SHUT_DOWN, CACHE_OF_PSUTIL))


def _join_chain(earlier: ExitReport, row: Row) -> None:
    """Add to the report of an exception what that of one behind it in its chain shows: the user's call, and its line.

    Python prints in the first traceback only the calls below the one that handled the exception.
    """
    earlier.last_line = max(earlier.last_line or 0, row["line"])
    if row["own_place"] and earlier.place and not earlier.row["own_place"]:
        earlier.place = f"{earlier.place}, called from {row['own_place']}"


def _printer(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in _DISTINCT)


def _place(row: Row) -> dict[str, Any]:
    """Return the fields of a report that the traceback and the tag of an error show."""
    task = "" if row["launcher_rank"] is None else f"task {row['launcher_rank']} of the launcher"
    process = row["launcher_process"]
    if process and row["launcher_rank"] is not None:  # of vLLM, numbered in its engine
        process = f"{process} rank={row['launcher_rank']}"
    worker = row["task"] or row["worker"] or process or task
    tagged = (row["launcher_pid"], row["launcher_node"])
    pid, host = (row["task_pid"], row["task_host"]) if row["task_pid"] else tagged
    return {"place": row["place"] or "", "worker": worker, "pid": pid, "node": host}


def exception_report(row: Row, rank: int | None) -> ExitReport:
    """Return the report of an uncaught exception; one that passes on an error of another process follows from it."""
    qualified, message = row["exception"] or "", row["message"] or ""
    name = qualified.rpartition(".")[2]  # empty for the `Error` of a module: binascii.Error
    printed_name = f"{name or qualified}Error" if qualified else (row["raised"] or UNCAUGHT).rpartition(".")[2]
    classes = SECOND_HAND_CLASSES if message else SECOND_HAND_CLASSES | SECOND_HAND_WITHOUT_MESSAGE
    is_passed_on = name in classes or message.startswith(SECOND_HAND_MESSAGES) or STORE in message
    is_passed_on |= name not in OWN_CLASSES and any(part in message for part in SECOND_HAND_PARTS)
    is_passed_on &= not any(part in message for part in OWN_PARTS)
    shows_end = row["form"] == "what" or row["is_fatal"] or name in ENDED_RANKS_CLASSES
    is_final = rank is not None or shows_end or _names_process(row)
    is_by_program = name in SOCKET_CLASSES and is_final and row["place"] == (row["own_place"] or "")
    return ExitReport(
        EXCEPTION, row, "Python", rank=rank, local_rank=row["local_rank"], name=printed_name, message=message,
        follows=is_passed_on and not (is_by_program or runs_no_rank(message)),
        final=is_final and not row["is_of_thread"], **_place(row),
    )  # fmt: skip


def _names_process(row: Row) -> bool:
    """Whether a line of an error, or the heading above its traceback, names the process that it ended."""
    return row["rank"] is not None or row["local_rank"] is not None


def capture_reports(journal_exit: pl.DataFrame) -> Iterator[ExitReport]:
    """Yield the ends that `capture` recorded; ranks whose call failed or that it ended follow from others."""
    for row in journal_exit.filter(pl.col("how") != "finished").drop_nulls("code").to_dicts():
        fields = {"rank": row["rank"], "node": row["node"], "pid": row["process"], "time": row["stamp"]}
        yield exit_report(row, CAPTURE, row["code"], follows=row["how"] in (GAVE_UP, STALLED, TAKEN_DOWN), **fields)
