"""Read the JSON of nccl-tests (-J): one object, whose parts become rows of the frames of the printed table.

Lines stand for records here. The dump of the environment is not looked at: it may hold secrets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

from ncclforensics.formats import Record
from ncclforensics.inputs.tolerant_json import (
    json_array,
    json_int32,
    json_integer,
    json_number,
    json_object,
    json_scalar,
    json_text,
    parse_json,
)

MAGIC = b'{"version":'  # how it begins
MARKER = b'"start_time"'  # and what stands next to that


def records(data: bytes) -> tuple[list[Record], list[str]]:
    """Return the records of the document, frame and columns of each in order, and its problems."""
    document, problems = parse_json(data)
    return [] if document is None else list(_rows(json_object(document))), problems


def _rows(document: Mapping[str, Any]) -> Iterator[Record]:
    config = json_object(document.get("config"))
    if args := json_array(document.get("args")):
        program = PurePath(json_scalar(args[0])).name.removesuffix("_mpi")
        if program.endswith("_perf"):
            yield "test_setting", {"form": "start", "collective": program.removesuffix("_perf")}
    yield "test_setting", {"form": "version", "library": json_int32(document.get("nccl_version"))}
    step = "step_factor" if "step_factor" in config else "step_bytes"
    names = {
        "nthread": "nthreads", "ngpus": "ngpus", "minbytes": "minimum_bytes", "maxbytes": "maximum_bytes", "step": step,
        "iters": "iterations", "agg_iters": "aggregated_iterations", "validation": "validation", "graph": "graph",
    }  # fmt: skip
    wide = ("minbytes", "maxbytes", "step")
    settings = {
        column: (json_integer if column in wide else json_int32)(config.get(name)) for column, name in names.items()
    }
    if config:
        yield "test_setting", {"form": "parameters", **settings, "step_kind": step.removeprefix("step_")}
    for device in map(json_object, json_array(config.get("devices"))):
        yield (
            "test_device",
            {
                "form": "",
                "rank": json_int32(device.get("rank")),
                "group": json_int32(device.get("group")),
                "pid": json_int32(device.get("pid")),
                "host": json_text(device.get("hostname")),
                "device": json_int32(device.get("device")),
                "gpu": json_text(device.get("device_info")),
            },
        )
    if "results" in document:
        yield "table_head", {"form": "", "sized": "size", "checked": "#wrong", "second": "time"}
        yield "table_head", {"form": "units", "unit": "us"}
    for result in map(json_object, json_array(document.get("results"))):
        yield "table_row", _result(result)
    if bounds := json_object(document.get("out_of_bounds")):
        outcome = "OK" if bounds.get("okay") == "true" else "FAILED"
        yield "test_end", {"form": "bounds", "failed": json_integer(bounds.get("count")), "outcome": outcome}
    # Misspelt from 2.17.3 to 2.17.8.
    if average := json_object(document.get("average_bus_bandwidth") or document.get("average_bus_bandwidith")):
        value = json_number(average.get("bandwidth", average.get("bandwidith")))
        against = {"true": "OK", "false": "FAILED"}.get(json_scalar(average.get("okay")))
        yield "test_end", {"form": "average", "average": value, "outcome": against}


def _result(result: Mapping[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {
        "form": "",
        "size": json_integer(result.get("size")),
        "count": json_integer(result.get("count")),
        "type": json_text(result.get("type")),
        "redop": json_text(result.get("redop")) or None,
        "root": json_integer(result.get("root")),
    }
    for prefix, name in (("", "out_of_place"), ("in_", "in_place")):
        half = json_object(result.get(name))
        wrong = half.get("nwrong")
        row |= {
            f"{prefix}time": json_number(half.get("time", half.get("cpu_time"))),
            f"{prefix}algbw": json_number(half.get("alg_bw")),
            f"{prefix}busbw": json_number(half.get("bus_bw")),
            f"{prefix}wrong": json_scalar(wrong) or None,
        }
    return row
