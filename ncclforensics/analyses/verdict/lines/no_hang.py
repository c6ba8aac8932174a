"""Judge whether the logs could show a hang, where nothing waits and nothing failed."""

from __future__ import annotations

import polars as pl

from ncclforensics.analyses.job.ends.failure_events import AFTER, REMOTE_ERROR, FailureEvent
from ncclforensics.analyses.verdict.doubts import Doubt
from ncclforensics.analyses.verdict.explanation import Explanation, undecided
from ncclforensics.analyses.verdict.job import Job
from ncclforensics.analyses.verdict.lines.init import may_be_in_bootstrap
from ncclforensics.analyses.verdict.lines.mismatch import differing_call_of_ended_run
from ncclforensics.analyses.verdict.vocabulary import Kind
from ncclforensics.data.names import count_of, ranks_text
from ncclforensics.data.nccl_sources import result_text
from ncclforensics.data.variables import (
    COLLECT_BOOTSTRAP,
    COLLECT_CALLS,
    COLLECT_OUTPUT,
    COLLECT_PROGRESS,
    COLLECT_UNBUFFERED,
    COLLECT_UNCHANGED,
    COLLECT_UNCUT,
    STACK_OF_ANY_RANK,
    STANDING_STACKS,
)
from ncclforensics.frames.columns import Row

MAJORITY = 0.5
MOST_NAMED = 3  # ranks whose logs show calls
MANY_DAMAGED = 0.1  # share of the lines of NCCL


def find_reported_success(job: Job) -> Explanation | None:
    """Find that the program came to its end, by its own words or PyTorch's, where no line shows a failure before.

    Where a launcher says of each process that it ended without an error, errors in between are those of its way out.
    """
    ended = bool(job.process_exits) or job.run.shows_an_end
    # What one process or rank reports is not of the others, which may still wait.
    processes = {(row["ended_pid"], row["ended_rank"]) for row in job.text.successes}
    of_launcher = {row["ended_pid"] for row in job.text.successes} - {None}
    has_failed = any(not event.at_exit for event in job.failure_events) and len(of_launcher) < len(job.rank_ids)
    if job.is_finished or ended or has_failed:
        return None
    what, doubt, rows = "end", Doubt.LOGS_END_BEFORE, job.text.ended_programs
    if job.text.successes and ((None, None) in processes or len(processes) >= len(job.rank_ids)):
        reason = "the program reports that it came to its end, and nothing failed"
        what, rows = "success", job.text.successes
    elif _is_aborted_at_exit(job):
        reason = "every rank aborted its communicators, as PyTorch does where a program ends without destroying its "
        reason += "process groups, and no time-out or error was read in the program's output"
        doubt, rows = Doubt.ABORTED_AFTER_TIME_OUT, [row.place_of_end for row in job.memberships if row.end]
    elif not job.absent and {row.rank for row in job.rank_ids.values()} <= {row["rank"] for row in rows}:
        reason = "the programs of all ranks ended without destroying their process groups, and no failure before that"
        reason += " was read"
    else:
        return None
    return Explanation(Kind.NO_HANG, reason, [doubt]).add_evidence(**{what: rows[-2:]})


def _is_aborted_at_exit(job: Job) -> bool:
    """Whether all ranks ended a communicator behind all else, in files that hold the output of their program, too."""
    ends = [row.place_of_end for row in job.memberships if row.end]
    has_output = _files_with_output(job)
    shows_calls = any(row["calls"] for row in job.visibility.values())
    return (
        job.is_ended
        and not (job.absent or job.timeouts or job.text.is_cancelled or shows_calls)
        and all(place["source"] in has_output for place in ends)
    )


def _files_with_output(job: Job) -> set[int]:
    """Return the sources that hold lines of the program, too."""
    return {number for number, row in job.run.sources.items() if row["lines"] > row["recognised"] + row["damaged"]}


