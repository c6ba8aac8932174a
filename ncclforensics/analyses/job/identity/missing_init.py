"""Communicators whose Init lines are not in the logs: NCCL_DEBUG_SUBSYS=COLL, `tail`, a rotated or pasted log.

A COLL line names the communicator by its pointer in that process and states its size. Which processes share one has to
be inferred: from the size, from the calls made on it, and from the members whose Init lines are there. Where several
communicators of one size made the same calls (tensor-parallel groups, say), nothing tells them apart; they are kept
as one sequence that all of their ranks follow.
"""

from __future__ import annotations

from collections import defaultdict

import polars as pl

from ncclforensics.analyses.job.identity.communicator_ids import Member
from ncclforensics.analyses.job.identity.rank_numbers import missing_numbers
from ncclforensics.analyses.job.identity.restarts import since_restart
from ncclforensics.frames.columns import OWNER, PROCESS, Row
from ncclforensics.frames.registry import analysis

FIRST_CALLS = 64  # first collectives by which sequences are told apart
ALIKE = 0.5  # share of the different calls of one sequence that another of the same communicator has, at least

CALLS_WITHOUT_INIT = {
    **PROCESS,
    "comm": pl.Categorical(),
    "nranks": pl.Int32(),
    "source": pl.Int32(),
    "first_pos": pl.Int64(),
    "signatures": pl.List(pl.Int64()),  # of the different calls
    "first_calls": pl.List(pl.Int64()),  # of the first FIRST_CALLS collectives, in order, as far as they are kept
}

# A communicator of which ranks are missing: its key, the ranks that are known, and their processes.
Vacancy = tuple[str, set[int | None], set[tuple[str, int]]]


@analysis(CALLS_WITHOUT_INIT, of=("call_template",))
def calls_without_init(
    call_template: pl.DataFrame,
    call_line: pl.DataFrame,
    call_occurrence: pl.DataFrame,
    communicator_lifetime: pl.DataFrame,
    source: pl.DataFrame,
    calls_between: pl.DataFrame,
    restart: pl.DataFrame,
) -> pl.DataFrame:
    """Pointers of communicators on which calls were made before any Init line of theirs, one row per process.

    Of files of which every line was read: elsewhere the Init line may stand in the part that was not read.
    """
    pointer = [*OWNER, "comm"]
    created = communicator_lifetime.group_by(pointer).agg(pl.col("created_pos").min())
    lines = call_line.with_row_index("call_line").head(call_template.height)  # the COLL lines stand first
    lines = since_restart(lines, restart).join(created, on=pointer, how="left", maintain_order="left")
    lines = lines.filter(pl.col("created_pos").is_null() | (pl.col("pos") < pl.col("created_pos")))
    is_read = pl.col("source").is_in(source.filter("is_closed")["source"].implode())
    lines = lines.filter((pl.col("nranks") > 1) & is_read & pl.col("comm").is_not_null())
    if lines.is_empty():
        return pl.DataFrame(schema=CALLS_WITHOUT_INIT)
    first = lines.group_by(pointer, maintain_order=True).agg(
        pl.col("nranks").max(), pl.col("source").first(), first_pos=pl.col("pos").min(), signatures=pl.col("signature")
    )
    made = call_occurrence.select("pos", call_line="call_template").filter(
        pl.col("call_line").is_in(lines["call_line"].implode())
    )
    # Some calls were only counted: the kept ones behind them are not the first ones.
    counted = since_restart(calls_between, restart).group_by(pointer).agg(counted_pos=pl.col("pos").min())
    ordered = made.join(lines.filter("collective").select("call_line", *pointer, "signature"), on="call_line")
    ordered = ordered.join(counted, on=pointer, how="left")
    ordered = ordered.filter((pl.col("pos") < pl.col("counted_pos")).fill_null(True))
    first_calls = ordered.sort("pos").group_by(pointer).agg(first_calls=pl.col("signature").head(FIRST_CALLS))
    return (
        first.join(first_calls, on=pointer, how="left")
        .join(counted, on=pointer, how="left")
        .with_columns(
            pl.col("signatures").list.unique(),
            pl.col("first_calls").fill_null([]),
            first_pos=pl.min_horizontal("first_pos", "counted_pos"),
        )
        .sort("first_pos")
        .select(list(CALLS_WITHOUT_INIT))
    )


