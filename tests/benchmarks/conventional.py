"""The yardstick: COLL lines parsed with CPython's `re`, line by line, on one core."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

COLL = re.compile(
    r"(?P<host>[^: ]+):(?P<pid>\d+):(?P<tid>\d+) \[(?P<dev>\d+)\] NCCL INFO "
    r"(?P<name>\w+): opCount (?P<op_count>[0-9a-f]+) sendbuff \S+ recvbuff \S+ "
    r"count (?P<count>\d+) datatype (?P<datatype>\d+) op (?P<op>\d+) root (?P<root>\d+) "
    r"comm (?P<comm>\S+) \[nranks=(?P<nranks>\d+)\]"
)


# host, pid, tid, dev, name, op_count, count, datatype, op, root, comm, nranks: a plain tuple, so
# that the yardstick is not slowed by its own rows.
Operation = tuple[str, int, int, int, str, int, int, int, int, int, int, int]


@dataclass(frozen=True, slots=True)
class Pass:
    """What one pass over some files took."""

    lines: int
    bytes: int
    operations: int
    seconds: float


def operation(line: str) -> Operation | None:
    """The operation a line tells of, if it is a COLL line."""
    found = COLL.match(line)
    if found is None:
        return None
    host, pid, tid, dev, name, op_count, count, datatype, op, root, comm, nranks = found.groups()
    return (
        host,
        int(pid),
        int(tid),
        int(dev),
        name,
        int(op_count, 16),
        int(count),
        int(datatype),
        int(op),
        int(root),
        int(comm, 16),
        int(nranks),
    )


def parse(paths: Iterable[Path]) -> Pass:
    """Parses files to the end, keeping nothing but counts."""
    lines = found = size = 0
    start = time.process_time()
    for path in paths:
        with path.open(encoding="utf-8", errors="replace") as log:
            for line in log:
                lines += 1
                found += operation(line) is not None
        size += path.stat().st_size
    return Pass(lines, size, found, time.process_time() - start)