def find_missing_call_lines(job: Job) -> Explanation | None:
    """Judge logs without call lines: unless all communicators were destroyed, they cannot show whether the job hung."""
    visible_ranks = [row for row in job.visibility.values() if row["calls"]]
    shows_most = len(visible_ranks) > MAJORITY * len(job.rank_ids)
    if job.is_text_only or job.is_finished or _has_single_ranks(job) or shows_most:
        return None
    number, shown = len(visible_ranks), [row["rank_id"] for row in visible_ranks]
    which = f"the logs of only {number} of {len(job.rank_ids)} ranks show calls" if number else "no call was read"
    which += f" ({job.names(shown)})" * (0 < number <= MOST_NAMED)
    initialised = {row.rank_id for row in job.memberships if row.is_complete}
    others = job.rank_ids.keys() - initialised
    init = "no line that was read shows the end of an init, and" if not initialised else "init completed, but"
    if initialised and job.absent:
        init = f"init completed on {job.names(initialised)}, but"
    if initialised and others:
        unshown = ranks_text(job.rank_numbers(others)) or count_of(len(others), "other process")
        init = f"init completed on {job.names(initialised)}; no line that was read shows that it did on {unshown}, and"
    diagnosis = Explanation(Kind.UNDECIDABLE, f"{init} {which}: NCCL's lines do not show what happened after init")
    last_calls = job.calls.filter(pl.col("rank_id").is_in(shown)).sort("pos").unique("rank_id", keep="last")
    shown_calls = job.describe(last_calls.sort("pos").head(MOST_NAMED))
    diagnosis.add_evidence(context=shown_calls)
    of_absent = [f"collect the log of {ranks_text(job.absent)}"] * bool(job.absent)
    of_others = ["collect the complete logs of the other ranks, if they were cut"] * bool(number)
    diagnosis.collect = [*of_absent, *of_others, *COLLECT_CALLS]
    if job.run.frames["call_line"]["comm"].null_count():
        diagnosis.claim = "the pointers were left out of this text, so that its calls name no communicator"
        diagnosis.collect = COLLECT_UNCHANGED
    elif (damage := _damaged_lines(job)) and not visible_ranks:
        diagnosis.claim = f"{damage}, and no whole line shows a call"
        diagnosis.collect = COLLECT_UNCUT
    elif not initialised and not number and job.has_layout:
        diagnosis.claim = (
            "init came to the connections between ranks; the lines that were read show no call, nor that it completed"
        )
        diagnosis.collect.insert(0, STANDING_STACKS)
    elif not job.memberships and len(job.rank_ids) > 1 and may_be_in_bootstrap(job):
        diagnosis.claim = "an init began, and these lines end in its bootstrap, before any communicator is printed"
        diagnosis.collect = COLLECT_BOOTSTRAP
    elif not job.memberships and not job.milestones:
        diagnosis.claim = "these logs show no communicator and no call"
    elif job.is_ended and not visible_ranks:
        diagnosis.claim = (
            "the communicators in these logs were ended, as at an orderly end of PyTorch, and after a time-out"
        )
        of_output = "collect the program's output of every rank: it shows which of the two ended the job"
        diagnosis.collect = [*of_absent, of_output]
    elif not initialised and not number:
        diagnosis.claim = "an init began, and these lines show neither its end nor a call"
    elif initialised and not others and (output := _output_behind(job)):
        count, last = output
        goes_on = f"the output goes on for {count_of(count, 'line')} behind the last line of NCCL"
        diagnosis.claim = f"init completed, and {goes_on}; {which}, so that the call that the ranks are in is unknown"
        diagnosis.add_evidence(context=[last])
    return diagnosis


def _output_behind(job: Job) -> tuple[int, Row] | None:
    """How many lines of a program stand behind the last one of NCCL in a file, at most, and the place of the last."""
    count, rank_id = max(((job.application_lines_after(rank_id), rank_id) for rank_id in job.rank_ids), default=(0, 0))
    if not count:
        return None
    last = job.last_line(rank_id)
    line = (
        job.run.sources[last["source"]]["lines"] if last["line"] > 0 else -1
    )  # counted from the end of what was sampled
    return count, {"source": last["source"], "line": line}


def _has_single_ranks(job: Job) -> bool:
    """Whether every communicator has one rank, which waits for no other."""
    return bool(job.memberships) and all(row.nranks == 1 for row in job.memberships)


def _damaged_lines(job: Job) -> str:
    """Return how many lines of NCCL are cut or torn, if these are many; else an empty string."""
    damaged, recognised = (sum(row[kind] for row in job.run.sources.values()) for kind in ("damaged", "recognised"))
    if damaged <= MANY_DAMAGED * (damaged + recognised):
        return ""
    return f"{damaged:,} of {damaged + recognised:,} lines of NCCL are cut or torn"


