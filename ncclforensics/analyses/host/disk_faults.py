"""What disks say of their own health, by smartctl and nvme smart-log."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.analyses.host.command_sessions import CommandHistory, frame_from_rows, origin_of, rows_with_origin
from ncclforensics.frames.columns import Row
from ncclforensics.frames.registry import analysis

DISK_FAULT = {
    "source": pl.Int32(),
    "line": pl.Int32(),
    "host": pl.String(),
    "disk": pl.String(),  # what states it: a disk, pool or array with its name; null where nothing names it
    "fault": pl.String(),
    "is_failing": pl.Boolean(),  # else it is a note
}
# The bits of the critical warning (NVM Express Base Specification 2.0, figure 207).
CRITICAL_BITS = (
    "few spare blocks are left",
    "its temperature is outside of its limits",
    "it is less reliable, for errors of its media or of itself",
    "it takes no writes any more",
    "the backup of its volatile memory failed",
    "its persistent memory takes no writes any more",
)
REASONS = {  # of smartctl below its judgement: the same
    "available spare has fallen below threshold": CRITICAL_BITS[0],
    "temperature is above or below threshold": CRITICAL_BITS[1],
    "NVM subsystem reliability has been degraded": CRITICAL_BITS[2],
    "media has been placed in read only mode": CRITICAL_BITS[3],
    "volatile memory backup device has failed": CRITICAL_BITS[4],
    "persistent memory region has become read-only or unreliable": CRITICAL_BITS[5],
}
FIELDS = {
    "critical_warning": "critical",
    "Critical Warning": "critical",
    "available_spare": "spare",
    "Available Spare": "spare",
    "available_spare_threshold": "least",
    "Available Spare Threshold": "least",
    "percentage_used": "used",
    "Percentage Used": "used",
    "media_errors": "media",
    "Media and Data Integrity Errors": "media",
}
WORN = 100  # percent of the writes that its maker promises
# Attributes whose raw value counts sectors that the disk could not read, or replaced.
UNREADABLE = ("Current_Pending_Sector", "Offline_Uncorrectable", "Reported_Uncorrect")
REPLACED = ("Reallocated_Sector_Ct",)
BEGINS = ("output", "of_nvme")  # forms of a line that begins the output on another disk


@analysis(
    DISK_FAULT, of=("disk_head", "disk_verdict", "disk_value", "disk_attribute", "pool_row", "pool_state", "md_array")
)
def disk_fault(
    disk_head: pl.DataFrame,
    disk_verdict: pl.DataFrame,
    disk_value: pl.DataFrame,
    disk_attribute: pl.DataFrame,
    pool_name: pl.DataFrame,
    pool_row: pl.DataFrame,
    pool_state: pl.DataFrame,
    md_array: pl.DataFrame,
    dump_command: pl.DataFrame,
    output_heading: pl.DataFrame,
) -> pl.DataFrame:
    """One row per fault that a disk states, and per count that announces one."""
    lines = pl.concat([disk_head, disk_verdict, disk_value, disk_attribute], how="diagonal_relaxed")
    rows = [fault for disk in _disks(lines, dump_command, output_heading) for fault in _faults(disk)]
    pools = pl.concat([pool_name, pool_row, pool_state, md_array], how="diagonal_relaxed")
    return frame_from_rows([*rows, *_of_pools(pools, output_heading)], DISK_FAULT)


def _of_pools(lines: pl.DataFrame, output_heading: pl.DataFrame) -> Iterator[Row]:
    """Yield the members of pools and arrays that are missing or faulty, and what a pool lost by it."""
    pool, members = "pool", "array"
    for row in rows_with_origin(lines, output_heading):
        place = {**origin_of(row), "is_failing": True}
        if row["pool"] is not None:
            pool = f"pool {row['pool']}"
        elif row["member"] is not None:
            state = str(row["member_state"]).lower()
            yield {**place, "disk": f"disk {row['member']} of the {pool}", "fault": f"it is {state}"}
        elif str(row["form"]) == "bad":
            fault = "data is lost" if row["pool_state"] is None else f"the pool is {str(row['pool_state']).lower()}"
            yield {**place, "disk": pool, "fault": fault}
        elif row["array"] is not None:
            members = f"array {row['array']} ({row['array_members']})"
        elif str(row["form"]) == "missing":
            fault = f"a member is missing ([{row['members_up']}])"
            yield {**place, "disk": members, "fault": fault}


def _disks(lines: pl.DataFrame, dump_command: pl.DataFrame, output_heading: pl.DataFrame) -> Iterator[list[Row]]:
    """Yield the lines of each disk, with its name as `disk`."""
    commands = CommandHistory(dump_command)
    shown: list[Row] = []
    for row in rows_with_origin(lines, output_heading):
        arguments = commands.arguments(row["source"], row["line"], ("smartctl", "nvme"))
        device = next((word for word in reversed(arguments) if word.startswith("/dev/")), None)
        row["name"] = device and device.removeprefix("/dev/")
        is_other = shown and (row["source"], row["name"]) != (shown[-1]["source"], shown[-1]["name"])
        if shown and (is_other or str(row["form"]) in BEGINS):
            yield _named(shown)
            shown = []
        shown.append(row)
    if shown:
        yield _named(shown)


def _named(shown: list[Row]) -> list[Row]:
    names = [row[key] for key in ("disk", "name", "model") for row in shown if row.get(key)]
    return [{**row, "disk": f"disk {str(names[0]).strip()}" if names else None} for row in shown]


def _faults(shown: list[Row]) -> Iterator[Row]:
    read = {FIELDS[str(row["field"])]: row for row in shown if row["field"] is not None}
    amounts = {name: _amount(str(row["amount"])) for name, row in read.items()}
    stated: dict[str, Row] = {}
    for row in shown:
        form = str(row["form"])
        if form == "reason":
            stated.setdefault(REASONS[str(row["reason"])], row)
        elif form == "status":
            stated.setdefault(str(row["disk_fault"]).lower(), row)
    bits = amounts.get("critical", 0)
    for number, fault in enumerate(CRITICAL_BITS):
        if bits & (1 << number):
            spare = (
                f" ({amounts['spare']} %, limit {amounts['least']} %)" if {"spare", "least"} <= amounts.keys() else ""
            )
            stated.pop(fault, None)
            stated[fault + spare * (number == 0)] = read["critical"]
    failing = next((row for row in shown if str(row["form"]) == "failing"), None)
    if failing and not stated:
        stated["it expects to fail"] = failing
    for fault, row in stated.items():
        yield {**origin_of(row), "disk": row["disk"], "fault": fault, "is_failing": True}
    yield from _counts(read, amounts)
    for row in shown:
        yield from _of_attribute(row)


def _counts(read: dict[str, Row], amounts: dict[str, int]) -> Iterator[Row]:
    if amounts.get("media", 0) > 0:
        fault = f"{amounts['media']:,} errors of its media that lost data, since it was new"
        yield {**origin_of(read["media"]), "disk": read["media"]["disk"], "fault": fault, "is_failing": False}
    if amounts.get("used", 0) >= WORN:
        fault = f"{amounts['used']} % of the writes that its maker promises are used"
        yield {**origin_of(read["used"]), "disk": read["used"]["disk"], "fault": fault, "is_failing": False}


def _of_attribute(row: Row) -> Iterator[Row]:
    if row["attribute"] is None:
        return
    name, raw, when = str(row["attribute"]), int(row["raw"]), str(row["when_failed"])
    place = {**origin_of(row), "disk": row["disk"]}
    if when in ("FAILING_NOW", "NOW"):
        yield {**place, "fault": f"{name} is below its threshold", "is_failing": True}
    elif when in ("In_the_past", "Past"):
        yield {**place, "fault": f"{name} was below its threshold", "is_failing": False}
    elif raw and name in UNREADABLE:
        yield {**place, "fault": f"{name}: {raw:,}", "is_failing": name == UNREADABLE[0]}
    elif raw and name in REPLACED:
        yield {**place, "fault": f"{name}: {raw:,}", "is_failing": False}


def _amount(text: str) -> int:
    """Read a number with separators of thousands, or in hexadecimal.

    >>> _amount("0x9"), _amount("1,000"), _amount("100")
    (9, 1000, 100)
    """
    if text.startswith("0x"):
        return int(text, 16)
    return int(text.replace(",", "").replace(".", "") or 0)
