"""Time-outs and mismatches that PyTorch reports."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import polars as pl

from ncclforensics.analyses.hang.watchdog_works import WORLD, ranks_with_errors
from ncclforensics.analyses.job.ends.tracebacks import traced_frames, with_places
from ncclforensics.analyses.job.text.torch_text import (
    NOT_RECEIVED,
    compared_calls,
    differ_in_number_alone,
    differing_ranks,
)
from ncclforensics.analyses.verdict.vocabulary import How
from ncclforensics.data.names import count_of, ranks_text, some_of
from ncclforensics.data.stack_classes import own_files
from ncclforensics.frames.columns import text_of
from ncclforensics.frames.time_range import NO_YEAR, time_of
from ncclforensics.rules.finding import Category, Finding, Line, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.time_out_places import ends_of_tracebacks, raised_in
from ncclforensics.rules.shared.watchdog_limits import overdue_text, short_limit_text, works_text

LEAST_LEAD = timedelta(minutes=1)
PLACES = 2  # from which calls came


@rule(Category.TIMEOUT, Severity.ERROR, of=("work_timeout", "work"), hang=True)
def torch_watchdog_timeout(
    work: pl.DataFrame,
    work_timeout: pl.DataFrame,
    work_status: pl.DataFrame,
    failed_call: pl.DataFrame,
    watchdog: pl.DataFrame,
    exception: pl.DataFrame,
    exception_chain: pl.DataFrame,
    traceback_frame: pl.DataFrame,
    traced_call: pl.DataFrame,
    ray_heading: pl.DataFrame,
    source: pl.DataFrame,
) -> Iterator[Finding]:
    """PyTorch's watchdog timed out on a collective.

    Means: on these ranks a work of the process group did not complete in time; they are victims. The culprit is a rank
    with lower counters, or one without output.
    Not when: the lines are copies of one message (PyTorch prints up to four), which count once; the time-out was
    set shorter than a checkpoint or the first step takes.
    Do: compare last enqueued and last completed work over ranks; give the Flight Recorder dumps, too.
    Sources: ProcessGroupNCCL.cpp of torch 1.13 to 2.15; nccl2/ProcessGroupNCCLUtils.cpp from 2.14 on.
    """
    ends = ends_of_tracebacks(work_timeout, watchdog, traceback_frame, exception, source)
    calls = traced_frames(traceback_frame, traced_call)
    (placed,) = with_places((ends,), exception, exception_chain, calls, ray_heading)
    named = pl.concat([frame.select(text_of("guid"), text_of("group")) for frame in (work_timeout, work_status)])
    named = named.filter(~pl.col("guid").is_in(WORLD)).drop_nulls().unique("guid", keep="first", maintain_order=True)
    names = {guid: f" ({name})" for guid, name in named.iter_rows()}
    reports = work.filter("has_timed_out").sort(~pl.col("is_timeout").fill_null(value=False), "rank", "guid")
    for (guid, is_timeout), rows in reports.group_by("guid", "is_timeout", maintain_order=True):
        ranks, works = (sorted(rows[name].drop_nulls().unique()) for name in ("rank", "sequence"))
        place = f" at work {works_text(rows)}" if works else ""
        group = f" {'of' if works else 'in'} process group {guid}{names.get(str(guid), '')}" if guid else ""
        what = "timed out" if is_timeout else f"found an error{' or a time-out' * (not rows['has_error'].all())}"
        yield Finding(
            title=f"the {_watchdogs(ranks)} of {ranks_text(ranks)} {what}{place}{group}",
            detail=(
                _operations_text(rows, reports)
                + _called_from(failed_call)
                + raised_in(placed)
                + _processes_text(rows)
                + short_limit_text(work_timeout, ranks)
                + overdue_text(work_timeout, ranks)
            ).lstrip(",; "),
            certainty="certain",
            ranks=ranks,
            role=Role.CONSEQUENCE,
            evidence=_lines(rows, "timed out"),
        )
    if work.is_empty():
        yield from _timeouts_of_groups(work_timeout, work_status)


@rule(Category.LAGGING_RANK, Severity.ERROR, of=("group_note",), hang=True)
def torch_rank_left_early(group_note: pl.DataFrame, work_timeout: pl.DataFrame) -> Iterator[Finding]:
    """A rank left its process groups long before the watchdog of another rank timed out.

    Means: the program of that rank ended, orderly or by an exception, and NCCL's process group was destructed; the
    ranks that time out later wait for a call or a message that it never made.
    Not when: the other rank timed out in a process group that the first one does not belong to.
    Do: compare what both ranks do last: fewer batches, a message without its counterpart, an exception that is caught;
    call torch.distributed.barrier() and destroy_process_group() at the end of the program.
    Sources: ProcessGroupNCCL.cpp of torch 2.4 to 2.10 (~ProcessGroupNCCL); nccl#1504.
    """
    ends, timeouts = (
        frame.with_columns(
            time=time_of("moment", NO_YEAR), rank=pl.coalesce("global_rank", "launcher_rank").cast(pl.Int32)
        ).drop_nulls(["time", "rank"])
        for frame in (group_note.filter(form="not_destroyed"), work_timeout)
    )
    left = ends.join(timeouts.select("rank"), on="rank", how="anti").sort("time").unique("rank", keep="first")
    first = timeouts.sort("time").head(1).select(timed_out="time", other="rank", at="source", at_line="line")
    early = left.join(first, how="cross").filter(pl.col("timed_out") - pl.col("time") > LEAST_LEAD).sort("rank")
    for row in early.head(1).iter_rows(named=True):
        ranks = early["rank"].to_list()
        lead = (row["timed_out"] - row["time"]).total_seconds()
        yield Finding(
            title=f"{ranks_text(ranks)} left {'their' if len(ranks) > 1 else 'its'} process groups {lead:,.0f} seconds"
            f" before the watchdog of rank {row['other']} timed out",
            detail="its program had ended, and the other ranks waited for it",
            certainty="likely",
            ranks=ranks,
            evidence=[
                *(Line(source, line, "left") for source, line in early.select("source", "line").head(3).rows()),
                Line(row["at"], row["at_line"], "timed out"),
            ],
        )


def _timeouts_of_groups(work_timeout: pl.DataFrame, work_status: pl.DataFrame) -> Iterator[Finding]:
    """Report time-outs whose lines show no numbers of ranks in the job, only those in a process group."""
    same = ["source", "sequence", "group_rank"]
    named = pl.concat([frame.select(*same, guid=text_of("guid")) for frame in (work_timeout, work_status)])
    groups = named.drop_nulls("guid").group_by(same).agg(pl.col("guid").unique()).filter(pl.col("guid").list.len() == 1)
    rows = (
        work_timeout.with_columns(guid=text_of("guid"), operation=text_of("operation"))
        .join(groups.with_columns(pl.col("guid").list.first()), on=same, how="left", suffix="_of_others")
        .with_columns(guid=pl.coalesce("guid", "guid_of_others"))  # one of a time-out's lines names no group
        .sort("source", "line")
    )
    for (guid, sequence), lines in rows.group_by("guid", "sequence", maintain_order=True):
        numbers = sorted(lines["group_rank"].drop_nulls().unique().to_list())
        group = f"process group {guid}" if guid else "a process group"
        yield Finding(
            title=f"the {_watchdogs(numbers)} of {ranks_text(numbers) or 'a rank'} of {group} timed out"
            + (f" at work {sequence}" if sequence is not None else ""),
            detail=f"{_operations_text(lines)}; numbers within the group, not those of the job".removeprefix("; "),
            certainty="certain",
            role=Role.CONSEQUENCE,
            evidence=_lines(lines, "timed out"),
        )


def _watchdogs(ranks: list[int]) -> str:
    return "watchdogs" if len(ranks) > 1 else "watchdog"


def _lines(rows: pl.DataFrame, what: str = "") -> list[Line]:
    return [Line(source, line, what) for source, line in rows.select("source", "line").head(4).rows()]


def _processes_text(rows: pl.DataFrame) -> str:
    """Name the processes of these ranks, where a launcher does."""
    named = rows.select("rank", "launcher_pid", text_of("launcher_node")).drop_nulls(["rank", "launcher_pid"])
    processes = [
        f"rank {rank} is process {pid}" + f" on {node}" * bool(node)
        for rank, pid, node in named.unique().sort("rank").rows()
    ]
    return f"; {some_of(processes, PLACES)}" if processes else ""


def _operations_text(rows: pl.DataFrame, reports: pl.DataFrame | None = None) -> str:
    """Name the operations that these watchdogs waited for, which the reports of other ranks may name."""
    if reports is not None:
        rows = reports.join(rows.select("guid", "sequence"), on=["guid", "sequence"], how="semi", nulls_equal=True)
    names = sorted({name.strip("_") for name in rows["operation"].drop_nulls()})
    return f"waiting for: {', '.join(names)}" if names else ""


def _called_from(failed_call: pl.DataFrame) -> str:
    """Where the user's code made the calls that timed out, by the stacks that the watchdogs print."""
    frames = failed_call.with_columns(file=text_of("caller_file"))
    frames = frames.with_columns(failure=(pl.col("form") == "heading").cum_sum().over("source"))
    own = frames.filter(pl.col("file").is_in(own_files(frames["file"].unique().drop_nulls())))
    calls = own.unique(["source", "failure"], keep="first", maintain_order=True)
    name = pl.col("file").str.split("/").list.last()
    places = calls.select(pl.format("{} ({}:{})", "caller", name, "caller_line"))
    return f", called from {some_of(sorted(set(places.to_series())), PLACES)}" if places.height else ""


