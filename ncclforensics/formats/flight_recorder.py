"""Flight Recorder dumps of PyTorch 2.2 to 2.15: pickles, and the JSON of its debug handlers.

The head of a pickle (process groups, and how far each came) stands before the entries. It is a few kilobytes long and
often decides, so that the entries of most ranks need not be read. In JSON the keys are sorted, and all of it is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import orjson

from ncclforensics.data import nouns
from ncclforensics.data.torch_calls import BATCHES
from ncclforensics.formats import DAMAGED, Record
from ncclforensics.inputs.chrome_trace import is_chrome_trace
from ncclforensics.inputs.damaged_json import NOT_READ, elements_of_key, value_of_key
from ncclforensics.inputs.lines import PICKLE_STARTS
from ncclforensics.inputs.plain_pickle import load, walk
from ncclforensics.inputs.tolerant_json import json_array, json_integer, json_number, json_object, json_text, parse_json

GRAMMARS = ("recorder",)
SIGNATURES = ("recorder_call",)
NOUN = nouns.RECORDER_DUMP
KINDS = dict.fromkeys(("recorder_dump", "recorder_group", "recorder_status", "recorder_call"), "flight-recorder")

# Keys that stand in the first bytes of a dump, or (torch 2.2 wrote a list of entries) of its first entry.
KEYS = (b"pg_config", b"pg_status", b"nccl_comm_state", b"comm_lib_version", b"profiling_name", b"collective_seq_id")
ENTRY_KEYS = (b"frames", b"pg_id")
ENTRIES = "entries"
_HEAD_KEYS = ("version", "comm_lib_version", "nccl_version", "pg_config", "pg_status")
ARROWS = ("->", "<-")  # in the titles of point-to-point calls; `is_p2p` exists from torch 2.4 on
KEPT = 128  # completed entries before the last one; all that have not completed are kept
OF_TORCH = ("/torch/", "/torch_npu/")  # in the paths of PyTorch's own code
SHOWN_FRAMES = 4  # of the application, the innermost first
MOST_TENSORS, MOST_DIMENSIONS = 64, 16


def is_dump(beginning: bytes) -> bool:
    """Whether a file with this beginning is a dump."""
    if beginning.startswith(PICKLE_STARTS):
        is_list = beginning[2:3] == b"]"
        return any(key in beginning for key in KEYS + ENTRY_KEYS * is_list)
    if is_chrome_trace(beginning):  # which names process groups by the same key
        return False
    return beginning.lstrip()[:1] in (b"{", b"[") and any(b'"%s"' % key in beginning for key in KEYS)


def head(data: bytes) -> tuple[list[Record], list[str]] | None:
    """The records of what stands before the entries; None if these bytes do not reach that far or are no pickle."""
    if not data.startswith(PICKLE_STARTS):
        return None
    beginning = walk(data, until=ENTRIES)
    value = json_object(beginning.value)
    return (list(_head(value)), []) if beginning.at_key and "pg_status" in value else None


def records(data: bytes) -> tuple[list[Record], list[str]]:
    """All records of a dump; the head's are the first, in the same order."""
    if data.startswith(PICKLE_STARTS):
        outcome = load(data)
        value, problems = outcome.value, [outcome.problem] if outcome.problem else []
    else:
        value, problems = parse_json(data)
    if value is None and problems:
        document, lost = _undamaged(data.decode("utf-8", "replace"))
        damage: list[Record] = [(DAMAGED, {})] * lost
        if document:
            problems = [f"is damaged JSON: {lost} of its entries, or more, cannot be read"]
            return [*_head(document), *_calls(document), *damage], problems
    document = {ENTRIES: value} if isinstance(value, list) else json_object(value)  # torch 2.2 wrote the entries alone
    if problems and not data.startswith(PICKLE_STARTS):
        document = {**document, "pg_status": None}  # in JSON it stands behind the entries, and may be cut
    return [*_head(document), *_calls(document)], problems


def _undamaged(text: str) -> tuple[dict[str, Any], int]:
    """Return what can be read of a dump whose JSON is damaged, and how many places in its entries cannot."""
    entries, lost = elements_of_key(text, ENTRIES, _is_entry)
    head = {key: value for key in _HEAD_KEYS if (value := value_of_key(text, key)) is not NOT_READ}
    return {**head, ENTRIES: entries} if head or entries else {}, max(lost, 1)


def _is_entry(value: object) -> bool:
    return isinstance(value, dict) and "state" in value


def _calls(document: Mapping[str, Any]) -> Iterator[Record]:
    entries = [entry for entry in json_array(document.get(ENTRIES)) if _is_entry(entry)]
    return (("recorder_call", _call(entry)) for entry in _kept(entries))


def _head(document: Mapping[str, Any]) -> Iterator[Record]:
    library = json_text(document.get("comm_lib_version", document.get("nccl_version")))
    yield "recorder_dump", {"form": "", "version": json_text(document.get("version")), "library": library or None}
    for name, config in json_object(document.get("pg_config")).items():
        group = json_object(config)
        ranks = group.get("ranks", config)  # torch 2.3: the list of ranks itself
        yield (
            "recorder_group",
            {
                "form": "",
                "group_name": _name(group.get("name", name)),
                "group_desc": json_text(group.get("desc")) or None,
                "ranks": _ranks_text(ranks) if isinstance(ranks, str) else ranges(json_array(ranks)),
            },
        )
    for number, status in json_object(document.get("pg_status")).items():
        last = {key: json_integer(json_object(status).get(f"last_{key}_collective")) for key in _STATUS}
        if None in last.values():
            continue  # a dump that is cut here does not show how far the rank came
        yield (
            "recorder_status",
            {"form": "", "pg_id": json_integer(number), **{f"last_{key}": value for key, value in last.items()}},
        )


