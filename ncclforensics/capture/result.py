"""Run one capture from start to end, and write its results into the folder."""

from __future__ import annotations

import errno
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ncclforensics.archive.atomic_write import write_file
from ncclforensics.capture import environment, link_tables, measurements
from ncclforensics.capture.inventory import free_bytes
from ncclforensics.capture.journal import host, now
from ncclforensics.capture.launch import Child, Progress, launch
from ncclforensics.capture.plan import GRACE_PERIOD, Plan
from ncclforensics.errors import UsageError

MIN_FREE = 256 << 20  # bytes: enough for the logs of a long capture
RECORD = "capture.json"
BUS = "0000:00:00"  # placeholder for devices without a PCI address
Row = dict[str, Any]


@dataclass(slots=True)
class CaptureResult:
    """The results of a capture."""

    folder: Path
    ranks: list[Row]
    ended_early: str  # the reason; empty if it ran to its end
    measured: list[Row]
    pairs: list[Row] = field(default_factory=list)  # of ranks
    splits: list[Row] = field(default_factory=list)  # the same bytes in few and in many calls
    hosts: dict[int, str] = field(default_factory=dict)  # of each rank with a journal
    is_rehearsal: bool = False

    @property
    def busbw(self) -> float | None:
        """Return the highest bandwidth of all_reduce in GB/s; None if it was not measured."""
        return max((row["busbw_GBps"] for row in self.measured if row["collective"] == "all_reduce"), default=None)

    @property
    def problem(self) -> str:
        """Return why the capture did not run to its end with correct results; empty if it did."""
        failed = [f"rank {row['rank']} {row['ended']}, code {row['code']}" for row in self.ranks if not _is_well(row)]
        wrong = [row for row in self.measured if row["wrong"]]
        if self.ended_early or failed:
            return "; ".join(filter(None, [self.ended_early, *failed]))
        return f"{wrong[0]['wrong']} wrong elements in {wrong[0]['collective']}" if wrong else ""

    def busbw_problem(self, min_busbw: float | None) -> str:
        """Return a sentence if all_reduce did not reach this bandwidth in GB/s, or was not measured."""
        if min_busbw is None:
            return ""
        if self.busbw is None:
            return "all_reduce was not measured, so --min-busbw cannot be checked"
        if self.busbw >= min_busbw:
            return ""
        return f"all_reduce reached {self.busbw:.2f} GB/s at most, below --min-busbw {min_busbw:g}"

    def summary(self) -> Iterator[str]:
        """Yield lines that summarise the results for the user."""
        if self.ended_early:
            yield f"Ended early: {self.ended_early}."
        for row in self.ranks:
            if not _is_well(row):
                yield f"rank {row['rank']} (pid {row['pid']}): {row['ended']}, code {row['code']}"
        if self.measured:
            largest = max(row["size"] for row in self.measured)
            best = [row for row in self.measured if row["size"] == largest]
            yield f"busbw at {largest} bytes, GB/s: " + ", ".join(
                f"{row['collective']} {row['busbw_GBps']:.2f}" for row in best
            )
        yield from link_tables.pair_summary(self.pairs, list(self.hosts.values()))
        if self.splits:
            total = self.splits[0]["calls"] * self.splits[0]["size"]
            yield f"all_reduce of {total} bytes, GB/s: " + ", ".join(
                f"{row['calls']} x {row['size']} {row['busbw_GBps']:.2f}" for row in self.splits
            )


def _is_well(rank: Row) -> bool:
    return bool(rank["ended"] == "finished")


def prepare(plan: Plan) -> None:
    """Create the folder. Raises UsageError if it is not empty, or the disk has too little space."""
    if _is_taken(plan):
        raise UsageError(f"{plan.folder} is not empty; capture needs a new or empty folder")
    if (free := free_bytes(plan.folder)) < MIN_FREE:
        raise UsageError(f"{plan.folder}: {free >> 20} MiB free, but capture needs {MIN_FREE >> 20}")
    plan.folder.mkdir(parents=True, exist_ok=True)


def _is_taken(plan: Plan) -> bool:
    """Whether the folder is not empty; with a launcher, whose other ranks write there, whether it holds a capture."""
    if plan.launcher_rank is not None:
        return any((plan.folder / name).exists() for name in (RECORD, f"journal.rank{plan.launcher_rank.rank}.jsonl"))
    return plan.folder.exists() and (not plan.folder.is_dir() or any(plan.folder.iterdir()))


def capture(plan: Plan, progress: Progress) -> CaptureResult:
    """Run the capture; the folder shows how far it came. Raises UsageError if the disk is full."""
    try:
        return _capture(plan, progress)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise UsageError(f"{plan.folder}: the disk is full; the capture is not complete") from error


def _capture(plan: Plan, progress: Progress) -> CaptureResult:
    record = plan.folder / (f"plan.rank{plan.launcher_rank.rank}.json" if plan.launcher_rank else RECORD)
    record_data: Row = {"tool": "ncclforensics capture", "host": host(), "began": now(), "complete": False}
    record_data |= {"system": environment.system(), "plan": plan.record(), "described": list(plan.describe())}
    write_record(record, record_data)
    if plan.is_first_of_host:
        record_data["absent"] = {
            "before": environment.collect(plan.folder / "before", only_counters=not plan.is_leader)
        }
    children, ended_early = launch(plan, record, progress)
    if plan.is_leader and plan.launcher_rank is not None:
        ended_early = _wait_for_ranks(plan) or ended_early
    if plan.is_first_of_host:
        record_data["absent"]["after"] = environment.collect(plan.folder / "after", only_counters=True)
    captured = CaptureResult(plan.folder, _exit_rows(plan, children), ended_early, [])
    captured.is_rehearsal = plan.is_rehearsal
    captured.hosts = {device["rank"]: device["host"] for device in _devices(plan)}
    if plan.is_leader and not plan.program:
        _write_tables(plan, captured, record_data)
    record_data |= {
        "hosts": captured.hosts,
        "ended": now(),
        "complete": True,
        "ended_early": ended_early,
        "ranks": captured.ranks,
    }
    write_record(plan.folder / RECORD if plan.is_leader else record, record_data)
    if plan.is_leader and plan.launcher_rank is not None:
        record.unlink()
    return captured


