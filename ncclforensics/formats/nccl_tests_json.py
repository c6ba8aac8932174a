"""What nccl-tests writes with -J: one object, whose parts become rows of the frames that its printed table fills.

Lines stand for records here. The dump of the environment is not looked at: it may hold secrets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import PurePath
from typing import Any

import orjson

GRAMMARS = ()
SIGNS = ()
KINDS: Mapping[str, str] = {}
OPENING = b'{"version":'  # how it begins
TELLING = b'"start_time"'  # and what stands next to that
CLOSERS = {"{": "}", "[": "]"}
Record = tuple[str, dict[str, Any]]  # the frame, and the columns


def records(data: bytes) -> tuple[list[Record], list[str]]:
    """The rows of all frames, in order, and what is wrong with the object."""
    problems = []
    try:
        whole = orjson.loads(data)
    except orjson.JSONDecodeError:
        text, is_cut = _mended(data.decode("utf-8", "replace"))
        problems += ["is JSON that was cut off"] * is_cut
        try:
            whole = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            return [], [f"is no JSON: {error}"]
    return list(_rows(_object(whole))), problems


def _mended(text: str) -> tuple[str, bool]:
    """The object without what JSON does not know (`inf`), closed behind its last whole part if its end is missing."""
    stack: list[str] = []
    safe = (0, "")
    in_text = escaped = False
    for place, character in enumerate(text):
        if in_text:
            in_text = escaped or character != '"'
            escaped = character == "\\" and not escaped
        elif character == '"':
            in_text = True
        elif character in CLOSERS:
            stack.append(CLOSERS[character])
        elif character in ("}", "]") and stack:
            stack.pop()
        elif character == ",":
            safe = place, "".join(reversed(stack))
    is_cut = bool(stack) or in_text
    if is_cut:
        text = text[: safe[0]] + safe[1]
    for unknown in ("-inf", "inf", "-nan", "nan"):
        for before, behind in ((":", ","), (":", "}")):
            text = text.replace(f"{before}{unknown}{behind}", f"{before}null{behind}")
    return text, is_cut


def _rows(whole: Mapping[str, Any]) -> Iterator[Record]:
    config = _object(whole.get("config"))
    if args := _array(whole.get("args")):
        program = PurePath(str(args[0])).name.removesuffix("_mpi")
        if program.endswith("_perf"):
            yield "test_setting", {"form": "start", "collective": program.removesuffix("_perf")}
    yield "test_setting", {"form": "version", "library": _small(whole.get("nccl_version"))}
    step = "step_factor" if "step_factor" in config else "step_bytes"
    names = {
        "nthread": "nthreads", "ngpus": "ngpus", "minbytes": "minimum_bytes", "maxbytes": "maximum_bytes", "step": step,
        "iters": "iterations", "agg_iters": "aggregated_iterations", "validation": "validation", "graph": "graph",
    }  # fmt: skip
    wide = ("minbytes", "maxbytes", "step")
    told = {column: (_integer if column in wide else _small)(config.get(name)) for column, name in names.items()}
    if config:
        yield "test_setting", {"form": "parameters", **told, "step_kind": step.removeprefix("step_")}
    for device in map(_object, _array(config.get("devices"))):
        yield (
            "test_device",
            {
                "form": "",
                "rank": _small(device.get("rank")),
                "group": _small(device.get("group")),
                "pid": _small(device.get("pid")),
                "host": _text(device.get("hostname")),
                "device": _small(device.get("device")),
                "gpu": _text(device.get("device_info")),
            },
        )
    if "results" in whole:
        yield "table_head", {"form": "", "sized": "size", "checked": "#wrong", "second": "time"}
        yield "table_head", {"form": "units", "unit": "us"}
    for result in map(_object, _array(whole.get("results"))):
        yield "table_row", _result(result)
    if bounds := _object(whole.get("out_of_bounds")):
        outcome = "OK" if bounds.get("okay") == "true" else "FAILED"
        yield "test_end", {"form": "bounds", "failed": _integer(bounds.get("count")), "outcome": outcome}
    # Misspelt from 2.17.3 to 2.17.8.
    if average := _object(whole.get("average_bus_bandwidth") or whole.get("average_bus_bandwidith")):
        value = _number(average.get("bandwidth", average.get("bandwidith")))
        against = {"true": "OK", "false": "FAILED"}.get(str(average.get("okay")))
        yield "test_end", {"form": "average", "average": value, "outcome": against}


def _result(result: Mapping[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {
        "form": "",
        "size": _integer(result.get("size")),
        "count": _integer(result.get("count")),
        "type": _text(result.get("type")),
        "redop": _text(result.get("redop")) or None,
        "root": _integer(result.get("root")),
    }
    for prefix, name in (("", "out_of_place"), ("in_", "in_place")):
        half = _object(result.get(name))
        wrong = half.get("nwrong")
        row |= {
            f"{prefix}time": _number(half.get("time", half.get("cpu_time"))),
            f"{prefix}algbw": _number(half.get("alg_bw")),
            f"{prefix}busbw": _number(half.get("bus_bw")),
            f"{prefix}wrong": None if wrong is None else str(wrong),
        }
    return row


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _array(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _small(value: object) -> int | None:
    number = _integer(value)
    return number if number is not None and abs(number) < 1 << 31 else None


def _integer(value: object) -> int | None:
    """A number, or the text of one (the root is padded with blanks), if it is no larger than a column holds."""
    with suppress(ValueError):
        number = int(str(value).strip())
        return number if abs(number) < 1 << 63 else None
    return None
