"""Read the reports of torchrun: its table of failures, the first failure of each node, and processes that it ended."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, islice
from operator import itemgetter

import polars as pl

from ncclforensics.analyses.job.ends.exit_reports import (
    RECORDED,
    ExitReport,
    exception_report,
    exit_report,
    gpu_exception_report,
    is_next_line,
)
from ncclforensics.analyses.job.ends.exit_rows import IN_TABLE, RAISED, TORCHRUN, UNSHOWN, seen_first
from ncclforensics.data.processes import TERMINATE
from ncclforensics.frames.columns import Row, text_of


def torchrun_reports(
    elastic_failure: pl.DataFrame, exception: pl.DataFrame, gpu_exception: pl.DataFrame
) -> Iterator[ExitReport]:
    """Yield torchrun's reports: its table of failures or the first failure of each node, and processes it ended.

    The table separates the first failure that torchrun saw from the others, which follow unless a signal ended them, or
    they ended in the same second with the same exit code of the program's own.
    """
    rows = elastic_failure.sort("pos").to_dicts()
    first_ends = _own_codes_of_first_ends(rows)
    ended_pids = {row["pid"] for row in rows if row["form"] in ("closing", "stuck")}
    signalled_agents = {row["source"] for row in rows if row["form"] in ("terminated", "signal")}
    sources_with_failure = {row["source"] for row in rows if row["form"] == "failed"}
    sources_with_table = {row["source"] for row in rows if row["form"] in IN_TABLE}
    # Where the text ends above the first failure in the table, the line above the table tells of it.
    with_first = {row["source"] for row in rows if row["form"] in ("root_cause", "first_entry")} & sources_with_table
    numbers: dict[int, set[int]] = defaultdict(set)
    for row in rows:
        if row["form"] == "rank" and row["local_rank"] is not None:
            numbers[row["source"]].add(row["rank"] - row["local_rank"])
    first_ranks = {source: min(found) for source, found in numbers.items() if len(found) == 1}  # of the node
    listed = {(row["source"], row["pid"]) for row in rows if row["form"] in IN_TABLE}
    both = [frame.filter(text_of("form").is_in(RECORDED)).to_dicts() for frame in (exception, gpu_exception)]
    recorded = sorted(chain.from_iterable(both), key=itemgetter("pos"))
    blocks: dict[int, dict[str, Row]] = defaultdict(dict)  # source -> lines of the table entry being read
    read: dict[int, Row] = {}  # source -> process of the entry that was read last, whose traceback may follow
    below_root_cause: dict[int, bool] = {}
    failed: dict[tuple[int, int | None], ExitReport] = {}  # above a table: source and local rank -> the last such end
    entry: Row | None
    for place, row in enumerate(rows):
        block, entry = blocks[row["source"]], None
        if row["form"] == "summary":
            below_root_cause[row["source"]] = False
        elif row["form"] == "root_cause":
            below_root_cause[row["source"]] = True
        elif row["form"] in ("time", "host", "rank"):
            block[row["form"]] = row
            read.pop(row["source"], None)
        elif row["form"] == "exit_code":
            rank_row, host, time = block.get("rank"), block.get("host"), block.get("time")
            is_same_entry = rank_row is not None and is_next_line(rank_row, row)
            is_later = (row["exit_code"] or 0) > 0 or row["exit_code"] == -TERMINATE
            is_later &= not below_root_cause.get(row["source"], True)
            is_later &= (row["source"], time["time"] if time else "", row["exit_code"]) not in first_ends
            entry = {
                "rank": rank_row["rank"] if rank_row and is_same_entry else None,
                "node": host["node"] if host and is_same_entry else None,
                "time": time["time"] if time and is_same_entry else "",
                "follows": row["pid"] in ended_pids or is_later,
            }
            is_first = below_root_cause.get(row["source"], False) and row["pid"] not in ended_pids
            entry["is_unasked"] = is_first and bool(ended_pids) and row["source"] not in signalled_agents
        elif row["form"] in ("first_entry", "entry"):
            is_later = row["form"] == "entry" and (row["exit_code"] or 0) > 0
            is_later &= (row["source"], row["time"], row["exit_code"]) not in first_ends
            follows = row["pid"] in ended_pids or is_later
            entry = {name: row[name] for name in ("rank", "node", "time")} | {"follows": follows}
        elif row["form"] == "recorded" and row["source"] in read:
            later = next((entry for entry in islice(rows, place + 1, None) if entry["pos"] > row["pos"]), None)
            yield from _recorded_exceptions(row, later, recorded, read[row["source"]])
        elif row["form"] == "failed" and row["source"] not in with_first and (row["source"], row["pid"]) not in listed:
            first_rank = first_ranks.get(row["source"])
            number = None if first_rank is None else first_rank + row["local_rank"]
            entry = {"rank": number, "local_rank": row["local_rank"], "follows": row["pid"] in ended_pids}
        elif row["form"] == "unrecorded" and row["source"] not in sources_with_table | sources_with_failure:
            yield exit_report(row, TORCHRUN, None, local_rank=row["local_rank"], message=UNSHOWN)
        if entry is not None:
            report = exit_report(row, TORCHRUN, row["exit_code"], pid=row["pid"], **entry)
            failed[row["source"], report.local_rank] = report
            yield report
            read[row["source"]] = {"pid": row["pid"]} | {name: entry.get(name) for name in ("rank", "node")}
            block.clear()
    # Where the text ends within the first entry, the line above the table may show how the process ended.
    for source, block in blocks.items():
        named = block.get("rank") or block.get("host")
        if named and source in below_root_cause and source not in sources_with_table:
            rank, node = (
                block[form][name] if form in block else None for form, name in (("rank", "rank"), ("host", "node"))
            )
            if source not in sources_with_failure:
                yield exit_report(named, TORCHRUN, None, rank=rank, node=node, message=UNSHOWN)
            elif (above := failed.get((source, named["local_rank"]))) and named["local_rank"] is not None:
                above.rank, above.node = rank, node
    # An exception of torchrun alone: the text ends before its table, and shows no worker that failed.
    sources_with_more = {row["source"] for row in rows if row["form"] != "summary"}
    for source, row in {row["source"]: row for row in reversed(rows)}.items():
        if source not in sources_with_more:
            yield exit_report(row, TORCHRUN, None, message=f"a worker {UNSHOWN}")


def _recorded_exceptions(start: Row, later: Row | None, recorded: list[Row], process: Row) -> Iterator[ExitReport]:
    """Yield the exception whose traceback torchrun's table repeats between this line and the next entry, `later`.

    `recorded`: all such exceptions, by `pos`; `process`: rank, node and pid of the entry.
    """
    first = bisect_right(recorded, start["pos"], key=itemgetter("pos"))
    for row in recorded[first : first + 1]:
        if row["source"] == start["source"] and (later is None or row["pos"] < later["pos"]):
            is_plain = row["form"] == "recorded"
            report = exception_report(row, process["rank"]) if is_plain else gpu_exception_report(row, process["rank"])
            yield replace(report, **process)


def add_processes(reports: list[ExitReport], elastic_failure: pl.DataFrame) -> None:
    """Give exceptions of a rank the host and the pid that torchrun's table below them names for it.

    The table is of its last attempt. Each attempt that failed has a line of the node: behind two, processes are others.
    """
    of_attempts = elastic_failure.filter(form="failed").sort("pos")["pos"].to_list()
    nodes: dict[int, set[str | None]] = defaultdict(set)
    named: dict[tuple[int, int | None], list[ExitReport]] = defaultdict(list)
    for report in reports:
        if report.reporter == TORCHRUN and report.rank is not None and report.pid and report.node:
            named[report.row["source"], report.rank].append(report)
            nodes[report.row["source"]].add(report.node)
    for report in reports:
        if report.how not in RAISED or (report.owner, report.pid, report.node) != (None, None, None):
            continue
        below = (end for end in named[report.row["source"], report.rank] if end.row["pos"] > report.row["pos"])
        if end := next(below, None):
            first, last = (bisect_right(of_attempts, of.row["pos"]) for of in (report, end))
            is_same = last - first <= len(nodes[report.row["source"]])
            report.node, report.pid = end.node, end.pid if is_same else None


def _own_codes_of_first_ends(rows: list[Row]) -> set[tuple[int, str, int]]:
    """Return source, second and exit code of the first ends where the program chose that: Python itself ends with 1.

    `rows`: those of `elastic_failure`, by `pos`.
    """
    places = seen_first(rows)
    last_time: dict[int, str] = {}
    found: set[tuple[int, str, int]] = set()
    for row in rows:
        if row["time"]:
            last_time[row["source"]] = row["time"]
        if (row["source"], row["line"]) in places and (row["exit_code"] or 0) > 1:
            found.add((row["source"], last_time.get(row["source"], ""), row["exit_code"]))
    return found
