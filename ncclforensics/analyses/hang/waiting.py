"""Who died, who is waited for, who waits in a circle; and whether these logs could show a hang at all."""

from __future__ import annotations

from collections import defaultdict

import polars as pl

from ncclforensics.analyses.hang.job import Case, Diagnosis, Row
from ncclforensics.analyses.job.failure_events import AFTER, HARD, LOST, NETWORK
from ncclforensics.analyses.job.process_exits import CAPTURE, EXIT, SIGNAL, ended_text, weighed
from ncclforensics.data.names import ranks_text
from ncclforensics.data.processes import ABORT
from ncclforensics.data.variables import COLLECT_CALLS, COLLECT_EVERY_LINE, COLLECT_UNBUFFERED

MANY = 0.5
MODELLED = 4  # culprits, and models of each, that are looked at


def _graph(case: Case) -> tuple[dict[int, set[int]], dict[int, set[int]]]:
    """For every rank those it waits for, and those that wait for it."""
    out: dict[int, set[int]] = defaultdict(set)
    into: dict[int, set[int]] = defaultdict(set)
    for edge in case.waits:
        out[edge["waiter"]].add(edge["waits_for"])
        into[edge["waits_for"]].add(edge["waiter"])
    return out, into


def ended_first(case: Case) -> Diagnosis | None:
    """A process of which its launcher, the kernel or its own last words say that it ended, before any other did."""
    staying = {row["rank_id"] for row in case.memberships if row["end"] is None}
    left = {row["rank_id"] for row in case.memberships} - staying
    ends = [row for row in case.process_exits if row["is_first"] and row["is_final"] and row["rank_id"] is not None]
    ends = [row for row in weighed(ends) if row["rank_id"] not in left]
    telling = [row for row in ends if row["how"] != EXIT] or ends
    culprits = sorted({row["rank_id"] for row in telling})
    if not culprits or len(culprits) == len(case.rank_ids):
        return None  # all of them: whoever ended the job ended them, or they share a fault that made none wait
    diagnosis = Diagnosis("rank-died", ended_text(telling[0]), culprits=culprits)
    diagnosis.victims = [rank_id for rank_id in case.rank_ids if rank_id not in culprits]
    if telling[0]["how"] == EXIT or len(culprits) > 1:
        diagnosis.doubt("likely")
    diagnosis.show("culprit", telling[:4])
    _show_first_edge(case, diagnosis)
    lost = [t for t in case.failure_events if t["kind"] == LOST and not t["at_exit"] and t["rank_id"] not in culprits]
    diagnosis.show("failure", lost[:3])
    return diagnosis


def died(case: Case) -> Diagnosis | None:
    """A process that went away without a word, while others lost their connection to it."""
    lost = [t for t in case.failure_events if t["kind"] == LOST and not t["at_exit"]]
    never_complete = [key for key, rows in case.members.items() if not any(row["is_complete"] for row in rows)]
    if not lost or any(case.unseen(key) for key in never_complete):
        return None  # where a rank never came to init, the deaths are the launcher's work
    out, into = _graph(case)
    spoke = {t["rank_id"] for t in case.failure_events}
    left = {row["rank_id"] for row in case.memberships if row["end"] is not None}
    silent = [rank_id for rank_id in case.rank_ids if rank_id not in spoke and rank_id not in left]
    named = {t["names"] for t in lost} & set(silent)
    awaited = [rank_id for rank_id in silent if rank_id in into and not out.get(rank_id)]
    culprits = sorted(named) or awaited or (silent if len(silent) < MANY * len(case.rank_ids) else [])
    if not culprits:
        return None
    remote = [t for t in lost if t["form"] != "local_closed"]
    if not named and not remote:
        return None
    diagnosis = Diagnosis(
        "rank-died", "fell silent without an error of its own, and others lost their connection to it", "likely"
    )
    diagnosis.culprits = culprits
    diagnosis.victims = [rank_id for rank_id in case.rank_ids if rank_id not in culprits]
    _show_first_edge(case, diagnosis)
    diagnosis.show("culprit", [case.last_line(rank_id) for rank_id in culprits[:4]])
    diagnosis.show("failure", [t for t in lost if t["names"] in culprits][:3] or lost[:3])
    return diagnosis


