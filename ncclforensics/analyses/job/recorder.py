"""Flight Recorder dumps: which rank wrote each, how far it came in each process group, and its last calls.

A dump does not name its rank: its process groups have only one rank in common, or its point-to-point calls show it;
otherwise the name of the file says it. Two dumps of one rank are of two attempts or moments, and the later one counts.
Numbers of calls count per process group, from 1, and are equal on all its members; those of point-to-point calls are
each rank's own (formats: beyond-nccl-logs.md, 1.1; pytorch.md, section 10).
"""

from __future__ import annotations

from collections import defaultdict
from functools import lru_cache
from math import prod
from pathlib import PurePath
from typing import Any

import orjson
import polars as pl

from ncclforensics.data.torch_calls import DATATYPES, WATCHED_LIBRARIES
from ncclforensics.frames.columns import text_of
from ncclforensics.frames.registry import analysis

Row = dict[str, Any]

RECORDED_RANK = {
    "source": pl.Int32(),
    "rank": pl.Int32(),  # null: neither the content nor the name shows it
    "is_named": pl.Boolean(),  # the rank comes from the name of the file
    "is_used": pl.Boolean(),  # false: of a rank that is not known, or of which there is a later dump
    "newest_ns": pl.Int64(),  # when its last recorded call was made; null: its entries were not read, or there are none
}

RECORDED_POSITION = {
    "rank": pl.Int32(),
    "group": pl.String(),  # name of the process group, equal on all members
    "group_desc": pl.String(),
    "members": pl.List(pl.Int32()),  # ranks of the job, in the order of their ranks in the group; null: unknown
    "enqueued": pl.Int64(),  # number of the last collective that it called
    "completed": pl.Int64(),  # number of the last collective that it completed
    "has_p2p": pl.Boolean(),  # the group has point-to-point calls, so only the entries show the numbers
    "source": pl.Int32(),
    "line": pl.Int32(),
}

RECORDED_CALL = {
    "rank": pl.Int32(),
    "group": pl.String(),
    "group_desc": pl.String(),
    "sequence": pl.Int64(),  # number of the collective in its group; of a point-to-point call, of the rank's own
    "name": pl.String(),  # as PyTorch calls it
    "library": pl.String(),
    "peer": pl.Int32(),  # of a point-to-point call; null: unknown or any
    "is_p2p": pl.Boolean(),
    "elements": pl.Int64(),  # of its input
    "datatype": pl.Int32(),  # NCCL's number
    "dtypes": pl.String(),  # as PyTorch names them
    "is_open": pl.Boolean(),  # it has not completed
    "is_timed_out": pl.Boolean(),  # given up without having completed
    "created_ns": pl.Int64(),
    "called_from": pl.String(),  # file and line of the application, and the function
    "record_id": pl.Int64(),
    "source": pl.Int32(),
    "line": pl.Int32(),
}

WORLD = "0"  # name of the process group of all ranks
LONGEST_RANK = 6  # digits; a longer number in a file name is a time
MOST_MEMBERS = 1 << 20


@lru_cache(maxsize=4096)
def _members(ranks: str) -> tuple[int, ...]:
    """The ranks of a text such as `0-511, 520`."""
    members: list[int] = []
    for part in ranks.split(","):
        first, _, last = part.strip().partition("-")
        if not first.isdigit() or (last and not last.isdigit()):
            return ()
        if int(last or first) - int(first) >= MOST_MEMBERS:
            return ()
        members.extend(range(int(first), int(last or first) + 1))
    return tuple(members)


def _number_in_name(path: str) -> int | None:
    """The last number in the name of a file: 12 for `_dump_12` and `decoded_dump_12.json`."""
    stem = PurePath(path).name.split(".")[0]
    digits = ""
    for character in reversed(stem):
        if character.isascii() and character.isdigit():
            digits = character + digits
        elif digits:
            break
    return int(digits) if 0 < len(digits) <= LONGEST_RANK else None


