"""Judge the point-to-point messages in Flight Recorder dumps at which ranks stand.

A rank that waits for a message, and for which others wait in a collective, does not show whether its peer left out the
matching call or whether it posted its own in advance. The ranks of one program that have the same index in groups of
one family make the same messages: if these all made more of them up to the collective at which the peer stands, the
peer left one out.
"""

from __future__ import annotations

import polars as pl

from ncclforensics.analyses.hang.recorder_graph import Recordings
from ncclforensics.analyses.verdict.doubts import Doubt
from ncclforensics.analyses.verdict.explanation import Explanation
from ncclforensics.analyses.verdict.job import Job, Row
from ncclforensics.analyses.verdict.sources.recorder_diagnosis import (
    SHOWN,
    cite,
    described,
    diagnose,
    place_text,
    recordings_of,
    set_call,
)
from ncclforensics.analyses.verdict.vocabulary import Basis, Kind
from ncclforensics.data.names import ranks_text
from ncclforensics.data.variables import stacks_of


def find_open_messages(job: Job) -> Explanation | None:
    """Describe ranks that stand at a message while others wait for them in a collective: either may be at fault."""
    if job.recordings is None or not job.recorded_roots.open_messages:
        return None
    recordings = job.recordings
    calls = [
        message
        for call in job.recorded_roots.open_messages
        for message in recordings.batch(call)
        if message["peer"] in recordings.dumps and not recordings.meets(message)
    ]
    unanswered = [message for message in calls if _is_left_out(recordings, message)]
    if unanswered:
        return _diagnose_left_out(job, unanswered)
    ranks = sorted({rank for call in calls for rank in (call["rank"], call["peer"]) if rank is not None})
    where = [f"rank {call['rank']} in {described(call)}, {place_text(recordings, call)}" for call in calls[:SHOWN]]
    reason = (
        f"in a circle of messages and collectives ranks wait for each other: {'; '.join(where)}; either the peer left"
        " out the matching call, or the message was posted in advance"
    )
    diagnosis = Explanation(Kind.UNDECIDABLE, reason, [Doubt.OPEN])
    diagnosis.collect = [stacks_of(ranks_text(ranks))]
    cite(job, diagnosis, "context", calls)
    return diagnosis


def _diagnose_left_out(job: Job, messages: list[Row]) -> Explanation:
    """Name the peers of messages who made one message less than the ranks at their place in other groups."""
    recordings = recordings_of(job)
    message = messages[0]
    place = recordings.blocking(message["peer"], with_messages=True)
    reason = (
        f"did not make the call that matches {described(message)} of rank {message['rank']}"
        f" ({place_text(recordings, message)}): made one message less than the ranks with the same part in the other"
        " groups, and stands, as they do, in a later collective"
    )
    diagnosis = diagnose(job, Kind.UNMATCHED, reason, sorted({row["peer"] for row in messages}))
    set_call(diagnosis, message)
    cite(job, diagnosis, "culprit", [place or recordings.head(message["peer"])])
    cite(job, diagnosis, "waiting", messages)
    return diagnosis


def describe_met_messages(job: Job, calls: list[Row]) -> Explanation:
    """Describe messages at both sides of which the ranks stand, and that do not arrive."""
    recordings = recordings_of(job)
    where = [f"rank {call['rank']} stands in {described(call)}, {place_text(recordings, call)}" for call in calls]
    reason = f"{'; '.join(where[:SHOWN])}: both sides of a message are there, and it does not arrive"
    diagnosis = diagnose(job, Kind.STUCK_TOGETHER, reason, [])
    diagnosis.doubt(Doubt.COPIED_WHILE_RUNNING)
    diagnosis.basis, diagnosis.rests_on_stall = Basis.DUMPS, True
    set_call(diagnosis, calls[0])
    cite(job, diagnosis, "waiting", calls)
    return diagnosis


def ranks_unlike_their_sisters(recordings: Recordings, calls: list[Row]) -> list[int]:
    """Return the ranks of these messages that made another one there than all ranks at their place in other groups.

    Empty if the dumps do not show of each of the other ranks that it made the same one.
    """
    is_unlike = {call["rank"]: _is_unlike_sisters(recordings, call) for call in calls}
    unlike = sorted(rank for rank, differs in is_unlike.items() if differs)
    return unlike if None not in is_unlike.values() and len(unlike) < len(is_unlike) else []


def _is_unlike_sisters(recordings: Recordings, message: Row) -> bool | None:
    """Whether a message differs from that of the same number in the other groups; None if they show none, or differ."""
    members = recordings.members[message["group"]]
    if message["sequence"] is None or message["peer"] not in members:
        return None
    index = members.index(message["rank"])
    made = set()
    for group in recordings.sister_groups(message["group"]):
        ranks = recordings.members[group]
        is_there = (pl.col("group") == group) & (pl.col("rank") == ranks[index])
        own = recordings.calls.filter(is_there & pl.col("is_p2p") & (pl.col("sequence") == message["sequence"]))
        made |= {(row["name"], ranks.index(row["peer"])) for row in own.to_dicts() if row["peer"] in ranks}
    return None if len(made) != 1 else (message["name"], members.index(message["peer"])) not in made


def _is_left_out(recordings: Recordings, message: Row) -> bool:
    """Whether the peer of an open message made fewer messages than the ranks at its place in the other groups."""
    peer = message["peer"]
    groups = recordings.sister_groups(message["group"])
    place = recordings.blocking(peer)
    if not groups or place is None or place["is_p2p"]:
        return False
    index = recordings.members[message["group"]].index(peer)
    numbers = {_last_message(recordings, recordings.members[group][index], group, place) for group in groups}
    own = _last_message(recordings, peer, message["group"], place)
    return own is not None and None not in numbers and all((number or 0) == own + 1 for number in numbers)


def _last_message(recordings: Recordings, rank: int, group: str, place: Row) -> int | None:
    """Return the number of a rank's last message in a group; None if it does not stand at the same collective."""
    own = recordings.blocking(rank)
    if own is None or (own["family"], own["sequence"]) != (place["family"], place["sequence"]):
        return None
    is_message = pl.col("is_p2p") & (pl.col("rank") == rank) & (pl.col("group") == group)
    number = recordings.calls.filter(is_message)["sequence"].max()
    return number if isinstance(number, int) else None
