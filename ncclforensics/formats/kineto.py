"""Traces of torch.profiler (Kineto), of CPUs, NVIDIA's and AMD's GPUs, compressed or not.

Of a call, the kernel alone shows how long it ran: the annotation `nccl:…` ends with the host's call (pytorch#108128),
while `gloo:…` lasts from the enqueueing to the end. Kernels name collective, group and size from about torch 2.4 on;
before, the record of the host with the same external id does, or nothing.
"""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, TypeGuard

import orjson

from ncclforensics.data import nouns
from ncclforensics.data.collectives import communicates
from ncclforensics.formats import TraceRecords
from ncclforensics.formats.flight_recorder import ranges
from ncclforensics.inputs.chrome_trace import ChromeTrace, Event, is_chrome_trace
from ncclforensics.inputs.intervals import Covered, Interval, exposed, unrequested
from ncclforensics.inputs.tolerant_json import json_array, json_int32, json_integer, json_object, json_text

GRAMMARS = ("profiled",)
SIGNATURES = ("profiled_process",)
KINDS = {"profiled_process": "profiler-trace"}
NOUN = nouns.TRACE

is_trace = is_chrome_trace

# Kernels and their launches, steps, calls of gloo, and what the host says of a call of NCCL: others are left out.
# Each word is looked for in the whole text, so that one stands for `"kernel"` and `"Kernel"`.
WANTED = (b'ernel"', b"Launch", b'"ProfilerStep#', b'"gloo:', b'"record_param_comms"')
LAUNCH = "Launch"  # in the names of the functions of CUDA and HIP that launch kernels, or graphs of them
STEP, GLOO, HOST_RECORD = "ProfilerStep#", "gloo:", "record_param_comms"
KEPT_KERNELS = 32  # names, those that took longest
LATEST = 1e16  # microseconds since 1970, in the year 2286
MOST_RANKS = 1 << 17  # of a job
LONGEST_NAME = 200  # characters of a kernel's name
Row = dict[str, Any]


def read_trace(stream: io.BufferedIOBase, *, is_whole: bool) -> TraceRecords:
    """Read a trace; only what stands before its events, if not `is_whole`."""
    trace = ChromeTrace(stream, WANTED)
    process = _Process()
    if is_whole:
        for events in trace.events():
            process.add(events)
    else:
        trace.read_head()
    info = json_object(trace.keys.get("distributedInfo"))
    base = (json_integer(trace.keys.get("baseTimeNanoseconds")) or 0) / 1000
    rows: dict[str, list[Row]] = {
        "profiled_process": [process.row(trace.keys, info, base)],
        "profiled_group": list(_groups(info)),
        "profiled_step": [
            {"step": number, "start_us": start + base, "duration_us": duration}
            for number, start, duration in sorted(process.steps)
        ],
        "profiled_call": list(process.calls(base)),
        "profiled_kernel": process.kernel_rows(),
    }
    import polars as pl  # where no trace is read, it need not be loaded

    frames = {name: pl.DataFrame(own, infer_schema_length=None) for name, own in rows.items() if own}
    return TraceRecords(frames, trace.problems, trace.damaged)


