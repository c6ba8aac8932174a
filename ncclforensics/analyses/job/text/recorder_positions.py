"""How far each rank came in each process group, by the head of its Flight Recorder dump and by its entries.

The recorder keeps the last calls: those of a rank that ran far ahead of its GPU may all be open, and the call at which
it stands is overwritten. The head, which the watchdog writes, still has the number of the last completed one.
"""

from __future__ import annotations

from collections import defaultdict

import polars as pl

from ncclforensics.analyses.job.text.recorder_groups import groups_by_source, groups_with_one_number, own_names
from ncclforensics.frames.columns import LINE, Row, text_of
from ncclforensics.frames.registry import analysis

RECORDED_POSITION = {
    "rank": pl.Int32(),
    "group": pl.String(),  # name of the process group, equal on all members
    "group_desc": pl.String(),
    # Ranks of the job, in the order of their ranks in the group, on the first row of a group that shows them: repeated
    # for every rank, the group of all would take the square of their number. Null: unknown.
    "members": pl.List(pl.Int32()),
    "enqueued": pl.Int64(),  # number of the last collective that it called
    "completed": pl.Int64(),  # number of the last collective that it completed
    "is_overwritten": pl.Boolean(),  # a call that is still open was overwritten, so that it is not among the entries
    "has_open": pl.Boolean(),  # the head counts more calls that were made than were completed, messages among them
    "has_p2p": pl.Boolean(),  # the group has point-to-point calls, so only the entries show the numbers
    **LINE,
}


@analysis(RECORDED_POSITION, of=("recorder_status", "dumped_group", "dumped_call"))
def recorded_position(
    recorder_status: pl.DataFrame,
    dumped_group: pl.DataFrame,
    dumped_call: pl.DataFrame,
    recorded_call: pl.DataFrame,
    recorded_rank: pl.DataFrame,
) -> pl.DataFrame:
    """One row per rank and process group in the dumps: how many collectives the rank called and completed there."""
    used = recorded_rank.filter("is_used")
    groups = groups_by_source(dumped_group.join(used, on="source", how="semi"))
    dumped_call = dumped_call.join(used, on="source", how="semi", maintain_order="left")
    calls = dumped_call.with_columns(group=own_names(dumped_call, groups))
    ids = dumped_call.select("source", "pg_id", text_of("group_name")).drop_nulls().unique()
    group_of_id: dict[int, dict[int, str]] = defaultdict(dict)
    for number, pg_id, group in ids.iter_rows():
        group_of_id[number][pg_id] = group
    statuses: dict[int, list[Row]] = defaultdict(list)
    for row in recorder_status.to_dicts():
        statuses[row["source"]].append(row)
    is_cut = pl.col("source").is_in(recorded_rank.filter("is_cut")["source"].to_list())
    seen = _positions_of_calls(calls.filter(~is_cut), recorded_call)
    without_own_numbers = groups_with_one_number(calls)
    p2p_groups = set(recorded_call.filter("is_p2p")["group"])
    first_message = _first_open_messages(recorded_call)
    descs = dict(recorded_call.select("group", "group_desc").unique("group", keep="first").iter_rows())
    rows: list[Row] = []
    listed: set[str] = set()
    for dump in used.to_dicts():
        number = dump["source"]
        names = _names_of_ids(group_of_id[number], [row["pg_id"] for row in statuses[number]], groups[number])
        positions = seen.get(number, {})
        configs = {row["group"]: row for row in groups[number].values()}
        for status in statuses[number]:
            name = names.get(status["pg_id"])
            if name is None:
                continue
            group = groups[number].get(name, {}).get("group", name)
            known = positions.get(group)
            reported = max(status["last_completed"] or 0, 0)
            has_open = (status["last_enqueued"] or 0) > reported
            if group in p2p_groups:  # the status counts messages, too
                position = positions.setdefault(group, {**UNKNOWN, "line": status["line"]})
                position["is_overwritten"] = reported + 1 < first_message.get((number, group), 0)
            else:
                enqueued = max(status["last_enqueued"] or 0, known["enqueued"] or 0 if known else 0)
                position = {"enqueued": enqueued, "line": status["line"], **_completed(known, status)}
            positions[group] = {**position, "has_open": has_open}
        for config in configs.values():
            if config["own_number"] is not None:  # a log that is written before each call
                positions.setdefault(config["group"], {**NO_CALLS, "line": config["line"]})
        for group, position in positions.items():
            if group in without_own_numbers:
                continue
            config = configs.get(group, {})
            members = None if group in listed else config.get("members")
            listed |= {group} if members else set()
            rows.append(
                {
                    "rank": dump["rank"], "group": group, "group_desc": config.get("group_desc") or descs.get(group),
                    "members": members, "has_p2p": group in p2p_groups, "source": number, **position,
                }
            )  # fmt: skip
    return pl.DataFrame(rows, schema=RECORDED_POSITION)


