"""Read the JSON of perftest (--out_json): one object with the last measurement, in the frames of its table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

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
MARKER = b'"test_info"'
UNITS = {"Gb/sec": 1e9 / 8, "MiB/sec": 1 << 20}  # bytes/s; the object does not tell which
NEAR = 0.02  # of what the rate of messages tells


def records(data: bytes) -> tuple[list[Record], list[str]]:
    """Return the records of the document, frame and columns of each in order, and its problems."""
    document, problems = parse_json(data)
    document = json_object(document)
    results = json_object(document.get("results"))
    if not results:
        problems.append("holds no results")
    elif "BW_average" in results and _unit(results) is None:
        problems.append("does not tell the unit of its bandwidth")
    return list(_rows(json_object(document.get("test_info")), results)), problems


def _rows(info: Mapping[str, Any], results: Mapping[str, Any]) -> Iterator[Record]:
    is_latency = "t_typical" in results
    name = (json_text(info.get("test")) or "").removesuffix("_Test").removesuffix("_BW").removesuffix("_Latency")
    if info.get("cuda_device") is not None:
        yield "link_memory", {"form": "cuda", "gpu_number": json_int32(info.get("cuda_device"))}
    elif info.get("Use_ROCm_memory") == "ON":
        yield "link_memory", {"form": "rocm"}
    # RDMA_Write_Bidirectional: the operation keeps its underscore, what is said of it stands behind a blank.
    verb = name.replace("_Bidirectional", " Bidirectional").replace("_Post_List", " Post List")
    yield "link_title", {"form": "latency" if is_latency else "bandwidth", "verb": verb or None}
    yield "link_test", {"form": "", "device": json_text(info.get("Device"))}
    if layer := json_text(info.get("Link_type")):
        yield "link_test", {"form": "layer", "link_layer": layer}
    if (mtu := json_int32(info.get("Mtu"))) is not None:
        yield "link_test", {"form": "mtu", "mtu": mtu}
    if not results:
        return
    unit = None if is_latency else _unit(results)
    yield "link_head", {"form": "latency" if is_latency else "bandwidth", "unit": unit}
    size, rounds = json_integer(results.get("MsgSize")), json_integer(results.get("n_iterations"))
    times = {"least": "t_min", "most": "t_max", "typical": "t_typical", "mean": "t_avg"}
    rates = {"peak": "BW_peak", "average": "BW_average", "rate": "MsgRate"}
    figures = {column: json_number(results.get(key)) for column, key in (times if is_latency else rates).items()}
    form = "latency" if is_latency else "bandwidth"
    yield "link_row", {"form": form, "size": size, "iterations": rounds, **figures}


def _unit(results: Mapping[str, Any]) -> str | None:
    """Return the unit in which average bandwidth agrees with messages per second times their size."""
    size, rate, average = (json_number(results.get(name)) for name in ("MsgSize", "MsgRate", "BW_average"))
    if not size or not rate or not average:
        return None
    bytes_per_second = size * rate * 1e6
    return next((unit for unit, factor in UNITS.items() if abs(average * factor / bytes_per_second - 1) < NEAR), None)
