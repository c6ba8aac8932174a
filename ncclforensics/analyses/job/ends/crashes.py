"""Read the last lines of processes that crashed, and the innermost functions in the stacks below them."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from itertools import takewhile

import polars as pl

from ncclforensics.analyses.job.ends.exit_reports import TRACEBACK_LINES, ExitReport, exit_report
from ncclforensics.analyses.job.ends.exit_rows import (
    EXCEPTION,
    GPU_ERROR,
    KERNEL,
    RAY,
    ROCM,
    SIGNAL,
    TORCHRUN,
    UNCAUGHT,
)
from ncclforensics.analyses.job.ends.tracebacks import place_of_calls
from ncclforensics.data.processes import (
    ABORT,
    FILES_OF_HANDLERS,
    FUNCTIONS_OF_HANDLERS,
    OF_UCX,
    REASONS,
    SEGMENTATION_FAULT,
    SIGNAL_NUMBERS,
    THREADS_LEFT,
)
from ncclforensics.frames.columns import Row, text_of

STACK = 100  # most lines from a crash to a function in its stack
LIBNCCL = "libnccl"
SHELL = "the shell"
ITSELF = "the process"  # as a reporter: a handler of signals in it
PRINTER = ("source", "launcher_rank")
UNCAUGHT_FORMS = ("what", "uncaught")


def crash_reports(
    crash: pl.DataFrame,
    kernel_kill: pl.DataFrame,
    native_frame: pl.DataFrame,
    faulthandler_thread: pl.DataFrame,
    faulthandler_frame: pl.DataFrame,
) -> Iterator[ExitReport]:
    """Yield the last lines of crashed processes, with the innermost functions in the stacks below them.

    Of `kernel_kill` the dumps of cores: systemd writes them into the log of the host, with the stack.
    """
    frames = native_frame.sort("pos").to_dicts()
    positions = [frame["pos"] for frame in frames]
    places = _places(crash.filter(form="python"), faulthandler_thread, faulthandler_frame)
    has_signal = {(row["node"], row["pid"]) for row in crash.filter(form="mpi_signal").to_dicts()}
    crashes = crash.sort("pos").to_dicts()
    above: dict[int, set[int | None]] = defaultdict(set)  # first frame behind -> processes that crashed above it
    for row in crashes:
        above[bisect_right(positions, row["pos"])].add(row["pid"] or row["launcher_pid"])
    for row in kernel_kill.filter(form="core_dump").to_dicts():
        where, driver_call = _crashed_in(row, frames[bisect_right(positions, row["pos"]) :], is_alone=True)
        yield ExitReport(
            SIGNAL, row, KERNEL, signal=row["signal"], message=row["program"], where=where, driver_call=driver_call,
            node=row["launcher_node"], pid=row["pid"],
        )  # fmt: skip
    for row in crashes:
        first = bisect_right(positions, row["pos"])
        where, driver_call = _crashed_in(row, frames[first:], is_alone=len(above[first]) == 1)
        is_task = row["launcher_rank"] is not None and row["rank"] is None
        process_fields = {
            "worker": f"task {row['launcher_rank']} of the launcher" if is_task else "",
            "node": row["node"] or row["launcher_node"],
            "pid": row["pid"] or row["launcher_pid"],
            "rank": row["rank"],
            "where": where,
            "driver_call": driver_call,
        }
        match row["form"]:
            case "mpi" if (row["node"], row["pid"]) not in has_signal:
                yield ExitReport(SIGNAL, row, ITSELF, **process_fields)
            case "mpi_signal" | "ucx":
                yield exit_report(row, ITSELF, None, row["signal"], **process_fields)
            case "handler":
                number = SIGNAL_NUMBERS.get(row["signal_name"])
                yield exit_report(row, ITSELF, None, number, **process_fields)
            case "python":
                reason = next((number for text, number in REASONS.items() if row["message"].startswith(text)), ABORT)
                place = places.get(row["pos"], "")
                yield exit_report(row, "Python", None, reason, message=row["message"], place=place, **process_fields)
            case "shell" if (reason := row["reason"] or row["ended_from_outside"]) in REASONS:
                yield exit_report(row, SHELL, None, REASONS[reason], **process_fields)
            case "shell_launcher":
                # Somebody, a limit or the end of its ranks ended what started them: no rank failed by it.
                number = REASONS[row["ended_from_outside"]]
                process_fields["worker"] = "a launcher"
                yield ExitReport(SIGNAL, row, SHELL, signal=number, follows=True, final=False, **process_fields)
            case "traced":
                yield exit_report(row, "TVM's crash handler", None, SEGMENTATION_FAULT, **process_fields)
            case "unhandled":
                named = {"name": UNCAUGHT, "message": row["unhandled"].strip()}
                yield ExitReport(EXCEPTION, row, RAY, **named, **process_fields)
            case "gpu" | "gpu_access" | "gpu_queue":
                message = f"memory access fault, {row['message']}" if row["form"] == "gpu_access" else row["message"]
                yield ExitReport(GPU_ERROR, row, ROCM, message=message, **process_fields)
            case "leaving":
                yield ExitReport(SIGNAL, row, "the C++ library", signal=ABORT, message=THREADS_LEFT, **process_fields)
            case "heap" | "terminate":
                message = row["terminating"] or row["message"] or "corrupted heap"
                yield ExitReport(SIGNAL, row, "the C library", signal=ABORT, message=message, **process_fields)


def name_crashes(reports: list[ExitReport], files_of_workers: Collection[int]) -> None:
    """Give crashes without a process to the only process of their file that a launcher reports behind them.

    So where a handler of the process names it above: one after the other prints what crashed, Python's as the last. All
    reports of one process get the call that one of them shows.
    To torchrun's files of its workers belong the processes in its tables, which stand in other files. Not those whose
    text stands there more than once: then several processes crashed, and the launcher names the first.
    """
    by_signal: dict[tuple[int | None, int | None], list[ExitReport]] = defaultdict(list)
    for report in reports:
        if report.how == SIGNAL:
            by_signal[report.row["source"], report.signal].append(report)
            if report.row["source"] in files_of_workers or report.reporter == TORCHRUN:
                by_signal[None, report.signal].append(report)
    for (file, _), ends in by_signal.items():
        named = sorted(filter(_is_named, ends), key=lambda end: end.node is None)
        is_one = len({end.pid or (end.node, end.local_rank, end.child, end.rank) for end in named}) == 1
        texts = Counter(end.message for end in ends if not _is_named(end))
        for crash in ends if is_one else []:
            distance = crash.row["pos"] - named[0].row["pos"]
            is_below = named[0].reporter == ITSELF and distance <= STACK
            if texts[crash.message] == 1 and (file is None or distance < 0 or is_below):
                crash.local_rank, crash.child, crash.rank = named[0].local_rank, named[0].child, named[0].rank
                crash.node, crash.pid, crash.code = named[0].node, named[0].pid, named[0].code
        for end in named if is_one else []:
            end.node = end.node or named[0].node
    crashed = [report for report in reports if report.how == SIGNAL and report.pid is not None]
    places = {(crash.node, crash.pid): crash.place for crash in crashed if crash.place}
    for crash in crashed:
        crash.place = crash.place or places.get((crash.node, crash.pid), "")


def _is_named(end: ExitReport) -> bool:
    return any(name is not None for name in (end.rank, end.local_rank, end.child, end.pid))


def _places(crash: pl.DataFrame, faulthandler_thread: pl.DataFrame, faulthandler_frame: pl.DataFrame) -> dict[int, str]:
    """Return the call that each crashed thread was in, by the position of the line that Python prints above stacks.

    Where several processes print their stacks at once into one file, which stack is whose is not known.
    """
    if crash.is_empty() or faulthandler_thread.is_empty():
        return {}
    lines = pl.concat(
        [
            crash.select(*PRINTER, "pos", kind=pl.lit("crash")),
            faulthandler_thread.select(*PRINTER, "pos", kind=text_of("form")),
            faulthandler_frame.filter(form="").select(
                *PRINTER, "pos", "numbered", kind=pl.lit("frame"), function=text_of("function"), file=text_of("file")
            ),
        ],
        how="diagonal_relaxed",
    )
    places: dict[int, str] = {}
    for _, rows in lines.sort("pos").group_by(*PRINTER, maintain_order=True):
        own: dict[int, list[list[tuple[str, str, int | None]]]] = {}  # crash -> the frames of each thread that crashed
        others: dict[int, list[list[tuple[str, str, int | None]]]] = {}
        frames: list[tuple[str, str, int | None]] = []
        for row in rows.to_dicts():
            if row["kind"] == "crash":
                own[row["pos"]], others[row["pos"]] = [], []
            elif row["kind"] == "frame":
                frames.append((row["function"], row["file"], row["numbered"]))
            else:
                frames = []
                if own:
                    (own if row["kind"] == "current" else others)[max(own)].append(frames)
        if all(len(stacks) == 1 for stacks in own.values()):
            places |= {pos: place_of_calls(stack) for pos, (stack,) in own.items()}
        elif len(others) == 1 and not any(own.values()):
            # The thread that crashed has no frames of Python: it is one of a library.
            places |= {
                pos: f"a thread of a library, while Python was in {place_of_calls(stacks[0])}"
                for pos, stacks in others.items()
                if len(stacks) == 1
            }
    return places


def _crashed_in(crash: Row, later: list[Row], *, is_alone: bool) -> tuple[str, str]:
    """Return library and innermost function in the stack below a crash, NCCL's if there is one; empty without a stack.

    With NCCL's stands the library that it had called, or the function of the CUDA driver, which is also returned.

    Frames of the handler, of the C library and of Python's interpreter are left out: they say nothing of the crash.
    Where several processes crashed above one stack (`is_alone` is false), only frames that name their process count.
    """
    own = crash["pid"] or crash["launcher_pid"]
    owners = {own, None} if is_alone else {own} - {None}
    below = takewhile(lambda frame: frame["pos"] - crash["pos"] <= STACK, later)
    frames = [
        frame
        for frame in below
        if frame["source"] == crash["source"] and (frame["pid"] or frame["launcher_pid"]) in owners
    ]
    if of_nccl := next((frame for frame in frames if frame["form"] != "outside"), None):
        function = of_nccl["function"] or of_nccl["other_function"]
        above = [frame for frame in frames if frame["pos"] < of_nccl["pos"] and not _is_of_handler(frame)]
        driver_call = next(filter(_is_of_driver, (frame["outer_function"] or "" for frame in above)), "")
        library = next(filter(None, map(_file_name, above)), "")
        called = f", in {driver_call} of the CUDA driver" if driver_call else f", in {library}" * bool(library)
        return (f"{LIBNCCL} ({function}{called})" if function else f"{LIBNCCL}{called}"), driver_call
    shown = [
        (_file_name(frame), _demangled(frame["outer_function"] or "")) for frame in frames if not _is_of_handler(frame)
    ]
    file = shown[0][0] if shown else ""
    function = next((function for other, function in shown if function and other == file), "")
    return (f"{function} ({file})" if function and file else function or file), ""


def _is_of_handler(frame: Row) -> bool:
    """Whether a frame is one of the handler, of the C library or of Python's interpreter."""
    function = str(frame["outer_function"] or "")
    is_of_file = _file_name(frame).startswith(FILES_OF_HANDLERS) and not function.startswith(OF_UCX)
    return is_of_file or function.startswith(FUNCTIONS_OF_HANDLERS)


