"""Starts the ranks, watches them, and lets none of them outlive the capture."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ncclforensics.capture.journal import Journal, host, now
from ncclforensics.capture.launcher_rank import LOOPBACK
from ncclforensics.capture.plan import GRACE, Plan

POLL = 0.05  # seconds
KILL_AFTER = 2.0  # seconds between asking and killing
GAVE_UP = 3  # the exit code of a rank whose call failed
PACKAGES = Path(__file__).parents[2]
OUTCOMES = ("finished", "exit", "signal", "gave-up", "taken-down")
Tell = Callable[[int, int], None]  # told how much of the whole is done


@dataclass(slots=True)
class Child:
    """A process of ours, which leads a group of its own."""

    rank: int
    process: subprocess.Popen[bytes]
    ended: str = ""  # one of OUTCOMES
    ended_at: float = 0.0  # on the clock that only counts
    time: str = ""  # on the clock of the journals

    @property
    def code(self) -> int | None:
        """Its exit code; negative for a signal."""
        return self.process.returncode

    def settle(self) -> None:
        """See whether it has ended, and how."""
        if self.ended or self.process.poll() is None:
            return
        code, self.ended_at, self.time = self.process.returncode, time.monotonic(), now()
        self.ended = "finished" if code == 0 else "gave-up" if code == GAVE_UP else "signal" if code < 0 else "exit"

    def send(self, number: int) -> None:
        """Send a signal to it and to all that it started."""
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            pass  # it went by itself


def launch(plan: Plan, record: Path, tell: Tell) -> tuple[list[Child], str]:
    """Run all ranks of this process to their end or the time limit; and why it ended before its time (or empty)."""
    journal = Journal(plan.folder / _launcher(plan))
    children: list[Child] = []
    why = ""
    try:
        with _rendezvous(plan) as meeting:
            for rank, local in [(0, 0)] if plan.program else plan.started_here:
                children.append(_started(plan, record, rank, local, meeting))
        why = _watched(plan, children, tell)
        return children, why
    finally:  # whatever happened: Ctrl-C, too
        for child in children:
            child.settle()
        end_all(children)
        for child in children:
            journal.write(**_exit(child))


def _launcher(plan: Plan) -> str:
    return f"launcher.rank{plan.place.rank}.jsonl" if plan.place else "launcher.jsonl"


def _exit(child: Child) -> dict[str, Any]:
    how = {"ended": child.ended or "taken-down", "code": child.code}
    return {"time": child.time or now(), "node": host(), "process": child.process.pid, "rank": child.rank, **how}


@contextmanager
def _rendezvous(plan: Plan) -> Iterator[Mapping[str, Any]]:
    """On one host the socket of the rendezvous is bound before anybody starts: to the loopback, and nobody takes it."""
    if plan.place is not None:
        yield {"environment": {}, "sockets": ()}
        return
    with socket.create_server((LOOPBACK, 0)) as listening:
        number = listening.fileno()
        variables = {"MASTER_PORT": str(listening.getsockname()[1]), "NCCLFORENSICS_SOCKET": str(number)}
        yield {"environment": variables, "sockets": (number,)}


def _started(plan: Plan, record: Path, rank: int, local: int, meeting: Mapping[str, Any]) -> Child:
    worker = [sys.executable, "-P", "-m", "ncclforensics.capture.worker", str(record), str(rank), str(local)]
    guard = [sys.executable, "-P", "-m", "ncclforensics.capture.orphan_guard", str(os.getpid())]
    found = os.pathsep.join(filter(None, [str(PACKAGES), os.environ.get("PYTHONPATH", "")]))
    environment = {**os.environ, **plan.variables(rank), **meeting["environment"], "PYTHONPATH": found}
    name = "nccl-tests.txt" if plan.program else f"output.rank{rank}.txt"
    with open(plan.folder / name, "ab") as output:
        process = subprocess.Popen(
            [*guard, *(plan.command() if plan.program else worker)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=plan.folder,
            start_new_session=True,
            pass_fds=meeting["sockets"] if rank == 0 else (),
        )
    return Child(rank, process)


def _watched(plan: Plan, children: list[Child], tell: Tell) -> str:
    """Wait for all; once one has failed, only as long as its peers need to notice."""
    ends = time.monotonic() + plan.limit_s
    total = plan.steps + len(plan.sweep)
    peers: dict[Path, tuple[str, float]] = {}
    while True:
        for child in children:
            child.settle()
        alive = [child for child in children if not child.ended]
        if not alive:
            return ""
        _see_peers(plan, peers)
        ended = [*((child.ended, child.ended_at) for child in children if child.ended), *peers.values()]
        patience = [
            at + (GRACE if how == "gave-up" else plan.stall_s + GRACE) for how, at in ended if how != "finished"
        ]
        now = time.monotonic()
        if now >= ends:
            return f"the time limit of {plan.limit_s:.0f} s was reached"
        if patience and now >= min(patience):
            return "a rank had failed, and these did not end by themselves"
        tell(min(_lines(plan.folder / "measured.rank0.jsonl"), total), total)
        time.sleep(POLL)


def _see_peers(plan: Plan, peers: dict[Path, tuple[str, float]]) -> None:
    """How the ranks that others started ended, and when that was first seen."""
    if plan.place is None:
        return
    for path in plan.folder.glob("launcher.rank*.jsonl"):
        if path not in peers and (told := path.read_text(encoding="ascii").strip()):
            peers[path] = json.loads(told.splitlines()[0])["ended"], time.monotonic()


def _lines(path: Path) -> int:
    try:
        return path.read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def end_all(children: list[Child]) -> None:
    """End what still runs: first let it say where it stands, then ask, then kill, each with all its children."""
    running = [child for child in children if not child.ended]
    for number in (signal.SIGUSR1, signal.SIGTERM):
        for child in running:
            child.send(number)
        waited = time.monotonic() + (0.5 if number == signal.SIGUSR1 else KILL_AFTER)
        while time.monotonic() < waited and any(child.process.poll() is None for child in running):
            time.sleep(POLL)
    for child in children:  # a group may outlive its leader
        child.send(signal.SIGKILL)
        child.process.wait()
        child.ended = child.ended or "taken-down"