def _groups(recorder_group: pl.DataFrame) -> dict[int, dict[str, Row]]:
    """Source -> name of a process group -> its row, with `members`. A group without a name belongs to no entry."""
    groups: dict[int, dict[str, Row]] = defaultdict(dict)
    for row in recorder_group.with_columns(pl.col("group_name", "group_desc", "ranks").cast(pl.String)).to_dicts():
        members = _members(row["ranks"]) if row["ranks"] else ()
        if row["group_name"] is not None and members:
            groups[row["source"]][row["group_name"]] = {**row, "members": members}
    return groups


@analysis(RECORDED_RANK, of=("recorder_dump", "recorder_call"))
def recorded_rank(
    recorder_dump: pl.DataFrame, recorder_group: pl.DataFrame, recorder_call: pl.DataFrame, source: pl.DataFrame
) -> pl.DataFrame:
    """One row per Flight Recorder dump: the rank that wrote it, and whether it is the latest of that rank."""
    groups = _groups(recorder_group)
    calls = recorder_call.group_by("source").agg(pl.col("created_ns").max(), entries=pl.len())
    newest = {row["source"]: row for row in calls.to_dicts()}
    own_ranks = _ranks_in_messages(recorder_call)
    places = {row["source"]: row for row in source.to_dicts()}
    rows: list[Row] = []
    for number in sorted({*recorder_dump["source"], *recorder_call["source"]}):
        common = [set(group["members"]) for group in groups[number].values()]
        candidates = set.intersection(*common) if common else None
        for name, own in own_ranks.get(number, {}).items():
            members = groups[number].get(name, {}).get("members", ())
            if own < len(members):
                candidates = {members[own]} if candidates is None else candidates & {members[own]}
        hint = places[number]["hint"]
        named = hint if hint is not None else _number_in_name(places[number]["path"])
        is_alone = candidates is not None and len(candidates) == 1
        fits = named is not None and (candidates is None or named in candidates)
        rank = next(iter(candidates or ())) if is_alone else named if fits else None
        known = newest.get(number, {"created_ns": None, "entries": 0})
        rows.append(
            {
                "source": number, "rank": rank, "is_named": not is_alone and rank is not None,
                "newest_ns": known["created_ns"], "entries": known["entries"], "is_used": False,
            }
        )  # fmt: skip
    of_rank: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        if row["rank"] is not None:
            of_rank[row["rank"]].append(row)
    for dumps in of_rank.values():
        max(dumps, key=lambda row: (row["newest_ns"] or 0, row["entries"], -row["source"]))["is_used"] = True
    return pl.DataFrame(rows, schema={**RECORDED_RANK, "entries": pl.Int64()})


def _ranks_in_messages(recorder_call: pl.DataFrame) -> dict[int, dict[str, int]]:
    """Source -> process group -> the dump's own rank in it, as its point-to-point calls name it first."""
    messages = (
        recorder_call.filter(text_of("is_p2p") == "true")
        .select("source", group=text_of("group_name"), title=text_of("profiling_name"))
        .unique(["source", "group"], keep="last", maintain_order=True)
        .drop_nulls()
    )
    own: dict[int, dict[str, int]] = defaultdict(dict)
    for number, group, title in messages.iter_rows():
        _, _, rank, _ = _parse_title(title)
        if rank is not None:
            own[number][group] = rank
    return own


@lru_cache(maxsize=4096)
def _parse_title(title: str) -> tuple[str, str, int | None, int | None]:
    """Library, name, own rank and peer in the group: `nccl:send 0->3` is `nccl`, `send`, 0, 3."""
    library, _, call = title.rpartition(":")
    name, _, ranks = call.partition(" ")
    own, arrow, peer = ranks.replace("<-", "->").partition("->")
    numbers = [int(text) if text.strip().isdigit() else None for text in (own, peer)]
    return library, name, *(numbers if arrow else [None, None])


