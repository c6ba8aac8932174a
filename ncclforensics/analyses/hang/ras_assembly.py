"""Assemble the lines of RAS reports, text or JSON, into snapshots and the state of each rank.

The text names only outliers and counts the other ranks; the JSON names all (formats: NCCL's log lines, section 8;
nccl: src/ras/client_support.cc).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

import polars as pl

Row = dict[str, Any]

RAS_SNAPSHOT = {
    "report": pl.Int32(),
    "source": pl.Int32(),
    "line": pl.Int32(),  # first line
    "time": pl.String(),  # null for text reports, which print none
    "version": pl.String(),  # of NCCL
    "nranks": pl.Int32(),  # of the largest communicator
    "comms": pl.Int32(),  # of that size
    "gpus": pl.Int32(),  # in these communicators together
    "is_fine": pl.Boolean(),  # the text's table shows no errors; null where there is no table
    "contradiction_line": pl.Int32(),  # the first that counts or names more ranks than its communicator has
    "contradiction_ranks": pl.Int32(),  # as many as that line says
    "contradiction_size": pl.Int32(),  # of the communicator, by the table
}

RAS_STATE = {
    "report": pl.Int32(),  # null for an event of the monitor mode
    "communicator": pl.String(),  # its hash, as the log prints the commId; null where the row is about a process
    "nranks": pl.Int32(),
    "rank": pl.Int32(),  # in the communicator; null where ranks are counted, not named
    "ranks": pl.Int32(),  # number of ranks that this row represents
    "node": pl.String(),  # an address
    "process": pl.Int32(),
    "gpu": pl.Int32(),
    "state_kind": pl.String(),  # dead, missing, status, launched, initialization, asynchronous (errors)
    "status": pl.String(),  # NOCOMM, INIT, RUNNING, FINALIZE, ABORT
    "operation": pl.String(),  # up to 2.25 "collective", for all operations together
    "launched": pl.Int64(),
    "error": pl.String(),
    "source": pl.Int32(),
    "line": pl.Int32(),
    "rank_line": pl.Int32(),  # the line that names the rank
}

# The parts of a report, in order: a part that repeats or comes out of order begins the next report.
STAGE_ORDER = {"": 0, "version": 0, "runtime": 1, "summary": 2, "communicators": 3, "columns": 4, "nothing": 4}
OPERATIONS = {
    "broadcast": "Broadcast",
    "reduce": "Reduce",
    "all_gather": "AllGather",
    "reduce_scatter": "ReduceScatter",
    "all_reduce": "AllReduce",
}
SUCCESS, IN_PROGRESS = 0, 7  # ncclResult_t
ERRORS = {  # ncclResult_t -> its name in the text
    1: "Unhandled CUDA error",
    2: "System error",
    3: "Internal error",
    4: "Invalid argument",
    5: "Invalid usage",
    6: "Remote process error",
}
UNKNOWN = "UNKNOWN"  # up to 2.25, for NOCOMM


class RasAssembly:
    """Collect the rows of `ras_snapshot` and `ras_state` while the lines of reports are read in order.

    `ranges`: the ranges in each list of numbers that the lines print, by its text.
    """

    def __init__(self, ranges: Mapping[str, list[range]]) -> None:
        self._ranges = ranges
        self.snapshots: list[Row] = []
        self.states: list[Row] = []
        self._source: int | None = None
        self._reset()

    def _reset(self) -> None:
        self._stage = -1
        self._sizes: dict[int, int] = {}  # group of the table -> number of ranks of each communicator
        self._communicator: str | None = None
        self._nranks: int | None = None
        self._shared_state: Row = {}  # the state that the ranks listed next share
        self._counted: Row | None = None  # counted ranks, which the next lines may list
        self._member: Row | None = None  # JSON: the rank whose keys are being read
        self._event: Row | None = None  # JSON: the event whose keys are being read

    def read(self, row: Row) -> None:
        """Read the next line, a row of one of the RAS frames."""
        if row["source"] != self._source:
            self._finish()
            self._reset()
            self._source = row["source"]
        getattr(self, f"_{row['frame']}")(row, row["form"])

    def end(self) -> None:
        """Complete the last report."""
        self._finish()

    def _finish(self) -> None:
        self._add_counted()
        self._end_member()
        self._end_event()

    def _enter_stage(self, row: Row, stage: int) -> None:
        """Enter a part of a report; begin the next report if the part is not a later one."""
        if self._stage < 0 or stage <= self._stage:
            self._finish()
            self._reset()
            number = len(self.snapshots)
            place = {"report": number, "source": row["source"], "line": row["line"]}
            self.snapshots.append(dict.fromkeys(RAS_SNAPSHOT) | place)
        self._stage = stage

    def _current_report(self, row: Row) -> Row:
        """Return the report of a line; the first line read may lie in the middle of a report."""
        if self._stage < 0:
            self._enter_stage(row, max(STAGE_ORDER.values()) + 1)
        return self.snapshots[-1]

    def _add(self, row: Row, **state: Any) -> None:
        needed = {"launched": "launched", "status": "status"}.get(state["state_kind"], "state_kind")
        if state.get(needed) is None:
            return  # an intermediate line was lost
        if self._contradicts_table(row, state):
            return
        where = {
            "node": row.get("node"),
            **{name: _column_number(row.get(name)) for name in ("rank", "process", "gpu")},
        }
        self.states.append(
            dict.fromkeys(RAS_STATE)
            | where
            | {
                "report": self.snapshots[-1]["report"] if self._stage >= 0 else None,
                "communicator": self._communicator,
                "nranks": self._nranks,
                "ranks": 1,
                "source": row["source"],
                "line": row["line"],
                "rank_line": row["line"],
            }
            | state
        )

    def _contradicts_table(self, row: Row, state: Row) -> bool:
        """Whether a line counts or names more ranks than the table gives its communicator: then it is left out."""
        number = _column_number(state["rank"] if "rank" in state else row.get("rank"))
        ranks = max(state.get("ranks", 1), -1 if number is None else number + 1)
        if self._stage < 0 or self._nranks is None or ranks <= self._nranks:
            return False
        report = self.snapshots[-1]
        if report["contradiction_line"] is None:
            report.update(contradiction_line=row["line"], contradiction_ranks=ranks, contradiction_size=self._nranks)
        return True

    # Text reports.

    def _ras_report(self, row: Row, form: str) -> None:
        if form in STAGE_ORDER:
            self._enter_stage(row, STAGE_ORDER[form])
            self._set_version(row)

    def _set_version(self, row: Row) -> None:
        report = self.snapshots[-1]
        report["version"] = report["version"] or (str(row["version"]) if row["version"] else None)

    def _ras_group(self, row: Row, form: str) -> None:
        report = self._current_report(row)
        self._sizes[row["group"]] = row["nranks"]
        is_fine = row["errors"] == "OK"
        report["is_fine"] = is_fine if report["is_fine"] is None else report["is_fine"] and is_fine
        self._set_size(report, row["nranks"], row["comms"], row["members"])

    def _set_size(self, report: Row, nranks: int | None, comms: int | None, gpus: int | None) -> None:
        nranks, comms = nranks or 0, comms or 0
        if nranks > (report["nranks"] or 0):
            report.update(nranks=nranks, comms=comms, gpus=gpus)
        elif nranks == report["nranks"]:
            report["comms"] += comms
            report["gpus"] = max(report["gpus"] or 0, gpus or 0) or None

    def _ras_section(self, row: Row, form: str) -> None:
        self._current_report(row)
        self._add_counted()
        is_communicator = row["hash"] is not None
        self._communicator = _communicator_name(row["hash"]) if is_communicator else None
        self._nranks = self._sizes.get(row["group"]) if is_communicator else None
        state = {"silent": "missing", "incomplete": "missing", "dead": "dead"}.get(form)
        self._shared_state = {"state_kind": state}
        if form == "dead":  # the line counts the processes; a list follows unless they are many
            self._counted = {**row, "ranks": row["count"] or 0, "state_kind": state}

    def _numbers(self, text: str | None) -> Iterator[int]:
        return chain.from_iterable(self._ranges.get(text or "", ()))

    def _ras_topic(self, row: Row, form: str) -> None:
        self._current_report(row)
        if row["ranks"] is not None:  # the counted ranks are listed here
            self._counted = None
        self._add_counted()
        shared = self._shared_state
        match form:
            case "missing":
                shared = {"state_kind": "missing"}
            case "missing_ranks" | "unknown_ranks":
                known = (
                    {"state_kind": "missing"}
                    if form == "missing_ranks"
                    else {"state_kind": "status", "status": "NOCOMM"}
                )
                for number in self._numbers(row["ranks"]):
                    self._add({**row, "rank": number}, **known)
                return
            case "initialization" | "asynchronous":
                shared = {"state_kind": form}
            case "reported":
                shared = {"state_kind": shared.get("state_kind"), "error": row["error"]}
            case "different_status":
                shared = {"state_kind": "status"}
            case "status":
                shared = {"state_kind": "status", "status": _status(row["status"])}
            case "different_counts":
                shared = {"state_kind": "launched", "operation": row["operation"]}
            case "launched" | "idle":
                shared = {**shared, "state_kind": "launched", "launched": row["launched"] or 0}
        self._shared_state = shared
        if form in ("missing", "reported", "status", "launched", "idle"):
            self._counted = {**row, **shared, "ranks": row["count"] or 0}

    def _add_counted(self) -> None:
        """Add the counted ranks, unless lines listed them."""
        counted, self._counted = self._counted, None
        if counted is not None:
            names = ("state_kind", "status", "operation", "launched", "error", "ranks")
            self._add({**counted, "rank": None}, **{name: counted.get(name) for name in names})

    def _ras_rank(self, row: Row, form: str) -> None:
        self._current_report(row)
        if form == "listed":
            self._counted = None
            state = self._shared_state
        elif form == "reported":
            self._add_counted()
            state = {"state_kind": self._shared_state.get("state_kind"), "error": row["error"]}
        elif form == "status":
            self._add_counted()
            state = {"state_kind": "status", "status": _status(row["status"])}
        else:
            self._add_counted()
            operation = self._shared_state.get("operation", "collective")
            state = {"state_kind": "launched", "operation": operation, "launched": row["launched"] or 0}
        if state.get("state_kind"):
            self._add(row, **state)

    def _ras_process(self, row: Row, form: str) -> None:
        self._current_report(row)
        if self._shared_state.get("state_kind") in ("dead", "missing"):
            self._counted = None
            self._add_process(row, self._shared_state["state_kind"])

    def _add_process(self, row: Row, state: str) -> None:
        devices: list[int | None] = [*self._numbers(row["devices"])]
        for device in devices or [None]:
            self._add({**row, "gpu": device}, state_kind=state)

    # JSON reports.

    def _ras_json(self, row: Row, form: str) -> None:
        if form in ("version", "runtime"):
            self._enter_stage(row, STAGE_ORDER[form])
            self._set_version(row)
            return
        self._current_report(row)
        if form in ("missing_ranks", "collection"):
            self._end_member()
        elif self._member is not None and (row["flag"] is not None or row["result"] is not None):
            value = row["result"] if row["flag"] is None else row["flag"] == "true"
            self._member[form] = (value, row["line"])

    def _json_field(self, row: Row, form: str) -> None:
        if self._event is not None:
            if form in ("host", "pid"):
                self._event[_JSON_COLUMNS[form]] = row[_JSON_COLUMNS[form]]
            elif form == "details":
                self._end_event()
        elif self._stage < 0:
            return  # JSON of another tool
        elif form == "timestamp":
            self.snapshots[-1]["time"] = self.snapshots[-1]["time"] or str(row["time"])
        elif form == "hash":
            self._end_member()
            self._communicator = _communicator_name(str(row["commhash"]).removeprefix("0x"))
        elif form == "size":
            self._nranks = row["nranks"]
            self._set_size(self.snapshots[-1], row["nranks"], 1, None)
        elif form == "rank":
            self._end_member()
            self._member = {**row, "counts": []}
        elif self._member is not None and form in OPERATIONS and row["launched"] is not None:
            self._member["counts"].append((OPERATIONS[form], row["launched"], row["line"]))
        elif self._member is not None and form in _JSON_COLUMNS:
            self._member[_JSON_COLUMNS[form]] = row[_JSON_COLUMNS[form]]

    def _end_member(self) -> None:
        """Add the rows of the JSON rank that ends here: one for each line that a text report would print on it."""
        member, self._member = self._member, None
        if member is None:
            return

        def add(line: int, **state: Any) -> None:
            self._add(member, line=line, **state)

        if "unresponsive" in member or "considered_dead" in member:
            is_dead, dead_line = member.get("considered_dead", (False, 0))
            is_silent, line = member.get("unresponsive", (is_dead, dead_line))
            if is_dead:
                add(dead_line, state_kind="dead")
            elif is_silent:
                add(line, state_kind="missing")
            else:  # it answered but is no member: it has left, or has not joined yet
                add(line, state_kind="status", status="NOCOMM")
            return
        if "init_state" in member:
            status, line = _status_of(member)
            add(line, state_kind="status", status=status)
        for key, state in (("init_state", "initialization"), ("async_error", "asynchronous")):
            result, line = member.get(key, (SUCCESS, 0))
            if result not in (SUCCESS, IN_PROGRESS):
                add(line, state_kind=state, error=ERRORS.get(result, "Unexpected error"))
        for operation, launched, line in member["counts"]:
            add(line, state_kind="launched", operation=operation, launched=launched)

    # Events of the monitor mode; only dead processes are kept.

    def _ras_event(self, row: Row, form: str) -> None:
        if form == "process" and row["event"] == "DEAD":
            self._add_event(row)
        elif form == "event" and row["event"] == "DEAD":
            self._event = row
        elif form == "cuda_devs" and self._event is not None:
            self._event["devices"] = row["devices"]

    def _end_event(self) -> None:
        event, self._event = self._event, None
        if event is not None and event["process"] is not None:
            self._add_event(event)

    def _add_event(self, event: Row) -> None:
        stage, self._stage = self._stage, -1
        communicator, self._communicator = self._communicator, None
        self._add_process(event, "dead")
        self._stage, self._communicator = stage, communicator


def _column_number(number: int | None) -> int | None:
    """Return a number that fits the column; the JSON prints -1 where there is no process or device."""
    return number if number is not None and 0 <= number < 1 << 31 else None


_JSON_COLUMNS = {"host": "node", "pid": "process", "cuda_dev": "gpu"}


def _communicator_name(digits: Any) -> str:
    """Format a communicator hash as the log does; the text pads it with zeros."""
    return f"0x{str(digits).lstrip('0') or '0'}"


def _status(name: Any) -> str:
    return "NOCOMM" if name == UNKNOWN else str(name)


def _status_of(member: Row) -> tuple[str, int]:
    """Return a JSON rank's status and the line of the key that states it (nccl: rasClientRunComms)."""
    for key, status in (("abort_flag", "ABORT"), ("finalize_called", "FINALIZE"), ("destroy_flag", "FINALIZE")):
        is_set, line = member.get(key, (False, 0))
        if is_set:
            return status, line
    state, line = member["init_state"]
    return ("RUNNING" if state == SUCCESS else "INIT"), line


def lines_in_order(frames: dict[str, pl.DataFrame]) -> Iterator[Row]:
    """Yield the rows of all frames in the order of reading, each with the name of its frame."""
    rows = [
        {**row, "frame": name, "form": str(row["form"] or "")}
        for name, frame in frames.items()
        for row in frame.to_dicts()
    ]
    yield from sorted(rows, key=lambda row: int(row["pos"]))
