"""How reports name and count what an input format holds."""

from __future__ import annotations

from typing import NamedTuple


class Noun(NamedTuple):
    """A countable thing, and the frames whose rows are it."""

    singular: str
    plural: str
    # Frame -> columns whose distinct values are counted; no columns: its rows. The first frame with rows counts.
    frames: tuple[tuple[str, tuple[str, ...]], ...]


BENCHMARK = Noun("benchmark", "benchmarks", (("benchmark_sweep", ()),))
LINK_TEST = Noun("test of a link", "tests of links", (("link_measurement", ("table",)),))
PAIR_MATRIX = Noun("matrix of pairs", "matrices of pairs", (("gpu_pair", ("matrix",)),))
MACHINE_DUMP = Noun("dump of a machine", "dumps of machines", (("dump", ()),))
RECORDER_DUMP = Noun("Flight Recorder dump", "Flight Recorder dumps", (("recorder_dump", ()),))
PORT = Noun(
    "port", "ports", (("counter_increase", ("key",)), ("port_state", ("host", "device", "port", "lid", "guid", "node")))
)
STACK = Noun("stack", "stacks", (("stack_dump", ()),))
PROFILE = Noun("profiler trace", "profiler traces", (("profiler_event", ("source",)),))
INSPECTOR = Noun("Inspector record", "Inspector records", (("ended_operation", ()),))
STEP_LINE = Noun("step line", "step lines", (("training_step", ()), ("progress_bar", ()), ("trainer_progress", ())))
TRACE = Noun("profiler trace of PyTorch", "profiler traces of PyTorch", (("profiled_process", ()),))
SUMS = Noun("table of a profiler", "tables of profilers", (("sum_columns", ()), ("summed_process", ())))
TABLE = Noun("forwarding table", "forwarding tables", (("route_switch", ("guid",)),))