@analysis(RECORDED_CALL, of=("recorder_call",))
def recorded_call(
    recorder_call: pl.DataFrame, recorder_group: pl.DataFrame, recorded_rank: pl.DataFrame
) -> pl.DataFrame:
    """The last calls of every rank in its Flight Recorder dump, in the order in which they were made."""
    groups = _groups(recorder_group)
    calls = recorder_call.join(recorded_rank.filter("is_used").select("source", "rank"), on="source")
    titles = _mapped(calls, "profiling_name", _parse_title)
    sizes = _mapped(calls, "input_sizes", _elements)
    frames = _mapped(calls, "frames", _place)
    is_p2p, is_retired = text_of("is_p2p") == "true", text_of("retired") == "true"
    completed = text_of("state") == "completed"
    calls = calls.with_columns(
        library=pl.Series([title[0] if title else "" for title in titles], dtype=pl.String),
        name=pl.Series([title[1] if title else None for title in titles], dtype=pl.String),
        group_peer=pl.Series([title[3] if title else None for title in titles], dtype=pl.Int32),
        elements=pl.Series(sizes, dtype=pl.Int64),
        called_from=pl.Series(frames, dtype=pl.String),
        group=text_of("group_name"),
        group_desc=text_of("group_desc"),
        dtypes=text_of("input_dtypes").str.replace_all('"', "", literal=True),
        is_p2p=is_p2p,
    )
    is_watched = pl.col("library").is_in(WATCHED_LIBRARIES)
    calls = calls.with_columns(
        peer=pl.Series(_peers(calls, groups), dtype=pl.Int32),
        sequence=pl.when("is_p2p").then("p2p_seq").otherwise("collective_seq"),
        datatype=pl.col("dtypes")
        .str.split(",")
        .list.first()
        .replace_strict(DATATYPES, default=None, return_dtype=pl.Int32),
        is_open=~completed & ~(is_retired & ~is_watched),
        is_timed_out=~completed & is_retired & is_watched,
    )
    # Before torch 2.4 a group counts collectives and messages together, so that the numbers of its ranks differ.
    has_one_number = (pl.col("is_p2p") & pl.col("p2p_seq").is_null()).any().over("group")
    return calls.filter(pl.col("is_p2p") | ~has_one_number).sort("source", "line")


def _mapped(rows: pl.DataFrame, column: str, change: Any) -> list[Any]:
    """The values of a text column, each distinct one changed once."""
    texts = rows[column].cast(pl.String)
    changed = {text: change(text) for text in texts.drop_nulls().unique()}
    return [changed.get(text) for text in texts]


def _peers(calls: pl.DataFrame, groups: dict[int, dict[str, Row]]) -> list[int | None]:
    """The rank in the job of the peer of every call: by the members of the group, else by the dumps that have it."""
    messages = calls.filter("is_p2p").select("group", "rank").unique().sort("rank")
    ranks_seen = {group: tuple(ranks) for group, ranks in messages.group_by("group").agg("rank").iter_rows()}
    peers: list[int | None] = []
    for number, group, peer in calls.select("source", "group", "group_peer").iter_rows():
        if peer is None or group is None:
            peers.append(None)
            continue
        config = groups[number].get(group)
        members = config["members"] if config else () if group == WORLD else ranks_seen.get(group, ())
        peers.append(members[peer] if peer < len(members) else peer if group == WORLD else None)
    return peers


def _elements(sizes: str) -> int | None:
    try:
        return int(sum(prod(shape) for shape in orjson.loads(f"[{sizes}]")))
    except (orjson.JSONDecodeError, TypeError):
        return None


def _place(frames: str) -> str | None:
    """The innermost place of the application: `/job/train.py:145 in loop`."""
    try:
        innermost = orjson.loads(frames)[0]
        return f"{innermost['filename']}:{innermost['line']} in {innermost['name']}"
    except (orjson.JSONDecodeError, IndexError, KeyError, TypeError):
        return None


