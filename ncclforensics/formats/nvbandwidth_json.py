"""What nvbandwidth writes with -j: one object, whose matrices become rows of the frames that its printed ones fill."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ncclforensics.inputs.tolerant_json import a_small, a_text, an_array, an_object, loaded

GRAMMARS = ()
SIGNATURES = ()
KINDS: Mapping[str, str] = {}
MAGIC = b"{"
MARKER = b'"nvbandwidth"'  # the only key of the object
Record = tuple[str, dict[str, Any]]  # the frame, and the columns


def records(data: bytes) -> tuple[list[Record], list[str]]:
    """The rows of all frames, in order, and what is wrong with the object."""
    document, problems = loaded(data)
    tests = an_object(an_object(document).get("nvbandwidth"))
    failed = [
        f"test {a_text(test.get('name')) or '?'} ended as {test['status']}"
        for test in map(an_object, an_array(tests.get("testcases")))
        if test.get("status") not in (None, "Passed", "Waived")
    ]
    return list(_rows(tests)), problems + failed


def _rows(document: Mapping[str, Any]) -> Iterator[Record]:
    yield (
        "pair_setting",
        {"form": "nvbandwidth", "version": a_text(document.get("git_version", document.get("version")))},
    )
    if runtime := a_small(document.get("CUDA Runtime Version")):
        yield "pair_setting", {"form": "runtime", "runtime": runtime}
    if driver := a_text(document.get("Driver Version")):
        yield "pair_setting", {"form": "driver", "driver": driver}
    for name in an_array(document.get("GPU Device list")):
        device, _, rest = str(name).partition(": ")
        gpu, _, bus = rest.partition(" (")
        yield (
            "pair_device",
            {"form": "nvbandwidth", "device": a_small(device), "gpu": gpu, "bus": bus.partition(")")[0]},
        )
    for test in map(an_object, an_array(document.get("testcases"))):
        yield "pair_test", {"test": a_text(test.get("name"))}
        matrix = [an_array(row) for row in an_array(test.get("bandwidth_matrix"))]
        if matrix:
            yield "pair_matrix", _matrix(a_text(test.get("bandwidth_description")) or "")
            yield "pair_columns", {"form": "", "columns": " ".join(map(str, range(len(matrix[0]))))}
        for number, cells in enumerate(matrix):
            yield "pair_row", {"row": number, "cells": " ".join(str(cell) for cell in cells)}


def _matrix(description: str) -> dict[str, Any]:
    """What the rows of a matrix are, as the printed line above it tells."""
    side = next((side for side in ("GPU", "CPU") if f"{side}(row)" in description), None)
    if description.endswith("(ns)"):
        return {"form": "pair_latency" if side == "GPU" else "host_latency", "side": side}
    return {"form": "nvbandwidth" if side else "local", "side": side}
