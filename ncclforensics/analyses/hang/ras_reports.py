"""What RAS reports say of a job, text or JSON: the state of its ranks when `ncclras` asked, put together line by line.

A report is a snapshot of a running job: ranks that have launched less than others are behind for the moment, and only
a second report tells whether they stand still. The text names outliers only and counts the others; the JSON names all
(formats: NCCL's log lines, section 8; nccl: src/ras/client_support.cc).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import polars as pl

from ncclforensics.frames.registry import analysis

Row = dict[str, Any]

SNAPSHOT = {
    "report": pl.Int32(),
    "source": pl.Int32(),
    "line": pl.Int32(),  # where it begins
    "time": pl.String(),  # only the JSON has one
    "version": pl.String(),  # of NCCL
    "nranks": pl.Int32(),  # of the largest communicator
    "comms": pl.Int32(),  # of that size
    "gpus": pl.Int32(),  # that they have together
    "is_fine": pl.Boolean(),  # the table of a text shows no errors; null where there is none
}

STATE = {
    "report": pl.Int32(),  # null: an event of the monitor mode
    "communicator": pl.String(),  # its hash, as the log prints the commId; null: a process as such
    "nranks": pl.Int32(),
    "rank": pl.Int32(),  # in the communicator; null where ranks are counted, not named
    "ranks": pl.Int32(),  # that this row stands for
    "node": pl.String(),  # an address
    "process": pl.Int32(),
    "gpu": pl.Int32(),
    "said": pl.String(),  # dead, missing, status, launched, initialization, asynchronous (errors)
    "status": pl.String(),  # NOCOMM, INIT, RUNNING, FINALIZE, ABORT
    "operation": pl.String(),  # "collective" up to 2.25: all of them
    "launched": pl.Int64(),
    "error": pl.String(),
    "source": pl.Int32(),
    "line": pl.Int32(),
    "rank_line": pl.Int32(),  # where the rank is named
}

SEAT = {
    "rank": pl.Int32(),  # in the job; null where no report shows a communicator of all
    "nranks": pl.Int32(),  # in the job
    "node": pl.String(),
    "process": pl.Int32(),
    "gpu": pl.Int32(),
    "source": pl.Int32(),
}

# The parts of a report in their order: one that comes again, or too late, begins the next report.
STAGES = {"": 0, "version": 0, "runtime": 1, "summary": 2, "communicators": 3, "columns": 4, "nothing": 4}
OPERATIONS = {
    "broadcast": "Broadcast",
    "reduce": "Reduce",
    "all_gather": "AllGather",
    "reduce_scatter": "ReduceScatter",
    "all_reduce": "AllReduce",
}
SUCCESS, IN_PROGRESS = 0, 7  # ncclResult_t
ERRORS = {  # as the text calls them
    1: "Unhandled CUDA error",
    2: "System error",
    3: "Internal error",
    4: "Invalid argument",
    5: "Invalid usage",
    6: "Remote process error",
}
UNKNOWN = "UNKNOWN"  # NOCOMM up to 2.25
MOST = 1 << 16  # ranks that are made of a mere number


class _Assembly:
    """The reports as far as they have been read: rows of `ras_snapshot` and of `ras_state`."""

    def __init__(self) -> None:
        self.snapshots: list[Row] = []
        self.states: list[Row] = []
        self._source: int | None = None
        self._begin_nothing()

    def _begin_nothing(self) -> None:
        self._stage = -1
        self._sizes: dict[int, int] = {}  # group of the table -> ranks of each communicator
        self._communicator: str | None = None
        self._nranks: int | None = None
        self._topic: Row = {}  # what the ranks that are listed next have in common
        self._counted: Row | None = None  # ranks that are counted, and perhaps listed next
        self._member: Row | None = None  # of the JSON: a rank whose keys are being read
        self._event: Row | None = None  # of the JSON: an event, likewise

    def read(self, row: Row) -> None:
        """The next line."""
        if row["source"] != self._source:
            self._finish()
            self._begin_nothing()
            self._source = row["source"]
        getattr(self, f"_{row['frame']}")(row, row["form"])

    def end(self) -> None:
        """There are no more lines."""
        self._finish()

    def _finish(self) -> None:
        self._count()
        self._end_member()
        self._end_event()

    def _at(self, row: Row, stage: int) -> None:
        """A line of that part of a report: does it begin the next one?"""
        if self._stage < 0 or stage <= self._stage:
            self._finish()
            self._begin_nothing()
            number = len(self.snapshots)
            place = {"report": number, "source": row["source"], "line": row["line"]}
            self.snapshots.append(dict.fromkeys(SNAPSHOT) | place)
        self._stage = stage

    def _inside(self, row: Row) -> Row:
        """The report that a line belongs to, which may begin in its middle."""
        if self._stage < 0:
            self._at(row, max(STAGES.values()) + 1)
        return self.snapshots[-1]

    def _add(self, row: Row, **said: Any) -> None:
        needed = {"launched": "launched", "status": "status"}.get(said["said"], "said")
        if said.get(needed) is None:
            return  # a line between was lost
        where = {"node": row.get("node"), **{name: _small(row.get(name)) for name in ("rank", "process", "gpu")}}
        self.states.append(
            dict.fromkeys(STATE)
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
            | said
        )

    # The text.

    def _ras_report(self, row: Row, form: str) -> None:
        if form in STAGES:
            self._at(row, STAGES[form])
            self._versioned(row)

    def _versioned(self, row: Row) -> None:
        report = self.snapshots[-1]
        report["version"] = report["version"] or (str(row["version"]) if row["version"] else None)

    def _ras_group(self, row: Row, form: str) -> None:
        report = self._inside(row)
        self._sizes[row["group"]] = row["nranks"]
        fine = row["errors"] == "OK"
        report["is_fine"] = fine if report["is_fine"] is None else report["is_fine"] and fine
        self._sized(report, row["nranks"], row["comms"], row["members"])

    def _sized(self, report: Row, nranks: int | None, comms: int | None, gpus: int | None) -> None:
        nranks, comms = nranks or 0, comms or 0
        if nranks > (report["nranks"] or 0):
            report.update(nranks=nranks, comms=comms, gpus=gpus)
        elif nranks == report["nranks"]:
            report["comms"] += comms
            report["gpus"] = max(report["gpus"] or 0, gpus or 0) or None

    def _ras_section(self, row: Row, form: str) -> None:
        self._inside(row)
        self._count()
        is_communicator = row["hash"] is not None
        self._communicator = _hash(row["hash"]) if is_communicator else None
        self._nranks = self._sizes.get(row["group"]) if is_communicator else None
        said = {"silent": "missing", "incomplete": "missing", "dead": "dead"}.get(form)
        self._topic = {"said": said}
        if form == "dead":  # how many there are; a list follows unless they are many
            self._counted = {**row, "ranks": row["count"] or 0, "said": said}

    def _ras_topic(self, row: Row, form: str) -> None:
        self._inside(row)
        if row["ranks"] is not None:  # those that were counted are listed
            self._counted = None
        self._count()
        topic = self._topic
        match form:
            case "missing":
                topic = {"said": "missing"}
            case "missing_ranks" | "unknown_ranks":
                known = {"said": "missing"} if form == "missing_ranks" else {"said": "status", "status": "NOCOMM"}
                for number in str(row["ranks"]).split(","):
                    self._add({**row, "rank": int(number)}, **known)
                return
            case "initialization" | "asynchronous":
                topic = {"said": form}
            case "reported":
                topic = {"said": topic.get("said"), "error": row["error"]}
            case "different_status":
                topic = {"said": "status"}
            case "status":
                topic = {"said": "status", "status": _status(row["status"])}
            case "different_counts":
                topic = {"said": "launched", "operation": row["operation"]}
            case "launched" | "idle":
                topic = {**topic, "said": "launched", "launched": row["launched"] or 0}
        self._topic = topic
        if form in ("missing", "reported", "status", "launched", "idle"):
            self._counted = {**row, **topic, "ranks": row["count"] or 0}

    def _count(self) -> None:
        """The ranks that were counted, if they were not listed as well."""
        counted, self._counted = self._counted, None
        if counted is not None:
            names = ("said", "status", "operation", "launched", "error", "ranks")
            self._add({**counted, "rank": None}, **{name: counted.get(name) for name in names})

    def _ras_rank(self, row: Row, form: str) -> None:
        self._inside(row)
        if form == "listed":
            self._counted = None
            said = self._topic
        elif form == "reported":
            self._count()
            said = {"said": self._topic.get("said"), "error": row["error"]}
        elif form == "status":
            self._count()
            said = {"said": "status", "status": _status(row["status"])}
        else:
            self._count()
            operation = self._topic.get("operation", "collective")
            said = {"said": "launched", "operation": operation, "launched": row["launched"] or 0}
        if said.get("said"):
            self._add(row, **said)

    def _ras_process(self, row: Row, form: str) -> None:
        self._inside(row)
        if self._topic.get("said") in ("dead", "missing"):
            self._counted = None
            self._add_process(row, self._topic["said"])

    def _add_process(self, row: Row, said: str) -> None:
        for device in str(row["devices"] or "").split(","):
            self._add({**row, "gpu": int(device) if device else None}, said=said)

    # The JSON.

    def _ras_json(self, row: Row, form: str) -> None:
        if form in ("version", "runtime"):
            self._at(row, STAGES[form])
            self._versioned(row)
            return
        self._inside(row)
        if form in ("missing_ranks", "collection"):
            self._end_member()
        elif self._member is not None and form in OPERATIONS and row["launched"] is not None:
            self._member["counts"].append((OPERATIONS[form], row["launched"], row["line"]))
        elif self._member is not None and (row["flag"] is not None or row["result"] is not None):
            value = row["result"] if row["flag"] is None else row["flag"] == "true"
            self._member[form] = (value, row["line"])

    def _json_field(self, row: Row, form: str) -> None:
        if self._event is not None:
            if form in ("host", "pid"):
                self._event[_FIELDS[form]] = row[_FIELDS[form]]
            elif form == "details":
                self._end_event()
        elif self._stage < 0:
            return  # some other JSON
        elif form == "timestamp":
            self.snapshots[-1]["time"] = self.snapshots[-1]["time"] or str(row["time"])
        elif form == "hash":
            self._end_member()
            self._communicator = _hash(str(row["commhash"]).removeprefix("0x"))
        elif form == "size":
            self._nranks = row["nranks"]
            self._sized(self.snapshots[-1], row["nranks"], 1, None)
        elif form == "rank":
            self._end_member()
            self._member = {**row, "counts": []}
        elif self._member is not None and form in _FIELDS:
            self._member[_FIELDS[form]] = row[_FIELDS[form]]

    def _end_member(self) -> None:
        """What the keys of a rank say together: as many rows as the text would have lines on it."""
        member, self._member = self._member, None
        if member is None:
            return

        def add(line: int, **said: Any) -> None:
            self._add(member, line=line, **said)

        if "unresponsive" in member or "considered_dead" in member:
            is_dead, dead_line = member.get("considered_dead", (False, 0))
            is_silent, line = member.get("unresponsive", (is_dead, dead_line))
            if is_dead:
                add(dead_line, said="dead")
            elif is_silent:
                add(line, said="missing")
            else:  # it answered, and is no member: it has left, or not yet come
                add(line, said="status", status="NOCOMM")
            return
        if "init_state" in member:
            status, line = _status_of(member)
            add(line, said="status", status=status)
        for key, said in (("init_state", "initialization"), ("async_error", "asynchronous")):
            result, line = member.get(key, (SUCCESS, 0))
            if result not in (SUCCESS, IN_PROGRESS):
                add(line, said=said, error=ERRORS.get(result, "Unexpected error"))
        for operation, launched, line in member["counts"]:
            add(line, said="launched", operation=operation, launched=launched)

    # Events of the monitor mode; only a death lasts.

    def _ras_event(self, row: Row, form: str) -> None:
        if form == "process" and row["event"] == "DEAD":
            self._outside(row)
        elif form == "event" and row["event"] == "DEAD":
            self._event = row
        elif form == "cuda_devs" and self._event is not None:
            self._event["devices"] = row["devices"]

    def _end_event(self) -> None:
        event, self._event = self._event, None
        if event is not None and event["process"] is not None:
            self._outside(event)

    def _outside(self, event: Row) -> None:
        stage, self._stage = self._stage, -1
        communicator, self._communicator = self._communicator, None
        self._add_process(event, "dead")
        self._stage, self._communicator = stage, communicator


def _small(number: int | None) -> int | None:
    """A number that a column can hold; what has no process or device is -1 in the JSON."""
    return number if number is not None and 0 <= number < 1 << 31 else None


_FIELDS = {"host": "node", "pid": "process", "cuda_dev": "gpu"}


def _hash(digits: Any) -> str:
    """The text fills up with zeros, the JSON and the log do not."""
    return f"0x{str(digits).lstrip('0') or '0'}"


def _status(name: Any) -> str:
    return "NOCOMM" if name == UNKNOWN else str(name)


def _status_of(member: Row) -> tuple[str, int]:
    """A rank's status, and the line of the key that says so (rasClientRunComms)."""
    for key, status in (("abort_flag", "ABORT"), ("finalize_called", "FINALIZE"), ("destroy_flag", "FINALIZE")):
        is_set, line = member.get(key, (False, 0))
        if is_set:
            return status, line
    state, line = member["init_state"]
    return ("RUNNING" if state == SUCCESS else "INIT"), line


