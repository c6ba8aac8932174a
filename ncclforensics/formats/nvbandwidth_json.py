"""Read the JSON of nvbandwidth (-j): one object, whose matrices become rows of the frames of the printed ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ncclforensics.formats import Record
from ncclforensics.inputs.tolerant_json import json_array, json_int32, json_object, json_scalar, json_text, parse_json

MAGIC = b"{"
MARKER = b'"nvbandwidth"'  # the only key of the object


def records(data: bytes) -> tuple[list[Record], list[str]]:
    """Return the records of the document, frame and columns of each in order, and its problems."""
    document, problems = parse_json(data)
    tests = json_object(json_object(document).get("nvbandwidth"))
    failed = [
        f"test {json_text(test.get('name')) or '?'} ended as {json_scalar(test['status'])}"
        for test in map(json_object, json_array(tests.get("testcases")))
        if test.get("status") not in (None, "Passed", "Waived")
    ]
    return list(_rows(tests)), problems + failed


def _rows(document: Mapping[str, Any]) -> Iterator[Record]:
    yield (
        "pair_setting",
        {"form": "nvbandwidth", "version": json_text(document.get("git_version", document.get("version")))},
    )
    if runtime := json_int32(document.get("CUDA Runtime Version")):
        yield "pair_setting", {"form": "runtime", "runtime": runtime}
    if driver := json_text(document.get("Driver Version")):
        yield "pair_setting", {"form": "driver", "driver": driver}
    for name in json_array(document.get("GPU Device list")):
        device, _, rest = json_scalar(name).partition(": ")
        gpu, _, bus = rest.partition(" (")
        yield (
            "pair_device",
            {"form": "nvbandwidth", "device": json_int32(device), "gpu": gpu, "bus": bus.partition(")")[0]},
        )
    for test in map(json_object, json_array(document.get("testcases"))):
        yield "pair_test", {"test": json_text(test.get("name"))}
        matrix = [json_array(row) for row in json_array(test.get("bandwidth_matrix"))]
        if matrix:
            yield "pair_matrix", _matrix(json_text(test.get("bandwidth_description")) or "")
            yield "pair_columns", {"form": "", "columns": " ".join(map(str, range(len(matrix[0]))))}
        for number, cells in enumerate(matrix):
            yield "pair_row", {"row": number, "cells": " ".join(json_scalar(cell) for cell in cells)}


def _matrix(description: str) -> dict[str, Any]:
    """Return what the rows of a matrix stand for, as the line above a printed matrix names it."""
    side = next((side for side in ("GPU", "CPU") if f"{side}(row)" in description), None)
    if description.endswith("(ns)"):
        return {"form": "pair_latency" if side == "GPU" else "host_latency", "side": side}
    return {"form": "nvbandwidth" if side else "local", "side": side}
