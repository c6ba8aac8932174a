"""Who died, who is waited for, who waits in a circle; and whether these logs could show a hang at all."""

from __future__ import annotations

from collections import defaultdict

import polars as pl

from ncclforensics.analyses.hang.job import Case, Judgement, Row
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


def ended_first(case: Case) -> Judgement | None:
    """A process of which its launcher, the kernel or its own last words say that it ended, before any other did."""
    staying = {row["actor"] for row in case.seats if row["end"] is None}
    left = {row["actor"] for row in case.seats} - staying
    ends = [row for row in case.deaths if row["is_first"] and row["is_final"] and row["actor"] is not None]
    ends = [row for row in weighed(ends) if row["actor"] not in left]
    telling = [row for row in ends if row["how"] != EXIT] or ends
    culprits = sorted({row["actor"] for row in telling})
    if not culprits or len(culprits) == len(case.actors):
        return None  # all of them: whoever ended the job ended them, or they share a fault that made none wait
    judgement = Judgement("rank-died", ended_text(telling[0]), culprits=culprits)
    judgement.victims = [actor for actor in case.actors if actor not in culprits]
    if telling[0]["how"] == EXIT or len(culprits) > 1:
        judgement.doubt("likely")
    judgement.show("culprit", telling[:4])
    _show_first_edge(case, judgement)
    lost = [t for t in case.troubles if t["kind"] == LOST and not t["at_exit"] and t["actor"] not in culprits]
    judgement.show("failure", lost[:3])
    return judgement


def died(case: Case) -> Judgement | None:
    """A process that went away without a word, while others lost their connection to it."""
    lost = [t for t in case.troubles if t["kind"] == LOST and not t["at_exit"]]
    never_complete = [key for key, rows in case.members.items() if not any(row["is_complete"] for row in rows)]
    if not lost or any(case.unseen(key) for key in never_complete):
        return None  # where a rank never came to init, the deaths are the launcher's work
    out, into = _graph(case)
    spoke = {t["actor"] for t in case.troubles}
    left = {row["actor"] for row in case.seats if row["end"] is not None}
    silent = [actor for actor in case.actors if actor not in spoke and actor not in left]
    named = {t["names"] for t in lost} & set(silent)
    awaited = [actor for actor in silent if actor in into and not out.get(actor)]
    culprits = sorted(named) or awaited or (silent if len(silent) < MANY * len(case.actors) else [])
    if not culprits:
        return None
    remote = [t for t in lost if t["form"] != "local_closed"]
    if not named and not remote:
        return None
    judgement = Judgement(
        "rank-died", "fell silent without an error of its own, and others lost their connection to it", "likely"
    )
    judgement.culprits = culprits
    judgement.victims = [actor for actor in case.actors if actor not in culprits]
    _show_first_edge(case, judgement)
    judgement.show("culprit", [case.last_line(actor) for actor in culprits[:4]])
    judgement.show("failure", [t for t in lost if t["names"] in culprits][:3] or lost[:3])
    return judgement


def waiting(case: Case) -> Judgement | None:
    """Somebody is waited for: the one who waits for nobody, or all who wait in a circle."""
    out, into = _graph(case)
    if not into:
        return None
    culprits = sorted(actor for actor in into if not out.get(actor))
    judgement = _lagging(case, culprits) if culprits else _circle(case, out)
    judgement.victims = sorted(set(out) - set(judgement.culprits))
    cut = [actor for actor in case.actors if case.process(actor)["is_cut"]]
    if len(cut) > MANY * len(case.actors):
        reason = "the files end inside a line: their last calls were lost in a buffer, so their absence proves nothing"
        return _unproven(case, judgement, reason, cut, COLLECT_UNBUFFERED)
    dropped = [actor for actor in judgement.culprits if case.lost_lines(actor)]
    if dropped:
        reason = "lines that are alike were printed once for all ranks: that a rank shows no call proves nothing"
        return _unproven(case, judgement, reason, dropped, COLLECT_EVERY_LINE)
    keys = {w["key"] for w in case.waits if w["waits_for"] in judgement.culprits}
    if any(case.unseen(key) for key in keys):
        judgement.doubt("likely")
    if any(row["is_inferred"] for key in keys for row in case.members[key]):
        judgement.doubt("likely")
    if any(not case.visible[actor]["calls"] for actor in judgement.culprits):
        judgement.doubt("likely")
    if any(case.is_doubtful(actor) for actor in judgement.culprits):
        judgement.doubt("possible")
    if _was_interrupted(case):
        judgement.reason += "; the capture was ended before any call had timed out, so it may just have come later"
        judgement.doubt("possible")
    unseen = _explained_by_absent(case, judgement)
    return unseen or judgement


