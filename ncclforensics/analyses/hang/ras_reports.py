"""Frames of RAS reports: the snapshots, the state of each rank in them, and the ranks of the job that they show.

A report is a snapshot of a running job: a rank that has launched fewer calls than others may only be behind for the
moment. Whether it makes progress shows only in a second report.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import polars as pl

from ncclforensics.analyses.hang.ras_assembly import RAS_SNAPSHOT, RAS_STATE, RasAssembly, Row, lines_in_order
from ncclforensics.analyses.job.identity.communicator_hashes import hash_number
from ncclforensics.frames.registry import analysis
from ncclforensics.grammar.values import ranges_by_text

RAS_MEMBER = {
    "rank": pl.Int32(),  # in the job; null where no report shows a communicator of all processes
    "nranks": pl.Int32(),  # in the job
    "node": pl.String(),
    "process": pl.Int32(),
    "gpu": pl.Int32(),
    "source": pl.Int32(),
}

MOST_RANKS = 1 << 16  # more than this are not created from a mere number

RAS_FRAMES = (
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
LISTS = ("ranks", "devices")  # columns that hold lists of ranges
STATING = ("time", "nranks", "gpus", "is_fine")  # a version alone stands in other descriptions of a system, too


@analysis({"snapshots": pl.List(pl.Struct(RAS_SNAPSHOT)), "states": pl.List(pl.Struct(RAS_STATE))}, of=RAS_FRAMES)
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
    """All RAS reports in one row, from which `ras_snapshot` and `ras_state` are taken."""
    frames = dict(locals())
    lists = [frame[name].cast(pl.String) for frame in frames.values() for name in LISTS if name in frame.columns]
    assembly = RasAssembly(ranges_by_text(pl.concat(lists)))
    for row in lines_in_order(frames):
        assembly.read(row)
    assembly.end()
    stated = {state["report"] for state in assembly.states}
    snapshots = [
        row for row in assembly.snapshots if row["report"] in stated or any(row[name] is not None for name in STATING)
    ]
    row = {"snapshots": snapshots, "states": assembly.states}
    return pl.DataFrame(
        [row], schema={"snapshots": pl.List(pl.Struct(RAS_SNAPSHOT)), "states": pl.List(pl.Struct(RAS_STATE))}
    )


@analysis(RAS_SNAPSHOT, of=("ras_assembly",))
def ras_snapshot(ras_assembly: pl.DataFrame) -> pl.DataFrame:
    """One row per RAS report, in the order of reading."""
    return ras_assembly.select("snapshots").explode("snapshots").drop_nulls().unnest("snapshots")


@analysis(RAS_STATE, of=("ras_assembly",))
def ras_state(ras_assembly: pl.DataFrame) -> pl.DataFrame:
    """The state of each rank of a communicator, or of a number of ranks, in each report (text or JSON)."""
    return ras_assembly.select("states").explode("states").drop_nulls().unnest("states")


Place = tuple[str | None, int | None, int | None]  # node, process, GPU


def process_place(row: Row) -> Place:
    """Return the node, process and GPU of a rank, as far as the report names them."""
    return row["node"], row["process"], row["gpu"]


def communicator_sizes(states: list[Row]) -> dict[str, int]:
    """Return communicator -> number of ranks: the stated size, or the number of ranks in the report."""
    counts: dict[tuple[Any, ...], int] = defaultdict(int)
    sizes: dict[str, int] = {}
    for row in states:
        name = row["communicator"]
        if name is None:
            continue
        counts[name, row["report"], row["state_kind"], row["operation"]] += row["ranks"]
        sizes[name] = max(sizes.get(name, 0), row["nranks"] or 0, (row["rank"] if row["rank"] is not None else -1) + 1)
    for (name, *_), ranks in counts.items():
        sizes[name] = max(sizes[name], ranks)
    return sizes


@analysis(RAS_MEMBER, of=("ras_state", "ras_snapshot"))
def ras_member(ras_state: pl.DataFrame, ras_snapshot: pl.DataFrame) -> pl.DataFrame:
    """Every rank of the job in RAS reports, with its process where the report names one.

    A rank's number is its number in the largest communicator, if that communicator holds all processes.
    """
    states, snapshots = ras_state.to_dicts(), ras_snapshot.to_dicts()
    sizes = communicator_sizes(states)
    nranks = max([*sizes.values(), *(report["nranks"] or 0 for report in snapshots)], default=0)
    processes = {process_place(row): row for row in states if row["process"] is not None}
    process_count = max([len(processes), *(report["gpus"] or 0 for report in snapshots)])
    if not 0 < nranks <= MOST_RANKS or process_count > nranks:  # no communicator holds all processes
        unnamed = range(max(0, min(process_count, MOST_RANKS) - len(processes)))
        rows = [
            dict(zip(("node", "process", "gpu"), place, strict=True)) | _source_of(row)
            for place, row in processes.items()
        ]
        rows += [_source_of(row) for row in snapshots[:1] for _ in unnamed]
        return pl.DataFrame(rows, schema=RAS_MEMBER)
    world_rows = [row for row in states if sizes.get(row["communicator"]) == nranks and row["rank"] is not None]
    memberships: dict[int, Row] = {}
    for row in sorted(world_rows, key=lambda row: (row["process"] is None, row["report"])):
        memberships.setdefault(row["rank"], row)
    taken_places = {process_place(row) for row in memberships.values()}
    unassigned = [
        row for row in processes.values() if row["communicator"] is None and process_place(row) not in taken_places
    ]
    unnamed_ranks = [
        number for number, row in memberships.items() if row["process"] is None and row["state_kind"] == "missing"
    ]
    if len(unassigned) == len(unnamed_ranks) == 1:  # up to 2.25 one list has the ranks, the other the processes
        memberships[unnamed_ranks[0]] = {**unassigned[0], "rank": unnamed_ranks[0]}
    unreachable = {number for number in unnamed_ranks if memberships[number]["process"] is None}
    first = (states or snapshots)[0]
    rows = [
        {"rank": number, "nranks": nranks, "source": membership["source"]}
        | {name: membership.get(name) for name in ("node", "process", "gpu")}
        for number in range(nranks)
        if number not in unreachable
        for membership in [memberships.get(number, {"source": first["source"]})]
    ]
    return pl.DataFrame(rows, schema=RAS_MEMBER)


def _source_of(row: Row) -> Row:
    return {"source": row["source"]}


def may_be_of(ras_state: pl.DataFrame, member: pl.DataFrame, reported: object, nranks: int | None) -> bool:
    """Whether RAS may report on the job of some logs: of the same size, and not of other communicators of that size.

    `reported`, `nranks`: ranks of the job in the reports and in the logs.
    """
    if None in (reported, nranks):
        return True
    shown, known = (
        {hash_number(text, 16) for text in rows.filter(nranks=nranks)[column].drop_nulls().cast(pl.String)}
        for rows, column in ((ras_state, "communicator"), (member, "commid"))
    )
    return reported == nranks and not (shown and known and shown.isdisjoint(known))
