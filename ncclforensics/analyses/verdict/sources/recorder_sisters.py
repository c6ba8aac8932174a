"""Judge the point-to-point messages in Flight Recorder dumps at which ranks stand.

A rank that waits for a message, and for which others wait in a collective, does not show whether its peer left out the
matching call or whether it posted its own in advance. The ranks of one program that have the same index in groups of
one family make the same messages: if these all made more of them up to the collective at which the peer stands, the
peer left one out.
"""

from __future__ import annotations

import polars as pl

from ncclforensics.analyses.hang.recorder_graph import RecordedCall, Recordings
from ncclforensics.analyses.verdict.explanation import Explanation
from ncclforensics.analyses.verdict.job import Job
from ncclforensics.analyses.verdict.sources.recorder_diagnosis import (
    cite,
    described,
    diagnose,
    place_text,
    set_call,
)
from ncclforensics.analyses.verdict.vocabulary import Kind
from ncclforensics.frames.columns import typed_rows


def find_left_out_messages(job: Job, recordings: Recordings, messages: list[RecordedCall]) -> Explanation | None:
    """Name the peers of open messages who made one message less than the ranks at their place in other groups."""
    messages = [message for message in messages if _is_left_out(recordings, message)]
    if not messages:
        return None
    message = messages[0]
    place = recordings.blocking(message.peer, with_messages=True)
    reason = (
        f"did not make the call that matches {described(message)} of rank {message.rank}"
        f" ({place_text(recordings, message)}): made one message less than the ranks with the same part in the other"
        " groups, and stands, as they do, in a later collective"
    )
    diagnosis = diagnose(job, Kind.UNMATCHED, reason, sorted({row.peer for row in messages if row.peer is not None}))
    set_call(diagnosis, message)
    job.cite(diagnosis, "culprit", [place.place] if place else [])
    cite(job, diagnosis, "waiting", messages)
    return diagnosis


def ranks_unlike_their_sisters(recordings: Recordings, calls: list[RecordedCall]) -> list[int]:
    """Return the ranks of these messages that made another one there than all ranks at their place in other groups.

    Empty if the dumps do not show of each of the other ranks that it made the same one.
    """
    is_unlike = {call.rank: _is_unlike_sisters(recordings, call) for call in calls}
    unlike = sorted(rank for rank, differs in is_unlike.items() if differs)
    return unlike if None not in is_unlike.values() and len(unlike) < len(is_unlike) else []


def _is_unlike_sisters(recordings: Recordings, message: RecordedCall) -> bool | None:
    """Whether a message differs from that of the same number in the other groups; None if they show none, or differ."""
    members = recordings.members[message.group]
    if message.sequence is None or message.peer not in members:
        return None
    index = members.index(message.rank)
    made = set()
    for group in recordings.sister_groups(message.group):
        ranks = recordings.members[group]
        is_there = (pl.col("group") == group) & (pl.col("rank") == ranks[index])
        own = recordings.calls.filter(is_there & pl.col("is_p2p") & (pl.col("sequence") == message.sequence))
        made |= {(row.name, ranks.index(row.peer)) for row in typed_rows(own, RecordedCall) if row.peer in ranks}
    return None if len(made) != 1 else (message.name, members.index(message.peer)) not in made


def _is_left_out(recordings: Recordings, message: RecordedCall) -> bool:
    """Whether the peer of an open message made fewer messages than the ranks at its place in the other groups."""
    peer = message.peer
    groups = recordings.sister_groups(message.group)
    place = recordings.blocking(peer)
    if not groups or peer is None or place is None or place.is_p2p:
        return False
    index = recordings.members[message.group].index(peer)
    numbers = {_last_message(recordings, recordings.members[group][index], group, place) for group in groups}
    own = _last_message(recordings, peer, message.group, place)
    return own is not None and None not in numbers and all((number or 0) == own + 1 for number in numbers)


def _last_message(recordings: Recordings, rank: int, group: str, place: RecordedCall) -> int | None:
    """Return the number of a rank's last message in a group; None if it does not stand at the same collective."""
    own = recordings.blocking(rank)
    if own is None or (own.family, own.sequence) != (place.family, place.sequence):
        return None
    is_message = pl.col("is_p2p") & (pl.col("rank") == rank) & (pl.col("group") == group)
    number = recordings.calls.filter(is_message)["sequence"].max()
    return number if isinstance(number, int) else None