def _lines(frames: dict[str, pl.DataFrame]) -> Iterator[Row]:
    rows = [
        {**row, "frame": name, "form": str(row["form"] or "")}
        for name, frame in frames.items()
        for row in frame.to_dicts()
    ]
    yield from sorted(rows, key=lambda row: int(row["pos"]))


REPORTS = (
    "ras_report",
    "ras_group",
    "ras_section",
    "ras_topic",
    "ras_rank",
    "ras_process",
    "ras_json",
    "json_field",
    "ras_event",
)


@analysis({"snapshots": pl.List(pl.Struct(SNAPSHOT)), "states": pl.List(pl.Struct(STATE))}, of=REPORTS)
def ras_assembly(
    ras_report: pl.DataFrame,
    ras_group: pl.DataFrame,
    ras_section: pl.DataFrame,
    ras_topic: pl.DataFrame,
    ras_rank: pl.DataFrame,
    ras_process: pl.DataFrame,
    ras_json: pl.DataFrame,
    json_field: pl.DataFrame,
    ras_event: pl.DataFrame,
) -> pl.DataFrame:
    """All reports in one row: what the next two frames are taken from."""
    frames = dict(locals())
    assembly = _Assembly()
    for row in _lines(frames):
        assembly.read(row)
    assembly.end()
    row = {"snapshots": assembly.snapshots, "states": assembly.states}
    return pl.DataFrame([row], schema={"snapshots": pl.List(pl.Struct(SNAPSHOT)), "states": pl.List(pl.Struct(STATE))})


