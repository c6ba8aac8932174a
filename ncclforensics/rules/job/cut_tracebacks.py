"""Tracebacks of which no line that is read names the error."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import polars as pl

from ncclforensics.analyses.job.ends.exit_reports import OF_TRACEBACK
from ncclforensics.analyses.job.ends.tracebacks import place_of_calls
from ncclforensics.analyses.job.text.torch_text import FROM_END
from ncclforensics.data.names import ranks_text, some_of
from ncclforensics.data.processes import REQUESTED_ENDS
from ncclforensics.data.stack_classes import is_of_launcher
from ncclforensics.frames.columns import Row, count_behind, text_of
from ncclforensics.rules.finding import Category, Finding, Line, Role, Severity
from ncclforensics.rules.registry import rule

MOST_WORKERS = 4  # in a title
ENDED = ("died", "worker_died")  # forms of lines by which another process is known to have ended
OF_TORCH = "torch/distributed/distributed_c10d.py"  # the file of calls of which only torch.distributed is known
OF_LAUNCHER = "; it starts the processes of the job, and fails where one of them did or where its nodes did not meet"
PLACE = ["source", "line"]
PRINTER = ("source", "launcher_pid", "rank")
# Classes of Ray's errors that pass on the end of another process, and what they mean.
OF_ANOTHER = {
    "ActorDiedError": "; an actor that it called had died: its own log and dmesg -T of its host say why",
    "RayActorError": "; an actor that it called had died: its own log and dmesg -T of its host say why",
    "WorkerCrashedError": "; the process of a task that it called had died: dmesg -T of its host says why",
    "OutOfMemoryError": "; a task that it called was killed, as the memory of its node ran out",
}
CHECK = "NCCL_CHECK"  # of bindings of NCCL: it raises what the call above it returned


@rule(
    Category.APPLICATION_ERROR, Severity.WARNING, of=("traceback_frame", "traced_call", "exception", "ray_heading"),
    hang=True, fallback=True, of_failures=True,
)  # fmt: skip
def app_traceback_cut(
    traceback_frame: pl.DataFrame,
    traced_call: pl.DataFrame,
    exception: pl.DataFrame,
    marked_code: pl.DataFrame,
    ray_heading: pl.DataFrame,
    gpu_exception: pl.DataFrame,
    call_error: pl.DataFrame,
    torch_error: pl.DataFrame,
    process_exit: pl.DataFrame,
    work: pl.DataFrame,
    watchdog: pl.DataFrame,
    elastic_failure: pl.DataFrame,
    nccl_warning: pl.DataFrame,
    ascend_error: pl.DataFrame,
    jax_service: pl.DataFrame,
    rendezvous_lost: pl.DataFrame,
    engine_wait: pl.DataFrame,
    process_end: pl.DataFrame,
    worker_end: pl.DataFrame,
    source: pl.DataFrame,
) -> Iterator[Finding]:
    """A file ends with a traceback, and no line that is read names the error.

    Means: a process raised an exception; the calls that it came through are shown. Its class and its text were cut, or
    are of a form that is not read.
    Not when: another line says what failed (a warning of NCCL, or an engine that names a process that ended, makes it
    a note), a launcher ended on a signal, or the job ended well.
    Do: read the last line of the traceback, which names the error; where it was cut, give the rest of the output.
    Sources: Python, traceback; vLLM, multiproc_executor.py; SGLang, scheduler.py.
    """
    # A launcher's request to another process says nothing of a traceback, unless it is that of a handler of signals.
    is_request = pl.col("signal").is_in(REQUESTED_ENDS) & (pl.col("reporter") != OF_TRACEBACK)
    ended = process_exit.filter(is_request.fill_null(value=False).not_())
    of_errors = (
        gpu_exception,
        call_error,
        torch_error,
        ended,
        work,
        watchdog,
        elastic_failure,
        ascend_error,
        jax_service,
        rendezvous_lost,
    )
    of_ray = worker_end.filter(text_of("form").is_in(["ray_late", "ray_graph", "ray_error"]))
    # Raised ones of these are exits, and Python goes on after those that it ignored.
    is_below_heading = text_of("form").shift().over(PRINTER).eq_missing("traceback")
    is_ignored = is_below_heading & text_of("form").shift(2).over(PRINTER).eq_missing("ignored")
    of_others = text_of("form").is_in(["traceback", "named", "ignored"])
    raised = exception.sort("pos").filter(~(of_others | is_ignored))
    if raised.height or any(frame.height for frame in (*of_errors, of_ray)):
        return
    of_ends = [rows.filter(text_of("form").is_in(ENDED)) for rows in (engine_wait, process_end)]
    is_named = any(rows.height for rows in (nccl_warning, *of_ends))
    named = ["source", "line", "pos", "launcher_pid", "launcher_node", "launcher_process"]
    # A call in a box is one of a traceback where its line is marked there.
    is_of_traceback = pl.col("file").is_not_null() | pl.col("source").is_in(marked_code["source"].implode())
    frames = traceback_frame.filter(is_of_traceback).select(
        *named, "numbered", file=pl.coalesce(text_of("file"), text_of("boxed_file")), call=text_of("frame_function"),
        rank=pl.coalesce("rank", "launcher_rank"),
    )  # fmt: skip
    of_torch = traced_call.filter(form="").select(
        *named, rank=pl.coalesce("global_rank", "launcher_rank"), call=text_of("function")
    )
    calls = pl.concat([frames, of_torch], how="diagonal").join(source.select("source", "lines"), on="source")
    # A check only raises what the call above it returned.
    checked = pl.when(pl.col("call") == CHECK).then(pl.col("call").shift()).otherwise("call")
    number = pl.when(pl.col("call") == CHECK).then(pl.col("numbered").shift()).otherwise("numbered")
    calls = calls.sort("pos").with_columns(call=checked.over("source"), numbered=number.over("source"))
    yield from _headings_alone(exception, ray_heading, calls, source, is_named=is_named)
    last = calls.group_by("source", maintain_order=True).last()
    for row in last.filter(count_behind() <= FROM_END).sort("source").iter_rows(named=True):
        headings = exception.filter((pl.col("source") == row["source"]) & (text_of("form") == "traceback"))
        begun = headings.filter(pl.col("pos") < row["pos"])["pos"].max()
        is_of_it = pl.all_horizontal(pl.col(name).eq_missing(row[name]) for name in PRINTER)
        stack = calls.filter(is_of_it & (pl.col("pos") > (begun or 0))).reverse()
        place = place_of_calls(stack.select("call", pl.col("file").fill_null(OF_TORCH), "numbered").iter_rows())
        workers = sorted(set(headings["raising_worker"].cast(pl.String).drop_nulls()))
        rank, pid, host = row["rank"], row["launcher_pid"], row["launcher_node"]
        name = f" ({row['launcher_process']})" if row["launcher_process"] else ""
        # Behind the last call, Ray's heading begins the traceback of the task whose error is passed on.
        above = ray_heading.filter(pl.col("source") == row["source"]).sort("pos")
        if above.height:
            pid, host, name = above["pid"][-1], above["address"][-1], f" ({above['task'][-1]})"
        is_of_driver = above.height > 0 and above["pos"][-1] > row["pos"]  # its own calls were to stand behind these
        begins = (above.tail(1) if is_of_driver else headings.head(2)).select(PLACE)
        cause = above["ray_cause"].drop_nulls().to_list()[-1:]
        passed_on = "".join(OF_ANOTHER.get(name, "") for name in cause)
        where = f" on {host}" if host else ""
        is_launcher = row["file"] is not None and is_of_launcher(row["file"])
        process = (
            some_of(workers, MOST_WORKERS)
            or (f"the launcher{where}" if is_launcher else "")
            or (ranks_text([rank]) if rank is not None else "")
            or (f"process {pid}{where}{name}" if pid is not None else f"a process{where}")
        )
        others = _last_calls_of_others(calls, row, is_of_it)
        shown_in = "" if is_of_driver else f" in {place.partition(', ')[0]}"
        yield Finding(
            title=f"{process} raised {cause[0]}, of which no more is shown" if cause
            else f"{process} raised an exception{shown_in}, and no line that was read names it{_cut_too(others)}",
            detail=f"its result was asked for in {place}; none of its own calls is shown{passed_on}" if is_of_driver
            else f"the last call that is shown: {place}{OF_LAUNCHER * is_launcher}{_calls_text(others)}{passed_on}",
            certainty="certain",
            severity=Severity.INFO if is_named else Severity.WARNING,
            ranks=[] if rank is None else [rank],
            hosts=[host] if host else [],
            role=Role.CONSEQUENCE,
            evidence=[*(Line(*place) for place in begins.rows()), Line(row["source"], row["line"])],
        )  # fmt: skip


def _last_calls_of_others(calls: pl.DataFrame, last: Row, is_of_last: pl.Expr) -> dict[str, str]:
    """Return the last call of each other process whose calls stand among the lines of this traceback."""
    others = calls.filter((pl.col("source") == last["source"]) & ~is_of_last)
    places = {}
    for (rank, pid), own in others.group_by("rank", "launcher_pid", maintain_order=True):
        if rank is None and pid is None:
            continue
        name = own["launcher_process"].drop_nulls().to_list()[:1]
        process = f"rank {rank}" if rank is not None else f"process {pid}{f' ({name[0]})' if name else ''}"
        stack = own.reverse().select("call", pl.col("file").fill_null(OF_TORCH), "numbered")
        places[process] = place_of_calls(stack.iter_rows())
    return places


def _cut_too(others: Mapping[str, str]) -> str:
    return f"; so did {some_of([*others], MOST_WORKERS)}" if others else ""


def _calls_text(others: Mapping[str, str]) -> str:
    texts = [f"{process} in {place}" for process, place in others.items()]
    return f"; {some_of(texts, MOST_WORKERS)}" if texts else ""


def _headings_alone(
    exception: pl.DataFrame, ray_heading: pl.DataFrame, calls: pl.DataFrame, source: pl.DataFrame, *, is_named: bool
) -> Iterator[Finding]:
    """Report files that end with the heading of a traceback, of Python or of Ray, behind which no call stands."""
    of_python = exception.filter(text_of("form") == "traceback").select(*PLACE, "pos", "launcher_rank")
    of_ray = ray_heading.filter(pl.col("is_retried").is_null()).select(
        *PLACE, "pos", "launcher_rank", "task", "pid", "address", "ray_cause"
    )
    headings = pl.concat([of_python, of_ray], how="diagonal_relaxed").sort("pos")
    headings = headings.group_by("source", maintain_order=True).last()
    last_calls = calls.group_by("source").agg(called=pl.col("pos").max())
    placed = headings.join(source.select("source", "lines"), on="source").join(last_calls, on="source", how="left")
    is_alone = (pl.col("called") > pl.col("pos")).fill_null(value=False).not_()
    is_last = count_behind() <= MOST_WORKERS
    for row in placed.filter(is_alone & is_last).iter_rows(named=True):
        rank, host = row["launcher_rank"], row["address"]
        process = ranks_text([rank]) if rank is not None else "a process"
        if row["task"] is not None:
            process = f"process {row['pid']} on {host} ({row['task']})"
        yield Finding(
            title=f"{process} raised {row['ray_cause'] or 'an exception'}, of which only the heading of the traceback "
            "is shown",
            detail=f"the text ends there{OF_ANOTHER.get(row['ray_cause'] or '', '')}",
            certainty="certain",
            severity=Severity.INFO if is_named else Severity.WARNING,
            ranks=[] if rank is None else [rank],
            hosts=[host] if host else [],
            role=Role.CONSEQUENCE,
            evidence=[Line(row["source"], row["line"])],
        )