def write_record(path: Path, record_data: Row) -> None:
    """Write a record atomically."""
    write_file(path, f"{json.dumps(record_data, indent=1)}\n".encode())


def _exit_rows(plan: Plan, children: Sequence[Child]) -> list[Row]:
    """Return how the ranks ended: those of this process, and for rank 0 of a launcher those of all processes."""
    if plan.launcher_rank is None or not plan.is_leader:
        return [
            {"rank": child.rank, "pid": child.process.pid, "ended": child.ended, "code": child.code}
            for child in children
        ]
    rows = [row for path in plan.folder.glob("launcher.rank*.jsonl") for row in measurements.entries(path)]
    rows.sort(key=lambda row: int(row["rank"]))
    return [{"rank": row["rank"], "pid": row["process"], "ended": row["ended"], "code": row["code"]} for row in rows]


def wait_for_result(plan: Plan) -> CaptureResult:
    """Return the result that rank 0 of a launcher writes; one with a problem if it does not come in time."""
    deadline = time.monotonic() + 2 * (plan.stall_s + 2 * GRACE_PERIOD)
    while time.monotonic() < deadline:
        if (path := plan.folder / RECORD).exists() and (record := json.loads(path.read_bytes()))["complete"]:
            return CaptureResult(plan.folder, record["ranks"], record["ended_early"], record.get("measured", []))
        time.sleep(0.2)
    return CaptureResult(plan.folder, [], "rank 0 wrote no result", [])


def _wait_for_ranks(plan: Plan) -> str:
    """Wait for the files that all ranks write when they end; return the problem, or an empty text."""
    deadline = time.monotonic() + plan.stall_s + 2 * GRACE_PERIOD
    missing: list[int] = []
    while time.monotonic() < deadline:
        missing = [rank for rank in range(plan.nranks) if not _has_ended(plan.folder, rank)]
        if not missing:
            return ""
        time.sleep(0.2)
    return f"no report of the end of ranks {', '.join(map(str, missing))}"


def _has_ended(folder: Path, rank: int) -> bool:
    path = folder / f"launcher.rank{rank}.jsonl"
    return path.exists() and path.stat().st_size > 0


def _write_tables(plan: Plan, captured: CaptureResult, record_data: Row) -> None:
    by_rank = measurements.read_measurements(plan.folder)
    complete = len(by_rank) == plan.nranks and all(any("completed" in row for row in rows) for rows in by_rank.values())
    captured.measured = measurements.measurements(by_rank, plan.nranks)
    for collective in dict.fromkeys(row["collective"] for row in captured.measured):
        rows = [row for row in captured.measured if row["collective"] == collective]
        lines = measurements.table(plan, collective, rows, _devices(plan), complete=complete)
        write_file(plan.folder / f"{collective}.txt", "\n".join([*lines, ""]).encode())
    record_data["measured"] = captured.measured
    _write_link_tables(plan, captured, by_rank)
    record_data |= {"pairs": captured.pairs, "message_sizes": captured.splits}
    record_data["stopped"] = next((row for row in by_rank.get(0, []) if "stopped_before" in row), None)
    record_data["libraries"] = next((row for row in by_rank.get(0, []) if "torch" in row), None)
    record_data["late_ms"] = measurements.median_lags(plan.folder, plan.steps)
    for rank in by_rank:
        (plan.folder / f"measured.rank{rank}.jsonl").unlink()


def _write_link_tables(plan: Plan, captured: CaptureResult, by_rank: Mapping[int, Sequence[Row]]) -> None:
    captured.pairs = link_tables.pair_rows(by_rank)
    captured.splits = link_tables.split_rows(by_rank.get(0, []), plan.nranks)
    if captured.pairs:
        hosts = list(captured.hosts.values())
        lines = link_tables.pair_table(captured.pairs, hosts, rehearsal=plan.is_rehearsal)
        write_file(plan.folder / "point-to-point.txt", "\n".join([*lines, ""]).encode())
    if captured.splits:
        lines = link_tables.split_table(captured.splits)
        write_file(plan.folder / "message-sizes.txt", "\n".join([*lines, ""]).encode())


def _devices(plan: Plan) -> Sequence[Row]:
    """List the ranks as nccl-tests does; a shared GPU is marked, because it must not be compared with others."""
    devices = []
    for path in sorted(plan.folder.glob("journal.rank*.jsonl")):
        first = next(measurements.entries(path), None)
        if first is None:
            continue  # the rank ended before it wrote
        gpu = plan.gpu_of(first["device"] or 0) if first["device"] is not None else None
        name = "CPU" if gpu is None else gpu.name + (" (shared)" if plan.ranks_per_gpu > 1 else "")
        process = {"host": first["host"], "pid": first["pid"], "device": first["device"] or 0}
        devices.append({"rank": first["rank"], **process, "bus": BUS, "name": name})
    return sorted(devices, key=lambda device: device["rank"])