def inferred_members(streams: pl.DataFrame, members: list[Member], processes: list[Row]) -> dict[int, Member]:
    """A member for every row of `calls_without_init`, by its number, under the name that its communicator has."""
    hints = {(p["host"], p["pid"]): p["hint"] for p in processes}
    rows = streams.to_dicts()
    vacancies = _vacancies(members) if rows else {}
    found: dict[int, Member] = {}
    sizes: dict[int, list[Row]] = defaultdict(list)
    for number, row in enumerate(rows):
        if m := _joined(row, vacancies.get(row["nranks"], []), hints):
            found[number] = m
        else:
            sizes[row["nranks"]].append({**row, "number": number})
    for nranks, group in sorted(sizes.items()):
        for place_of_class, alike in enumerate(_classes(group, nranks), 1):
            key = f"unnamed, {nranks} ranks, {place_of_class}. of its size"
            numbers = [hints.get((row["host"], row["pid"])) for row in alike]
            known = {number for number in numbers if number is not None and number < nranks}
            is_numbered = len(known) == len(alike)
            for row, rank in zip(alike, numbers, strict=True):
                found[row["number"]] = _member(row, key, rank if is_numbered else None)
    return found


def _vacancies(members: list[Member]) -> dict[int, list[Vacancy]]:
    """Size -> its communicators of which ranks are missing."""
    ranks: dict[tuple[int, str], set[int | None]] = defaultdict(set)
    owners: dict[tuple[int, str], set[tuple[str, int]]] = defaultdict(set)
    for m in members:
        ranks[m.nranks, m.key].add(m.rank)
        owners[m.nranks, m.key].add(m.owner)
    vacancies: dict[int, list[Vacancy]] = defaultdict(list)
    for (nranks, key), taken in ranks.items():
        if len(taken - {None}) < nranks:
            vacancies[nranks].append((key, taken, owners[nranks, key]))
    return vacancies


def _joined(row: Row, vacancies: list[Vacancy], hints: dict[tuple[str, int], int | None]) -> Member | None:
    """The member that a process is of a communicator whose Init lines other processes show; None if that is open."""
    owner = (row["host"], row["pid"])
    vacant = [(key, taken) for key, taken, owners in vacancies if owner not in owners]
    if len(vacant) != 1:
        return None
    key, taken = vacant[0]
    hint = hints.get(owner)
    if hint is not None and 0 <= hint < row["nranks"] and hint not in taken:
        return _member(row, key, hint)
    if row["nranks"] - len(taken) > 1:
        return None
    free = missing_numbers(row["nranks"], taken)
    return _member(row, key, free[0]) if len(free) == 1 else None


def _member(row: Row, key: str, rank: int | None) -> Member:
    owner = (row["host"], row["pid"])
    return Member(owner, rank, row["nranks"], created_pos=row["first_pos"], key=key, is_inferred=True)


def _classes(rows: list[Row], nranks: int) -> list[list[Row]]:
    """Groups of streams that follow one sequence of calls, at most one of each process in a group.

    Of a process, the stream most alike joins a group first: one that lost its first calls is like several. Streams of
    as many processes as a communicator has members are one group where most are alike: else as many would lack a log.
    """
    streams: dict[tuple[str, int], list[Row]] = defaultdict(list)
    for row in rows:
        streams[row["host"], row["pid"]].append(row)
    classes: list[list[Row]] = []
    for of_process in streams.values():
        likeness = {
            (place, number): _likeness(row, members[0])
            for place, row in enumerate(of_process)
            for number, members in enumerate(classes)
        }
        joined: dict[int, int] = {}  # place of the stream -> number of its class
        for (place, number), alike in sorted(likeness.items(), key=lambda item: -item[1]):
            if alike >= ALIKE and place not in joined and number not in joined.values():
                joined[place] = number
        for place, row in enumerate(of_process):
            if place in joined:
                classes[joined[place]].append(row)
            else:
                classes.append([row])
    if len(rows) == len(streams) == nranks < 2 * max(map(len, classes), default=0):
        return [rows]
    return [part for members in classes for part in _programs(members, nranks)]


def _likeness(first: Row, second: Row) -> float:
    first_signatures, second_signatures = set(first["signatures"]), set(second["signatures"])
    return len(first_signatures & second_signatures) / max(1, min(len(first_signatures), len(second_signatures)))


def _programs(rows: list[Row], nranks: int) -> list[list[Row]]:
    """Streams of a class that is larger than a communicator, parted by how they begin: pipeline stages differ.

    A part smaller than a communicator cannot be one: its members differ from their peers, and stay with them.
    """
    if len(rows) <= nranks:
        return [rows]
    parts: list[list[Row]] = []
    for row in sorted(rows, key=lambda row: -len(row["first_calls"])):
        part = next((part for part in parts if _agree(part[0]["first_calls"], row["first_calls"])), None)
        if part is None:
            parts.append([row])
        else:
            part.append(row)
    large = [part for part in parts if len(part) >= nranks] or [[]]
    for part in parts:
        if len(part) < nranks:
            max(large, key=len).extend(part)
    return [sorted(part, key=lambda row: row["first_pos"]) for part in large]


def _agree(first: list[int], second: list[int]) -> bool:
    """Whether two sequences are equal up to the end of the shorter first."""
    length = min(len(first), len(second))
    return first[:length] == second[:length]
