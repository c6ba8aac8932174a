"""Times the command against awk, grep and a conventional parser, all on the same generated run.

    python -m tests.benchmarks.bench [--volume] [--cmd ncclforensics] [--json FILE] [--page docs/performance.md]

Run from the root of the repository. It never fails on a slow figure; it marks it.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ncclforensics.simulate.generate import Fault, FaultKind, Plan, Truth, generate
from ncclforensics.simulate.plan import RELEASES
from tests.benchmarks import traces
from tests.benchmarks.conventional import parse
from tests.benchmarks.families import mix
from tests.benchmarks.floods import ALIKE, alike, flood, half_a_call_ahead
from tests.benchmarks.lifelike import make_lifelike
from tests.benchmarks.page import renew, table

AWK = "/opCount/{last[$1]=$7}END{for(k in last)n++;print n}"
MB = 1_000_000
CPU_TIME = "BENCH_CPU_TIME"  # set: time is user and system time, as on a machine that does other work, too
# Polars, which writes the families, sets up the allocator of this process, and its children would inherit that.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "_RJEM_MALLOC_CONF"}

Timed = Callable[[], "Run"]


@dataclass(frozen=True, slots=True)
class Run:
    """One command, run to its end."""

    seconds: float
    peak_bytes: int
    status: int
    output: str


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of the report, with its target where it has one."""

    name: str
    minimum: float
    median: float
    unit: str
    target: float | None = None
    wants: str = "<="

    @property
    def misses(self) -> bool:
        if self.target is None:
            return False
        return self.median > self.target if self.wants == "<=" else self.median < self.target


def run(command: list[str]) -> Run:
    """Runs a command; the peak is that of this very process, as the kernel saw it.

    A child inherits the peak of its parent at the fork: the bench itself must stay small.
    """
    with tempfile.TemporaryFile() as output:
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.DEVNULL, env=ENVIRONMENT)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = usage.ru_utime + usage.ru_stime if CPU_TIME in os.environ else time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        text = output.read().decode(errors="replace")
    return Run(seconds, usage.ru_maxrss * 1024, process.returncode, text)


def warm(folder: Path) -> None:
    """Reads the files once, so that all sides find them in memory."""
    for path in folder.iterdir():
        with path.open("rb") as log:
            while log.read(MB):
                pass


def repeat(sides: dict[str, Timed], repetitions: int) -> dict[str, list[Run]]:
    """Runs all sides in turn, so that a disturbance meets all of them."""
    runs: dict[str, list[Run]] = {name: [] for name in sides}
    for _ in range(repetitions):
        for name, side in sides.items():
            runs[name].append(side())
    return runs


def seconds(name: str, runs: list[Run], target: float | None = None) -> Figure:
    taken = [each.seconds for each in runs]
    return Figure(name, min(taken), statistics.median(taken), "s", target)


def ratio(name: str, upper: Figure, lower: Figure, target: float, wants: str = "<=") -> Figure:
    return Figure(name, upper.minimum / lower.minimum, upper.median / lower.median, "x", target, wants)


def throughput(name: str, size: int, time_taken: Figure) -> Figure:
    """MB/s; its `minimum` is that of the time, so the better number."""
    return Figure(name, size / MB / time_taken.minimum, size / MB / time_taken.median, "MB/s")


def rate(wanted: float) -> float:
    """MB/s that are wanted by the clock on two cores; of CPU time, both cores count."""
    return wanted / 2 if CPU_TIME in os.environ else wanted


def disagreements(run_of_hang: Run, truth: Truth) -> list[str]:
    """Where the JSON of `hang` differs from what was generated."""
    try:
        found: dict[str, Any] = json.loads(run_of_hang.output).get("hang") or {}
    except ValueError as problem:
        return [f"hang: status {run_of_hang.status}, output is not JSON: {problem}"]
    operation = found.get("operation") or {}
    wanted = truth.operation
    pairs = {
        "verdict": (found.get("verdict"), truth.verdict),
        "culprits": (found.get("culprits"), list(truth.culprits)),
        "ordinal": (operation.get("ordinal"), wanted.ordinal if wanted else None),
        "operation": (operation.get("name"), wanted.name if wanted else None),
    }
    return [f"{key}: {is_}, not {was}" for key, (is_, was) in pairs.items() if is_ != was]