_STATUS = ("enqueued", "started", "completed")


def _name(name: object) -> str | None:
    return str(name) if isinstance(name, int) else json_text(name) or None


@lru_cache(maxsize=4096)  # all members of a group have the same text
def _ranks_text(ranks: str) -> str | None:
    """The ranks of a process group, from the text of a list."""
    try:
        return ranges(json_array(orjson.loads(ranks)))
    except orjson.JSONDecodeError:
        return None


def ranges(ranks: list[Any]) -> str | None:
    """Ranks in their order, with ranges: `0-511, 520`."""
    runs: list[list[int]] = []
    for rank in ranks:
        if not isinstance(rank, int):
            return None
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ", ".join(f"{first}-{last}" if last > first else str(first) for first, last in runs) or None


def _kept(entries: list[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    """The entries that have not completed or retired, the one before them, and the last others.

    Of a batch the closing entry decides.
    """
    first = len(entries) - KEPT
    before_open = next((number - 1 for number, entry in enumerate(entries) if not _is_over(entry)), 0)
    closed = {
        _batch(entry)
        for entry in entries
        if _is_over(entry) and (json_text(entry.get("profiling_name")) or "").endswith(BATCHES)
    }
    return (
        entry
        for number, entry in enumerate(entries)
        if number >= first or number == before_open or not (_is_over(entry) or (closed and _batch(entry) in closed))
    )


def _is_over(entry: Mapping[str, Any]) -> bool:
    return entry.get("state") == "completed" or bool(entry.get("retired"))


def _batch(entry: Mapping[str, Any]) -> tuple[object, ...]:
    """What is equal of all calls of a batch, which count as one, and of no others."""
    is_message = entry.get("is_p2p") is True
    return entry.get("pg_id"), is_message, entry.get("p2p_seq_id" if is_message else "collective_seq_id")


def _call(entry: Mapping[str, Any]) -> dict[str, Any]:
    group = entry.get("process_group")
    name, desc = (group[0], group[1]) if isinstance(group, list | tuple) and len(group) == 2 else (None, None)
    pg_id = json_integer(entry.get("pg_id"))
    sequence = json_integer(entry.get("collective_seq_id", entry.get("seq_id")))  # torch 2.2 and 2.3 have one number
    title = json_text(entry.get("profiling_name"))
    is_message = entry.get("is_p2p", any(arrow in (title or "") for arrow in ARROWS)) is True
    return {
        "form": "",
        "collective_seq": sequence,
        "duration_ms": json_number(entry.get("duration_ms")),
        "frames": _frames(entry.get("frames")),
        "input_dtypes": _dtypes(entry.get("input_dtypes")),
        "input_sizes": _sizes(entry.get("input_sizes")),
        "is_p2p": "true" if is_message else "false",
        "op_id": json_integer(entry.get("op_id")),
        "output_dtypes": _dtypes(entry.get("output_dtypes")),
        "output_sizes": _sizes(entry.get("output_sizes")),
        "p2p_seq": json_integer(entry.get("p2p_seq_id")),
        "pg_id": pg_id,
        "group_name": _name(name) or (None if pg_id is None else str(pg_id)),
        "group_desc": json_text(desc) or None,
        "profiling_name": title,
        "record_id": json_integer(entry.get("record_id")),
        "retired": "true" if entry.get("retired") is True else "false",
        "state": json_text(entry.get("state")),
        "thread_name": json_text(entry.get("thread_name")) or None,
        "created_ns": json_integer(entry.get("time_created_ns")),
        "completed_ns": json_integer(entry.get("time_discovered_completed_ns")) or None,
        "started_ns": json_integer(entry.get("time_discovered_started_ns")) or None,
        "timeout_ms": json_integer(entry.get("timeout_ms")),
    }


def _frames(frames: object) -> str | None:
    """The innermost frames outside of PyTorch as JSON; if all are inside, the outermost."""
    found = [
        frame for frame in json_array(frames) if isinstance(frame, dict) and isinstance(frame.get("filename"), str)
    ]
    own = [frame for frame in found if not any(part in frame["filename"] for part in OF_TORCH)][:SHOWN_FRAMES]
    shown = [
        {
            "filename": json_text(frame["filename"]),
            "line": json_integer(frame.get("line")),
            "name": json_text(frame.get("name")),
        }
        for frame in own or found[-1:]
    ]
    return orjson.dumps(shown).decode() if shown else None


def _dtypes(dtypes: object) -> str | None:
    names = map(json_text, json_array(dtypes)[:MOST_TENSORS])
    return ",".join(f'"{name}"' for name in names if name is not None) or None


def _sizes(sizes: object) -> str | None:
    shapes = (json_array(shape)[:MOST_DIMENSIONS] for shape in json_array(sizes)[:MOST_TENSORS])
    return ",".join(f"[{','.join(str(size) for size in shape if isinstance(size, int))}]" for shape in shapes) or None
