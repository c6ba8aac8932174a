"""What people select, sort or paste from logs before they hand them on: functions as in `handlings`."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from itertools import groupby

from tests.handlings import CALL, Handling, Logs, merged

INFO = re.compile(rb" NCCL (INFO|TRACE) ")
HOST = re.compile(rb"^([\w.-]+):\d+:\d+ \[", re.MULTILINE)
POINTER = re.compile(rb"\bcomm(?:unicator)? (0x[0-9a-f]+)")
PASTED = 40  # lines in a chat
FARTHEST = 3  # lines by which one overtakes others


def by_log(change: Callable[[list[bytes], random.Random], list[bytes]]) -> Handling:
    """Something done to the lines of every log by itself."""
    return lambda logs, draw: {name: change(lines, draw) for name, lines in logs.items()}


def selecting(is_wanted: Callable[[bytes], object]) -> Handling:
    """Lines that `grep` selects from every log."""
    return by_log(lambda lines, draw: [line for line in lines if is_wanted(line)])


def sorted_together(logs: Logs, draw: random.Random) -> Logs:
    """As `cat *.log | sort -u` prints."""
    return {"job.log": sorted({line for lines in logs.values() for line in lines})}


def overtaking(lines: list[bytes], draw: random.Random) -> list[bytes]:
    """Lines that several writers delivered: one in fifty comes a few lines late."""
    places = [number + (draw.randrange(1, FARTHEST + 1) + 0.5) * (draw.random() < 0.02) for number in range(len(lines))]
    return [line for _, line in sorted(zip(places, lines, strict=True), key=lambda placed: placed[0])]


def merged_out_of_order(logs: Logs, draw: random.Random) -> Logs:
    """All logs in one file, in which some lines overtook others."""
    return {name: overtaking(lines, draw) for name, lines in merged(logs, draw).items()}


def of_first_communicator(logs: Logs, draw: random.Random) -> Logs:
    """Of every log the lines with the pointer of its first communicator, which holds all ranks."""
    kept = {}
    for name, lines in logs.items():
        found = POINTER.search(b"".join(lines))
        kept[name] = [line for line in lines if found is None or found[1] in line]
    return kept


def of_one_log(logs: Logs, draw: random.Random) -> Logs:
    name = draw.choice(sorted(logs))
    return {name: logs[name]}


def of_one_node(logs: Logs, draw: random.Random) -> Logs:
    """The logs of the ranks of one host."""
    hosts = {name: found[1] if (found := HOST.search(b"".join(lines))) else b"" for name, lines in logs.items()}
    wanted = draw.choice(sorted(set(hosts.values())))
    return {name: lines for name, lines in logs.items() if hosts[name] == wanted}


def heads(logs: Logs, draw: random.Random) -> Logs:
    """As `head` prints, of every log as many lines."""
    longest = draw.randrange(max(map(len, logs.values())) // 4, max(map(len, logs.values())) + 1)
    return {name: lines[:longest] for name, lines in logs.items()}


def of_unequal_age(logs: Logs, draw: random.Random) -> Logs:
    """Each log was copied at another time while the job ran."""
    return {name: lines[: draw.randrange(len(lines) // 2, len(lines) + 1)] for name, lines in logs.items()}


def at_several_levels(logs: Logs, draw: random.Random) -> Logs:
    """NCCL_DEBUG=INFO on the first rank, WARN on the others."""
    first, *others = logs
    return {first: logs[first]} | {name: [line for line in logs[name] if not INFO.search(line)] for name in others}


def pasted(logs: Logs, draw: random.Random) -> Logs:
    """Some lines in a row out of the output of the job."""
    lines = merged(logs, draw)["job.log"]
    start = draw.randrange(max(1, len(lines) - PASTED + 1))
    return {"post.txt": lines[start : start + PASTED]}


def last_pasted(logs: Logs, draw: random.Random) -> Logs:
    """The last lines of the output of the job."""
    return {"post.txt": merged(logs, draw)["job.log"][-PASTED:]}


def without_repeats(lines: list[bytes], draw: random.Random) -> list[bytes]:
    """As `uniq` prints."""
    return [line for line, _ in groupby(lines)]


SELECTED: Mapping[str, Handling] = {
    "sort": by_log(lambda lines, draw: sorted(lines)),
    "sort -u": by_log(lambda lines, draw: sorted(set(lines))),
    "cat, sort -u": sorted_together,
    "uniq": by_log(without_repeats),
    "each line once": by_log(lambda lines, draw: list(dict.fromkeys(lines))),
    "lines overtaking": by_log(overtaking),
    "merged out of order": merged_out_of_order,
    "grep a communicator": of_first_communicator,
    "grep AllReduce": selecting(lambda line: b"AllReduce" in line),
    "grep -v AllReduce": selecting(lambda line: b"AllReduce" not in line),
    "grep -v Init": selecting(lambda line: b"Init" not in line),
    "grep -v COMPLETE": selecting(lambda line: b"COMPLETE" not in line),
    "grep opCount": selecting(CALL.search),
    "one log": of_one_log,
    "one node": of_one_node,
    "head": heads,
    "copies of unequal age": of_unequal_age,
    "INFO on one rank": at_several_levels,
    "pasted": pasted,
    "last lines pasted": last_pasted,
}
