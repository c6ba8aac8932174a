"""Processes that ended, as launchers, the kernel and the application report it, and which of them ended first.

A launcher that lost one process ends the others: a process that was told to end, that aborts after a time-out or that
passes on an NCCL error did not end first. A launcher numbers its own children, which need not be ranks (torchrun under
srun).
"""

from __future__ import annotations

import polars as pl

from ncclforensics.analyses.job.ends.crashes import crash_reports, name_crashes
from ncclforensics.analyses.job.ends.exit_reports import (
    TRACEBACK_LINES,
    ExitReport,
    capture_reports,
    exception_reports,
    system_reports,
)
from ncclforensics.analyses.job.ends.exit_rows import EXCEPTION, EXIT, GPU_MEMORY, KERNEL, RAISED, SIGNAL, ProcessExit
from ncclforensics.analyses.job.ends.failure_events import LOST
from ncclforensics.analyses.job.ends.following_ends import mark_consequences, mark_final
from ncclforensics.analyses.job.ends.kernel_events import WITH_ZONES, of_these_days
from ncclforensics.analyses.job.ends.launcher_reports import launcher_reports
from ncclforensics.analyses.job.ends.outlived_ends import mark_outlived, uncaught_of_ranks
from ncclforensics.analyses.job.ends.process_finder import ProcessFinder
from ncclforensics.analyses.job.ends.program_ends import last_success
from ncclforensics.analyses.job.ends.spawned_processes import spawn_reports, with_spawned_process
from ncclforensics.analyses.job.ends.torchrun_reports import add_processes, torchrun_reports
from ncclforensics.analyses.job.ends.tracebacks import torch_exceptions, traced_frames, with_places, with_places_in_code
from ncclforensics.analyses.job.identity import torch_ranks
from ncclforensics.analyses.job.identity.lifetimes import finished_processes
from ncclforensics.analyses.job.text.described_objects import with_described
from ncclforensics.analyses.job.text.torch_text import SIZE
from ncclforensics.data.cuda import ERROR_NUMBERS
from ncclforensics.frames.columns import Row, columns_of, frame_of_rows, text_of
from ncclforensics.frames.registry import analysis

EXIT_FRAMES = (
    "process_end",
    "elastic_failure",
    "spawn_failure",
    "job_end",
    "worker_end",
    "worker_end_cut",
    "kernel_kill",
    "crash",
    "exception",
    "gpu_exception",
    "torch_without_gpu",
    "gradient_error",
    "journal_exit",
)

ENGINE_ENDED = ("fatal", "start")  # forms of `engine_wait`: the engine core of vLLM ended with the error that it prints
KILLS_ALL = ("signalled", "sigquit")  # forms: an engine kills its processes, and itself, because one of them failed
LINES_TO_ANSWER = 5  # from the error of a request to the answer of the server, at most
OF_AN_ENGINE = (EXCEPTION, GPU_MEMORY)  # an error of the GPU in it is that of a worker, which it passes on


