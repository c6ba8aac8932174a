"""What py-spy writes with --json: an array with an object for each thread."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ncclforensics.inputs.tolerant_json import a_small, a_text, an_array, an_object, loaded

GRAMMARS = ()
SIGNATURES = ()
KINDS: Mapping[str, str] = {}
MAGIC = b"["
MARKER = b'"thread_id"'
Record = tuple[str, dict[str, Any]]


def records(data: bytes) -> tuple[list[Record], list[str]]:
    """Processes, threads and frames as the printed form has them; variables (--locals) are not kept."""
    document, problems = loaded(data)
    return [record for thread in _threads(an_array(document)) for record in thread], problems


def _threads(document: list[Any]) -> Iterator[list[Record]]:
    """Yield the records of one thread after the other, with those of its process before the first."""
    last: int | None = None
    for entry in document:
        thread = an_object(entry)
        pid = a_small(thread.get("pid"))
        if pid is None or not isinstance(thread.get("frames"), list):
            continue
        rows = [] if pid == last else list(_process(pid, an_object(thread.get("process_info"))))
        last = pid
        state = "active" if thread.get("active") is True else "idle"
        state += "+gil" if thread.get("owns_gil") is True else ""
        number = a_small(thread.get("os_thread_id"))
        name = a_text(thread.get("thread_name"))
        rows.append(("pyspy_thread", {"form": "", "thread": str(number or ""), "state": state, "thread_name": name}))
        rows += [_frame(an_object(frame)) for frame in an_array(thread["frames"])]
        yield rows


def _process(pid: int, info: Mapping[str, Any]) -> Iterator[Record]:
    yield "pyspy_process", {"form": "", "pid": pid, "command": a_text(info.get("command_line"))}
    parent = a_small(an_object(info.get("parent")).get("pid"))
    if parent is not None:
        yield "pyspy_process", {"form": "parent", "parent": parent}


def _frame(frame: Mapping[str, Any]) -> Record:
    file, line = a_text(frame.get("filename")) or "", a_small(frame.get("line"))
    function = {"function": a_text(frame.get("name"))}
    if line:
        return "pyspy_frame", {"form": "", **function, "file": file, "numbered": line}
    return "pyspy_frame", {"form": "native", **function, "library": a_text(frame.get("module")) or file}
