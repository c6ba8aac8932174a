"""Read the records of the Inspector profiler: a JSON object on each line. Versions order its keys differently.

Up to v4.2 every object names its communicator; from v4.3 on the first one does so for those that follow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ncclforensics.data import nouns
from ncclforensics.formats import Record
from ncclforensics.inputs.tolerant_json import (
    json_int32,
    json_integer,
    json_number,
    json_object,
    json_text,
    parse_json,
)

MAGIC = b"{"
MARKER = b'"inspector_output_format_version"'
ONE_RECORD_A_LINE = True
NOUN = nouns.INSPECTOR
OPERATIONS = {"coll_perf": ("collective", "coll"), "p2p_perf": ("p2p", "p2p")}  # key -> form, and how its keys begin


def records(data: bytes) -> tuple[list[Record], list[str]]:
    """Return a record per line, the operation or else the communicator that it describes, and problems."""
    rows: list[Record] = []
    problems: list[str] = []
    context: dict[str, Any] = {}
    for number, line in enumerate(_unfolded(data.splitlines()), 1):
        value, found = parse_json(line) if line is not None else ({}, [])
        record = json_object(value)
        if not record and line is not None:
            problems += [f"line {number} {problem}" for problem in found] or [f"line {number} holds no record"]
        if "header" in record:
            context = _context(json_object(record.get("header")), json_object(record.get("metadata")))
        rows.append(_operation(record, context) or ("inspector_context", {"form": "", **context}))
    return rows, problems


def _unfolded(lines: list[bytes]) -> list[bytes | None]:
    """Put objects that `jq` spread over several lines on their first one, with None for the others."""
    rows: list[bytes | None] = []
    begun: int | None = None  # where an object that is spread over lines began
    for number, line in enumerate(lines):
        if begun is None and line.rstrip() != b"{":
            rows.append(line)
            continue
        rows.append(b"" if begun is None else None)
        begun = number if begun is None else begun
        if line.startswith(b"}") or number + 1 == len(lines):
            rows[begun] = b"".join(lines[begun : number + 1])
            begun = None
    return rows


def _context(header: Mapping[str, Any], metadata: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "commhash": json_text(header.get("id")),
        "comm_name": json_text(header.get("comm_name")) or None,
        "rank": json_int32(header.get("rank")),
        "nranks": json_int32(header.get("n_ranks")),
        "nnodes": json_int32(header.get("nnodes")),
        "dumped": json_integer(metadata.get("dump_timestamp_us")),
        "node": json_text(metadata.get("hostname")),
        "process": json_int32(metadata.get("pid")),
    }


def _operation(record: Mapping[str, Any], context: Mapping[str, Any]) -> Record | None:
    for key, (form, word) in OPERATIONS.items():
        if operation := json_object(record.get(key)):
            return "ended_operation", {"form": form, **context, **_measured(operation, word)}
    return None


def _measured(operation: Mapping[str, Any], word: str) -> dict[str, Any]:
    return {
        "operation": json_text(operation.get(word)),
        "sequence": json_integer(operation.get(f"{word}_sn")),
        "bytes": json_integer(operation.get(f"{word}_msg_size_bytes")),
        "microseconds": json_integer(operation.get(f"{word}_exec_time_us")),
        "timed_by": json_text(operation.get(f"{word}_timing_source")),
        "algbw": json_number(operation.get(f"{word}_algobw_gbs")),
        "busbw": json_number(operation.get(f"{word}_busbw_gbs")),
        "peer": json_int32(operation.get("p2p_peer")),
    }