@analysis(ProcessExit, of=EXIT_FRAMES)
def process_exit(
    process_end: pl.DataFrame,
    elastic_failure: pl.DataFrame,
    spawn_failure: pl.DataFrame,
    job_end: pl.DataFrame,
    worker_end: pl.DataFrame,
    worker_end_cut: pl.DataFrame,
    kernel_kill: pl.DataFrame,
    crash: pl.DataFrame,
    exception: pl.DataFrame,
    gpu_exception: pl.DataFrame,
    exception_chain: pl.DataFrame,
    traceback_frame: pl.DataFrame,
    traced_call: pl.DataFrame,
    unread_code: pl.DataFrame,
    program_failure: pl.DataFrame,
    refused_value: pl.DataFrame,
    ray_heading: pl.DataFrame,
    launched_rank: pl.DataFrame,
    native_frame: pl.DataFrame,
    faulthandler_thread: pl.DataFrame,
    faulthandler_frame: pl.DataFrame,
    journal_exit: pl.DataFrame,
    training_step: pl.DataFrame,
    progress_bar: pl.DataFrame,
    watchdog: pl.DataFrame,
    call_error: pl.DataFrame,
    work: pl.DataFrame,
    rank: pl.DataFrame,
    process: pl.DataFrame,
    text_job: pl.DataFrame,
    failure_event: pl.DataFrame,
    test_failure: pl.DataFrame,
    torch_without_gpu: pl.DataFrame,
    gradient_error: pl.DataFrame,
    unstarted_program: pl.DataFrame,
    stated_end: pl.DataFrame,
    source: pl.DataFrame,
    torch_source: pl.DataFrame,
    torch_error: pl.DataFrame,
    run_days: pl.DataFrame,
    run_start: pl.DataFrame,
    communicator_lifetime: pl.DataFrame,
    fence: pl.DataFrame,
    deepep_timeout: pl.DataFrame,
    engine_wait: pl.DataFrame,
    engine_ready: pl.DataFrame,
    server_refusal: pl.DataFrame,
    described_title: pl.DataFrame,
    voice: pl.DataFrame,
    test_outcome: pl.DataFrame,
) -> pl.DataFrame:
    """One row per process and report of its end; the rows of one process have the same `rank_id`."""
    kernel_kill = of_these_days(kernel_kill, run_days, run_start, WITH_ZONES)
    stated = torch_exceptions(torch_without_gpu, gradient_error)
    columns = [name for name in exception.columns if name in stated.columns]
    exception = pl.concat([exception, stated.select(columns)], how="diagonal_relaxed")
    exception, gpu_exception = with_spawned_process(spawn_failure, exception, gpu_exception)
    calls = traced_frames(traceback_frame, traced_call)
    exception, gpu_exception = with_places((exception, gpu_exception), exception, exception_chain, calls, ray_heading)
    exception = with_places_in_code(exception, unread_code)
    workers = pl.concat([worker_end, worker_end_cut], how="diagonal_relaxed")
    reports = [
        *launcher_reports(with_described(process_end, described_title), job_end),
        *torchrun_reports(elastic_failure, exception, gpu_exception),
        *spawn_reports(spawn_failure, (exception, gpu_exception), calls, passed_on=(call_error, torch_error)),
        *system_reports(job_end, with_described(workers, described_title), kernel_kill),
        *crash_reports(crash, kernel_kill, native_frame, faulthandler_thread, faulthandler_frame),
        *exception_reports(exception, gpu_exception, _statements(program_failure, refused_value)),
        *capture_reports(journal_exit),
    ]
    reports = _not_survived(reports, last_success(stated_end), server_refusal)
    if not reports:
        return pl.DataFrame(schema=columns_of(ProcessExit))
    name_crashes(reports, set(torch_source.drop_nulls("attempt")["source"]))
    finished = finished_processes(communicator_lifetime)
    timely = set(kernel_kill.filter("is_in_run").select("source", "line").iter_rows())
    is_one_host = rank["host"].drop_nulls().n_unique() == 1
    nranks = max(communicator_lifetime["nranks"].drop_nulls(), default=None)
    finder = ProcessFinder(rank, process, fence, text_job, has_agents=elastic_failure.height > 0, nranks=nranks)
    if process.is_empty():
        reports = torch_ranks.with_ranks(reports, torch_source, exception, launched_rank, elastic_failure)
    for report in reports:
        report.owner = finder.owner(report)
        if report.reporter == KERNEL:  # the kernel log has all programs of the host, and earlier days
            is_timely = (report.row["source"], report.row["line"]) in timely
            report.is_placed = is_timely and (is_one_host or report.node is not None)
            report.final = (report.owner, report.rank) != (None, None)
            report.final &= is_timely or report.owner not in finished
    add_processes(reports, elastic_failure)
    # A kernel of DeepEP that gives up waiting traps, which CUDA reports as a failed launch.
    trapped = set(deepep_timeout["source"])
    for report in reports:
        report.follows |= report.row["source"] in trapped and LAUNCH_FAILURE in report.message
    also_reported = {report.owner for report in reports if report.reporter != KERNEL and report.owner}
    memory_of = {report.owner: report.memory_of for report in reports if report.owner and report.memory_of}
    for report in reports:
        report.is_placed |= report.owner in also_reported
        report.memory_of = report.memory_of or (memory_of.get(report.owner, "") if report.owner else "")
    failed_owners = set(failure_event.filter(~pl.col("at_exit")).select(text_of("host"), "pid").iter_rows())
    has_errors = any(frame.height for frame in (call_error, test_failure, unstarted_program))
    # Any C++ program may end by an exception that it does not catch; c10's are those of PyTorch.
    watched = watchdog.filter((text_of("form") != "thrown") | text_of("exception").str.starts_with("c10"))
    raising = set(exception["rank"].drop_nulls())
    mark_consequences(
        reports,
        has_aborted=bool(watched.height or work.height or has_errors or torch_error.filter(kind=SIZE).height),
        has_errors=has_errors,
        failed_owners=failed_owners,
        victims=torch_error.to_dicts(),
        raising=raising,
        interrupts=exception.filter(form="interrupt").to_dicts(),
        shut_down=engine_wait.filter(text_of("form").is_in(KILLS_ALL)).to_dicts(),
    )
    lost = failure_event.filter(kind=LOST)
    mark_outlived(
        reports,
        training_step=training_step,
        progress_bar=progress_bar,
        engine_ready=engine_ready,
        failing=(exception, gpu_exception, traceback_frame, elastic_failure, process_end, torch_error, watchdog),
        of_several=(rank, launched_rank, elastic_failure, torch_error, watched, work),
        raising=raising,
        uncaught=uncaught_of_ranks(exception, exception_chain, traceback_frame),
        source=source,
        voice=voice,
        test_outcome=test_outcome,
        fence=fence,
    )
    mark_final(reports, source, lost.to_dicts(), has_errors=has_errors)
    if not engine_wait.filter(text_of("form").is_in(ENGINE_ENDED)).is_empty():
        for report in reports:
            report.final |= report.how in OF_AN_ENGINE
    tied = set(source["source"]) if process.is_empty() else finder.tied_sources(reports)
    for report in reports:
        report.is_tied = report.reporter == KERNEL or report.row["source"] in tied
    rows = [_row(report, rank_id) for report in reports for rank_id in finder.rank_ids(report)]
    finder.mark_other_launches(rows, reports)
    return frame_of_rows(rows, columns_of(ProcessExit)).sort("source", "line")