@rule(Category.LAGGING_RANK, Severity.WARNING, of=("analyzed_call",), hang=True)
def torch_analyzer_names_ranks(analyzed_call: pl.DataFrame, recorded_rank: pl.DataFrame) -> Iterator[Finding]:
    """PyTorch's analyser of Flight Recorder dumps names ranks that did not join a collective.

    Means: the dumps of these ranks do not show the call, and no other call that they stand in was printed.
    Not when: the dumps themselves are here, which show more; the named rank waits in a call of another process group,
    which the analyser does not print where it matches; its buffer was overwritten, or its dump is older.
    Do: give the dumps themselves to this program; take the stack of the named ranks.
    Sources: torch/distributed/flight_recorder/components/utils.py (error_analysis) of torch 2.5 to 2.15.
    """
    suspected = analyzed_call.filter(pl.col("suspects").list.len() > 0)
    if suspected.is_empty() or recorded_rank["is_used"].any():
        return
    ranks = sorted({rank for row in suspected["suspects"].to_list() for rank in row})
    first = suspected.row(0, named=True)
    more = suspected.height - 1
    yield Finding(
        title=f"torchfrtrace shows no call of {ranks_text(ranks)} where the other members of the group made it",
        detail=f"first {first['name']}, collective {first['sequence']} of process group {first['group']}, which"
        f" {ranks_text(first['joined'])} joined" + (f"; then {count_of(more, 'other call')}" if more else ""),
        certainty="possible",
        ranks=ranks,
        evidence=[Line(row["source"], row["line"], "missing") for row in suspected.head(2).to_dicts()],
    )