@analysis(RECORDED_POSITION, of=("recorder_status", "recorder_call"))
def recorded_position(
    recorder_status: pl.DataFrame,
    recorder_group: pl.DataFrame,
    recorder_call: pl.DataFrame,
    recorded_call: pl.DataFrame,
    recorded_rank: pl.DataFrame,
) -> pl.DataFrame:
    """One row per rank and process group in the dumps: how many collectives the rank called and completed there."""
    groups = _groups(recorder_group)
    ids = recorder_call.select("source", "pg_id", group=text_of("group_name")).drop_nulls().unique()
    group_of_id: dict[int, dict[int, str]] = defaultdict(dict)
    for number, pg_id, group in ids.iter_rows():
        group_of_id[number][pg_id] = group
    statuses: dict[int, list[Row]] = defaultdict(list)
    for row in recorder_status.to_dicts():
        statuses[row["source"]].append(row)
    seen = _positions_of_calls(recorder_call, recorded_call)
    messages = recorded_call.filter("is_p2p")
    p2p_groups = set(messages["group"])
    groups_with_one_number = set(messages.filter(pl.col("sequence").is_null())["group"])
    descs = dict(recorded_call.select("group", "group_desc").unique("group", keep="first").iter_rows())
    rows: list[Row] = []
    for dump in recorded_rank.filter("is_used").to_dicts():
        number = dump["source"]
        names = _names_of_ids(group_of_id[number], [row["pg_id"] for row in statuses[number]], groups[number])
        positions = seen.get(number, {})
        for status in statuses[number]:
            group = names.get(status["pg_id"])
            if group is None:
                continue
            known = positions.get(group)
            if group in p2p_groups:  # the status counts messages, too
                positions.setdefault(group, {"enqueued": None, "completed": None, "line": status["line"]})
                continue
            enqueued = max(status["last_enqueued"] or 0, known["enqueued"] or 0 if known else 0)
            completed = known["completed"] if known else status["last_completed"]
            positions[group] = {"enqueued": enqueued, "completed": completed, "line": status["line"]}
        for group, position in positions.items():
            if group in groups_with_one_number:
                continue
            config = groups[number].get(group, {})
            rows.append(
                {
                    "rank": dump["rank"], "group": group, "group_desc": config.get("group_desc") or descs.get(group),
                    "members": config.get("members"), "has_p2p": group in p2p_groups, "source": number, **position,
                }
            )  # fmt: skip
    return pl.DataFrame(rows, schema=RECORDED_POSITION)


def _names_of_ids(known: dict[int, str], ids: list[int], groups: dict[str, Row]) -> dict[int, str]:
    """Name of the process group of each of a process's own numbers.

    Both count up with each group that is made: where the names are numbers, as many as the ids, their orders agree.
    """
    if all(pg_id in known for pg_id in ids) or len(ids) != len(groups) or not all(map(str.isdigit, groups)):
        return known
    paired = dict(zip(sorted(ids), sorted(groups, key=int), strict=True))
    return paired if all(paired.get(pg_id, name) == name for pg_id, name in known.items()) else known


def _positions_of_calls(recorder_call: pl.DataFrame, recorded_call: pl.DataFrame) -> dict[int, dict[str, Row]]:
    """Source -> group -> the last collective in the entries, and the last one before the first open one."""
    last = recorder_call.group_by("source", group=text_of("group_name"), maintain_order=True).agg(
        enqueued=pl.col("collective_seq").max(), line=pl.col("line").max()
    )
    is_open = pl.col("is_open") & ~pl.col("is_p2p")
    first_open = recorded_call.filter(is_open).group_by("source", "group").agg(open=pl.col("sequence").min())
    positions = last.join(first_open, on=["source", "group"], how="left", maintain_order="left").with_columns(
        completed=pl.when(pl.col("open").is_null()).then("enqueued").otherwise(pl.col("open") - 1)
    )
    seen: dict[int, dict[str, Row]] = defaultdict(dict)
    for row in positions.drop_nulls("group").to_dicts():
        seen[row["source"]][row["group"]] = {name: row[name] for name in ("enqueued", "completed", "line")}
    return seen
