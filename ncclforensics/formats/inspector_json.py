"""What the Inspector profiler writes: a JSON object on each line, read by key, for its versions order the keys anew.

Up to v4.2 every object names its communicator; from v4.3 on the first one does so for those that follow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ncclforensics.inputs.tolerant_json import a_number, a_small, a_text, an_integer, an_object, loaded

GRAMMARS = ()
SIGNATURES = ()
KINDS: Mapping[str, str] = {}
MAGIC = b"{"
MARKER = b'"inspector_output_format_version"'
ONE_RECORD_A_LINE = True
OPERATIONS = {"coll_perf": ("collective", "coll"), "p2p_perf": ("p2p", "p2p")}  # key -> form, and how its keys begin
Record = tuple[str, dict[str, Any]]


def records(data: bytes) -> tuple[list[Record], list[str]]:
    """One row per line: the operation that it holds, or else the communicator that it describes."""
    rows: list[Record] = []
    problems: list[str] = []
    context: dict[str, Any] = {}
    for number, line in enumerate(data.splitlines(), 1):
        value, found = loaded(line)
        record = an_object(value)
        if not record:
            problems += [f"line {number} {problem}" for problem in found] or [f"line {number} holds no record"]
        if "header" in record:
            context = _context(an_object(record.get("header")), an_object(record.get("metadata")))
        rows.append(_operation(record, context) or ("inspector_context", {"form": "", **context}))
    return rows, problems


def _context(header: Mapping[str, Any], metadata: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "commhash": a_text(header.get("id")),
        "comm_name": a_text(header.get("comm_name")) or None,
        "rank": a_small(header.get("rank")),
        "nranks": a_small(header.get("n_ranks")),
        "nnodes": a_small(header.get("nnodes")),
        "dumped": an_integer(metadata.get("dump_timestamp_us")),
        "node": a_text(metadata.get("hostname")),
        "process": a_small(metadata.get("pid")),
    }


def _operation(record: Mapping[str, Any], context: Mapping[str, Any]) -> Record | None:
    for key, (form, word) in OPERATIONS.items():
        if operation := an_object(record.get(key)):
            return "ended_operation", {"form": form, **context, **_measured(operation, word)}
    return None


def _measured(operation: Mapping[str, Any], word: str) -> dict[str, Any]:
    return {
        "operation": a_text(operation.get(word)),
        "sequence": an_integer(operation.get(f"{word}_sn")),
        "bytes": an_integer(operation.get(f"{word}_msg_size_bytes")),
        "microseconds": an_integer(operation.get(f"{word}_exec_time_us")),
        "timed_by": a_text(operation.get(f"{word}_timing_source")),
        "algbw": a_number(operation.get(f"{word}_algobw_gbs")),
        "busbw": a_number(operation.get(f"{word}_busbw_gbs")),
        "peer": a_small(operation.get("p2p_peer")),
    }