class _Process:
    """What is kept of the events of one process."""

    def __init__(self) -> None:
        self.events = 0
        self.steps: list[tuple[int, float, float]] = []
        self._busy: list[Interval] = []  # kernels that compute
        self._on_gpu: list[tuple[float, float, Any]] = []  # all kernels: start, end and correlation
        self._launched: dict[Any, float] = {}  # correlation -> when the host began to launch it
        self._kernels: dict[str, list[float]] = defaultdict(list)
        self._communicates: dict[str, bool] = {}  # name of a kernel -> whether it communicates
        self._calls: list[tuple[float, float, str, Row]] = []  # start, duration, how it was timed, and what is known
        self._of_host: dict[Any, Row] = {}  # external id -> what the host says of its call

    def add(self, events: list[Event]) -> None:
        """Take what is wanted from some events; one without times is none."""
        self.events += len(events)
        for event in events:
            start, duration, name = event.get("ts"), event.get("dur"), event.get("name")
            if not (_is_time(start) and _is_time(duration) and duration >= 0 and isinstance(name, str)):
                continue
            category = event.get("cat")
            if category in ("kernel", "Kernel"):
                self._add_kernel(name, start, duration, json_object(event.get("args")))
            elif LAUNCH in name and category in ("cuda_runtime", "cuda_driver"):  # also of HIP
                self._launched[_identifier(json_object(event.get("args")), "correlation")] = start
            elif category == "user_annotation" and name.startswith(STEP):
                if (number := json_integer(name.removeprefix(STEP))) is not None:
                    self.steps.append((number, start, duration))
            elif name == HOST_RECORD:
                known = json_object(event.get("args"))
                self._of_host[_identifier(known)] = known
            elif category == "user_annotation" and name.startswith(GLOO):
                self._calls.append((start, duration, "annotation", {"operation": name, **_of_tensors(event)}))

    def _add_kernel(self, name: str, start: float, duration: float, known: Row) -> None:
        self._on_gpu.append((start, start + duration, _identifier(known, "correlation")))
        is_call = self._communicates.get(name)
        if is_call is None:
            is_call = self._communicates[name] = communicates(name)
        if is_call or "Collective name" in known:
            self._calls.append((start, duration, "gpu-kernel", {"kernel": name, **known}))
        else:
            self._busy.append((start, start + duration))
            self._kernels[name].append(duration)

    def row(self, keys: Mapping[str, Any], info: Mapping[str, Any], base: float) -> Row:
        """The row of `profiled_process`."""
        world = json_int32(info.get("world_size"))
        spans = [*self._busy, *((start, start + duration) for start, duration, *_ in self._calls)]
        spans += [(start, start + duration) for _, start, duration in self.steps]
        return {
            "backend": json_text(info.get("backend")),
            "began_us": min(start for start, _ in spans) + base if spans else None,
            "ended_us": max(end for _, end in spans) + base if spans else None,
            "events": self.events,
            "gpu": _model(json_array(keys.get("deviceProperties"))),
            "host": json_text(keys.get("host_name")),
            "rank": json_int32(info.get("rank")),
            "tool": "kineto",
            "world": world if world is not None and 0 < world <= MOST_RANKS else None,
        }

    def calls(self, base: float) -> Iterator[Row]:
        """The rows of `profiled_call`, in the order of their starts. Releases what they were made of."""
        busy = Covered(self._busy)
        unlaunched = Covered(unrequested(sorted(self._on_gpu, key=lambda kernel: kernel[:2]), self._launched))
        has_launches = bool(self._launched)
        self._busy, self._on_gpu, self._launched = [], [], {}
        self._calls.sort(key=lambda call: call[:2])
        spans = [(start, start + duration) for start, duration, *_ in self._calls]
        for (start, duration, timed_by, known), not_hidden in zip(self._calls, exposed(spans, busy), strict=True):
            described = known if timed_by == "annotation" else self._of_kernel(known)
            yield {
                **described,
                "start_us": start + base,
                "duration_us": float(duration),
                "exposed_us": not_hidden,
                "busy_us": busy.before(start + duration),
                "timed_by": timed_by,
                "unlaunched_us": unlaunched.before(start + duration) if has_launches else None,
            }

    def _of_kernel(self, known: Row) -> Row:
        """What is known of the call of a kernel: from its own keys, or from those that the host recorded."""
        if "Collective name" not in known:
            recorded = self._of_host.get(_identifier(known), {})
            known = {"kernel": known["kernel"], **recorded}
        operation = json_text(known.get("Collective name")) or known["kernel"][:LONGEST_NAME]
        source, target = json_int32(known.get("Src Rank")), json_int32(known.get("Dst Rank"))
        return {
            "operation": operation,
            "group_name": json_text(known.get("Process Group Name")),
            "group_size": json_int32(known.get("Group size")),
            "ranks": _ranks(json_text(known.get("Process Group Ranks")) or ""),
            "elements_in": json_integer(known.get("In msg nelems")),
            "elements_out": json_integer(known.get("Out msg nelems")),
            "dtype": json_text(known.get("dtype")) or None,
            "sequence": json_integer(known.get("Seq")),
            "peer": target if operation == "send" else source if operation == "recv" else None,
        }

    def kernel_rows(self) -> list[Row]:
        """The rows of `profiled_kernel`: of the names that took longest."""
        from statistics import median  # every start imports this module, and few read a trace

        totals = sorted(((sum(times), name) for name, times in self._kernels.items()), reverse=True)[:KEPT_KERNELS]
        return [
            {
                "kernel": name[:LONGEST_NAME],
                "calls": len(self._kernels[name]),
                "total_us": float(total),
                "median_us": float(median(self._kernels[name])),
            }
            for total, name in totals
        ]


def _model(devices: list[Any]) -> str | None:
    """The model of the GPUs of a host; None where there are several, or none."""
    names = {json_text(json_object(device).get("name")) for device in devices}
    return names.pop() or None if len(names) == 1 else None


def _is_time(value: object) -> TypeGuard[float]:
    """Whether it is a number of microseconds that a clock may show; it is none if it is infinite or no number."""
    return isinstance(value, int | float) and abs(value) < LATEST


def _identifier(known: Row, key: str = "External id") -> Any:
    value = known.get(key)
    return value if isinstance(value, int | str) else None


def _of_tensors(event: Event) -> Row:
    """Number and type of the elements of an annotated call of gloo."""
    known = json_object(event.get("args"))
    elements = 0
    for shape in json_array(known.get("Input Dims")):
        sizes = [size for size in json_array(shape) if isinstance(size, int)]
        product = 1
        for size in sizes:
            product *= size
        elements += product * bool(sizes)
    types = [kind for kind in json_array(known.get("Input type")) if isinstance(kind, str)]
    is_known = 0 < elements < 1 << 62
    return {
        "elements_in": elements if is_known else None,
        "elements_out": elements if is_known else None,
        "dtype": types[0] if types else None,
    }


def _groups(info: Mapping[str, Any]) -> Iterator[Row]:
    for config in map(json_object, json_array(info.get("pg_config"))):
        name = json_text(config.get("pg_name"))
        ranks = _as_ranges(json_array(config.get("ranks")))
        if name and ranks:
            yield {"group_name": name, "group_desc": json_text(config.get("pg_desc")) or None, "ranks": ranks}


@lru_cache(maxsize=1024)
def _ranks(text: str) -> str | None:
    """The ranks in the text of a list; None where PyTorch cut it, which it does behind 30 of them."""
    if "..." in text:
        return None
    try:
        return _as_ranges(json_array(orjson.loads(text)))
    except orjson.JSONDecodeError:
        return None


def _as_ranges(ranks: list[Any]) -> str | None:
    """Ranks in order, with ranges: `0-511, 520`."""
    if not ranks or not all(isinstance(rank, int) and 0 <= rank < 1 << 31 for rank in ranks):
        return None
    return ranges(sorted(set(ranks)))
