"""Processes that no prefix names: lines of NCCL that PyTorch repeats in the output of a rank, and torn ones."""

from __future__ import annotations

from typing import Any

import pytest

from ncclforensics.analyses.job.identity.communicator_ids import Member
from ncclforensics.analyses.job.identity.job_members import _assign_ranks


@pytest.mark.parametrize(
    ("host", "reported", "is_known"),
    [
        ("unnamed-3", 1, True),
        ("unnamed-3", None, False),
        ("unnamed-3", 7, False),
        ("node1", 1, False),
        (None, 1, False),
    ],
)
def test_lines_in_the_output_of_a_rank_are_of_this_rank(host: str | None, reported: int | None, is_known: bool) -> None:
    members = [Member(("node1", pid), rank, 2, key="world") for pid, rank in ((10, 0), (11, 1), (12, None))]
    processes: list[dict[str, Any]] = [
        {"host": "node1", "pid": pid, "hint": None, "reported": None, "first_pos": 0, "last_pos": pid, "sources": [pid]}
        for pid in (10, 11, 12)
    ]
    processes.append(
        {"host": host, "pid": 0, "hint": None, "reported": reported, "first_pos": 0, "last_pos": 20, "sources": [0]}
    )

    (other,) = _assign_ranks(members, processes, set())

    assert (other.rank_id == members[1].rank_id) == is_known
    assert (other.rank_id in {member.rank_id for member in members}) == is_known
    assert other.job_rank is None