@rule(Category.LAGGING_RANK, Severity.WARNING, of=("printed_difference",), hang=True)
def torch_table_shows_no_call(printed_difference: pl.DataFrame, recorded_rank: pl.DataFrame) -> Iterator[Finding]:
    """In the table of PyTorch's analyser, ranks without an open call did not make the call that others stand in.

    Means: all calls of these ranks are over, and the table shows no later one of theirs: they are outside of any call.
    Not when: the dumps themselves are here, which show more; options such as --pg-filters left out the call in which
    the rank waits; its dump is older than the others; ranks whose column is empty are unknown, for the analyser drops
    the older calls of all ranks. Without -v it prints no process groups, and ranks are named only where all others
    stand in one collective.
    Do: give the dumps themselves to this program, or the table with -v; take the stack of the named ranks.
    Sources: torch/distributed/flight_recorder/components/utils.py (just_print_entries) of torch 2.5 to 2.13.
    """
    lagging = printed_difference.filter(pl.col("how") == "lag")
    if not recorded_rank["is_used"].any():
        yield from _table_finding(lagging, "torchfrtrace shows no call of {ranks} where {others} called {call}")


@rule(Category.COLLECTIVE_MISMATCH, Severity.ERROR, of=("printed_difference",), hang=True)
def torch_table_shows_other_calls(printed_difference: pl.DataFrame, recorded_rank: pl.DataFrame) -> Iterator[Finding]:
    """In the table of PyTorch's analyser, ranks of a process group made different calls under one number.

    Means: at this number of the group a rank called another operation, or passed another number of elements to one
    that must have equal sizes.
    Not when: the dumps themselves are here, which show more; a program has joined dumps of several attempts.
    Do: compare what each rank does before that call: a branch on data, on the rank, or on a caught error.
    Sources: torch/distributed/flight_recorder/components/utils.py (just_print_entries) of torch 2.5 to 2.13.
    """
    others = printed_difference.filter(pl.col("how") == "another")
    if not recorded_rank["is_used"].any():
        yield from _table_finding(others, "torchfrtrace shows another call of {ranks} than of {others}")


