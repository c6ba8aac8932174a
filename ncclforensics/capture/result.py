"""One capture from beginning to end, and the folder it leaves."""

from __future__ import annotations

import errno
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ncclforensics.capture import environment, measurements
from ncclforensics.capture.inventory import free_bytes
from ncclforensics.capture.journal import host, now
from ncclforensics.capture.launch import Child, Tell, launch
from ncclforensics.capture.plan import GRACE, Plan
from ncclforensics.errors import UsageError

ROOM = 256 << 20  # bytes that must be free: the logs of a long capture, and some more
RECORD = "capture.json"
BUS = "0000:00:00"  # stands for the address of what is no PCI device
Row = dict[str, Any]


@dataclass(slots=True)
class Captured:
    """What came of it."""

    folder: Path
    ranks: list[Row]
    why: str  # it ended before its time; or empty
    measured: list[Row]
    problems: list[str] = field(default_factory=list)

    @property
    def busbw(self) -> float | None:
        """The highest of all_reduce in GB/s; None where none was measured."""
        return max((row["busbw_GBps"] for row in self.measured if row["collective"] == "all_reduce"), default=None)

    def is_as_fast_as(self, least: float) -> bool:
        """Whether all_reduce reached so many GB/s. Raises UsageError if it was not measured."""
        if self.busbw is None:
            raise UsageError(f"{self.folder}: no bandwidth was measured, so it cannot be held against --min-busbw")
        return self.busbw >= least

    def told(self) -> Iterator[str]:
        """In a few lines, for a person."""
        if self.why:
            yield f"Ended early: {self.why}."
        for row in self.ranks:
            if row["ended"] != "finished":
                yield f"rank {row['rank']} (pid {row['pid']}): {row['ended']}, code {row['code']}"
        if self.measured:
            largest = max(row["size"] for row in self.measured)
            best = [row for row in self.measured if row["size"] == largest]
            yield f"busbw at {largest} bytes, GB/s: " + ", ".join(
                f"{row['collective']} {row['busbw_GBps']:.2f}" for row in best
            )


def prepare(plan: Plan) -> None:
    """Make the folder. Raises UsageError if something of others is in it, or there is no room."""
    if _is_taken(plan):
        raise UsageError(f"{plan.folder} is not empty; a capture wants a folder of its own")
    if (free := free_bytes(plan.folder)) < ROOM:
        raise UsageError(f"{plan.folder}: {free >> 20} MiB are free, a capture wants {ROOM >> 20}")
    plan.folder.mkdir(parents=True, exist_ok=True)


def _is_taken(plan: Plan) -> bool:
    """Whether the folder holds something; in a job of others, which write there already, an earlier capture."""
    if plan.place is not None:
        return any((plan.folder / name).exists() for name in (RECORD, f"journal.rank{plan.place.rank}.jsonl"))
    return plan.folder.exists() and (not plan.folder.is_dir() or any(plan.folder.iterdir()))


def capture(plan: Plan, tell: Tell) -> Captured:
    """Run it. Whatever ends it, the folder says how far it came. Raises UsageError if the disk is full."""
    try:
        return _capture(plan, tell)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise UsageError(f"{plan.folder}: the disk is full; the capture is not complete") from error


def _capture(plan: Plan, tell: Tell) -> Captured:
    record = plan.folder / (f"plan.rank{plan.place.rank}.json" if plan.place else RECORD)
    facts: Row = {"tool": "ncclforensics capture", "host": host(), "began": now(), "complete": False}
    facts |= {"system": environment.system(), "plan": plan.record(), "described": list(plan.described())}
    keep(record, facts)
    if plan.leads:
        facts["absent"] = {"before": environment.collect(plan.folder / "before")}
    children, why = launch(plan, record, tell)
    if plan.leads and plan.place is not None:
        why = _await(plan) or why
    if plan.leads:
        facts["absent"]["after"] = environment.collect(plan.folder / "after", only_counters=True)
    captured = Captured(plan.folder, [_of(child) for child in children], why, [])
    if plan.leads and not plan.program:
        _tabulate(plan, captured, facts)
    facts |= {"ended": now(), "complete": True, "ended_early": why, "ranks": captured.ranks}
    keep(plan.folder / RECORD if plan.leads else record, facts)
    if plan.leads and plan.place is not None:
        record.unlink()
    return captured


def keep(path: Path, facts: Row) -> None:
    """Write a record whole or not at all."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    new.replace(path)


def _of(child: Child) -> Row:
    return {"rank": child.rank, "pid": child.process.pid, "ended": child.ended, "code": child.code}


def _await(plan: Plan) -> str:
    """Wait for the ranks that others started; each leaves a file when it has ended."""
    ends = time.monotonic() + plan.stall_s + 2 * GRACE
    missing: list[int] = []
    while time.monotonic() < ends:
        missing = [rank for rank in range(plan.nranks) if not _has_ended(plan.folder, rank)]
        if not missing:
            return ""
        time.sleep(0.2)
    return f"no word of the end of ranks {', '.join(map(str, missing))}"


def _has_ended(folder: Path, rank: int) -> bool:
    path = folder / f"launcher.rank{rank}.jsonl"
    return path.exists() and path.stat().st_size > 0


def _tabulate(plan: Plan, captured: Captured, facts: Row) -> None:
    by_rank = measurements.notes(plan.folder)
    complete = len(by_rank) == plan.nranks and all(any("completed" in row for row in rows) for rows in by_rank.values())
    captured.measured = measurements.measurements(by_rank, plan.nranks)
    for collective in dict.fromkeys(row["collective"] for row in captured.measured):
        rows = [row for row in captured.measured if row["collective"] == collective]
        lines = measurements.table(plan, collective, rows, _devices(plan), complete=complete)
        (plan.folder / f"{collective}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    facts["measured"] = captured.measured
    facts["compared"] = [row for row in by_rank.get(0, []) if "latency_to" in row or "parts" in row]
    facts["stopped"] = next((row for row in by_rank.get(0, []) if "stopped_before" in row), None)
    facts["libraries"] = next((row for row in by_rank.get(0, []) if "torch" in row), None)
    facts["late_ms"] = measurements.arrivals(plan.folder, plan.steps)
    for rank in by_rank:
        (plan.folder / f"measured.rank{rank}.jsonl").unlink()


def _devices(plan: Plan) -> Sequence[Row]:
    """The ranks as nccl-tests lists them; a GPU that several share has no name by which it could be compared."""
    found = []
    for path in sorted(plan.folder.glob("journal.rank*.jsonl")):
        first = next(measurements.entries(path))  # whoever measured something had written where it is
        gpu = plan.gpu_of(first["device"] or 0) if first["device"] is not None else None
        name = "CPU" if gpu is None else gpu.name + (" (shared)" if plan.ranks_per_gpu > 1 else "")
        place = {"host": first["host"], "pid": first["pid"], "device": first["device"] or 0}
        found.append({"rank": first["rank"], **place, "bus": BUS, "name": name})
    return sorted(found, key=lambda one: one["rank"])
