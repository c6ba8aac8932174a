"""Start the ranks, watch them, and end them with the capture."""

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
from ncclforensics.capture.launcher_rank import LOOPBACK, LOOPBACK_IPV6
from ncclforensics.capture.plan import GRACE_PERIOD, Plan
from ncclforensics.capture.stacks import take_stacks
from ncclforensics.errors import UsageError

POLL = 0.05  # seconds
STACKS_AFTER = 0.5  # of --stall, in which no step ended
KILL_AFTER = 2.0  # seconds from SIGTERM to SIGKILL
GAVE_UP = 3  # the exit code of a rank whose call failed
PACKAGES = Path(__file__).parents[2]
STALLED, TAKEN_DOWN = "stalled", "taken-down"
OUTCOMES = ("finished", "exit", "signal", "gave-up", STALLED, TAKEN_DOWN)
Progress = Callable[[int, int, str], None]  # called with (done, total, what runs now)


@dataclass(slots=True)
class Child:
    """A child process, which leads its own process group."""

    rank: int
    process: subprocess.Popen[bytes]
    ended: str = ""  # one of OUTCOMES
    if_ended: str = TAKEN_DOWN  # the outcome where it has to be ended
    ended_at: float = 0.0  # monotonic clock
    time: str = ""  # as journals write it

    @property
    def code(self) -> int | None:
        """Return the exit code; negative for a signal."""
        return self.process.returncode

    def poll(self) -> None:
        """Check whether the process has ended, and how."""
        if self.ended or self.process.poll() is None:
            return
        code, self.ended_at, self.time = self.process.returncode, time.monotonic(), now()
        self.ended = "finished" if code == 0 else "gave-up" if code == GAVE_UP else "signal" if code < 0 else "exit"

    def send(self, number: int) -> None:
        """Send a signal to the process group."""
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            pass  # it has already ended


def launch(plan: Plan, record: Path, progress: Progress) -> tuple[list[Child], str]:
    """Run the ranks of this process; return them, and the reason of an early end (or an empty text)."""
    journal = Journal(plan.folder / _launcher_file(plan))
    children: list[Child] = []
    try:
        with _rendezvous(plan) as rendezvous:
            for rank, local in plan.local_ranks[:1] if plan.program else plan.local_ranks:
                children.append(_start(plan, record, rank, local, rendezvous))
        return children, _watch(plan, children, progress)
    finally:  # also on Ctrl-C
        for child in children:
            child.poll()
        end_all(children)
        for child in children:
            journal.write(**_exit(child))


def _launcher_file(plan: Plan) -> str:
    return f"launcher.rank{plan.launcher_rank.rank}.jsonl" if plan.launcher_rank else "launcher.jsonl"


def _exit(child: Child) -> dict[str, Any]:
    outcome = {"ended": child.ended or child.if_ended, "code": child.code}
    return {"time": child.time or now(), "node": host(), "process": child.process.pid, "rank": child.rank, **outcome}


@contextmanager
def _rendezvous(plan: Plan) -> Iterator[Mapping[str, Any]]:
    """Bind the socket of a local rendezvous to the loopback before any rank starts, so that its port stays free.

    Raises UsageError if the host has no loopback address.
    """
    if plan.launcher_rank is not None:
        yield {"environment": {}, "sockets": ()}
        return
    with _listen() as listening:
        number = listening.fileno()
        address, port = listening.getsockname()[:2]
        variables = {"MASTER_ADDR": address, "MASTER_PORT": str(port), "NCCLFORENSICS_SOCKET": str(number)}
        yield {"environment": variables, "sockets": (number,)}


def _listen() -> socket.socket:
    """Listen on the loopback, of IPv6 on a host without IPv4."""
    problem: OSError | None = None
    for family, address in ((socket.AF_INET, LOOPBACK), (socket.AF_INET6, LOOPBACK_IPV6)):
        try:
            return socket.create_server((address, 0), family=family)
        except OSError as error:
            problem = error
    raise UsageError(f"neither {LOOPBACK} nor {LOOPBACK_IPV6} can be used here, so ranks cannot meet: {problem}")


