"""Read the JSON of py-spy (--json): an array with an object for each thread."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ncclforensics.formats import Record
from ncclforensics.inputs.tolerant_json import json_array, json_int32, json_object, json_text, parse_json

MAGIC = b"["
MARKER = b'"thread_id"'


def records(data: bytes) -> tuple[list[Record], list[str]]:
    """Return processes, threads and stack frames as in the printed form, without variables (--locals), and problems."""
    document, problems = parse_json(data)
    return [record for thread in _threads(json_array(document)) for record in thread], problems


def _threads(document: list[Any]) -> Iterator[list[Record]]:
    """Yield the records of one thread after the other, with those of its process before the first."""
    last: int | None = None
    for entry in document:
        thread = json_object(entry)
        pid = json_int32(thread.get("pid"))
        if pid is None or not isinstance(thread.get("frames"), list):
            continue
        rows = [] if pid == last else list(_process(pid, json_object(thread.get("process_info"))))
        last = pid
        state = "active" if thread.get("active") is True else "idle"
        state += "+gil" if thread.get("owns_gil") is True else ""
        number = json_int32(thread.get("os_thread_id"))
        name = json_text(thread.get("thread_name"))
        rows.append(("pyspy_thread", {"form": "", "thread": str(number or ""), "state": state, "thread_name": name}))
        rows += [_frame(json_object(frame)) for frame in json_array(thread["frames"])]
        yield rows


def _process(pid: int, info: Mapping[str, Any]) -> Iterator[Record]:
    yield "pyspy_process", {"form": "", "pid": pid, "command": json_text(info.get("command_line"))}
    parent = json_int32(json_object(info.get("parent")).get("pid"))
    if parent is not None:
        yield "pyspy_process", {"form": "parent", "parent": parent}


def _frame(frame: Mapping[str, Any]) -> Record:
    file, line = json_text(frame.get("filename")) or "", json_int32(frame.get("line"))
    function = {"function": json_text(frame.get("name"))}
    if line:
        return "pyspy_frame", {"form": "", **function, "file": file, "numbered": line}
    return "pyspy_frame", {"form": "native", **function, "library": json_text(frame.get("module")) or file}