def _first_open_messages(recorded_call: pl.DataFrame) -> dict[tuple[int, str], int]:
    """Source and group -> number of the first open message; of groups of which the entries are open messages only."""
    rows = recorded_call.group_by("source", "group").agg(
        pl.col("sequence").min(), is_open=(pl.col("is_p2p") & pl.col("is_open")).all()
    )
    rows = rows.filter("is_open").drop_nulls("sequence")
    return {(number, group): sequence for number, group, sequence, _ in rows.iter_rows()}


UNKNOWN: Row = {"enqueued": None, "completed": None, "is_overwritten": False}
NO_CALLS: Row = {"enqueued": 0, "completed": 0, "is_overwritten": False}


def _completed(known: Row | None, status: Row) -> Row:
    """The number of the last completed collective, and whether an older open one was overwritten.

    Where no completed entry precedes the first open one, only the head says what was completed.
    """
    if known is None:
        return {"completed": status["last_completed"], "is_overwritten": False}
    reported = status["last_completed"]
    is_overwritten = known["is_overwritten"] and reported is not None and max(reported, 0) < known["completed"]
    return {"completed": max(reported, 0) if is_overwritten else known["completed"], "is_overwritten": is_overwritten}


def _names_of_ids(known: dict[int, str], numbers: list[int | None], groups: dict[str, Row]) -> dict[int, str]:
    """Name of the process group of each of a process's own numbers.

    Both count up with each group that is made: where the names are numbers, as many as the ids, their orders agree.
    """
    ids = [pg_id for pg_id in numbers if pg_id is not None]
    if all(pg_id in known for pg_id in ids) or len(ids) != len(groups) or not all(map(str.isdecimal, groups)):
        return known
    paired = dict(zip(sorted(ids), sorted(groups, key=int), strict=True))
    return paired if all(paired.get(pg_id, name) == name for pg_id, name in known.items()) else known


def _positions_of_calls(calls: pl.DataFrame, recorded_call: pl.DataFrame) -> dict[int, dict[str, Row]]:
    """Source -> group -> the last collective in the entries, and the last one before the first open one.

    `is_overwritten`: no completed collective precedes the first open one, so that others may.
    """
    last = calls.group_by("source", "group", maintain_order=True).agg(
        enqueued=pl.col("collective_seq").max(), line=pl.col("line").max()
    )
    collectives = recorded_call.filter(~pl.col("is_p2p")).sort("source", "line")
    first_open = collectives.group_by("source", "group").agg(
        open=pl.col("sequence").filter("is_open").min(),
        is_overwritten=pl.col("is_open").first() & (pl.col("sequence").first() > 1),
    )
    positions = last.join(first_open, on=["source", "group"], how="left", maintain_order="left").with_columns(
        completed=pl.when(pl.col("open").is_null()).then("enqueued").otherwise(pl.col("open") - 1),
        is_overwritten=pl.col("is_overwritten").fill_null(False),
    )
    seen: dict[int, dict[str, Row]] = defaultdict(dict)
    for row in positions.drop_nulls("group").to_dicts():
        seen[row["source"]][row["group"]] = {name: row[name] for name in (*UNKNOWN, "line")}
    return seen