def _not_survived(reports: list[ExitReport], success: dict[int, int], server_refusal: pl.DataFrame) -> list[ExitReport]:
    """Leave out ends of steps of a script behind which the whole program came to its end, by their source.

    So are processes that it killed, such as servers of a benchmark, and errors of no named process, if nothing ended
    behind that: the program caught them, or ran the step again. And those of a request, which the server refused right
    behind them.
    """
    refused = set(server_refusal.select("source", "line").iter_rows())

    def is_of_request(report: ExitReport) -> bool:
        place, line = report.row["source"], report.row["line"]
        is_answered = any((place, line + n) in refused for n in range(1, LINES_TO_ANSWER + 1))
        return report.how == EXCEPTION and report.rank is None and is_answered

    def is_later(report: ExitReport) -> bool:
        return bool(report.row["pos"] > success.get(report.row["source"], -1))

    reports = [report for report in reports if not is_of_request(report)]
    failed_later = {report.row["source"] for report in reports if is_later(report)}

    def can_be_survived(report: ExitReport) -> bool:
        is_unnamed = report.how in RAISED and report.rank is None
        is_ended = report.how in (EXIT, SIGNAL) and report.reporter != KERNEL
        return is_ended or (is_unnamed and report.row["source"] not in failed_later)

    return [report for report in reports if is_later(report) or not can_be_survived(report)]


def _row(report: ExitReport, rank_id: Row) -> Row:
    place = {name: report.row[name] for name in ("source", "line", "pos")}
    host, pid = report.owner or (report.node, report.pid)
    return {
        **{name: getattr(report, name) for name in ProcessExit._fields if hasattr(report, name)},
        "job": rank_id.get("job"),
        "rank_id": rank_id.get("rank_id"),
        "rank": rank_id.get("rank", report.rank),
        "host": rank_id.get("host") or host,
        "pid": rank_id.get("pid") or pid,
        "exit_code": report.code,
        "is_first": not report.follows,
        "is_final": report.final,
        "is_near_end": report.left <= TRACEBACK_LINES and not report.went_on,
        **place,
    }


def _statements(program_failure: pl.DataFrame, refused_value: pl.DataFrame) -> dict[tuple[int, int], str]:
    """Return what lines state that no grammar knows, and why a value was refused, by their place."""
    stated = program_failure.select("source", "line", "statement")
    refused = refused_value.select("source", "line", statement=pl.coalesce(*map(text_of, REFUSALS)))
    return {row[:2]: row[2] for row in pl.concat([stated, refused]).iter_rows()}


REFUSALS = ("refused_because", "refused_weights")  # columns of `refused_value`
LAUNCH_FAILURE = ERROR_NUMBERS[719]  # cudaErrorLaunchFailure