def _table_finding(found: pl.DataFrame, title: str) -> Iterator[Finding]:
    """A finding on what a table shows of the first process group, and how many others show the same."""
    for row in found.head(1).to_dicts():
        is_lag, own = row["how"] == "lag", ranks_text(row["ranks"][:1])
        place = f"collective {row['sequence']} of process group {row['group']}" if row["group"] else "group unknown"
        instead = f"{own} last called {row['own_call']}, which is over" if is_lag else f"{own} called {row['own_call']}"
        others = f"; {count_of(found.height - 1, 'other process group')} likewise" if found.height > 1 else ""
        yield Finding(
            title=title.format(ranks=ranks_text(row["ranks"]), others=ranks_text(row["others"]), call=row["call"]),
            detail=f"{place}: {ranks_text(row['others'])} called {row['call']}; {instead}{others}",
            certainty="possible" if is_lag else "likely",
            ranks=row["ranks"],
            evidence=[Line(row["source"], row["own_line"], "culprit"), Line(row["source"], row["line"], "the others")],
        )


@rule(Category.COLLECTIVE_MISMATCH, Severity.ERROR, of=("fingerprint",), hang=True)
def torch_calls_differ(fingerprint: pl.DataFrame, verdict: pl.DataFrame) -> Iterator[Finding]:
    """PyTorch compared the calls of the ranks before making them, and they differ.

    Means: the ranks of a process group are not in the same call, or pass tensors of different shapes or datatypes;
    without this check (TORCH_DISTRIBUTED_DEBUG=DETAIL) they would hang, or compute wrong results.
    Not when: job ranks are meant: the numbers here are those of the process group, and a message that is cut after its
    first sentence names none. Where only the numbers of the calls differ, PyTorch's own counters may be at fault.
    Do: compare what each rank does before that call: a branch on data, on the rank, or on a caught error.
    Sources: ProcessGroupWrapper.cpp of torch 1.13 to 2.10; pytorch#101422, pytorch#148976.
    """
    if fingerprint.is_empty():
        return
    called = compared_calls(fingerprint.to_dicts())
    minority = differing_ranks(fingerprint.to_dicts())
    has_majority = 0 < len(minority) < len(called)  # else no rank differs from a majority
    of_job, of_group = pl.col("global_rank"), pl.col("first_rank")
    is_world = fingerprint.drop_nulls(["global_rank", "first_rank"]).select((of_job == of_group).all()).item()
    evidence = fingerprint.sort(pl.col("first_rank").is_in(minority), descending=True, maintain_order=True)
    by_call = {call: ranks_text(rank for rank in called if called[rank] == call) for call in called.values()}
    of_group_text = "" if is_world else " of a process group"
    difference = _difference_text(fingerprint, is_open=bool(called) and not has_majority)
    if in_number := differ_in_number_alone(fingerprint.to_dicts()):
        operation = fingerprint["operation"].drop_nulls()[0]
        difference = f"{operation} under different numbers, which PyTorch may count wrongly"
    title = f"{ranks_text(minority) or 'ranks'}{of_group_text} called {difference}"
    if lacking := [rank for rank, call in called.items() if call == NOT_RECEIVED]:
        title = f"PyTorch compared the calls of ranks, and that of {ranks_text(lacking)}{of_group_text} is not known"
    yield Finding(
        title=title,
        detail="; ".join(f"{ranks}: {call}" for call, ranks in by_call.items()) or _single_call_text(fingerprint),
        certainty="likely" if in_number else "certain",
        ranks=minority if is_world else [],
        evidence=[Line(source, line) for source, line in evidence.select("source", "line").head(2).rows()],
        job=next((row["job"] for row in verdict.to_dicts() if row["how"] == How.COMPARED), None),
    )


def _single_call_text(fingerprint: pl.DataFrame) -> str:
    """Format the only call of messages that name one rank, or that are cut before the second."""
    named = fingerprint.drop_nulls("reporting_rank").unique("reporting_rank", maintain_order=True)
    calls = [
        f"rank {rank} called {operation or f'its collective number {number}'}"
        for rank, operation, number in named.select("reporting_rank", "operation", "sequence").rows()
    ]
    if named["operation"].null_count() == named.height:
        return "; ".join(calls)
    return "; ".join([*calls, "no other call was read"])


def _difference_text(fingerprint: pl.DataFrame, *, is_open: bool) -> str:
    """Say in what the calls differ; `is_open`: no majority shows which ranks are the others."""
    operations, shapes, dtypes = (
        pl.concat([fingerprint[name].cast(pl.String), fingerprint[f"other_{name}"].cast(pl.String)]).drop_nulls()
        for name in ("operation", "shape", "dtypes")
    )
    if operations.n_unique() != 1:
        different = "different operations" if operations.len() else "collectives that differ"
        return different if is_open or operations.is_empty() else "another operation than the others"
    if shapes.n_unique() > 1:
        return f"{operations[0]} with {'different shapes' if is_open else 'another shape than the others'}"
    if dtypes.n_unique() > 1:
        return f"{operations[0]} with {'different datatypes' if is_open else 'another datatype than the others'}"
    return f"{operations[0]}, {'and their calls differ' if is_open else 'which differs from that of the others'}"


