"""Find ended processes, ranks that others wait for, and cycles of waiting."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

import polars as pl

from ncclforensics.analyses.hang.wait_graph import Edge
from ncclforensics.analyses.job.ends.failure_events import LOST, REMOTE_ERROR, FailureEvent
from ncclforensics.analyses.verdict.axioms import OFTEN_AHEAD
from ncclforensics.analyses.verdict.doubts import Doubt
from ncclforensics.analyses.verdict.explanation import Alternative, Explanation, Placed, undecided
from ncclforensics.analyses.verdict.job import Job
from ncclforensics.analyses.verdict.lines.ranks_without_log import (
    doubt_left_out_calls,
    exclude_waiting_for_absent,
    ranks_that_may_wait_for_hidden,
)
from ncclforensics.analyses.verdict.lines.wait_cycle import (
    judge_cycle,
    judge_messages_in_order,
    messages_left_out,
    ranks_in_cycles,
)
from ncclforensics.analyses.verdict.vocabulary import Kind
from ncclforensics.data.names import MESSAGES, ranks_text
from ncclforensics.data.variables import COLLECT_EVERY_LINE, COLLECT_UNBUFFERED, stacks_of
from ncclforensics.frames.columns import short_name

MAJORITY = 0.5
FEW_SILENT = 4  # times as many ranks reported an error or an end as went silent


def find_lost_process(job: Job) -> Explanation | None:
    """Find a process that vanished without an error of its own while others lost their connection to it."""
    connection_losses = [event for event in job.failure_events if event.kind == LOST and not event.at_exit]
    never_complete = [key for key, rows in job.members.items() if not any(row.is_complete for row in rows)]
    if not connection_losses or any(job.count_unseen_members(key) for key in never_complete):
        return None  # a rank never joined init: the launcher ended the other processes
    awaited = job.awaited_ranks
    finished = {row.rank_id for row in job.memberships if row.end is not None}
    silent_ranks = [rank_id for rank_id in job.rank_ids if rank_id not in job.reporting | finished]
    on_named_hosts = {rank_id for rank_id, row in job.rank_ids.items() if row.host in _peers(connection_losses)}
    lost_ranks = [rank_id for rank_id in silent_ranks if rank_id in on_named_hosts and not finished & on_named_hosts]
    silent_ranks = lost_ranks or silent_ranks
    named = {event.named_rank_id for event in connection_losses}
    named_ranks = {rank_id for rank_id in silent_ranks if rank_id in named}
    # A log that ends inside a line lacks what came next, another one earlier calls: that a rank waits for such a one
    # shows nothing.
    unplaced = set() if job.begin_later.issuperset(awaited) else job.begin_later
    candidates = [rank_id for rank_id in silent_ranks if rank_id in awaited - unplaced]
    waited_for = _waiting_for_none_but(job, candidates, job.cut_logs | unplaced)
    culprits = (
        sorted(named_ranks) or waited_for or (silent_ranks if len(silent_ranks) < MAJORITY * len(job.rank_ids) else [])
    )
    if not culprits:
        return _lost_on_another_host(job, lost_ranks, connection_losses)
    if all(event.form == "local_closed" for event in connection_losses) and all(
        event.result != REMOTE_ERROR for event in job.failure_events
    ):
        return None  # processes close their connections at an orderly end, too: a death leaves a rank in trouble
    is_lonely = len(silent_ranks) > 1 and len(silent_ranks) * FEW_SILENT <= len(job.rank_ids)
    is_several = is_lonely or (len(culprits) > 1 and culprits == silent_ranks)
    is_one_of_several = len(culprits) > 1 and _is_one_process(connection_losses)
    is_open = is_several and (is_one_of_several or not _are_whole_hosts(job, silent_ranks))
    if not named_ranks and (is_open or _may_wait_for_absent(job, culprits)):
        died = "at different places; no error of theirs was read: one of these"
        if len(silent_ranks) == 1:
            died = "without an error that was read: it"
        reason = (
            f"other ranks lost a connection, and {job.names(silent_ranks)} stopped printing {died} died"
            f"{', or a rank without a log' * bool(job.absent)}, and the logs of the others may only be shorter than "
            "their runs"
        )
        last_lines = map(job.last_line, silent_ranks[:4])
        answer = one_of_these_died(job, silent_ranks, reason, "context", last_lines)
        if job.absent:
            answer.collect.append(f"collect the logs of {ranks_text(job.absent)}")
        return answer
    if not named_ranks and (absent_hosts := _hosts_without_ranks(job, connection_losses)):
        reason = f"ranks lost their connections to {', '.join(absent_hosts)}, and no line of a rank there was read"
        answer = undecided(reason, [f"collect the logs of {', '.join(absent_hosts)}"], suspects=job.absent)
        return answer.add_evidence(failure=connection_losses[:3])
    claim = "stopped printing, without an error of its own that was read, and other ranks lost their connection to it"
    diagnosis = job.explanation_of(Kind.RANK_DIED, claim, culprits, Doubt.NO_REPORT_OF_END)
    if not named_ranks and (job.inside_completed_init | job.unfinished_setups.keys()).issuperset(culprits):
        diagnosis.doubt(Doubt.LINES_MISSING, "its log ends while NCCL connects it, perhaps without its last lines")
    cite_first_missing_call(job, diagnosis)
    diagnosis.add_evidence(culprit=map(job.last_line, culprits[:4]))
    of_culprits = [event for event in connection_losses if event.named_rank_id in culprits]
    return diagnosis.add_evidence(failure=of_culprits[:3] or connection_losses[:3])


def _may_wait_for_absent(job: Job, culprits: list[int]) -> bool:
    """Whether all culprits may wait for a rank without a log, and more have none than report the loss or wait."""
    blamed = set(culprits)
    waiting = {edge.waiter for edge in job.waits if job.absent and not blamed.isdisjoint(edge.waits_for)}
    are_many = len(job.absent) > len(job.reporting | waiting)
    return are_many and len(ranks_that_may_wait_for_hidden(job, culprits)) == len(culprits)


def _waiting_for_none_but(job: Job, rank_ids: Iterable[int], unknown: set[int]) -> list[int]:
    """Return those of these ranks that wait for no rank, or only for ranks of which the last calls are not known."""
    awaited_by = job.sets_awaited_by
    return [rank_id for rank_id in rank_ids if all(map(unknown.issuperset, awaited_by.get(rank_id, [])))]


def _peers(connection_losses: list[FailureEvent]) -> set[str]:
    """The names or addresses of the hosts at the other end, as in `peer gpu-07<40008>`; empty text for none."""
    return {str(event.peer or "").partition("<")[0] for event in connection_losses}


def _is_one_process(connection_losses: list[FailureEvent]) -> bool:
    """Whether several ranks name one port as the other end: it is of one process, and no host stopped."""
    ends = {str(event.peer or "") for event in connection_losses}
    reporting = {event.rank_id for event in connection_losses}
    return len(ends) == 1 and "<" in ends.pop() and len(reporting) > 1


def _hosts_without_ranks(job: Job, connection_losses: list[FailureEvent]) -> list[str]:
    """Return the hosts to which connections were lost, if all lines name one and no rank of the job is known there."""
    peers = set(map(short_name, _peers(connection_losses)))
    hosts = {short_name(str(row.host)) for row in job.rank_ids.values()}
    are_names = all(peer[:1].isalpha() and ":" not in peer for peer in peers)
    return sorted(peers) if are_names and hosts.isdisjoint(peers) else []


def _lost_on_another_host(job: Job, lost_ranks: list[int], connection_losses: list[FailureEvent]) -> Explanation | None:
    """Answer where connections to a host were lost, and none of its ranks is one that the others wait for."""
    if not lost_ranks:
        return None
    reason = (
        f"other ranks lost their connections to the host of {job.names(lost_ranks)}, where a process ended; these logs "
        "do not show which, and they may end before that"
    )
    return one_of_these_died(job, lost_ranks, reason, "failure", connection_losses[:3])


def one_of_these_died(job: Job, rank_ids: list[int], reason: str, what: str, rows: Iterable[Placed]) -> Explanation:
    """Answer that a process ended, and that nothing shows which of these; cite the rows as `what`."""
    collect = [f"collect the exit codes of {job.names(rank_ids)}, and the end of their logs"]
    between = [Alternative(Kind.RANK_DIED, [rank_id], "it ended before the others") for rank_id in rank_ids]
    return undecided(reason, collect, between=between).add_evidence(**{what: rows})


def _are_whole_hosts(job: Job, rank_ids: list[int]) -> bool:
    """Whether these are all ranks of their hosts, and no rank without a log lies between them: then a host stopped."""
    numbers: dict[str, list[int]] = defaultdict(list)
    for rank_id in rank_ids:
        numbers[job.rank_ids[rank_id].host] += job.rank_numbers([rank_id])
    spans = [(min(found), max(found)) for found in numbers.values() if found]
    is_split = any(first < absent < last for first, last in spans for absent in job.absent)
    return not is_split and job.ranks_on_hosts_of(rank_ids) == set(rank_ids)


def _single_rank_beside_hosts(job: Job, culprits: list[int]) -> list[int]:
    """Return the rank of another host, one call behind, where all else that stopped are whole hosts of several ranks.

    That it stopped by itself as they did would be a coincidence; that its last line was lost is none.
    """
    host_of = {rank_id: row.host for rank_id, row in job.rank_ids.items()}
    on_host, stopped = Counter(host_of.values()), Counter(host_of[rank_id] for rank_id in culprits)
    others = [rank_id for rank_id in culprits if not 1 < on_host[host_of[rank_id]] == stopped[host_of[rank_id]]]
    return others if len(others) == 1 < len(culprits) and job.lag(others) == 1 else []


def _torn_behind_their_calls(job: Job, culprits: list[int]) -> list[int]:
    """Return the ranks one call behind with lines that cannot be read, and NCCL's last line is not that of a call.

    The line of that call may be among these; where the file of another rank ends with a call, none was lost behind it.
    """
    torn = [rank_id for rank_id in culprits if job.count_lines(rank_id, "damaged", "unrecognised")]
    torn = [rank_id for rank_id in torn if not _ends_with_a_call(job, rank_id)]
    return torn if 0 < len(torn) < len(culprits) and job.lag(torn) == 1 else []


def _ends_with_a_call(job: Job, rank_id: int) -> bool:
    last, call = job.last_line(rank_id), job.last_call(rank_id)
    return call is not None and (call.source, call.line) == (last["source"], last["line"])


def find_waited_for_ranks(job: Job) -> Explanation | None:
    """Find ranks that others wait for and that wait for no rank themselves, or a cycle of waiting ranks."""
    if not job.waits:
        return None
    waits_for_of = job.sets_awaited_by
    culprits = sorted(job.awaited_ranks - waits_for_of.keys())
    if all(edge.kind == "init" for edge in job.awaited_calls):
        return None  # no rank made a call; find_unfinished_init judges what the logs show of init
    left_out = messages_left_out(job) if culprits else {}
    lagging = {rank_id for edge in job.awaited_calls if edge.kind == "collective" for rank_id in edge.waits_for}
    if lagging.intersection(culprits) and (omitting := sorted(left_out.keys() - culprits)):
        besides = f"{job.names(omitting)} went on without a message that another rank waits in"
        return _behind_or_besides(job, culprits, besides, Kind.UNMATCHED, omitting)
    if culprits and (in_cycle := ranks_in_cycles(job)):
        besides = f"of {job.names(in_cycle)} some wait for each other"
        return _behind_or_besides(job, culprits, besides, Kind.DEADLOCK, sorted(in_cycle))
    lack_one = sorted(
        rank_id for rank_id, messages in left_out.items() if len(messages) == 1 and rank_id not in lagging
    )
    lack_more = [rank_id for rank_id in [*culprits, *left_out] if rank_id not in lack_one]
    if not lack_more and len({messages[0] for messages in left_out.values()}) > 1:
        return _one_of_these_left_out(job, lack_one)
    # Where another rank is at fault anyway, the log of one that lacks a single message lost its line.
    strays = (lack_one if lack_more else []) or _single_rank_beside_hosts(job, culprits)
    strays = strays or _torn_behind_their_calls(job, culprits)
    culprits = sorted({*culprits} - {*strays}) or sorted({*lack_more})
    diagnosis = _judge_lagging_ranks(job, culprits) if culprits else judge_cycle(job, waits_for_of)
    if strays:
        lacking = f"the log of {job.names(strays)} lacks one call, too, which may be a lost line"
        diagnosis.doubt(Doubt.SECOND_FAULT, lacking)
    elif len(lack_one) == 1:
        diagnosis.doubt(Doubt.ONLY_LINE_LOST)
    diagnosis = judge_messages_in_order(job, diagnosis) or diagnosis
    diagnosis.victims = sorted(set(waits_for_of) - set(diagnosis.culprits))
    if answer := _find_incomplete_logs(job, diagnosis):
        return answer
    # What stands behind a cut end is not known.
    diagnosis.culprits = [rank_id for rank_id in diagnosis.culprits if rank_id not in job.cut_logs]
    keys = {edge.key for edge in job.awaited_calls if not {*diagnosis.culprits}.isdisjoint(edge.waits_for)}
    if any(job.count_unseen_members(key) for key in keys):
        diagnosis.doubt(Doubt.MEMBER_UNSEEN)
    if any(row.is_inferred for key in keys for row in job.members[key]):
        diagnosis.doubt(Doubt.MEMBERS_INFERRED)
    if keys and all(map(job.holds_several, keys)):
        diagnosis.doubt(Doubt.MEMBERS_GUESSED)
    if len(diagnosis.culprits) > 1 and any(_may_wait_in_a_message(job, rank_id) for rank_id in diagnosis.culprits):
        diagnosis.doubt(Doubt.UNSEEN_MESSAGE)
    if silent := [rank_id for rank_id in diagnosis.culprits if job.visibility[rank_id]["may_hide"]]:
        is_hidden = job.lag(silent) > OFTEN_AHEAD or any(map(job.count_unseen_members, keys))
        diagnosis.doubt(Doubt.CALLS_HIDDEN if is_hidden else Doubt.CALLS_NOT_LOGGED)
    if any(job.may_lack_lines(rank_id) for rank_id in diagnosis.culprits):
        diagnosis.doubt(Doubt.LINES_MISSING)
    if open_answer := doubt_left_out_calls(job, diagnosis):
        return open_answer
    return exclude_waiting_for_absent(job, diagnosis) or diagnosis


def _may_wait_in_a_message(job: Job, rank_id: int) -> bool:
    """Whether a rank exchanged messages with a peer that is not known: it may wait for that one in one of them."""
    own = [row.key for row in job.memberships if row.rank_id == rank_id]
    keys = [key for key in own if job.holds_several(key) or job.count_unseen_members(key)]
    calls = job.calls_of(rank_id).filter(pl.col("key").is_in(keys))
    return bool(job.names_of(calls.unique("call_line")).is_in(MESSAGES).any())


def _find_incomplete_logs(job: Job, diagnosis: Explanation) -> Explanation | None:
    """Answer where the logs of the culprits end early, or lack lines: a call that is missing there proves nothing."""
    culprits, names = diagnosis.culprits, job.names(diagnosis.culprits)
    cut = sorted(job.cut_logs)
    incomplete: dict[str, tuple[Sequence[int], list[str]]] = {
        "the last lines of these files have no end: the last calls may be lost in a buffer": (
            cut if len(cut) > MAJORITY * len(job.rank_ids) else [],
            COLLECT_UNBUFFERED,
        ),
        f"the others wait for {names}, but that log ends inside a line: it lacks what came next": (
            culprits if set(cut).issuperset(culprits) else [],
            COLLECT_UNBUFFERED,
        ),
        "equal lines were printed once for all ranks": (
            [rank_id for rank_id in culprits if job.count_lines(rank_id, "dropped")],
            COLLECT_EVERY_LINE,
        ),
    }
    for reason, (rank_ids, collect) in incomplete.items():
        if rank_ids:
            reason = f"{reason}, so a missing call proves nothing"
            last_lines = map(job.last_line, rank_ids[:3])
            return undecided(reason, collect, diagnosis, unless="these logs lack no call", context=last_lines)
    return None


def _one_of_these_left_out(job: Job, ranks: list[int]) -> Explanation:
    """Answer where several ranks went on behind one message each that others wait in: one loss explains all but one."""
    names = job.names(ranks)
    reason = (
        f"each of {names} went on without one message that another rank waits in: a line may be lost from all but one"
    )
    others = f"lines are lost from the logs of the others of {names}"
    between = [Alternative(Kind.UNMATCHED, [rank_id], others) for rank_id in ranks]
    last_lines = map(job.last_line, ranks[:3])
    return undecided(reason, [stacks_of(names)], between=between, context=last_lines)


def _behind_or_besides(job: Job, lagging: list[int], besides: str, kind: Kind, ranks: list[int]) -> Explanation:
    """Answer where some ranks are behind, and another fault stands beside it, which they do not cause."""
    names = job.names(lagging)
    reason = (
        f"the others wait for {names}, but {besides}, which {names} does not cause: a line of a call may be lost from "
        "one of these logs"
    )
    between = [
        Alternative(Kind.LAGGING, lagging, "a line is lost from a log of the others"),
        Alternative(kind, ranks, f"a line is lost from the log of {names}"),
    ]
    last_lines = map(job.last_line, lagging[:3])
    return undecided(reason, [stacks_of(names)], between=between, context=last_lines)


def _judge_lagging_ranks(job: Job, culprits: list[int]) -> Explanation:
    diagnosis = Explanation(Kind.LAGGING, "", culprits=culprits)
    edge = cite_first_missing_call(job, diagnosis)
    if edge is not None and edge.kind in ("send", "recv"):
        counterpart = "Recv" if edge.kind == "send" else "Send"
        diagnosis.verdict = Kind.UNMATCHED
        diagnosis.claim = f"never called the {counterpart} that matches this {edge.kind.capitalize()}"
    else:
        diagnosis.claim = "did not make the call that the others are in, and waited for no other rank"
    diagnosis.add_evidence(culprit=[job.last_call(rank_id) or job.last_line(rank_id) for rank_id in culprits[:4]])
    return diagnosis


def cite_first_missing_call(job: Job, diagnosis: Explanation) -> Edge | None:
    """Set the diagnosis' call to the first one in program order that a culprit lacks; cite the waiting ranks."""
    culprits = set(diagnosis.culprits)
    # Of every call that a culprit lacks: the first edge to one of them.
    edges = [
        (first, edge)
        for edge in job.awaited_calls
        if (first := min(culprits.intersection(edge.waits_for), key=job.order_of, default=None)) is not None
    ]
    edges.sort(key=lambda item: (job.order_of(item[0]), job.order_of(item[1].waiter), item[1].pos))
    if not edges:
        return None
    missing_calls = {
        (job.communicator_index.get((rank_id, edge.key)), edge.nth)
        for edge in job.awaited_calls
        if edge.kind == "collective"
        for rank_id in culprits.intersection(edge.waits_for)
    }
    unique_edges: dict[tuple[str, str, int], Edge] = {}
    for _, edge in edges:
        unique_edges.setdefault(edge.call, edge)
    first_edge = min(
        unique_edges.values(),
        key=lambda edge: (edge.kind == "init", _count_earlier_calls(job, edge, missing_calls), edge.nth, edge.key),
    )
    diagnosis.key = first_edge.key
    cited_edges = [
        edge for edge in job.waits if edge.call == first_edge.call and not culprits.isdisjoint(edge.waits_for)
    ]
    diagnosis.add_evidence(waiting=cited_edges[:3])
    rows = job.describe(job.calls.filter(pl.col("pos") == first_edge.pos))
    diagnosis.call = rows[0] if rows else None
    return first_edge


def _count_earlier_calls(job: Job, edge: Edge, missing_calls: set[tuple[int | None, int]]) -> int:
    """Count the missing calls that the waiter made before this one, on its communicators of the same index.

    A rank of another tensor-parallel group made its own group's call before the one that it waits in.
    """
    earlier_calls = job.calls_of(edge.waiter).filter(
        (pl.col("pos") < edge.pos) & pl.col("nth").is_in(sorted({nth for _, nth in missing_calls}))
    )
    calls_made = {
        (job.communicator_index.get((edge.waiter, key)), nth)
        for key, nth in earlier_calls.select("key", "nth").iter_rows()
    }
    return len(missing_calls & calls_made)
