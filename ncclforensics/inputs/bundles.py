"""JSON documents that hold the Flight Recorder dumps of several ranks: an array of dumps, or a dump for each key.

Scripts and debug servers write them. Each dump becomes a file of its own, as a file in an archive does: its name is the
key, or `rank_N` where the document gives the rank.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from ncclforensics.inputs.archives import Unpacked
from ncclforensics.inputs.tolerant_json import json_int32, json_object, parse_json

# Keys of a dump, and those of an entry, by which the beginning of such a document is known.
_DUMP_KEYS = ("entries", "pg_config", "pg_status", "nccl_comm_state", "comm_lib_version", "nccl_version")
_MARKERS = tuple(b'"%s"' % key.encode() for key in _DUMP_KEYS)
_ENTRIES, _STATUS = "entries", "pg_status"
_WRAPPED = ("dump", "data", "trace", "flight_recorder", "fr_trace", "result", "dumps", "ranks", "workers")
_RANK_KEYS = ("rank", "global_rank")
DEEPEST = 3  # levels above a dump


def is_bundle(head: bytes) -> bool:
    """Whether a document that begins like this may hold several dumps: a dump begins below its first level."""
    text = head.lstrip()
    if text[:1] not in (b"{", b"[") or not any(marker in text for marker in _MARKERS):
        return False
    first_key = text[1:].lstrip()
    return text[:1] == b"[" or not any(first_key.startswith(marker) for marker in (*_MARKERS, b'"version"'))


def unpack_dumps(document: BinaryIO | io.BufferedIOBase, most: int | None, folder: Path) -> Unpacked | None:
    """Write each dump of a document into an empty folder; None if it holds no dump below its first level.

    `most`: the bytes that it may have, or None for any number; a longer one is not read.
    Raises OSError if they cannot be written.
    """
    data = document.read() if most is None else document.read(most + 1)
    if most is not None and len(data) > most:
        return Unpacked([], f"unpacks to more than {most >> 20:,} MiB of one document: unpack it to read it")
    value, problems = parse_json(data)
    if _is_dump(value):
        return None
    found = Unpacked([], "; ".join(problems))
    for name, dump in _dumps(value, "", DEEPEST):
        path = folder / str(len(found.files))
        try:
            path.write_bytes(orjson.dumps(dump))
        except orjson.JSONEncodeError:  # orjson reads deeper values than it writes
            return Unpacked(found.files, "holds a dump that is nested too deeply; the rest is left out")
        found.files.append((name, path))
    return found if found.files else None


def _is_dump(value: object) -> bool:
    dump = json_object(value)
    return isinstance(dump.get(_ENTRIES), list) or isinstance(dump.get(_STATUS), dict)


def _dumps(value: object, name: str, depth: int) -> Iterator[tuple[str, Any]]:
    """Yield the name and the content of every dump. The place in an array is no rank, and stands behind a dot."""
    rank = next((json_int32(json_object(value).get(key)) for key in _RANK_KEYS if key in json_object(value)), None)
    own = name if rank is None else f"rank_{rank}"
    if _is_dump(value):
        yield own or "dump", value
    elif depth and isinstance(value, list):
        for number, element in enumerate(value):
            yield from _dumps(element, f"{own or 'dump'}.{number}", depth - 1)
    elif depth and isinstance(value, dict):
        for key, element in value.items():
            is_own = rank is not None or key in _WRAPPED
            yield from _dumps(element, own if is_own else f"dump_{key}" if key.isdigit() else key, depth - 1)
