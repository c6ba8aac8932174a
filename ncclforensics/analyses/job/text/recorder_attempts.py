"""Flight Recorder dumps that an earlier attempt or another job left in the same folder.

PyTorch overwrites the dumps of an earlier attempt only where a rank writes a new one, and all jobs of a user write to
the same folder. Such a dump shows nothing of the latest job. It is known by its process groups, whose members are
others, or by its times: a collective completes on no member before all have called it, and none calls NCCL before the
first communicator in the logs was created. Times are of several clocks, so that a dump whose host's clock is far off
looks the same; either way its calls cannot be compared.
"""

from __future__ import annotations

from collections import defaultdict
from datetime import timedelta

import polars as pl

from ncclforensics.analyses.job.text.recorder_groups import WORLD, Groups, groups_by_source, own_names
from ncclforensics.frames.columns import text_of
from ncclforensics.frames.registry import analysis
from ncclforensics.frames.time_range import elapsed

SECOND = 1_000_000_000
# Clocks of hosts differ by less, and the next attempt begins when a call of the one before has timed out.
LEAST, MOST = 60_000, 300_000  # milliseconds, of half a time-out
CLOCKS_DIFFER = timedelta(milliseconds=MOST)
DEFAULT_TIMEOUT = 1_800_000  # milliseconds; the longer of PyTorch's two
LONG_AFTER = 3600 * SECOND
# A time that is printed without its zone is at most so far ahead of that of a dump, which is UTC.
EASTERNMOST = timedelta(hours=14)

RECORDED_ATTEMPT = {
    "source": pl.Int32(),
    "is_contested": pl.Boolean(),  # another dump lists other members of a group with a common rank
    # How much older it is than the dumps of the latest attempt, at least; 0: by its groups alone; null: it is not.
    "older_ns": pl.Int64(),
    "is_before_run": pl.Boolean(),  # `older_ns` is its age when the first communicator in the logs was created
}


@analysis(RECORDED_ATTEMPT, of=("recorder_dump", "dumped_group", "dumped_call"))
def recorded_attempt(
    recorder_dump: pl.DataFrame, dumped_group: pl.DataFrame, dumped_call: pl.DataFrame, run_start: pl.DataFrame
) -> pl.DataFrame:
    """One row per Flight Recorder dump: whether it is of the latest attempt among those that are here."""
    groups = groups_by_source(dumped_group)
    dumps = sorted({*recorder_dump["source"], *dumped_group["source"], *dumped_call["source"]})
    newest = dict(dumped_call.group_by("source").agg(pl.col("created_ns").max()).drop_nulls().iter_rows())
    contested, older = _with_other_groups(groups, newest)
    early = _before_run(dumped_call, run_start)
    older |= _of_fewer_ranks(groups, run_start) | early
    kept = {number: groups[number] for number in dumps if number not in older}
    calls = _collectives(dumped_call.filter(~pl.col("source").is_in(list(older))), defaultdict(dict, kept))
    older |= _long_before_others(calls, {number: time for number, time in newest.items() if number not in older})
    older |= _before_others(calls.filter(~pl.col("source").is_in(list(older))))
    rows = [
        {
            "source": number, "is_contested": number in contested, "older_ns": older.get(number),
            "is_before_run": number in early,
        }
        for number in dumps
    ]  # fmt: skip
    return pl.DataFrame(rows, schema=RECORDED_ATTEMPT)


def _of_fewer_ranks(groups: Groups, run_start: pl.DataFrame) -> dict[int, int]:
    """Dumps whose group of all ranks is smaller than a communicator in the logs, with 0: its numbers are others'."""
    largest = max(run_start["nranks"].drop_nulls(), default=0)
    return {
        number: 0 for number, configs in groups.items() if WORLD in configs and len(configs[WORLD]["members"]) < largest
    }


