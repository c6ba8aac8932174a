"""Find two ranks that may wait for each other in Send and Recv, where the order of their messages decides it."""

from __future__ import annotations

import polars as pl

from ncclforensics.analyses.hang.job import Diagnosis, Job, Row


def judge_messages_in_order(job: Job, diagnosis: Diagnosis) -> Diagnosis | None:
    """Judge a culprit whose last message is matched only by one that its partner posted behind an unmatched one.

    In one group (ncclGroupStart) both messages of the partner run at once, and the culprit did not wait. One after the
    other, the partner's second message has not begun, and the two wait for each other. The log shows no groups.
    """
    for edge in job.awaited_calls:
        culprit = next((rank_id for rank_id in edge["waits_for"] if rank_id in diagnosis.culprits), None)
        if edge["kind"] not in ("send", "recv") or culprit is None or not _is_matched_behind(job, edge, culprit):
            continue
        found = Diagnosis("p2p-unmatched", "", "possible", culprits=sorted({culprit, edge["waiter"]}))
        found.reason = "wait for each other in Send and Recv, unless each of them posts both in one group"
        found.key = edge["key"]
        rows = job.describe(job.calls.filter(pl.col("pos") == edge["pos"]))
        found.call = rows[0] if rows else None
        found.add_evidence("waiting", [{**edge, "rank_id": edge["waiter"]}])
        found.add_evidence("culprit", [row for rank_id in found.culprits if (row := job.last_call(rank_id))])
        return found
    return None


def _is_matched_behind(job: Job, edge: Row, culprit: int) -> bool:
    """Whether a message of the culprit is matched only by one that the waiter posted behind the call it waits in."""
    place = {row["rank_id"]: row["rank"] for row in job.members[edge["key"]]}
    opposite = "Recv" if edge["kind"] == "send" else "Send"  # by the waiter; the culprit makes the other

    def messages(rank_id: int, peer: int, name: str, *, before: int | None = None) -> int:
        is_message = (pl.col("key") == edge["key"]) & pl.col("nth").is_null()
        calls = job.calls_of(rank_id).filter(is_message)
        calls = calls if before is None else calls.filter(pl.col("pos") < before)
        return sum(row["name"] == name and row["root"] == place.get(peer) for row in job.describe(calls))

    matching = "Send" if opposite == "Recv" else "Recv"
    posted = messages(culprit, edge["waiter"], matching)
    answered = messages(edge["waiter"], culprit, opposite, before=edge["pos"])
    return answered < posted <= messages(edge["waiter"], culprit, opposite)