def _was_interrupted(case: Case) -> bool:
    """Whether a capture took down all its ranks, and no call of theirs had failed.

    Over NCCL a call that does not come back fails in PyTorch's watchdog, which aborts the process.
    """
    told = [row for row in case.deaths if row["teller"] == CAPTURE and row["signal"] != ABORT]
    return {row["actor"] for row in told if row["how"] == SIGNAL and not row["is_first"]} == set(case.actors)


def _unproven(case: Case, judgement: Judgement, reason: str, actors: list[int], collect: list[str]) -> Judgement:
    """In place of an accusation: calls of these ranks may be missing from the logs alone."""
    answer = Judgement("undecidable", reason, "likely", victims=judgement.victims, collect=collect)
    answer.show("context", [case.last_line(actor) for actor in actors[:3]])
    return answer


def _lagging(case: Case, culprits: list[int]) -> Judgement:
    judgement = Judgement("lagging-ranks", "", culprits=culprits)
    edge = _show_first_edge(case, judgement)
    if edge is not None and edge["kind"] in ("send", "recv"):
        other = "Recv" if edge["kind"] == "send" else "Send"
        judgement.verdict = "p2p-unmatched"
        judgement.reason = f"never called the {other} that matches this {edge['kind'].capitalize()}"
    else:
        judgement.reason = "did not make the call that the others are in, and waited for nobody"
    judgement.show("culprit", [row for a in culprits[:4] if (row := case.last_call(a) or case.last_line(a))])
    return judgement


def _show_first_edge(case: Case, judgement: Judgement) -> Row | None:
    """The first call, in the order of the program, that a culprit lacks; it becomes the judgement's operation."""
    edges = [w for w in case.waits if w["waits_for"] in judgement.culprits]
    if not edges:
        return None
    expected = {actor: _expected(case, actor) for actor in judgement.culprits[:MODELLED]}
    lacking = {(case.roles.get((w["waits_for"], w["key"])), w["nth"]) for w in edges if w["kind"] == "collective"}
    one_of_each: dict[tuple[str, str, int], Row] = {}
    for w in edges:
        one_of_each.setdefault((w["kind"], w["key"], w["nth"]), w)
    first = min(
        one_of_each.values(),
        key=lambda w: (not _is_expected(case, w, expected), _made_before(case, w, lacking), w["nth"] or 0, w["key"]),
    )
    judgement.key = first["key"]
    lines = [w for w in edges if (w["key"], w["nth"], w["kind"]) == (first["key"], first["nth"], first["kind"])]
    judgement.show("waiting", [{**w, "actor": w["waiter"]} for w in lines[:3]])
    rows = case.told(case.calls.filter(pl.col("pos") == first["pos"]))
    judgement.call = rows[0] if rows else None
    return first