class Bench:
    """The comparisons, each on its own generated run."""

    def __init__(self, command: list[str], version: str, repetitions: int) -> None:
        self.command, self.version, self.repetitions = command, version, repetitions
        self.available = shutil.which(command[0]) is not None
        self.figures: list[Figure] = []
        self.disagreements: list[str] = []

    def _generate(self, folder: Path, ranks: int, size: int) -> Truth:
        start = time.perf_counter()
        plan = Plan(
            nodes=ranks // 8,
            tp=8,
            version=self.version,
            bytes_per_rank=size,
            fault=Fault(FaultKind.LAGGING, (ranks // 2 + 3,), "tp"),
        )
        truth = generate(plan, folder)
        total = sum(path.stat().st_size for path in folder.iterdir())
        taken = time.perf_counter() - start
        print(f"generated {ranks} ranks, {total / MB:.0f} MB in {taken:.1f} s", file=sys.stderr)
        return truth

    def _hang(self, folder: Path, *options: str) -> Timed:
        return lambda: run([*self.command, "hang", str(folder), "--format", "json", *options])

    def _check(self, label: str, runs: list[Run], truth: Truth) -> None:
        self.disagreements += [f"{label}: {each}" for each in disagreements(runs[-1], truth)]

    def against_one_liners(self, folder: Path, ranks: int, size: int) -> None:
        truth = self._generate(folder, ranks, size)
        files = sorted(map(str, folder.iterdir()))
        warm(folder)
        sides = {
            "awk": lambda: run(["awk", AWK, *files]),
            "grep": lambda: run(["grep", "-c", "opCount", *files]),
        }
        if self.available:
            sides["hang"] = self._hang(folder)
        runs = repeat(sides, self.repetitions)
        awk, grep = seconds("awk", runs["awk"]), seconds("grep -c", runs["grep"])
        self.figures += [awk, grep]
        if self.available:
            hang = seconds("hang", runs["hang"])
            self.figures += [
                hang,
                ratio("hang / awk", hang, awk, 0.33),
                ratio("hang / grep -c", hang, grep, float("inf")),
            ]
            self._check("hang", runs["hang"], truth)
        self._full(folder, truth, "buffers that repeat", 450)
        make_lifelike(folder)
        self._full(folder, truth, "buffers that differ, lines of an application", 300)

    def _full(self, folder: Path, truth: Truth, kind: str, wanted: float) -> None:
        files = sorted(folder.iterdir())
        two, size = files[:2], sum(path.stat().st_size for path in files)

        def conventional() -> Run:
            taken = parse(two)
            return Run(taken.seconds, 0, 0, "")

        sides: dict[str, Timed] = {"conventional": conventional}
        if self.available:
            sides["full"] = self._hang(folder, "--full")
        runs = repeat(sides, self.repetitions)
        slow = throughput(
            f"conventional, {kind}",
            sum(path.stat().st_size for path in two),
            seconds("conventional", runs["conventional"]),
        )
        self.figures.append(slow)
        if self.available:
            name = f"hang --full, {kind}"
            fast = replace(throughput(name, size, seconds("full", runs["full"])), target=rate(wanted), wants=">=")
            peaks = [each.peak_bytes / MB for each in runs["full"]]
            self.figures += [
                fast,
                ratio("hang --full / conventional", fast, slow, 3, ">="),
                Figure("its peak", min(peaks), statistics.median(peaks), "MB", 450),
            ]
            self._check(name, runs["full"], truth)

    def volume(self, folder: Path, ranks: int, small: int, large: int) -> None:
        """The same job with short and with long logs: only the ends should cost."""
        if not self.available:
            return
        sides = {}
        for label, size in (("small", small), ("large", large)):
            truth = self._generate(folder / label, ranks, size)
            warm(folder / label)
            sides[label] = self._hang(folder / label)
        runs = repeat(sides, self.repetitions)
        figures = [
            seconds(f"hang {ranks} x {size / MB:.0f} MB", runs[label])
            for label, size in (("small", small), ("large", large))
        ]
        self.figures += [*figures, ratio("large / small", figures[1], figures[0], 1.5)]
        self._check("hang large", runs["large"], truth)

    def families(self, folder: Path, ranks: int, size: int, repetitions: int, target: float | None = None) -> None:
        """Logs with every family of lines, each read whole; the lines of the families come on top of `size`.

        The target is one of large logs: of small ones, the start of the program takes a quarter of the time.
        """
        if not self.available:
            return
        truth = self._generate(folder, ranks, size)
        mix(folder)
        warm(folder)
        runs = repeat({"families": self._hang(folder, "--full")}, repetitions)["families"]
        total = sum(path.stat().st_size for path in folder.iterdir())
        name = f"all families, {total / MB:.0f} MB"
        self._check(name, runs, truth)
        peaks = [each.peak_bytes / MB for each in runs]
        self.figures += [
            replace(throughput(name, total, seconds("families", runs)), target=target, wants=">="),
            Figure(f"{name}, peak", min(peaks), statistics.median(peaks), "MB", 1000),
        ]

    def floods(self, folder: Path) -> None:
        """What is repeated should cost little, and what waits for one another no more than it says."""
        if not self.available:
            return
        folder.mkdir()
        flood(folder / "flood.log", 1250 * MB)
        sides = {
            "flood": lambda: run([*self.command, "hang", str(folder / "flood.log"), "--format", "json"]),
            "awk": lambda: run(["awk", AWK, str(folder / "flood.log")]),
        }
        warm(folder)
        self._flood_figures(repeat(sides, 3))
        (folder / "flood.log").unlink()
        half_a_call_ahead(folder / "half.log", 4096)
        runs = repeat({"half": lambda: run([*self.command, "hang", str(folder / "half.log")])}, 3)["half"]
        peaks = [each.peak_bytes / MB for each in runs]
        self.figures += [
            seconds("4,096 ranks half a call ahead", runs, 5),
            Figure("4,096 ranks, peak", min(peaks), statistics.median(peaks), "MB", 600),
        ]

    def alike(self, folder: Path) -> None:
        """Lines that differ only in numbers, 100 MB of each kind, read whole with all rules."""
        if not self.available:
            return
        folder.mkdir()
        log = folder / "alike.log"
        for name, form in ALIKE.items():
            alike(log, form, 100 * MB)
            runs = repeat({name: lambda: run([*self.command, "check", str(log)])}, 1)[name]
            peak = runs[0].peak_bytes / MB
            self.figures += [seconds(f"check: 100 MB of {name}", runs, 10), Figure("its peak", peak, peak, "MB", 1000)]

    def traces(self, folder: Path, ranks: int, size: int) -> None:
        """Profiler traces of all ranks: of 512 with 20 MB each, 60 s are wanted on two cores."""
        if not self.available:
            return
        traces.generate(folder, ranks, size)
        files = sorted(map(str, folder.glob("*.json")))
        total = sum(Path(file).stat().st_size for file in files)
        warm(folder)
        sides: dict[str, Timed] = {
            "slow": lambda: run([*self.command, "slow", str(folder), "--format", "json"]),
            "grep": lambda: run(["grep", "-c", '"cat": "kernel"', *files]),
        }
        runs = repeat(sides, 3)
        taken, grep = seconds("slow", runs["slow"]), seconds(f"grep -c on {ranks} traces", runs["grep"])
        peaks = [each.peak_bytes / MB for each in runs["slow"]]
        name = f"slow, {ranks} traces of {size / MB:.0f} MB"
        self.figures += [
            replace(throughput(name, total, taken), target=rate(171), wants=">="),
            ratio("slow / grep -c", taken, grep, float("inf")),
            Figure(f"{name}, peak", min(peaks), statistics.median(peaks), "MB", 1000),
        ]
        named = (json.loads(runs["slow"][-1].output).get("slow") or {}).get("ranks")
        self.disagreements += [] if named == [traces.SLOW_RANK] else [f"traces: ranks {named}"]

    def small(self, folder: Path, ranks: int) -> None:
        """Few and many small files: what the start costs, and what a file does."""
        if not self.available:
            return
        self._generate(folder / "few", 16, 10_000)
        runs = repeat({"few": self._hang(folder / "few")}, self.repetitions)["few"]
        self.figures.append(seconds("hang 16 small files", runs, 0.22))
        folder /= "many"
        self._generate(folder, ranks, 10_000)
        runs = repeat({"small": self._hang(folder)}, 2)["small"]
        self.figures.append(seconds(f"hang {ranks:,} small files", runs, 2))

    def _flood_figures(self, runs: dict[str, list[Run]]) -> None:
        taken, awk = seconds("flood of 1.25 GB", runs["flood"], 5), seconds("awk on it", runs["awk"])
        peaks = [each.peak_bytes / MB for each in runs["flood"]]
        peak = Figure("flood, peak", min(peaks), statistics.median(peaks), "MB", 1000)
        self.figures += [taken, awk, ratio("flood / awk", taken, awk, 4), peak]
        verdict = (json.loads(runs["flood"][-1].output).get("hang") or {}).get("culprits")
        self.disagreements += [] if verdict == [0] else [f"flood: culprits {verdict}, not [0]"]

    def help(self) -> None:
        if self.available:
            runs = repeat({"help": lambda: run([*self.command, "--help"])}, self.repetitions)
            self.figures.append(seconds("--help", runs["help"], 0.2))

    def report(self) -> str:
        lines = [f"NCCL {self.version} logs, {os.cpu_count()} cores, {self.repetitions} repetitions"]
        if not self.available:
            lines.append(f"{self.command[0]}: not found; only the other sides were timed")
        lines.append(f"{'':28}{'minimum':>10}{'median':>10}")
        for each in self.figures:
            line = f"{each.name:28}{each.minimum:10.3f}{each.median:10.3f} {each.unit:5}"
            if each.target not in (None, float("inf")):
                line += f" target {each.wants} {each.target:g}" + " MISSES" * each.misses
            lines.append(line.rstrip())
        if self.available:
            agrees = "agrees with what was generated"
            lines.append(f"verdict: {'; '.join(self.disagreements) or agrees}")
        return "\n".join(lines)

    def as_json(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "cores": os.cpu_count(),
            "repetitions": self.repetitions,
            "figures": [{**asdict(each), "misses": each.misses} for each in self.figures],
            "disagreements": self.disagreements,
        }


def main(argv: list[str] | None = None) -> int:
    """Times the command against what people use instead."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--cmd", default="ncclforensics", help="the command to time")
    parser.add_argument("--version", choices=RELEASES, default="2.21.5")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=32, help="of the first run; 8 a node")
    parser.add_argument("--rank-bytes", type=int, default=16 * MB)
    parser.add_argument("--volume", action="store_true", help="also 128 ranks: x 1 MB and x 16 MB; all families, 2 GB")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--page", type=Path, metavar="FILE", help="Markdown to write a table of the figures into")
    wanted = parser.parse_args(argv)
    # A kill must clean up as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    bench = Bench(shlex.split(wanted.cmd), wanted.version, wanted.repetitions)
    try:
        with tempfile.TemporaryDirectory(prefix="ncclforensics-bench-") as folder:
            bench.against_one_liners(Path(folder) / "run", wanted.ranks, wanted.rank_bytes)
            shutil.rmtree(Path(folder) / "run")
            bench.families(Path(folder) / "families", 16, 10 * MB, wanted.repetitions)
            shutil.rmtree(Path(folder) / "families", ignore_errors=True)
            if wanted.volume:
                bench.volume(Path(folder) / "volume", 128, MB, 16 * MB)
                shutil.rmtree(Path(folder) / "volume", ignore_errors=True)
                bench.families(Path(folder) / "families", 128, 12 * MB, 3, rate(250))
                shutil.rmtree(Path(folder) / "families", ignore_errors=True)
                bench.floods(Path(folder) / "floods")
                bench.alike(Path(folder) / "alike")
                bench.small(Path(folder) / "small", 2048)
                bench.traces(Path(folder) / "traces", 64, 20 * MB)
            bench.help()
    except KeyboardInterrupt:
        return 130
    print(bench.report())
    if wanted.json:
        wanted.json.write_text(json.dumps(bench.as_json(), indent=1) + "\n", encoding="utf-8")
    if wanted.page:
        kind = "CPU time" if CPU_TIME in os.environ else "Wall-clock time"
        cores = f"{os.cpu_count()} cores, load {os.getloadavg()[1]:.1f}"
        renew(wanted.page, table(bench.figures, f"{kind} and peak memory on {cores}, NCCL {wanted.version} logs."))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