@analysis(SNAPSHOT, of=("ras_assembly",))
def ras_snapshot(ras_assembly: pl.DataFrame) -> pl.DataFrame:
    """One row per RAS report, in the order of reading."""
    return ras_assembly.select("snapshots").explode("snapshots").drop_nulls().unnest("snapshots")


@analysis(STATE, of=("ras_assembly",))
def ras_state(ras_assembly: pl.DataFrame) -> pl.DataFrame:
    """What each report says of each rank of a communicator, or of how many of them; text and JSON alike."""
    return ras_assembly.select("states").explode("states").drop_nulls().unnest("states")


Place = tuple[str | None, int | None, int | None]  # node, process, GPU


def place(row: Row) -> Place:
    """Where a rank runs, as far as it is told."""
    return row["node"], row["process"], row["gpu"]


def sizes(states: list[Row]) -> dict[str, int]:
    """How many ranks each communicator has: as the report says, or as many as it speaks of."""
    counted: dict[tuple[Any, ...], int] = defaultdict(int)
    found: dict[str, int] = {}
    for row in states:
        name = row["communicator"]
        if name is None:
            continue
        counted[name, row["report"], row["said"], row["operation"]] += row["ranks"]
        found[name] = max(found.get(name, 0), row["nranks"] or 0, (row["rank"] if row["rank"] is not None else -1) + 1)
    for (name, *_), ranks in counted.items():
        found[name] = max(found[name], ranks)
    return found