def _expected(case: Case, actor: int) -> Row | None:
    """What a rank would have called next: what another member of one of its communicators did after the same call.

    The model is a rank that made the culprit's last call, too, at the same place and on the same communicator.
    """
    last = case.last_call(actor)
    if last is None:
        return None
    same = (pl.col("key") == last["key"]) & (pl.col("ordinal") == last["ordinal"]) & (pl.col("actor") != actor)
    models = [model for model in case.told(case.calls.filter(same)) if model["name"] == last["name"]]
    for model in models[:MODELLED]:
        after = case.told(case.calls_of(model["actor"]).filter(pl.col("pos") > model["pos"]).head(1))
        if after and any(row["actor"] == actor for row in case.members[after[0]["key"]]):
            return after[0]
        if after:
            return {**after[0], "role": case.roles.get((model["actor"], after[0]["key"]))}
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


def _circle(case: Case, out: dict[int, set[int]]) -> Judgement:
    """Ranks that wait for one another, on different communicators or as senders and receivers."""
    inside = _terminal_circle(out)
    first = {
        actor: min((w for w in case.waits if w["waiter"] == actor and w["waits_for"] in inside), key=lambda w: w["pos"])
        for actor in inside
    }
    groups: dict[int | None, list[int]] = defaultdict(list)
    for actor, edge in first.items():
        groups[case.roles.get((actor, edge["key"]))].append(actor)
    sizes = sorted(groups.values(), key=len)
    if len(groups) > 1:
        culprits = sizes[0] if len(sizes[0]) < len(sizes[-1]) else sorted(inside)
        judgement = Judgement("cross-communicator-deadlock", "", culprits=sorted(culprits))
        judgement.reason = "used the communicators in another order than the others: each side waits for the other"
    else:
        judgement = Judgement("p2p-unmatched", "", culprits=sorted(inside))
        judgement.reason = "waited for one another in Send and Recv: nobody posted the matching call first"
    few = [first[actor] for actor in judgement.culprits]
    many = [first[actor] for actor in inside if actor not in judgement.culprits] or few[1:]
    judgement.key = (many or few)[0]["key"]
    rows = case.told(case.calls.filter(pl.col("pos") == (many or few)[0]["pos"]))
    judgement.call = rows[0] if rows else None
    judgement.show("minority", [{**w, "actor": w["waiter"]} for w in few[:4]])
    judgement.show("majority", [{**w, "actor": w["waiter"]} for w in many[:2]])
    return judgement


def _terminal_circle(out: dict[int, set[int]]) -> set[int]:
    """The ranks that can be reached from one another and wait for nobody outside."""
    reach: dict[int, set[int]] = {}
    for actor in out:
        seen: set[int] = set()
        todo = [actor]
        while todo:
            for other in out.get(todo.pop(), set()) - seen:
                seen.add(other)
                todo.append(other)
        reach[actor] = seen
    smallest = min(reach.values(), key=len)
    return {actor for actor in smallest if reach[actor] == smallest} or smallest


def _explained_by_absent(case: Case, judgement: Judgement) -> Judgement | None:
    """Culprits that may themselves wait for a rank whose log was not given."""
    suspects: dict[str, list[int]] = defaultdict(list)
    for actor in judgement.culprits:
        last = case.last_call(actor)
        if last is None or not case.unseen(last["key"]):
            return None
        suspects[last["key"]].append(actor)
    if judgement.verdict != "lagging-ranks" or not suspects:
        return None
    key = next(iter(suspects))
    absent = case.absent
    names = ranks_text(absent) or "members that are not numbered"
    answer = Judgement("undecidable", "", "likely", victims=sorted(set(case.actors)), key=key)
    answer.reason = (
        f"{ranks_text(case.numbers(judgement.culprits))} hold the others up, but their own last call is on a "
        f"communicator with members that no log shows ({names}): they may wait for those"
    )
    answer.collect = [f"the log of {names}"]
    answer.call, answer.exhibits = judgement.call, judgement.exhibits
    return answer