def waiting(case: Case) -> Diagnosis | None:
    """Somebody is waited for: the one who waits for nobody, or all who wait in a circle."""
    out, into = _graph(case)
    if not into:
        return None
    culprits = sorted(rank_id for rank_id in into if not out.get(rank_id))
    diagnosis = _lagging(case, culprits) if culprits else _circle(case, out)
    diagnosis.victims = sorted(set(out) - set(diagnosis.culprits))
    cut = [rank_id for rank_id in case.rank_ids if case.process(rank_id)["is_cut"]]
    if len(cut) > MANY * len(case.rank_ids):
        reason = "the files end inside a line: their last calls were lost in a buffer, so their absence proves nothing"
        return _unproven(case, diagnosis, reason, cut, COLLECT_UNBUFFERED)
    dropped = [rank_id for rank_id in diagnosis.culprits if case.lost_lines(rank_id)]
    if dropped:
        reason = "lines that are alike were printed once for all ranks: that a rank shows no call proves nothing"
        return _unproven(case, diagnosis, reason, dropped, COLLECT_EVERY_LINE)
    keys = {w["key"] for w in case.waits if w["waits_for"] in diagnosis.culprits}
    if any(case.unseen(key) for key in keys):
        diagnosis.doubt("likely")
    if any(row["is_inferred"] for key in keys for row in case.members[key]):
        diagnosis.doubt("likely")
    if any(not case.visibility[rank_id]["calls"] for rank_id in diagnosis.culprits):
        diagnosis.doubt("likely")
    if any(case.is_doubtful(rank_id) for rank_id in diagnosis.culprits):
        diagnosis.doubt("possible")
    if _was_interrupted(case):
        diagnosis.reason += "; the capture was ended before any call had timed out, so it may just have come later"
        diagnosis.doubt("possible")
    unseen = _explained_by_absent(case, diagnosis)
    return unseen or diagnosis


def _was_interrupted(case: Case) -> bool:
    """Whether a capture took down all its ranks, and no call of theirs had failed.

    Over NCCL a call that does not come back fails in PyTorch's watchdog, which aborts the process.
    """
    told = [row for row in case.process_exits if row["reporter"] == CAPTURE and row["signal"] != ABORT]
    return {row["rank_id"] for row in told if row["how"] == SIGNAL and not row["is_first"]} == set(case.rank_ids)


def _unproven(case: Case, diagnosis: Diagnosis, reason: str, rank_ids: list[int], collect: list[str]) -> Diagnosis:
    """In place of an accusation: calls of these ranks may be missing from the logs alone."""
    answer = Diagnosis("undecidable", reason, "likely", victims=diagnosis.victims, collect=collect)
    answer.show("context", [case.last_line(rank_id) for rank_id in rank_ids[:3]])
    return answer


def _lagging(case: Case, culprits: list[int]) -> Diagnosis:
    diagnosis = Diagnosis("lagging-ranks", "", culprits=culprits)
    edge = _show_first_edge(case, diagnosis)
    if edge is not None and edge["kind"] in ("send", "recv"):
        other = "Recv" if edge["kind"] == "send" else "Send"
        diagnosis.verdict = "p2p-unmatched"
        diagnosis.reason = f"never called the {other} that matches this {edge['kind'].capitalize()}"
    else:
        diagnosis.reason = "did not make the call that the others are in, and waited for nobody"
    diagnosis.show("culprit", [row for a in culprits[:4] if (row := case.last_call(a) or case.last_line(a))])
    return diagnosis


def _show_first_edge(case: Case, diagnosis: Diagnosis) -> Row | None:
    """The first call, in the order of the program, that a culprit lacks; it becomes the judgement's operation."""
    edges = [w for w in case.waits if w["waits_for"] in diagnosis.culprits]
    if not edges:
        return None
    expected = {rank_id: _expected(case, rank_id) for rank_id in diagnosis.culprits[:MODELLED]}
    lacking = {(case.roles.get((w["waits_for"], w["key"])), w["nth"]) for w in edges if w["kind"] == "collective"}
    one_of_each: dict[tuple[str, str, int], Row] = {}
    for w in edges:
        one_of_each.setdefault((w["kind"], w["key"], w["nth"]), w)
    first = min(
        one_of_each.values(),
        key=lambda w: (not _is_expected(case, w, expected), _made_before(case, w, lacking), w["nth"] or 0, w["key"]),
    )
    diagnosis.key = first["key"]
    lines = [w for w in edges if (w["key"], w["nth"], w["kind"]) == (first["key"], first["nth"], first["kind"])]
    diagnosis.show("waiting", [{**w, "rank_id": w["waiter"]} for w in lines[:3]])
    rows = case.told(case.calls.filter(pl.col("pos") == first["pos"]))
    diagnosis.call = rows[0] if rows else None
    return first