def find_returned_error(job: Job) -> Explanation | None:
    """Find an error returned by NCCL after the last call that no other failure line explains."""
    returned = [event for event in job.failure_events if event.form == "unwinding" and job.is_fatal(event)]
    later_errors = [event for event in returned if event.rank_id is not None and job.last_call(event.rank_id)]
    if not later_errors:
        return None
    later_errors.sort(key=lambda event: event.result == REMOTE_ERROR)  # what others cause stands last
    of_code: dict[int | None, list[FailureEvent]] = {}
    for event in later_errors:
        of_code.setdefault(event.result, []).append(event)
    ranks_of = {code: job.names(_ranks_of(events)) for code, events in of_code.items()}
    errors = " and ".join(f"error {result_text(code)} to {ranks}" for code, ranks in ranks_of.items())
    reason = f"all ranks made the same calls, then NCCL returned {errors}; the outcome was not read"
    ranks = job.names(_ranks_of(later_errors))
    diagnosis = undecided(reason, [f"collect the program output of {ranks}"])
    return diagnosis.add_evidence(failure=[event for events in of_code.values() for event in events[:2]])


def _ranks_of(events: list[FailureEvent]) -> set[int]:
    return {event.rank_id for event in events if event.rank_id is not None}


def _ranks_that_start(job: Job) -> list[int]:
    """Return the ranks that began NCCL, and of which no communicator was read."""
    begun, members = {(row["host"], row["pid"]) for row in job.milestones}, {row.rank_id for row in job.memberships}
    return [rank_id for rank_id, row in job.rank_ids.items() if rank_id not in members and row.owner in begun]


def conclude_no_hang(job: Job) -> Explanation:
    """Conclude that the job did not hang: all ranks made the same calls and none failed."""
    unfinished = {row.rank_id for row in job.memberships if row.end != "Destroy"}
    finished = {row.rank_id for row in job.memberships} - unfinished
    if len(job.cut_logs) > MAJORITY * len(job.rank_ids) and not finished:
        reason = (
            "the last lines of these files have no end: the last calls may be lost in a buffer, so that they agree "
            "proves nothing"
        )
        return undecided(reason, COLLECT_UNBUFFERED)
    reason = (
        "all ranks made the same calls, and no failure was read: the last ones completed, or all ranks hang in them"
    )
    doubts, collect = [Doubt.HANGS_TOGETHER], [STACK_OF_ANY_RANK]
    if call := job.shared_last_call():
        where = f"every rank is in the same call where the logs end, {call.text}"
        reason = f"{where}: it completed, or all hang in it"
    if job.text.is_cancelled:
        collect = COLLECT_PROGRESS
    if job.is_finished:
        doubts, reason = [], "every rank destroyed its communicators: the run completed"
        if starting := _ranks_that_start(job):
            doubts = [Doubt.LOGS_END_BEFORE]
            number = count_of(len(starting), "process")
            reason = f"all ranks with a communicator destroyed it; of {number} more only the start of NCCL was read"
    elif len(finished) > len(unfinished):
        doubts = [Doubt.LOGS_END_BEFORE]
        earlier = job.names(unfinished)
        reason = f"most ranks destroyed their communicators, and none waits; the logs of {earlier} end before that"
    answer = Explanation(Kind.NO_HANG, reason, doubts, collect=[] if finished else collect)
    has_calls = any(row["calls"] for row in job.visibility.values())
    if job.is_ended and not job.is_finished:
        before = "all ranks made the same calls and then" if has_calls else "no call was read, and the ranks"
        after = f"{'none was read in the output' if _files_with_output(job) else 'no output is'} in these files"
        answer.claim = (
            f"{before} aborted their communicators, as PyTorch does at an orderly end, and after a time-out, which its "
            f"watchdog prints on stderr: {after}"
        )
        answer.collect = COLLECT_OUTPUT
        answer.doubt(Doubt.HANGS_TOGETHER)
    elif _has_single_ranks(job) and not (has_calls or job.is_finished):
        answer.claim = "every communicator in these logs has one rank, which waits for no other"
        answer.doubts = [Doubt.LOGS_END_BEFORE]
        if output := _output_behind(job):
            answer.add_evidence(context=[output[1]])
            answer.collect = []
    if job.divergence and job.is_finished:
        differing = differing_call_of_ended_run(job)
        if differing is None:
            answer.doubt(Doubt.ENDED_WITH_DIFFERENCES, "calls that differ are lines that were lost or came twice")
        else:
            answer.doubt(
                Doubt.ENDED_WITHOUT_DIFFERENCE,
                f"yet {differing.claim}, which NCCL does not compare: from there on its results may be wrong",
            )
            answer.evidence_lines += differing.evidence_lines
    if (job.gaps or job.line_faults) and not job.is_finished:
        answer.doubt(
            Doubt.LINES_MISSING,
            "yet lines of these logs were lost, moved or doubled, and a call that differs may be one",
        )
    if any(event.kind == AFTER for event in job.failure_events) or job.absent:
        answer.doubt(Doubt.MEMBER_UNSEEN)
    return answer
