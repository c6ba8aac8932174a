"""What launchers, containers and rotation do to the logs of a job before they are read."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path

TIME = "2026-11-21T03:14:15.100000000Z"  # in every record: what a collector adds says nothing about the job
LAST_LINES = 200


class Handling(StrEnum):
    """What is done to the logs."""

    MPIRUN = "mpirun"  # the output of a launcher: a tag before every line
    SRUN = "srun"
    TORCHRUN = "torchrun"
    KUBECTL = "kubectl"
    DOCKER = "docker"  # a record around every line
    CRI = "cri"
    JSON_LINES = "json-lines"
    GZIP = "gzip"
    ROTATED = "rotated"  # three files instead of one, the oldest compressed
    LAST_LINES = "last-lines"  # as `tail` and `kubectl logs --tail` print
    LOG_LOST = "log-lost"  # that of the first rank at fault, or of rank 0


# The tag of a rank, by its number and that of its GPU on the host.
TAGS: Mapping[Handling, Callable[[int, int], str]] = {
    Handling.MPIRUN: lambda rank, _: f"[1,{rank}]<stdout>:",
    Handling.SRUN: lambda rank, _: f"{rank:2d}: ",
    Handling.TORCHRUN: lambda _, local: f"[default{local}]:",
    Handling.KUBECTL: lambda rank, _: f"[pod/train-worker-{rank}/pytorch] ",
}
# The record around a line.
RECORDS: Mapping[Handling, Callable[[str], str]] = {
    Handling.DOCKER: lambda line: json.dumps({"log": f"{line}\n", "stream": "stdout", "time": TIME}),
    Handling.CRI: lambda line: f"{TIME} stdout F {line}",
    Handling.JSON_LINES: lambda line: json.dumps({"timestamp": TIME, "level": "info", "message": line}),
}


def handled_lines(chunks: Iterable[bytes], handlings: Iterable[Handling], rank: int, local: int) -> Iterator[bytes]:
    """Put tags and records around the lines of a rank, whose GPU on its host is `local`."""
    around = [_around_line(handling, rank, local) for handling in handlings if handling in {*TAGS, *RECORDS}]
    for chunk in chunks:
        lines = chunk.decode().splitlines() if around else []
        for change in around:
            lines = list(map(change, lines))
        yield "".join(f"{line}\n" for line in lines).encode() if around else chunk


def _around_line(handling: Handling, rank: int, local: int) -> Callable[[str], str]:
    if handling in RECORDS:
        return RECORDS[handling]
    tag = TAGS[handling](rank, local)
    return lambda line: tag + line


def handle_file(path: Path, handlings: Iterable[Handling]) -> None:
    """Cut, compress or rotate a log that was written. Raises OSError."""
    chosen = set(handlings)
    if Handling.LAST_LINES in chosen:
        path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[-LAST_LINES:]))
    if Handling.ROTATED in chosen:
        lines = path.read_bytes().splitlines(keepends=True)
        first, second = len(lines) // 3, 2 * len(lines) // 3
        _write_compressed(path.with_name(f"{path.name}.2.gz"), lines[:first])
        path.with_name(f"{path.name}.1").write_bytes(b"".join(lines[first:second]))
        path.write_bytes(b"".join(lines[second:]))
    if Handling.GZIP in chosen:
        _write_compressed(path.with_name(f"{path.name}.gz"), [path.read_bytes()])
        path.unlink()


def _write_compressed(path: Path, lines: list[bytes]) -> None:
    path.write_bytes(gzip.compress(b"".join(lines), mtime=0))  # without the time, the same bytes every time
