"""Times the screens of `tui`: the first paint, keys while reading and after it, and memory.

    python -m tests.benchmarks.screens [FOLDER]

Without a folder it generates three runs: 64 ranks with 489 MB of logs, 512 ranks, and 10,000 that are in the calls of
one communicator. Keys are timed by the clock while files are read, and by the processor's time after that. Run it from
the root of the repository.
"""

from __future__ import annotations

import asyncio
import gc
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.widgets import Tree

    from ncclforensics.tui.app import Forensics

MB = 1_000_000
PRESSES = 25  # of two keys, there and back
PAGES = 5  # times that pages are turned
SLOWEST = 1  # seconds after which a key has not moved the cursor, which was at an end
SCREENS = {  # by the key that leads there from the one before
    "1": "incident",
    "2": "ranks",
    "v": "table of ranks",
    "3": "calls",
    "u": "calls, a column a rank",
    "4": "waiting",
    "5": "connections",
    "7": "log",
    "8": "merged",
}
LIMIT = 600  # seconds until everything must have been read


def main() -> None:
    """Run each measurement in a process of its own, for imports and memory count."""
    if sys.argv[1:2] == ["--measure"]:
        asyncio.run(measure(sys.argv[2], float(sys.argv[3])))
        return
    if len(sys.argv) > 1:
        run(Path(sys.argv[1]))
        return
    from ncclforensics.simulate.generate import Fault, FaultKind, Plan, generate

    for plan in (
        Plan(nodes=8, tp=8, bytes_per_rank=7_650_000, fault=Fault(FaultKind.LAGGING, (35,), "tp")),
        Plan(nodes=64, tp=8, bytes_per_rank=60_000, fault=Fault(FaultKind.LAGGING, (259,), "tp")),
        Plan(nodes=1250, tp=1, layers=1, steps=60, fault=Fault(FaultKind.LAGGING, (5003,), "world")),
    ):
        with tempfile.TemporaryDirectory() as folder:
            generate(plan, Path(folder))
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

    gc.disable()  # as the command does

    class Painted(Forensics):
        """Reading begins when the first paint is done."""

        def _begin(self) -> None:
            print(f"  first paint         {time.time() - began:7.2f} s")
            super()._begin()

    app = Painted(Request((folder,)))
    async with app.run_test(size=(160, 48)) as pilot:
        keys = Keys(app)
        await pilot.press("1")
        while app.content is None:
            await asyncio.sleep(0.01)
        print(f"  first verdict       {time.time() - began:7.2f} s")
        await pilot.press("2")
        while not app.content.is_whole and time.time() - began < LIMIT:
            await keys.press("right", "left")
        print(f"  every byte read     {time.time() - began:7.2f} s")
        keys.tell("ranks, while reading")
        keys.clock = time.process_time
        for key, name in SCREENS.items():
            await pilot.press(key)
            await pilot.pause(1)
            if name == "merged":
                await until_filled(app)
            for _ in range(PRESSES):
                await keys.press(*("right", "left") if name == "ranks" else ("down", "up"))
            keys.tell(name)
            for _ in range(PAGES):
                await keys.press("g", "pagedown", "pagedown", "pageup", "G")
            keys.tell(f"{name}: pages")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MB
    print(f"  peak memory         {peak:7.0f} MB")


async def until_filled(app: Forensics) -> None:
    """Wait until the lines of all files have been merged."""
    from ncclforensics.tui.merged import MergedRows

    start = time.perf_counter()
    while not app.screen.query_one(MergedRows).rows:
        await asyncio.sleep(0.05)
    print(f"  merged              {time.perf_counter() - start:7.2f} s")


class Keys:
    """Presses keys, and takes the time until the screen shows what they did; a Pilot would wait for an idle process."""

    def __init__(self, app: Forensics) -> None:
        self._app = app
        self.clock: Callable[[], float] = time.perf_counter
        self._taken: list[float] = []

    async def press(self, *keys: str) -> None:
        """Each of them moves the cursor."""
        for key in keys:
            before, start, began = self._cursor(), self.clock(), time.perf_counter()
            self._app.simulate_key(key)
            while self._cursor() == before and time.perf_counter() - began < SLOWEST:
                await asyncio.sleep(0.0005)
            if self._cursor() == before:
                continue
            shown = asyncio.Event()
            self._app.screen.call_after_refresh(shown.set)
            await shown.wait()
            self._taken.append(1000 * (self.clock() - start))

    def _cursor(self) -> object:
        from ncclforensics.tui.virtual_rows import VirtualRows

        widget = self._app.screen.focused
        return (
            (widget.cursor_row, widget.cursor_cell)
            if isinstance(widget, VirtualRows)
            else cast("Tree[object]", widget).cursor_line
        )

    def tell(self, name: str) -> None:
        """Print what was taken, and begin again."""
        if not self._taken:  # every byte was read before a key was pressed
            return
        ordered = sorted(self._taken)
        late = ordered[int(0.95 * (len(ordered) - 1))]
        print(
            f"  {name:29} {len(ordered):4} keys: median {statistics.median(ordered):6.1f} ms, "
            f"95 % below {late:6.1f} ms, slowest {ordered[-1]:6.1f} ms"
        )
        self._taken.clear()


if __name__ == "__main__":
    main()
