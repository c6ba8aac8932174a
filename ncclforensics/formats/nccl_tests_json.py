"""What nccl-tests writes with -J: one object, whose parts become rows of the frames that its printed table fills.

Lines stand for records here. The dump of the environment is not looked at: it may hold secrets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

from ncclforensics.inputs.tolerant_json import a_number, a_small, a_text, an_array, an_integer, an_object, loaded

GRAMMARS = ()
SIGNATURES = ()
KINDS: Mapping[str, str] = {}
MAGIC = b'{"version":'  # how it begins
MARKER = b'"start_time"'  # and what stands next to that
Record = tuple[str, dict[str, Any]]  # the frame, and the columns


def records(data: bytes) -> tuple[list[Record], list[str]]:
    """The rows of all frames, in order, and what is wrong with the object."""
    document, problems = loaded(data)
    return [] if document is None else list(_rows(an_object(document))), problems


def _rows(document: Mapping[str, Any]) -> Iterator[Record]:
    config = an_object(document.get("config"))
    if args := an_array(document.get("args")):
        program = PurePath(str(args[0])).name.removesuffix("_mpi")
        if program.endswith("_perf"):
            yield "test_setting", {"form": "start", "collective": program.removesuffix("_perf")}
    yield "test_setting", {"form": "version", "library": a_small(document.get("nccl_version"))}
    step = "step_factor" if "step_factor" in config else "step_bytes"
    names = {
        "nthread": "nthreads", "ngpus": "ngpus", "minbytes": "minimum_bytes", "maxbytes": "maximum_bytes", "step": step,
        "iters": "iterations", "agg_iters": "aggregated_iterations", "validation": "validation", "graph": "graph",
    }  # fmt: skip
    wide = ("minbytes", "maxbytes", "step")
    settings = {column: (an_integer if column in wide else a_small)(config.get(name)) for column, name in names.items()}
    if config:
        yield "test_setting", {"form": "parameters", **settings, "step_kind": step.removeprefix("step_")}
    for device in map(an_object, an_array(config.get("devices"))):
        yield (
            "test_device",
            {
                "form": "",
                "rank": a_small(device.get("rank")),
                "group": a_small(device.get("group")),
                "pid": a_small(device.get("pid")),
                "host": a_text(device.get("hostname")),
                "device": a_small(device.get("device")),
                "gpu": a_text(device.get("device_info")),
            },
        )
    if "results" in document:
        yield "table_head", {"form": "", "sized": "size", "checked": "#wrong", "second": "time"}
        yield "table_head", {"form": "units", "unit": "us"}
    for result in map(an_object, an_array(document.get("results"))):
        yield "table_row", _result(result)
    if bounds := an_object(document.get("out_of_bounds")):
        outcome = "OK" if bounds.get("okay") == "true" else "FAILED"
        yield "test_end", {"form": "bounds", "failed": an_integer(bounds.get("count")), "outcome": outcome}
    # Misspelt from 2.17.3 to 2.17.8.
    if average := an_object(document.get("average_bus_bandwidth") or document.get("average_bus_bandwidith")):
        value = a_number(average.get("bandwidth", average.get("bandwidith")))
        against = {"true": "OK", "false": "FAILED"}.get(str(average.get("okay")))
        yield "test_end", {"form": "average", "average": value, "outcome": against}


def _result(result: Mapping[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {
        "form": "",
        "size": an_integer(result.get("size")),
        "count": an_integer(result.get("count")),
        "type": a_text(result.get("type")),
        "redop": a_text(result.get("redop")) or None,
        "root": an_integer(result.get("root")),
    }
    for prefix, name in (("", "out_of_place"), ("in_", "in_place")):
        half = an_object(result.get(name))
        wrong = half.get("nwrong")
        row |= {
            f"{prefix}time": a_number(half.get("time", half.get("cpu_time"))),
            f"{prefix}algbw": a_number(half.get("alg_bw")),
            f"{prefix}busbw": a_number(half.get("bus_bw")),
            f"{prefix}wrong": None if wrong is None else str(wrong),
        }
    return row