def all_alike_in_trouble(case: Case) -> Judgement | None:
    """All made the same calls, and yet there are signs that they did not finish."""
    signs = [t for t in case.troubles if t["kind"] in (HARD, NETWORK, LOST) and not t["at_exit"]]
    aborted = [row for row in case.seats if row["end"] in ("Abort", "Revoke")]
    if not signs and not aborted:
        return None
    hard = [t for t in signs if t["kind"] == HARD]
    shown = hard or signs
    if not case.calls.height:
        what = "a rank met a fault of its own" if hard else "connections failed"
        reason = f"{what}; no calls are in these logs, so what that stopped is not visible"
        judgement = Judgement("undecidable", reason, "likely", collect=COLLECT_CALLS)
    else:
        judgement = Judgement(
            "stuck-together", "all ranks made the same calls, and then the transport or a GPU failed", "likely"
        )
    judgement.culprits = (
        sorted({t["actor"] for t in hard if t["actor"] is not None}) if len(hard) < len(case.actors) else []
    )
    judgement.victims = [actor for actor in case.actors if actor not in judgement.culprits]
    last = max(case.told(case.calls.tail(1)), key=lambda row: row["pos"], default=None)
    judgement.key, judgement.call = (last["key"], last) if last else (None, None)
    judgement.show("failure", shown[:4])
    judgement.show("context", [{**row, "source": row["end_source"], "line": row["end_line"]} for row in aborted[:2]])
    return judgement


def invisible(case: Case) -> Judgement | None:
    """Logs without any call line can show neither a hang nor its absence, unless all communicators were destroyed."""
    showing = [row for row in case.visible.values() if row["calls"]]
    alone = case.seats and all(row["nranks"] == 1 for row in case.seats)
    if case.is_finished or alone or len(showing) > MANY * len(case.actors):
        return None
    how_many = "no rank's log" if not showing else f"only {len(showing)} of {len(case.actors)} ranks' logs"
    judgement = Judgement(
        "undecidable", f"init came to its end, and {how_many} shows calls: what came after is not visible"
    )
    if not case.seats:
        judgement.reason = "these logs show no communicator and no call"
    judgement.collect = COLLECT_CALLS
    return judgement


def returned_an_error(case: Case) -> Judgement | None:
    """All made the same calls, and then one came back with an error that no failure explains."""
    late = [
        trouble
        for trouble in case.troubles
        if trouble["form"] == "unwinding" and not trouble["at_exit"] and trouble["actor"] is not None
        if (last := case.last_call(trouble["actor"])) is not None and trouble["pos"] > last["pos"]
    ]
    if not late:
        return None
    who = ranks_text(case.numbers(sorted({trouble["actor"] for trouble in late})))
    reason = f"all ranks made the same calls, and then NCCL returned an error to {who}; what came of it is not here"
    judgement = Judgement("undecidable", reason, "likely", collect=[f"what the program of {who} printed"])
    judgement.show("failure", late[:2])
    return judgement


def partly_seen(case: Case) -> Judgement | None:
    """The ranks seen agree, but the logs name others; and nobody came to the end of the run."""
    if not case.absent or any(row["end"] == "Destroy" for row in case.seats):
        return None
    absent = ranks_text(case.absent)
    reason = f"the ranks seen made the same calls and none failed, but no log of {absent} was given"
    judgement = Judgement("undecidable", reason, "likely", collect=[f"the log of {absent}"])
    judgement.show("context", [row for actor in list(case.actors)[:2] if (row := case.last_call(actor)) is not None])
    return judgement


def nothing_wrong(case: Case) -> Judgement:
    """All ranks made the same calls, none failed: the logs simply end."""
    reason = (
        "every rank destroyed its communicators: the run came to its end"
        if case.is_finished
        else "all ranks made the same calls and none failed; a log that simply ends is not a hang"
    )
    answer = Judgement("no-hang", reason, "certain" if case.is_finished else "likely")
    if any(t["kind"] == AFTER for t in case.troubles) or case.absent:
        answer.doubt("likely")
    return answer
