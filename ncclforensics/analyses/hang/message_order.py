"""Find two ranks that may wait for each other in Send and Recv, where the order of their messages decides it."""

from __future__ import annotations

import polars as pl

from ncclforensics.analyses.hang.job import Job, Row
from ncclforensics.analyses.hang.wait_cycle import COUNTERPART, LEFT_OUT, left_own_order
from ncclforensics.analyses.verdict.doubts import Doubt
from ncclforensics.analyses.verdict.explanation import Explanation
from ncclforensics.analyses.verdict.vocabulary import Kind


def judge_messages_in_order(job: Job, diagnosis: Explanation) -> Explanation | None:
    """Judge a culprit whose last message is matched only by one that its partner posted behind an unmatched one.

    In one group (ncclGroupStart) both messages of the partner run at once, and the culprit did not wait. One after the
    other, the partner's second message has not begun, and the two wait for each other. The log shows no groups.
    """
    for edge in job.awaited_calls:
        culprit = next((rank_id for rank_id in edge["waits_for"] if rank_id in diagnosis.culprits), None)
        if edge["kind"] not in ("send", "recv") or culprit is None:
            continue
        message = _matched_behind(job, edge, culprit)
        if message is None:
            continue
        crossing = {**edge, "waiter": culprit, "waits_for": edge["waiter"], "pos": message["pos"]}
        has_left_out = left_own_order(job, {**edge, "waits_for": culprit}, {**crossing, "key": edge["key"]})
        partner_has = left_own_order(job, crossing, edge)
        if has_left_out != partner_has:
            left_out_by, waiting = (culprit, edge) if has_left_out else (edge["waiter"], crossing)
            found = Explanation(Kind.UNMATCHED, LEFT_OUT, [Doubt.ONLY_LINE_LOST], culprits=[left_out_by])
        else:
            found = Explanation(Kind.UNMATCHED, "", [Doubt.POSTED_TOGETHER], culprits=sorted({culprit, edge["waiter"]}))
            found.claim = "wait for each other in Send and Recv, unless each of them posts both in one group"
            waiting = edge
        found.key = edge["key"]
        found.call = next(iter(job.describe(job.calls.filter(pl.col("pos") == waiting["pos"]))), None)
        found.add_evidence("waiting", [{**(found.call or {}), "rank_id": waiting["waiter"]}])
        found.add_evidence("culprit", [row for rank_id in found.culprits if (row := job.last_call(rank_id))])
        return found
    return None


def _matched_behind(job: Job, edge: Row, culprit: int) -> Row | None:
    """Return a message of the culprit that only a call matches which the waiter made behind the one it waits in."""
    answer = COUNTERPART[edge["kind"].capitalize()]  # by the waiter, to a message of the culprit
    posted = job.messages(edge["key"], culprit, edge["waiter"], COUNTERPART[answer])
    answers = job.messages(edge["key"], edge["waiter"], culprit, answer)
    if not posted or not answers or posted[-1]["turn"] > answers[-1]["turn"]:
        return None
    answered = next((row["turn"] for row in answers if row["pos"] >= edge["pos"]), None)
    return next((row for row in posted if row["turn"] == answered), None)