@rule(Category.TIMEOUT, Severity.INFO, of=("work_status",), hang=True, role=Role.CONTEXT)
def torch_first_reporter(
    work_status: pl.DataFrame, work_timeout: pl.DataFrame, watchdog: pl.DataFrame
) -> Iterator[Finding]:
    """Ranks report only the time-out or the error of another rank.

    Means: the watchdog of the named rank was the first to time out, or to find an error. That rank is a victim and need
    not be the culprit; the ranks that relay it may have no outstanding work.
    Not when: the rank reports its own time-out (`from this local rank`).
    Do: read the flight records of all ranks, or their last enqueued work, not only the messages of these ranks.
    Sources: ProcessGroupNCCL.cpp of torch 2.4 to 2.10; DeepSpeed#7533.
    """
    with_errors = ranks_with_errors(watchdog) - {*work_timeout["global_rank"]}
    relayed = work_status.filter(form="relayed").sort("source", "line")
    for (reporter,), rows in relayed.group_by("reporter", maintain_order=True):
        relaying = sorted(rows["global_rank"].drop_nulls().unique())
        first = f"rank {reporter} {'found an error' if reporter in with_errors else 'timed out'} first"
        title = f"{first}; {ranks_text(relaying) or 'others'} only relayed it"
        detail = "the first rank to report is a victim and need not be the culprit"
        yield Finding(title, detail, "certain", ranks=relaying, evidence=_lines(rows))


@rule(Category.TIMEOUT, Severity.ERROR, of=("watchdog",), hang=True)
def torch_heartbeat_stuck(watchdog: pl.DataFrame) -> Iterator[Finding]:
    """A watchdog thread of PyTorch is stuck.

    Means: it waits inside a CUDA or NCCL call, or for Python's global interpreter lock. This is not a collective that
    timed out: the state of the GPU is unknown.
    Not when: the process was already being ended.
    Do: take the native stack of that process (py-spy dump --native, gdb); a longer
    TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC only delays the abort.
    Sources: ProcessGroupNCCL.cpp of torch 2.3 to 2.10; VLM-R1#257.
    """
    stuck = watchdog.filter(pl.col("form").is_in(["stuck", "heartbeat"])).sort("source", "line")
    if not stuck.is_empty():
        ranks = sorted(stuck["global_rank"].drop_nulls().unique().to_list())
        seconds = stuck["seconds"].max()
        time = "its monitor heard nothing of it" if seconds is None else f"no progress for {seconds!r} seconds"
        title = f"the {_watchdogs(ranks)} of {ranks_text(ranks) or 'a rank'} {'are' if ranks[1:] else 'is'} stuck"
        detail = f"{time}: waiting for CUDA, NCCL or Python's lock"
        yield Finding(title, detail, "likely", ranks=ranks, evidence=_lines(stuck))


@rule(Category.TIMEOUT, Severity.WARNING, of=("watchdog",), hang=True, fallback=True, role=Role.CONSEQUENCE)
def torch_operation_given_up(watchdog: pl.DataFrame, work: pl.DataFrame, call_error: pl.DataFrame) -> Iterator[Finding]:
    """PyTorch gave up a collective operation and ended the process; the line that says which is not here.

    Means: an operation failed or timed out on these ranks. They are victims of another rank, or of the network.
    Not when: the logs have the time-out or NCCL's error itself, which have findings of their own.
    Do: look for the first `Watchdog caught collective operation timeout` or NCCL error, on all ranks.
    Sources: ProcessGroupNCCL.cpp of torch 1.9 to 2.10.
    """
    given_up = watchdog.filter(pl.col("form").is_in(["failed", "teardown"])).sort("source", "line")
    if given_up.is_empty() or work.filter("has_timed_out").height or call_error.height:
        return
    ranks = sorted(given_up["global_rank"].drop_nulls().unique())
    library = next(iter(given_up["library"].cast(pl.String).drop_nulls()), "NCCL")
    title = f"{ranks_text(ranks) or 'ranks'} gave up an operation of {library} that failed or timed out"
    detail = "the line that names the operation was not read"
    yield Finding(title, detail, "certain", ranks=ranks, evidence=_lines(given_up))
