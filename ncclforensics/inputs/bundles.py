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
from ncclforensics.inputs.chrome_trace import is_chrome_trace
from ncclforensics.inputs.damaged_json import NOT_READ, objects_in
from ncclforensics.inputs.tolerant_json import json_int32, json_object, parse_json

# Keys of a dump, and those of an entry, by which the beginning of such a document is known.
_DUMP_KEYS = ("entries", "pg_config", "pg_status", "nccl_comm_state", "comm_lib_version", "nccl_version")
_MARKERS = tuple(b'"%s"' % key.encode() for key in _DUMP_KEYS)
_ENTRIES, _STATUS = "entries", "pg_status"
_WRAPPED = ("dump", "data", "trace", "flight_recorder", "fr_trace", "result", "dumps", "ranks", "workers")
_RANK_KEYS = ("rank", "global_rank")
DEEPEST = 3  # levels above a dump
LONGEST_KEY = 100  # characters
CUT_DUMP = b'{"pg_config": {}, "pg_status": {'  # stands for a dump that cannot be read


def is_bundle(head: bytes) -> bool:
    """Whether a document that begins like this may hold several dumps: a dump begins below its first level."""
    text = head.lstrip()
    if is_chrome_trace(head) or text[:1] not in (b"{", b"[") or not any(marker in text for marker in _MARKERS):
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
    dumps = _dumps(value, "", DEEPEST)
    if value is None and problems:
        dumps = iter(damaged := list(_undamaged(data.decode("utf-8", "replace"))))
        lost = [name for name, dump in damaged if dump is None]
        found.problem = f"is damaged JSON: {', '.join(lost) or 'a part of it'} cannot be read"
    for name, dump in dumps:
        path = folder / str(len(found.files))
        try:
            path.write_bytes(CUT_DUMP if dump is None else orjson.dumps(dump))
        except orjson.JSONEncodeError:  # orjson reads deeper values than it writes
            return Unpacked(found.files, "holds a dump that is nested too deeply; the rest is left out")
        found.files.append((name, path))
    return found if found.files else None


def _undamaged(text: str) -> Iterator[tuple[str, Any]]:
    """Yield the dumps in a damaged document, and None for one that is damaged itself."""
    is_wrapper_damaged = False
    for place, value in objects_in(text):
        key = _key_before(text, place)
        name = f"dump_{key}" if key.isdigit() else key
        if value is not NOT_READ:
            yield from _dumps(value, name, DEEPEST)
            continue
        beginning = text[place + 1 : place + LONGEST_KEY].lstrip().encode()
        rank = next(
            (_number_behind(beginning, key) for key in _RANK_KEYS if beginning.startswith(b'"%s"' % key.encode())), ""
        )
        if rank or (beginning.startswith((*_MARKERS, b'"version"')) and not (is_wrapper_damaged and key in _WRAPPED)):
            yield f"rank_{rank}" if rank else name or "dump", None
        is_wrapper_damaged = bool(rank)


def _key_before(text: str, place: int) -> str:
    """Return the key whose value begins at a place; empty if there is none."""
    before = text[max(place - LONGEST_KEY, 0) : place].rstrip()
    return before[:-1].rstrip().rstrip('"').rpartition('"')[2] if before.endswith(":") else ""


def _number_behind(beginning: bytes, key: str) -> str:
    """Return the number behind the first key of an object."""
    number = beginning[len(key) + 2 :].lstrip(b': "').partition(b",")[0].strip(b' "')
    return number.decode() if number.isdigit() else ""


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