def calls_of_crash(native_frame: pl.DataFrame) -> list[str]:
    """Return the last function of each library in the first stack that a handler of crashes printed, innermost first.

    >>> frame = {"source": 0, "pos": 1, "pid": 7, "outer_file": "/lib/libmpi.so.40"}
    >>> frames = [{**frame, "outer_function": "wait"}, {**frame, "outer_function": "MPI_Bcast", "pos": 2}]
    >>> calls_of_crash(pl.DataFrame(frames).with_columns(function=pl.lit(None), other_function=pl.lit(None)))
    ['MPI_Bcast (libmpi.so.40)']
    """
    frames = native_frame.sort("pos").to_dicts()
    calls: dict[str, str] = {}
    for frame in frames:
        function = frame["outer_function"] or frame["function"] or frame["other_function"] or ""
        is_of_first = (frame["source"], frame["pid"]) == (frames[0]["source"], frames[0]["pid"])
        if is_of_first and function and not function.startswith(FUNCTIONS_OF_HANDLERS):
            file = _file_name(frame)
            calls[file] = f"{function} ({file})" if file else function
    return list(calls.values())


def _demangled(function: str) -> str:
    """Return the qualified name of a function of C++ without its arguments; other names as they are.

    >>> _demangled("_ZN7horovod6common11NCCLContext10ErrorCheckENSt7__cxx11E"), _demangled("ncclAllReduce")
    ('horovod::common::NCCLContext::ErrorCheck', 'ncclAllReduce')
    """
    names, rest = [], function.removeprefix("_ZN").lstrip("VK") if function.startswith("_ZN") else ""
    while rest[:1].isdigit():
        digits = next(length for length in range(1, len(rest) + 1) if not rest[length : length + 1].isdigit())
        length = int(rest[:digits])
        names.append(rest[digits : digits + length])
        rest = rest[digits + length :]
    return "::".join(names) or function


def _is_of_driver(function: str) -> bool:
    """Whether this is a function of CUDA's driver: `cuMemCreate`, and not `cudaMalloc`."""
    return function.startswith("cu") and function[2:3].isupper()


def _file_name(frame: Row) -> str:
    """Return the library or the source file of a frame without its folder; empty where the stack shows none."""
    return str(frame["outer_file"] or "").rpartition("/")[2].strip("?")


def is_aborted_by(abort: ExitReport, raised: ExitReport) -> bool:
    """Whether an exception that nothing catches aborted this process: std::terminate prints what it says before."""
    distance = abort.row["pos"] - raised.row["pos"]
    same = all(abort.row.get(name) == raised.row.get(name) for name in PRINTER)
    return same and raised.row["form"] in UNCAUGHT_FORMS and 0 < distance <= TRACEBACK_LINES