def _before_run(dumped_call: pl.DataFrame, run_start: pl.DataFrame) -> dict[int, int]:
    """Dumps whose last call of NCCL was made before the logs' first communicator was created; by how much, at least."""
    begin = next(run_start.iter_rows(named=True), {})
    if dumped_call.is_empty() or not (began := begin.get("utc") or begin.get("launcher_time") or begin.get("stamp")):
        return {}
    zone = timedelta() if begin["utc"] else EASTERNMOST
    last = dumped_call.filter(text_of("profiling_name").str.starts_with("nccl:")).group_by("source")
    ages = last.agg(age=-elapsed(pl.from_epoch(pl.col("created_ns").max(), "ns"), began) - zone)
    return {
        number: int(age // timedelta(microseconds=1)) * 1000
        for number, age in ages.drop_nulls().iter_rows()
        if age > CLOCKS_DIFFER
    }


def _with_other_groups(groups: Groups, newest: dict[int, int]) -> tuple[set[int], dict[int, int]]:
    """Dumps that disagree on the members of a group, and the older of them with 0.

    The parts of a split bear one name and have no common rank; two lists with a common rank are of two jobs. A dump
    whose calls were not read, or that has none, counts as the older.
    """
    holders: dict[tuple[str, tuple[int, ...]], list[int]] = defaultdict(list)
    for number, configs in groups.items():
        for name, row in configs.items():
            holders[name, row["members"]].append(number)
    of_rank: dict[tuple[str, int], tuple[int, ...]] = {}
    contested: set[int] = set()
    older: dict[int, int] = {}
    ordered = sorted(holders, key=lambda key: -max(newest.get(number, 0) for number in holders[key]))
    for name, members in ordered:
        rivals = {of_rank.setdefault((name, rank), members) for rank in members} - {members}
        if rivals:
            contested.update(holders[name, members], *(holders[name, rival] for rival in rivals))
            older |= dict.fromkeys(holders[name, members], 0)
    return contested, older


def _collectives(dumped_call: pl.DataFrame, groups: Groups) -> pl.DataFrame:
    """The collectives of groups that are the same on all ranks, with their times."""
    rows = dumped_call.with_columns(group=own_names(dumped_call, groups)).filter(text_of("is_p2p") != "true")
    is_over = (text_of("state") == "completed") & (pl.col("completed_ns") >= pl.col("created_ns"))
    known = {(number, row["group"]) for number, configs in groups.items() for row in configs.values()}
    is_same = [
        group == WORLD or (number, group) in known for number, group in rows.select("source", "group").iter_rows()
    ]
    return (
        rows.filter(pl.Series(is_same, dtype=pl.Boolean))
        .select(
            "source",
            "group",
            "collective_seq",
            "created_ns",
            over=pl.when(is_over)
            .then("completed_ns")
            .otherwise(pl.col("created_ns") + pl.col("timeout_ms").fill_null(DEFAULT_TIMEOUT) * 1_000_000),
            timeout_ms=pl.col("timeout_ms").fill_null(DEFAULT_TIMEOUT),
        )
        .drop_nulls(["collective_seq", "created_ns"])
    )


def _long_before_others(calls: pl.DataFrame, newest: dict[int, int]) -> dict[int, int]:
    """Dumps whose last call is so old that a rank that waited for it would have given up long before the latest call.

    The values are how much older they are than the latest call.
    """
    latest = max(newest.values(), default=0)
    most = LONG_AFTER + 2 * max(calls["timeout_ms"].to_list(), default=DEFAULT_TIMEOUT) * 1_000_000
    return {number: latest - time for number, time in newest.items() if latest - time > most}


def _before_others(calls: pl.DataFrame) -> dict[int, int]:
    """Dumps in which a collective was over before another rank called it, or an earlier one; by how much, at least."""
    if calls.is_empty():
        return {}
    ordered = calls.sort("group", "collective_seq").with_columns(
        latest=pl.col("created_ns").cum_max().over("group"),
    )
    ordered = ordered.with_columns(latest=pl.col("latest").last().over("group", "collective_seq"))
    early = ordered.group_by("source").agg(
        early=(pl.col("latest") - pl.col("over")).max(), least=(pl.col("timeout_ms").min() // 2).clip(LEAST, MOST)
    )
    return dict(early.filter(pl.col("early") > pl.col("least") * 1_000_000).select("source", "early").iter_rows())
