"""Logs of torchcomms show what Flight Recorder dumps show, and are judged as these are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ncclforensics import analyze
from ncclforensics.views import json_report

CALL = "all_reduce|in_count=1024|out_count=1024|dtype=f32|red_op=sum|async_op=f"


def log(rank: int, world: int, calls: list[tuple[str, str]], parts: str = "", *, ended: int | None = None) -> str:
    """The log of a rank whose calls are pairs of a signature and a communicator; the first `ended` are over.

    None: the log holds no events of the GPU.
    """
    lines = ["V|1|base_timestamp=1772449497.890", f"new_comm|comm=world|rank={rank}|world_size={world}"]
    lines += parts.splitlines()
    known: list[tuple[str, str]] = []
    for number, call in enumerate(calls):
        if call not in known:
            known.append(call)
            lines.append(f"C{len(known)}|sig|{call[0]}|comm={call[1]}")
        place = known.index(call) + 1
        lines.append(f"C{place}|Q|work_id={number + 1}|+{number / 100:.3f}")
        if ended is not None:
            lines.append(f"C{place}|S|+{number / 100 + 0.001:.3f}")
            lines += [f"C{place}|E|+{number / 100 + 0.002:.3f}"] * (number < ended)
    return "\n".join(lines) + "\n"


def hang_by(logs: dict[int, str], folder: Path) -> dict[str, Any]:
    for rank, text in logs.items():
        (folder / f"clog.rank{rank}.log").write_text(text)
    hang: dict[str, Any] = json_report.as_object(analyze([folder]))["hang"]
    return hang


@pytest.mark.parametrize("has_events", [True, False])
def test_the_rank_without_the_call_of_the_others_is_named(has_events: bool, tmp_path: Path) -> None:
    call = (CALL, "world")
    calls = {rank: [call] * (4 if rank == 2 else 5) for rank in range(4)}
    logs = {rank: log(rank, 4, made, ended=4 if has_events else None) for rank, made in calls.items()}

    hang = hang_by(logs, tmp_path)

    assert (hang["verdict"], hang["certainty"], hang["culprits"]) == ("lagging-ranks", "likely", [2])


def test_groups_of_one_name_are_told_apart_by_their_members(tmp_path: Path) -> None:
    world, part = (CALL, "world"), (CALL, "tp")
    logs = {}
    for rank in range(4):
        members = "0,1" if rank < 2 else "2,3"
        parts = f"split|parent=world|child=tp|ranks={members}\nnew_comm|comm=tp|rank={rank % 2}|world_size=2"
        calls = [world, part, *([part] if rank != 3 else [])]
        logs[rank] = log(rank, 4, calls, parts, ended=2 if rank >= 2 else 3)

    hang = hang_by(logs, tmp_path)

    assert (hang["verdict"], hang["culprits"], hang["victims"]) == ("lagging-ranks", [3], [0, 1, 2])
    assert "ranks 2, 3" in hang["reason"]


def test_a_rank_that_waits_in_a_message_is_no_culprit(tmp_path: Path) -> None:
    world, message = (CALL, "world"), ("recv|in_count=0|out_count=8|dtype=f32|peer=3|async_op=f", "world")
    calls = {rank: [world, message if rank == 2 else world] for rank in range(4)}
    calls[3] = [world]
    logs = {rank: log(rank, 4, made, ended=1) for rank, made in calls.items()}

    hang = hang_by(logs, tmp_path)

    assert hang["culprits"] == [3]