def _expected(case: Case, rank_id: int) -> Row | None:
    """What a rank would have called next: what another member of one of its communicators did after the same call.

    The model is a rank that made the culprit's last call, too, at the same place and on the same communicator.
    """
    last = case.last_call(rank_id)
    if last is None:
        return None
    same = (pl.col("key") == last["key"]) & (pl.col("ordinal") == last["ordinal"]) & (pl.col("rank_id") != rank_id)
    models = [model for model in case.told(case.calls.filter(same)) if model["name"] == last["name"]]
    for model in models[:MODELLED]:
        after = case.told(case.calls_of(model["rank_id"]).filter(pl.col("pos") > model["pos"]).head(1))
        if after and any(row["rank_id"] == rank_id for row in case.members[after[0]["key"]]):
            return after[0]
        if after:
            return {**after[0], "role": case.roles.get((model["rank_id"], after[0]["key"]))}
    return None


def _is_expected(case: Case, edge: Row, expected: dict[int, Row | None]) -> bool:
    call = expected.get(edge["waits_for"])
    if call is None:
        return False
    if "role" not in call:
        same_communicator = bool(edge["key"] == call["key"])
    else:
        same_communicator = case.roles.get((edge["waits_for"], edge["key"])) == call["role"]
    if call["nth"] is None or edge["kind"] != "collective":
        return same_communicator and (call["nth"] is None) == (edge["kind"] != "collective")
    return same_communicator and edge["nth"] == call["nth"]


def _made_before(case: Case, edge: Row, lacking: set[tuple[int | None, int]]) -> int:
    """How many of the lacking calls the waiter made before this one, on its own communicator of the same role.

    A rank of another tensor-parallel group has made the group's call, too, before it came to the one it waits in.
    """
    mine = case.calls_of(edge["waiter"]).filter(
        (pl.col("pos") < edge["pos"]) & pl.col("nth").is_in(sorted({nth for _, nth in lacking}))
    )
    made = {(case.roles.get((edge["waiter"], key)), nth) for key, nth in mine.select("key", "nth").iter_rows()}
    return len(lacking & made)


def _circle(case: Case, out: dict[int, set[int]]) -> Diagnosis:
    """Ranks that wait for one another, on different communicators or as senders and receivers."""
    inside = _terminal_circle(out)
    first = {
        rank_id: min(
            (w for w in case.waits if w["waiter"] == rank_id and w["waits_for"] in inside), key=lambda w: w["pos"]
        )
        for rank_id in inside
    }
    groups: dict[int | None, list[int]] = defaultdict(list)
    for rank_id, edge in first.items():
        groups[case.roles.get((rank_id, edge["key"]))].append(rank_id)
    sizes = sorted(groups.values(), key=len)
    if len(groups) > 1:
        culprits = sizes[0] if len(sizes[0]) < len(sizes[-1]) else sorted(inside)
        diagnosis = Diagnosis("cross-communicator-deadlock", "", culprits=sorted(culprits))
        diagnosis.reason = "used the communicators in another order than the others: each side waits for the other"
    else:
        diagnosis = Diagnosis("p2p-unmatched", "", culprits=sorted(inside))
        diagnosis.reason = "waited for one another in Send and Recv: nobody posted the matching call first"
    few = [first[rank_id] for rank_id in diagnosis.culprits]
    many = [first[rank_id] for rank_id in inside if rank_id not in diagnosis.culprits] or few[1:]
    diagnosis.key = (many or few)[0]["key"]
    rows = case.told(case.calls.filter(pl.col("pos") == (many or few)[0]["pos"]))
    diagnosis.call = rows[0] if rows else None
    diagnosis.show("minority", [{**w, "rank_id": w["waiter"]} for w in few[:4]])
    diagnosis.show("majority", [{**w, "rank_id": w["waiter"]} for w in many[:2]])
    return diagnosis


def _terminal_circle(out: dict[int, set[int]]) -> set[int]:
    """The ranks that can be reached from one another and wait for nobody outside."""
    reach: dict[int, set[int]] = {}
    for rank_id in out:
        seen: set[int] = set()
        todo = [rank_id]
        while todo:
            for other in out.get(todo.pop(), set()) - seen:
                seen.add(other)
                todo.append(other)
        reach[rank_id] = seen
    smallest = min(reach.values(), key=len)
    return {rank_id for rank_id in smallest if reach[rank_id] == smallest} or smallest


def _explained_by_absent(case: Case, diagnosis: Diagnosis) -> Diagnosis | None:
    """Culprits that may themselves wait for a rank whose log was not given."""
    suspects: dict[str, list[int]] = defaultdict(list)
    for rank_id in diagnosis.culprits:
        last = case.last_call(rank_id)
        if last is None or not case.unseen(last["key"]):
            return None
        suspects[last["key"]].append(rank_id)
    if diagnosis.verdict != "lagging-ranks" or not suspects:
        return None
    key = next(iter(suspects))
    absent = case.absent
    names = ranks_text(absent) or "members that are not numbered"
    answer = Diagnosis("undecidable", "", "likely", victims=sorted(set(case.rank_ids)), key=key)
    answer.reason = (
        f"{ranks_text(case.numbers(diagnosis.culprits))} hold the others up, but their own last call is on a "
        f"communicator with members that no log shows ({names}): they may wait for those"
    )
    answer.collect = [f"the log of {names}"]
    answer.call, answer.evidence_lines = diagnosis.call, diagnosis.evidence_lines
    return answer