@analysis(SEAT, of=("ras_state", "ras_snapshot"))
def ras_member(ras_state: pl.DataFrame, ras_snapshot: pl.DataFrame) -> pl.DataFrame:
    """Every rank of the job that RAS reports show, with the process behind it where one is named.

    A rank's number is its number in the largest communicator, if that one holds all processes.
    """
    states, snapshots = ras_state.to_dicts(), ras_snapshot.to_dicts()
    told = sizes(states)
    nranks = max([*told.values(), *(report["nranks"] or 0 for report in snapshots)], default=0)
    processes = {place(row): row for row in states if row["process"] is not None}
    many = max([len(processes), *(report["gpus"] or 0 for report in snapshots)])
    if not 0 < nranks <= MOST or many > nranks:  # there is no communicator of all
        nameless = range(max(0, min(many, MOST) - len(processes)))
        rows = [
            dict(zip(("node", "process", "gpu"), each, strict=True)) | _from(row) for each, row in processes.items()
        ]
        rows += [_from(row) for row in snapshots[:1] for _ in nameless]
        return pl.DataFrame(rows, schema=SEAT)
    world = [row for row in states if told.get(row["communicator"]) == nranks and row["rank"] is not None]
    memberships: dict[int, Row] = {}
    for row in sorted(world, key=lambda row: (row["process"] is None, row["report"])):
        memberships.setdefault(row["rank"], row)
    taken = {place(row) for row in memberships.values()}
    lost = [row for row in processes.values() if row["communicator"] is None and place(row) not in taken]
    nameless_ranks = [
        number for number, row in memberships.items() if row["process"] is None and row["said"] == "missing"
    ]
    if len(lost) == len(nameless_ranks) == 1:  # up to 2.25 the one list has the ranks, the other the processes
        memberships[nameless_ranks[0]] = {**lost[0], "rank": nameless_ranks[0]}
    silent = {number for number in nameless_ranks if memberships[number]["process"] is None}
    first = (states or snapshots)[0]
    rows = [
        {"rank": number, "nranks": nranks, "source": membership["source"]}
        | {name: membership.get(name) for name in ("node", "process", "gpu")}
        for number in range(nranks)
        if number not in silent
        for membership in [memberships.get(number, {"source": first["source"]})]
    ]
    return pl.DataFrame(rows, schema=SEAT)


def _from(row: Row) -> Row:
    return {"source": row["source"]}
