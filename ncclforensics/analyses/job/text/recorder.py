"""Flight Recorder dumps: which rank wrote each, how far it came in each process group, and its last calls.

A dump does not name its rank: its process groups have only one rank in common, or its point-to-point calls show it;
otherwise the name of the file says it. Two dumps of one rank are of two attempts or moments, and the later one counts.
Numbers of calls count per process group, from 1, and are equal on all its members; those of point-to-point calls are
each rank's own (formats: beyond-nccl-logs.md, 1.1; pytorch.md, section 10).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from functools import lru_cache
from math import prod
from pathlib import PurePath
from typing import Any

import orjson
import polars as pl

from ncclforensics.analyses.job.text.recorder_groups import (
    WORLD,
    Groups,
    RecordedCall,
    groups_by_source,
    groups_with_one_number,
    members_of,
    own_names,
)
from ncclforensics.data.names import parse_short_integer
from ncclforensics.data.torch_calls import BATCHES, DATATYPES, WATCHED_LIBRARIES
from ncclforensics.frames.columns import Row, text_of
from ncclforensics.frames.registry import analysis

RECORDED_RANK = {
    "source": pl.Int32(),
    "rank": pl.Int32(),  # null: neither the content nor the name shows it
    "is_named": pl.Boolean(),  # the rank comes from the name of the file
    "is_log": pl.Boolean(),  # it is a log of torchcomms, written before each call, and no dump
    "is_used": pl.Boolean(),  # false: its rank is not known, there is a later dump of it, it is old, or its head is cut
    "is_cut": pl.Boolean(),  # its last calls are lost: only its head counts
    "newest_ns": pl.Int64(),  # when its last recorded call was made; null: its entries were not read, or there are none
    "is_contested": pl.Boolean(),  # as in `recorded_attempt`
    "older_ns": pl.Int64(),  # it is no dump of the latest attempt, as in `recorded_attempt`; null: it is
    "is_before_run": pl.Boolean(),  # as in `recorded_attempt`
}

LONGEST_RANK = 6  # digits; a longer number in a file name is a time


def _numbers_in_names(paths: dict[int, str], members: Mapping[int, frozenset[int] | None]) -> dict[int, int]:
    """Source -> the number in its name, where these numbers are ranks and not process ids.

    Files are often numbered by process. Ranks are members of the groups in their dumps; where a dump has none, numbers
    from 0 on are ranks, because no process has that number. One in two folders may be of two processes of two hosts.
    """
    numbers = {source: _number_in_name(path) for source, path in paths.items()}
    known = {source: number for source, number in numbers.items() if number is not None}
    is_alone = len({(number, PurePath(paths[source]).parent) for source, number in known.items()}) == len(
        set(known.values())
    )
    in_groups = {source: group for source in known if (group := members.get(source)) is not None}
    are_members = all(known[source] in group for source, group in in_groups.items())
    return known if is_alone and are_members and (len(in_groups) == len(known) or 0 in known.values()) else {}


def _number_in_name(path: str) -> int | None:
    """The last number in the name of a file: 12 for `_dump_12` and `decoded_dump_12.json`; None for a process id."""
    stem = PurePath(path).name.split(".")[0]
    if "pid" in stem.lower():
        return None
    digits = ""
    for character in reversed(stem):
        if character.isascii() and character.isdigit():
            digits = character + digits
        elif digits:
            break
    return int(digits) if 0 < len(digits) <= LONGEST_RANK else None


@analysis(RECORDED_RANK, of=("recorder_dump", "dumped_group", "dumped_call"))
def recorded_rank(
    dumped_group: pl.DataFrame,
    recorder_status: pl.DataFrame,
    dumped_call: pl.DataFrame,
    recorded_attempt: pl.DataFrame,
    source: pl.DataFrame,
) -> pl.DataFrame:
    """One row per Flight Recorder dump: the rank that wrote it, and whether it is the latest of that rank.

    A dump that is cut before its entries shows neither how far its rank came nor that it made no call.
    """
    have_status = set(recorder_status["source"])
    groups = groups_by_source(dumped_group)
    calls = dumped_call.group_by("source").agg(pl.col("created_ns").max(), entries=pl.len())
    newest = {row["source"]: row for row in calls.to_dicts()}
    own_ranks, logs = _ranks_in_messages(dumped_call), set(dumped_group.drop_nulls("own_number")["source"])
    for source_number, group, own in dumped_group.select("source", "group_name", "own_number").drop_nulls().iter_rows():
        own_ranks[source_number][str(group)] = own
    attempts = {row["source"]: row for row in recorded_attempt.to_dicts()}
    places = {row["source"]: row for row in source.to_dicts()}
    dumps = recorded_attempt["source"].to_list()
    possible = {number: _possible_ranks(groups[number], own_ranks.get(number, {})) for number in dumps}
    numbers = _numbers_in_names(
        {number: places[number]["path"] for number in dumps if places[number]["hint"] is None}, possible
    )
    rows: list[Row] = []
    for number in dumps:
        candidates = possible[number]
        hint = places[number]["hint"]
        named = hint if hint is not None else numbers.get(number)
        is_alone = candidates is not None and len(candidates) == 1
        fits = named is not None and (candidates is None or named in candidates)
        rank = next(iter(candidates or ())) if is_alone else named if fits else None
        known = newest.get(number, {"created_ns": None, "entries": 0})
        rows.append(
            {
                "source": number, "rank": rank, "is_named": not is_alone and rank is not None, "is_log": number in logs,
                "newest_ns": known["created_ns"], "entries": known["entries"], "is_used": False,
                "is_cut": bool(places[number]["problem"]), **attempts[number],
            }
        )  # fmt: skip
    of_rank: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        has_head = not row["is_cut"] or (row["entries"] > 0 and row["source"] in have_status)
        if row["rank"] is not None and has_head and row["older_ns"] is None:
            of_rank[row["rank"]].append(row)
    for dumps in of_rank.values():
        max(dumps, key=lambda row: (row["newest_ns"] or 0, row["entries"], -row["source"]))["is_used"] = True
    return pl.DataFrame(rows, schema={**RECORDED_RANK, "entries": pl.Int64()})


def _possible_ranks(groups: Mapping[str, Any], own: Mapping[str, int]) -> frozenset[int] | None:
    """The ranks that are members of all groups of a dump and have the dump's own number in them; None: no group."""
    candidates = _common_members(tuple(sorted({group["ranks"] for group in groups.values()})))
    for name, number in own.items():
        members = groups[name]["members"] if name in groups else ()
        if number < len(members):
            only = frozenset((members[number],))
            candidates = only if candidates is None else candidates & only
    return candidates


