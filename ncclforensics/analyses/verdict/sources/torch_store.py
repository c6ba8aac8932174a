"""Judge how ranks met, or did not, at the store of PyTorch: by its count of clients, and by keys that were awaited."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import islice
from operator import itemgetter

from ncclforensics.analyses.job.text.torch_text import NO_STORE, RENDEZVOUS, STORE, StoreError, TorchError
from ncclforensics.analyses.verdict.doubts import Doubt
from ncclforensics.analyses.verdict.explanation import Explanation, undecided
from ncclforensics.analyses.verdict.job import Job
from ncclforensics.analyses.verdict.sources.torch_text import silent_ranks
from ncclforensics.analyses.verdict.vocabulary import Kind
from ncclforensics.data.names import count_of, ranks_text
from ncclforensics.data.variables import COLLECT_OUTPUT, stacks_of

LIST_SERVERS = "list, on the host of the store, the process that has the port (MASTER_PORT): `ss -ltnp`"
SHOWN_GROUPS = 4
MOST_CLIENTS = 1 << 20
MAPPED = "::ffff:"  # in front of an address of IPv4 at a socket of IPv6
NOT_OF_INIT = ("program", "waited")  # errors of the store that come at any time
UNREACHED = ("server", "server_logged")  # those of clients that did not reach its server
COMPARE_STARTS = (
    "compare RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT of all processes, and when each was started:"
    " `tr '\\0' '\\n' < /proc/PID/environ | grep -E 'RANK|WORLD|MASTER'`"
)


def find_missing_clients(job: Job) -> Explanation | None:
    """Find processes that never came to the store, by its own count of clients or as the address that it lacks."""
    counts = [
        (row.joined, row.expected_clients, row)
        for row in job.store_errors
        if row.joined is not None and row.expected_clients is not None
    ]
    if not counts:
        return _find_missing_address(job)
    joined, expected, row = max(counts, key=itemgetter(0))
    rows, lacking = [row for *_, row in counts], expected - joined
    at_rendezvous = {(row.source, row.line) for row in job.torch_errors if row.call == RENDEZVOUS}
    if (row.source, row.line) in at_rendezvous:
        reason = (
            f"{count_of(joined, 'node')} of {expected} came to the store of torchrun's rendezvous: the ranks of the "
            "others were never started, and no line that was read shows which these are"
        )
        diagnosis = job.explanation_by(Kind.RANK_MISSING, reason, [], Doubt.OTHER_TEXT)
        diagnosis.collect = ["look on every node whether torchrun was started, and with the same --master-addr"]
        return job.cite(diagnosis, waiting=rows)
    if (unreached := _find_unreached(job, lacking)) is not None:
        return job.cite(unreached, waiting=rows)
    shown_ranks = {rank.rank for rank in job.rank_ids.values()} - {None}
    suspects = sorted(set(range(expected)) - shown_ranks) if expected < MOST_CLIENTS else []
    is_named = len(suspects) == lacking
    if is_named:
        reason = f"never came to the store of the process group: {joined} of {expected} processes did"
    else:
        reason = f"{lacking} of {expected} processes never came to the store; no line that was read shows which"
    diagnosis = job.explanation_by(Kind.RANK_MISSING, reason, suspects if is_named else [], Doubt.OTHER_TEXT)
    if not is_named and suspects:
        diagnosis.collect = [f"collect the output of {ranks_text(suspects)}, which these files lack"]
    return job.cite(diagnosis, waiting=rows)


def _find_unreached(job: Job, lacking: int) -> Explanation | None:
    """Find the processes that the store lacks among those that say that they did not reach it.

    They are at fault where they asked at another port than the others; else the store was served too late for them, or
    their hosts do not reach it.
    """
    rows = [row for row in job.store_errors if row.form in UNREACHED]
    absent = _ranks_of(job, rows)
    if len(absent) != lacking:
        return None
    others = [row for row in job.store_errors if row.form == "waited"]
    place, ports = _places(rows), {row.port for row in others}
    if ports and ports.isdisjoint(row.port for row in rows):
        reason = f"asked for the store at {place}, and the others found it at {_places(others)}"
        diagnosis = job.explanation_by(Kind.RANK_MISSING, reason, absent, Doubt.OTHER_TEXT)
    else:
        reason = (
            f"{ranks_text(absent)} did not reach the store at {place}: rank 0, which serves it, came too late for them,"
            " or their hosts do not reach it"
        )
        diagnosis = job.explanation_by(Kind.INIT_INCOMPLETE, reason, [], Doubt.OTHER_TEXT)
    diagnosis.collect = [COMPARE_STARTS]
    return job.cite(diagnosis, failure=rows)


def _places(rows: Iterable[StoreError]) -> str:
    return " and ".join(sorted({f"{(row.server or '').removeprefix(MAPPED)}:{row.port}" for row in rows}))


def _ranks_of(job: Job, rows: Iterable[StoreError | TorchError]) -> list[int]:
    """Return the ranks that print these errors."""
    lines = {(row.source, row.line) for row in rows}
    errors = [row for row in job.torch_errors if (row.source, row.line) in lines]
    return sorted({row.rank for row in errors if row.rank is not None})


def _find_missing_address(job: Job) -> Explanation | None:
    """Find the ranks whose address others waited for in the store: the first of those that did not come.

    All ranks of a process group wait for it. Where some were past the store, one that waits counts other ranks than
    they do, or lost its connection to one that failed before. Rank 0 serves the store and waits there for all ranks
    before it gives its address (TCPStore with wait_for_workers, torch 1.8 to 2.15).
    """
    rows = [row for row in job.store_errors if row.awaited_rank is not None]
    errors = job.torch_errors
    awaited = sorted({row.awaited_rank for row in rows if row.awaited_rank is not None} - {row.rank for row in errors})
    if not awaited:
        return None
    past = _ranks_of(job, [row for row in errors if row.kind not in (STORE, NO_STORE)])
    waiting_ranks = _ranks_of(job, rows)
    waiting = ranks_text(waiting_ranks) or "a rank"
    silent = sorted({*silent_ranks(job, waiting_ranks)}.difference(awaited))
    failed = {row.rank for row in job.torch_sources if row.last_traceback is not None}
    if past:
        reason = (
            f"{waiting} waited in the store for the address of {ranks_text(awaited)}, and {ranks_text(past)} did not:"
            " they were started with different values of WORLD_SIZE or RANK, or one failed before the others met it"
        )
        diagnosis = job.explanation_by(Kind.INIT_INCOMPLETE, reason, [], Doubt.OTHER_TEXT, collect=[COMPARE_STARTS])
    elif awaited == [0] and (silent or 0 in failed):
        reason = f"{waiting} waited in the store for the address of rank 0, which first waits there for all ranks"
        diagnosis = job.explanation_by(Kind.INIT_INCOMPLETE, reason, [], Doubt.OTHER_TEXT)
        diagnosis.collect = [f"collect the output of {ranks_text([0, *silent])} to its end"]
    else:
        reason = "did not come to the process group of all ranks, which waited in the store for its address"
        diagnosis = job.explanation_by(Kind.RANK_MISSING, reason, awaited, Doubt.OTHER_TEXT)
        diagnosis.collect = [stacks_of(ranks_text(awaited)), f"collect the output of {ranks_text(awaited)}"]
    return job.cite(diagnosis, waiting=rows)


def find_rendezvous(job: Job) -> Explanation | None:
    """Find ranks that waited in the store for a key, or could not connect to it."""
    rows = job.store_errors
    if not rows:
        return None
    unreachable = [row for row in rows if row.form in UNREACHED]
    collect = list(COLLECT_OUTPUT)
    waiting = sorted({row.rank for row in job.torch_errors if row.rank is not None})
    if all(row.form in NOT_OF_INIT for row in rows):
        key = next((row.program_key for row in rows if row.program_key), None)
        what = f"for the key {key} in the store, which the program sets"
        if key is None:
            what = f"at the store at {rows[0].server}:{rows[0].port}, and no line that was read says for what"
        reason = f"{ranks_text(waiting) or 'ranks'} waited in vain {what}"
        silent = silent_ranks(job, waiting)
        answer = undecided(reason, COLLECT_OUTPUT, suspects=silent if len(silent) == 1 else [])
        return job.cite(answer, waiting=rows)
    if unreachable:
        place = f"{unreachable[0].server}:{unreachable[0].port}"
        reason = (
            f"the store of the process group at {place} did not answer: rank 0, which serves it, is not there, or the"
            " address is not reachable"
        )
        collect.insert(0, f"list what listens on {unreachable[0].server}: `ss -ltnp | grep {unreachable[0].port}`")
    elif all(row.form == "no_connection" for row in rows):
        reason = "the store of the rendezvous did not answer: no server there, or it is not reachable"
    elif any(row.form == "other_service" for row in rows):
        reason = "another program than PyTorch's store answers at its address, such as a server or a proxy"
        collect.insert(0, LIST_SERVERS)
    elif any(row.form == "port_taken" for row in rows):
        reason = "the port of the store is taken by another process, mostly one of an earlier run"
        collect.insert(0, LIST_SERVERS)
    elif any(row.form == "no_port" for row in rows):
        reason = "the process that serves the store could not listen on its port"
        collect.insert(0, LIST_SERVERS)
    elif by_group := _waits_in_groups(job, rows):
        reason = "; ".join(by_group)
        if len(by_group) > 1:
            reason += ": ranks that create their process groups in different orders wait like this"
        collect.insert(0, "compare in which order each rank calls new_group: all ranks call it for all groups alike")
    else:
        reason = (
            f"{ranks_text(waiting) or 'ranks'} waited in the store for a key that another rank sets; rank 0 sets ids"
        )
    is_refused = any(row.form in ("port_taken", "no_port") for row in rows)
    verdict = Kind.INIT_FAILED if is_refused else Kind.INIT_INCOMPLETE
    diagnosis = job.explanation_by(verdict, reason, [], Doubt.OTHER_TEXT, collect=collect)
    in_order = sorted(rows, key=lambda row: row.form == "waited")
    return job.cite(diagnosis, waiting=unreachable or in_order)


def _waits_in_groups(job: Job, rows: list[StoreError]) -> list[str]:
    """Say for which member of which process group ranks waited in the store, for each of the first groups."""
    waits: dict[tuple[int, int], list[StoreError]] = defaultdict(list)
    for row in rows:
        if row.awaited_group is not None and row.awaited_member is not None:
            waits[row.awaited_group, row.awaited_member].append(row)
    return [
        f"{ranks_text(_ranks_of(job, of_group)) or 'ranks'} waited in the store for member {member} of process group"
        f" {group}"
        for (group, member), of_group in islice(sorted(waits.items()), SHOWN_GROUPS)
    ]