def all_alike_in_trouble(case: Case) -> Diagnosis | None:
    """All made the same calls, and yet there are signs that they did not finish."""
    signs = [t for t in case.failure_events if t["kind"] in (HARD, NETWORK, LOST) and not t["at_exit"]]
    aborted = [row for row in case.memberships if row["end"] in ("Abort", "Revoke")]
    if not signs and not aborted:
        return None
    hard = [t for t in signs if t["kind"] == HARD]
    shown = hard or signs
    if not case.calls.height:
        what = "a rank met a fault of its own" if hard else "connections failed"
        reason = f"{what}; no calls are in these logs, so what that stopped is not visible"
        diagnosis = Diagnosis("undecidable", reason, "likely", collect=COLLECT_CALLS)
    else:
        diagnosis = Diagnosis(
            "stuck-together", "all ranks made the same calls, and then the transport or a GPU failed", "likely"
        )
    diagnosis.culprits = (
        sorted({t["rank_id"] for t in hard if t["rank_id"] is not None}) if len(hard) < len(case.rank_ids) else []
    )
    diagnosis.victims = [rank_id for rank_id in case.rank_ids if rank_id not in diagnosis.culprits]
    last = max(case.told(case.calls.tail(1)), key=lambda row: row["pos"], default=None)
    diagnosis.key, diagnosis.call = (last["key"], last) if last else (None, None)
    diagnosis.show("failure", shown[:4])
    diagnosis.show("context", [{**row, "source": row["end_source"], "line": row["end_line"]} for row in aborted[:2]])
    return diagnosis


def invisible(case: Case) -> Diagnosis | None:
    """Logs without any call line can show neither a hang nor its absence, unless all communicators were destroyed."""
    showing = [row for row in case.visibility.values() if row["calls"]]
    alone = case.memberships and all(row["nranks"] == 1 for row in case.memberships)
    if case.is_finished or alone or len(showing) > MANY * len(case.rank_ids):
        return None
    how_many = "no rank's log" if not showing else f"only {len(showing)} of {len(case.rank_ids)} ranks' logs"
    diagnosis = Diagnosis(
        "undecidable", f"init came to its end, and {how_many} shows calls: what came after is not visible"
    )
    if not case.memberships:
        diagnosis.reason = "these logs show no communicator and no call"
    diagnosis.collect = COLLECT_CALLS
    return diagnosis


def returned_an_error(case: Case) -> Diagnosis | None:
    """All made the same calls, and then one came back with an error that no failure explains."""
    late = [
        failure_event
        for failure_event in case.failure_events
        if failure_event["form"] == "unwinding"
        and not failure_event["at_exit"]
        and failure_event["rank_id"] is not None
        if (last := case.last_call(failure_event["rank_id"])) is not None and failure_event["pos"] > last["pos"]
    ]
    if not late:
        return None
    who = ranks_text(case.numbers(sorted({failure_event["rank_id"] for failure_event in late})))
    reason = f"all ranks made the same calls, and then NCCL returned an error to {who}; what came of it is not here"
    diagnosis = Diagnosis("undecidable", reason, "likely", collect=[f"what the program of {who} printed"])
    diagnosis.show("failure", late[:2])
    return diagnosis


def partly_seen(case: Case) -> Diagnosis | None:
    """The ranks seen agree, but the logs name others; and nobody came to the end of the run."""
    if not case.absent or any(row["end"] == "Destroy" for row in case.memberships):
        return None
    absent = ranks_text(case.absent)
    reason = f"the ranks seen made the same calls and none failed, but no log of {absent} was given"
    diagnosis = Diagnosis("undecidable", reason, "likely", collect=[f"the log of {absent}"])
    diagnosis.show(
        "context", [row for rank_id in list(case.rank_ids)[:2] if (row := case.last_call(rank_id)) is not None]
    )
    return diagnosis


def nothing_wrong(case: Case) -> Diagnosis:
    """All ranks made the same calls, none failed: the logs simply end."""
    reason = (
        "every rank destroyed its communicators: the run came to its end"
        if case.is_finished
        else "all ranks made the same calls and none failed; a log that simply ends is not a hang"
    )
    answer = Diagnosis("no-hang", reason, "certain" if case.is_finished else "likely")
    if any(t["kind"] == AFTER for t in case.failure_events) or case.absent:
        answer.doubt("likely")
    return answer
