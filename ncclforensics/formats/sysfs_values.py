"""Read copies of the files below /sys/class/infiniband, in their folders or as one JSON object with paths as keys."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath

from ncclforensics.formats import Record
from ncclforensics.inputs.tolerant_json import json_int32, json_object, parse_json

MAGIC = b"{"
MARKER = b"/infiniband/"
COUNTERS = ("counters", "hw_counters", "counters_ext")
OF_A_PORT = ("state", "phys_state", "rate", "link_layer", "lid", "sm_lid")
OF_A_DEVICE = ("board_id", "fw_ver", "hca_type", "node_desc", "node_guid", "sys_image_guid")


def records(data: bytes) -> tuple[list[Record], list[str]]:
    """Return a record for every file of an object whose keys are paths, and problems."""
    document, problems = parse_json(data)
    files = json_object(document).items()
    return [record for path, value in files if isinstance(value, str) for record in _record(path, value)], problems


def holds(path: str, beginning: bytes) -> bool:
    """Whether a file is one of these: a single line, at a path below /sys/class/infiniband that has a record."""
    return b"\n" not in beginning.rstrip(b"\n") and any(_record(path, ""))


def value(path: str, data: bytes) -> tuple[list[Record], list[str]]:
    """Return the record of one file, and problems."""
    return list(_record(path, data.decode("utf-8", "replace"))), []


def _record(path: str, text: str) -> Iterator[Record]:
    parts, value_text = PurePosixPath(path).parts, text.strip()
    if "ports" not in parts[1:]:
        if len(parts) > 2 and parts[-3] == "infiniband" and parts[-1] in OF_A_DEVICE:
            yield "device_file", {"form": "", "device": parts[-2], "device_file": parts[-1], "value": value_text}
        return
    place = len(parts) - 1 - parts[::-1].index("ports")
    below = parts[place + 2 :]
    port = {"form": "", "device": parts[place - 1], "port": json_int32(parts[place + 1]) if below else None}
    match below:
        case (folder, counter) if folder in COUNTERS:
            yield "port_counter_file", {**port, "counter": counter, "value": value_text}
        case (file,) if file in OF_A_PORT:
            yield "port_file", {**port, "file": file, "value": value_text}
        case ("gids", index):
            yield "port_gid_file", {**port, "gid_index": json_int32(index), "gid": value_text}
        case ("gid_attrs", "types", index):
            yield (
                "port_gid_file",
                {**port, "form": "type", "gid_index": json_int32(index), "gid_type": value_text},
            )
        case ("gid_attrs", "ndevs", index):
            yield (
                "port_gid_file",
                {**port, "form": "netdev", "gid_index": json_int32(index), "netdev": value_text},
            )
