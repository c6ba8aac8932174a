"""Times the screens of `tui`: the first paint, keys while reading and after it, and memory.

    python -m tests.benchmarks.screens [FOLDER]

Without a folder it generates two runs: 64 ranks with 489 MB of logs, and 512 ranks. Run it from the root of the
repository.
"""

from __future__ import annotations

import asyncio
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

MB = 1_000_000
KEYS = 40  # presses of each key
SCREENS = {"1": "incident", "2": "ranks", "3": "operations", "4": "waiting", "5": "connections", "7": "log"}
LIMIT = 600  # seconds until everything must have been read


def main() -> None:
    """Run each measurement in a process of its own, for imports and memory count."""
    if sys.argv[1:2] == ["--measure"]:
        asyncio.run(measure(sys.argv[2], float(sys.argv[3])))
        return
    if len(sys.argv) > 1:
        run(Path(sys.argv[1]))
        return
    from tests.benchmarks.generate import Fault, FaultKind, Plan, generate

    for nodes, size in ((8, 7_650_000), (64, 60_000)):
        with tempfile.TemporaryDirectory() as folder:
            fault = Fault(FaultKind.LAGGING, (nodes * 4 + 3,), "tp")
            generate(Plan(nodes=nodes, tp=8, bytes_per_rank=size, fault=fault), Path(folder))
            run(Path(folder))


def run(folder: Path) -> None:
    """Measure one run."""
    files = list(folder.iterdir())
    total = sum(path.stat().st_size for path in files) / MB
    print(f"{len(files)} files, {total:.0f} MB")
    command = [sys.executable, "-m", "tests.benchmarks.screens", "--measure", str(folder), str(time.time())]
    subprocess.run(command, check=True)


async def measure(folder: str, began: float) -> None:
    """In a fresh process: show the folder, press keys, and print how long it took."""
    from ncclforensics.tui.app import Forensics, Request

    app = Forensics(Request((folder,)))
    async with app.run_test(size=(160, 48)) as pilot:
        print(f"  first paint         {time.time() - began:7.2f} s")
        busy = [await _timed(lambda: pilot.press("2"))]
        while app.facts is None:
            busy.append(await _timed(lambda: pilot.press("down")))
        print(f"  first verdict       {time.time() - began:7.2f} s")
        while not app.facts.is_whole and time.time() - began < LIMIT:
            busy.append(await _timed(lambda: pilot.press("down")))
        print(f"  every byte read     {time.time() - began:7.2f} s")
        _tell("keys while reading", busy)
        for key, name in SCREENS.items():
            first = await _timed(lambda key=key: pilot.press(key))
            await pilot.pause(0.3)
            taken = [await _timed(lambda press=press: pilot.press(press)) for press in ("down", "up") * (KEYS // 2)]
            taken += [await _timed(lambda: pilot.press("pagedown")) for _ in range(KEYS // 4)]
            _tell(f"{name} (opened in {1000 * first[0]:.0f} ms)", taken)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MB
    print(f"  peak memory         {peak:7.0f} MB")


async def _timed(press: Callable[[], Awaitable[None]]) -> tuple[float, float]:
    """Seconds by the clock, and of work in the thread of the screen."""
    start, worked = time.perf_counter(), time.thread_time()
    await press()
    return time.perf_counter() - start, time.thread_time() - worked


def _tell(name: str, taken: list[tuple[float, float]]) -> None:
    clock, work = (sorted(1000 * each[kind] for each in taken) for kind in (0, 1))
    late = int(0.95 * (len(taken) - 1))
    print(
        f"  {name:34} {len(taken):3} keys: median {statistics.median(clock):6.1f} ms, 95 % below {clock[late]:6.1f} ms;"
        f" work {statistics.median(work):5.1f} ms, 95 % below {work[late]:5.1f} ms"
    )


if __name__ == "__main__":
    main()