@lru_cache(maxsize=4096)
def _common_members(groups: tuple[str, ...]) -> frozenset[int] | None:
    """The ranks that all of these lists of ranks have in common; the dumps of one job share the set."""
    return frozenset.intersection(*(frozenset(members_of(ranks)) for ranks in groups)) if groups else None


def _ranks_in_messages(dumped_call: pl.DataFrame) -> dict[int, dict[str, int]]:
    """Source -> process group -> the dump's own rank in it, as its point-to-point calls name it first."""
    messages = (
        dumped_call.filter(text_of("is_p2p") == "true")
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
    numbers = [parse_short_integer(text.strip()) for text in (own, peer)]
    return library, name, *(numbers if arrow else [None, None])


@analysis(RecordedCall, of=("dumped_call",))
def recorded_call(dumped_call: pl.DataFrame, dumped_group: pl.DataFrame, recorded_rank: pl.DataFrame) -> pl.DataFrame:
    """The last calls of every rank in its Flight Recorder dump, in the order in which they were made."""
    groups = groups_by_source(dumped_group.join(recorded_rank.filter("is_used"), on="source", how="semi"))
    read = recorded_rank.filter(pl.col("is_used") & ~pl.col("is_cut")).select("source", "rank")
    calls = dumped_call.join(read, on="source").sort("source", "line")
    titles = _mapped(calls, "profiling_name", _parse_title)
    sizes = _mapped(calls, "input_sizes", _elements)
    frames = _mapped(calls, "frames", _place)
    calls = calls.with_columns(
        library=pl.Series([title[0] if title else "" for title in titles], dtype=pl.String),
        name=pl.Series([title[1] if title else None for title in titles], dtype=pl.String),
        group_peer=pl.Series([title[3] if title else None for title in titles], dtype=pl.Int32),
        elements=pl.Series(sizes, dtype=pl.Int64),
        called_from=pl.Series(frames, dtype=pl.String),
        group=own_names(calls, groups),
        group_desc=text_of("group_desc"),
        family=pl.when(text_of("group_desc") != "undefined").then("group_desc").otherwise("group_name").cast(pl.String),
        dtypes=text_of("input_dtypes").str.replace_all('"', "", literal=True),
        is_p2p=text_of("is_p2p") == "true",
    )
    calls = _with_state_of_batch(
        calls.with_columns(
            peer=pl.Series(_peers(calls, groups), dtype=pl.Int32),
            sequence=pl.when("is_p2p").then("p2p_seq").otherwise("collective_seq"),
            is_completed=text_of("state") == "completed",
            is_retired=text_of("retired") == "true",
            is_started=text_of("state").is_in(["started", "completed"]),
        )
    )
    is_watched, is_retired, completed = (
        pl.col("library").is_in(WATCHED_LIBRARIES),
        pl.col("is_retired"),
        pl.col("is_completed"),
    )
    calls = calls.with_columns(
        datatype=pl.col("dtypes")
        .str.split(",")
        .list.first()
        .replace_strict(DATATYPES, default=None, return_dtype=pl.Int32),
        is_open=~completed & ~(is_retired & ~is_watched),
    )
    return calls.filter(pl.col("is_p2p") | ~pl.col("group").is_in(groups_with_one_number(calls)))


def _with_state_of_batch(calls: pl.DataFrame) -> pl.DataFrame:
    """Give the calls of a batch the state of the entry that closes it; that entry is left out where they are there.

    `batch_isend_irecv` and the coalescing manager record each call without a state of its own, and last `coalesced`,
    whose state is that of all of them (ProcessGroupNCCL.cpp, endCoalescing). A batch at the begin of a dump may have
    lost its first calls.
    """
    batch = ["source", "group", "is_p2p", "sequence"]
    is_closing = pl.col("name").is_in(BATCHES)
    has_closing = is_closing.any().over(batch) & pl.col("sequence").is_not_null()
    is_first = (pl.col("line") == pl.col("line").min().over("source")) & (pl.col("record_id") != 0)
    return calls.with_columns(
        *(
            pl.when(has_closing).then(pl.col(name).last().over(batch)).otherwise(name).alias(name)
            for name in ("is_completed", "is_retired", "is_started")
        ),
        is_partial=has_closing & is_first.fill_null(True).any().over(batch),
    ).filter(~(is_closing & (~is_closing).any().over(batch)) | pl.col("sequence").is_null())


def _mapped(rows: pl.DataFrame, column: str, change: Any) -> list[Any]:
    """The values of a text column, each distinct one changed once."""
    texts = rows[column].cast(pl.String)
    changed = {text: change(text) for text in texts.drop_nulls().unique()}
    return [changed.get(text) for text in texts]


def _peers(calls: pl.DataFrame, groups: Groups) -> list[int | None]:
    """The rank in the job of the peer of every call: by the members of the group, else by the dumps that have it."""
    messages = calls.filter("is_p2p").select("group", "rank").unique().sort("rank")
    several = messages.group_by("group").agg("rank").filter(pl.col("rank").list.len() > 1)
    ranks_seen = {group: tuple(ranks) for group, ranks in several.iter_rows()}
    peers: list[int | None] = []
    for number, name, group, peer in calls.select("source", text_of("group_name"), "group", "group_peer").iter_rows():
        if peer is None or group is None:
            peers.append(None)
            continue
        config = groups[number].get(name)
        members = config["members"] if config else () if group == WORLD else ranks_seen.get(group, ())
        peers.append(members[peer] if peer < len(members) else peer if group == WORLD else None)
    return peers


def _elements(sizes: str) -> int | None:
    try:
        elements = int(sum(prod(shape) for shape in orjson.loads(f"[{sizes}]")))
    except (orjson.JSONDecodeError, TypeError):
        return None
    return elements if abs(elements) < 1 << 63 else None


def _place(frames: str) -> str | None:
    """The innermost place of the application: `/job/train.py:145 in loop`."""
    try:
        innermost = orjson.loads(frames)[0]
        return f"{innermost['filename']}:{innermost['line']} in {innermost['name']}"
    except (orjson.JSONDecodeError, IndexError, KeyError, TypeError):
        return None