def _start(plan: Plan, record: Path, rank: int, local: int, rendezvous: Mapping[str, Any]) -> Child:
    worker = [sys.executable, "-P", "-m", "ncclforensics.capture.worker", str(record), str(rank), str(local)]
    guard = [sys.executable, "-P", "-m", "ncclforensics.capture.orphan_guard", str(os.getpid())]
    python_path = os.pathsep.join(filter(None, [str(PACKAGES), os.environ.get("PYTHONPATH", "")]))
    environment = {**os.environ, **plan.variables(rank), **rendezvous["environment"], "PYTHONPATH": python_path}
    # Of nccl-tests over MPI only rank 0 prints a table; the others may print errors.
    name = "nccl-tests.txt" if plan.program and rank == 0 else f"output.rank{rank}.txt"
    with open(plan.folder / name, "ab") as output:
        process = subprocess.Popen(
            [*guard, *(plan.command() if plan.program else worker)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=plan.folder,
            start_new_session=True,
            pass_fds=rendezvous["sockets"] if rank == 0 else (),
        )
    return Child(rank, process)


def _watch(plan: Plan, children: list[Child], progress: Progress) -> str:
    """Wait for all ranks; after a failure, only as long as the other ranks need to detect it."""
    deadline = time.monotonic() + plan.limit_s
    stages = plan.stages
    peers: dict[Path, tuple[str, float]] = {}
    last_activity, last_change, has_stacks = (0, 0), time.monotonic(), False
    journals = [plan.folder / f"journal.rank{child.rank}.jsonl" for child in children]
    while True:
        for child in children:
            child.poll()
        alive = [child for child in children if not child.ended]
        if not alive:
            return ""
        _update_peers(plan, peers)
        ended = [*((child.ended, child.ended_at) for child in children if child.ended), *peers.values()]
        deadlines = [
            ended_at + (GRACE_PERIOD if outcome == "gave-up" else plan.stall_s + GRACE_PERIOD)
            for outcome, ended_at in ended
            if outcome != "finished"
        ]
        now = time.monotonic()
        done = min(_count_lines(plan.folder / "measured.rank0.jsonl"), len(stages) - 1)
        progress(done, len(stages), stages[done])
        activity = done, sum(map(_size, journals))
        if activity != last_activity:
            last_activity, last_change = activity, now
        # PyTorch's watchdog sees no call for which NCCL still connects the ranks.
        is_still = done <= plan.steps and now - last_change > plan.stall_s + 3 * GRACE_PERIOD
        has_calls = done > 0 and any(map(_has_calls, journals))
        if deadlines and min(deadlines) <= now < deadline:
            return "a rank failed, and other ranks did not end by themselves"
        if now >= deadline or (is_still and has_calls):
            for child in alive:
                child.if_ended = STALLED if is_still else TAKEN_DOWN
            reached = f"the time limit of {plan.limit_s:.0f} s was reached"
            return reached if now >= deadline else f"no rank made progress for {now - last_change:.0f} s"
        is_in_steps = 0 < done <= plan.steps
        if not has_stacks and is_in_steps and now - last_change > plan.stall_s * STACKS_AFTER:
            # While the ranks still wait; not during measurements, which py-spy would disturb.
            take_stacks(plan.folder, {child.rank: child.process.pid for child in alive}, host())
            has_stacks = True
        time.sleep(POLL)


def _update_peers(plan: Plan, peers: dict[Path, tuple[str, float]]) -> None:
    """Record how the ranks of other launcher processes ended, and when this was first seen."""
    if plan.launcher_rank is None:
        return
    for path in plan.folder.glob("launcher.rank*.jsonl"):
        if path not in peers and (text := path.read_text(encoding="ascii").strip()):
            peers[path] = json.loads(text.splitlines()[0])["ended"], time.monotonic()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _has_calls(journal: Path) -> bool:
    """Whether a rank came to its first call: the creation of a large communicator takes longer than any call."""
    return journal.exists() and b'"call":' in journal.read_bytes()


def _count_lines(path: Path) -> int:
    try:
        return path.read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def end_all(children: list[Child]) -> None:
    """End all running children: request a stack trace, then SIGTERM, then SIGKILL, for each process group."""
    running = [child for child in children if not child.ended]
    for number in (signal.SIGUSR1, signal.SIGTERM):
        for child in running:
            child.send(number)
        deadline = time.monotonic() + (0.5 if number == signal.SIGUSR1 else KILL_AFTER)
        while time.monotonic() < deadline and any(child.process.poll() is None for child in running):
            time.sleep(POLL)
    for child in children:  # a process group may outlive its leader
        child.send(signal.SIGKILL)
        child.process.wait()
        child.ended = child.ended or child.if_ended
