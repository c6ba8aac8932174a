"""Draw hostile inputs for a while: `make fuzz SECONDS=3600 SEED=1`.

Each worker is a process of its own: one that hangs or is killed costs its case alone, which is kept. A case that fails
is made smaller and kept under build/fuzz, in a folder named after the fault; in fixtures/fuzz, `make test` tries it.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from tests.fuzz.invariants import WAYS, BrokenInvariantError, check_all
from tests.fuzz.mutation import Draw
from tests.fuzz.reduction import read_files, reduced, write_files
from tests.fuzz.targets import TARGETS, WEIGHTS

MOST_WALL_SECONDS = 1200  # for one case, on a busy machine: it waits for something that never comes
REDUCE_SECONDS = 40
CASES_OF_A_WORKER = 150  # memory that libraries keep is not the memory of a case
SHARE_OF_WAY = {
    "hang": 0.3, "windows": 0.15, "redact": 0.15, "saved": 0.15, "explain": 0.05, "diff": 0.05, "history": 0.1,
    "agent": 0.1, "command": 0.05, "watch": 0.05, "html": 0.02, "screens": 0.02,
}  # fmt: skip
SUMMED = ("files", "lines", "mutated", "bytes", "seconds")


def kind_of(error: BaseException) -> str:
    """A name that is the same for faults in the same place."""
    if isinstance(error, BrokenInvariantError):
        return error.kind
    place, trace = "?", error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if "/ncclforensics/" in code.co_filename:
            place = f"{code.co_filename.rpartition('/ncclforensics/')[2]}:{code.co_name}"
        trace = trace.tb_next
    return f"{type(error).__name__} in {place}"


def draw_case(draw: Draw, targets: list[str], folder: Path) -> tuple[str, list[str]]:
    """Write a case into a folder: its target, and the ways that are gone with it."""
    name = draw.choices(targets, [WEIGHTS.get(target, 1) for target in targets])[0]
    TARGETS[name](draw, folder)
    return name, [way for way in WAYS if draw.random() < SHARE_OF_WAY[way]]


def fault_of(folder: Path, ways: list[str]) -> tuple[str, str] | None:
    """Kind and text of what is wrong with the answers about a folder."""
    try:
        check_all(folder, ways)
    except BaseException as error:  # Polars panics are no exceptions
        if isinstance(error, KeyboardInterrupt):
            raise
        from traceback import format_exc

        return kind_of(error), f"{error}\n{format_exc()}"
    return None


def work(seed: str, targets: list[str], until: float, out: Path) -> None:
    """Try cases, one line of JSON for each."""
    folder = Path(mkdtemp(prefix="ncclforensics-fuzz-"))
    seen: set[str] = set()
    for number in range(CASES_OF_A_WORKER):
        if time.time() > until:
            break
        case = f"{seed}-{number}"
        write_files(folder, {})
        faulthandler.dump_traceback_later(MOST_WALL_SECONDS, exit=True)
        print(json.dumps({"begin": case, "folder": str(folder)}), flush=True)
        draw = Draw(case)
        name, ways = draw_case(draw, targets, folder)
        files = read_files(folder)
        report: dict[str, Any] = {
            "end": case, "target": name, "files": len(files), "bytes": sum(map(len, files.values())),
            "lines": sum(data.count(b"\n") for data in files.values()), "mutated": draw.mutated,
        }  # fmt: skip
        began = time.process_time()
        fault = fault_of(folder, ways)
        report["seconds"] = time.process_time() - began
        faulthandler.cancel_dump_traceback_later()
        if fault:
            report["fault"] = fault[0]
            if fault[0] not in seen:
                seen.add(fault[0])
                keep(out, folder, case, ways, fault)
        print(json.dumps(report), flush=True)
    shutil.rmtree(folder, ignore_errors=True)


def keep(out: Path, folder: Path, case: str, ways: list[str], fault: tuple[str, str]) -> None:
    """Store a failing case, as small as it can be made in time."""
    kind, text = fault
    place = out / re.sub(r"[^A-Za-z0-9]+", "-", kind).strip("-").lower()[:80]
    if place.exists():
        return
    needed = next((few for few in ([], *([way] for way in ways)) if (fault_of(folder, few) or ("",))[0] == kind), ways)
    work_folder = Path(mkdtemp(prefix="ncclforensics-fuzz-"))

    def fails(files: dict[str, bytes]) -> bool:
        write_files(work_folder, files)
        found = fault_of(work_folder, needed)
        return found is not None and found[0] == kind

    small = reduced(read_files(folder), fails, 0 if kind.startswith(("slow", "memory")) else REDUCE_SECONDS)
    write_files(place / "inputs", small)
    (place / "fault.txt").write_text(f"{kind}\n{case}\nways: {' '.join(needed)}\n\n{text}", encoding="utf-8")
    shutil.rmtree(work_folder, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--seed", default=str(int(time.time())))
    parser.add_argument("--targets", default=".", help="a regular expression for names of targets")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, default=Path("build/fuzz"))
    parser.add_argument("--until", type=float, help=argparse.SUPPRESS)
    given = parser.parse_args()
    targets = [name for name in TARGETS if re.search(given.targets, name)]
    if given.until:
        work(given.seed, targets, given.until, given.out)
        return 0
    print(f"seed {given.seed}, {len(targets)} targets, {given.jobs} jobs", flush=True)
    totals: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    slowest: list[tuple[float, str]] = []
    until = time.time() + given.seconds

    def run_workers(job: int) -> None:
        generation = 0
        while time.time() < until:
            run_worker(f"{given.seed}-{job}-{generation}")
            generation += 1

    def run_worker(seed: str) -> None:
        command = [sys.executable, "-m", "tests.fuzz", "--seed", seed, "--targets", given.targets]
        command += ["--until", str(until), "--out", str(given.out)]
        log = given.out / f"worker-{seed}.txt"
        given.out.mkdir(parents=True, exist_ok=True)
        with open(log, "wb") as errors:
            worker = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, env=os.environ | {"POLARS_MAX_THREADS": "1"}
            )
        begun: dict[str, Any] = {}
        assert worker.stdout is not None
        for line in worker.stdout:
            report = json.loads(line)
            if "begin" in report:
                begun = report
                continue
            begun = {}
            totals.update(
                {name: report[name] for name in ("files", "lines", "mutated", "bytes", "seconds")} | {"cases": 1}
            )
            slowest.append((report["seconds"], report["end"]))
            if "fault" in report:
                faults[report["fault"]] += 1
                print(f"{report['end']} {report['target']}: {report['fault']}", flush=True)
        code = worker.wait()
        if begun:
            kind = "hangs" if code == 1 else f"killed-{-code}"
            faults[kind] += 1
            print(f"{begun['begin']}: {kind}", flush=True)
            write_files(given.out / f"{kind}-{begun['begin']}" / "inputs", read_files(Path(begun["folder"])))
            shutil.rmtree(begun["folder"], ignore_errors=True)
        elif code:
            faults["the worker itself failed"] += 1
            print(log.read_text(encoding="utf-8", errors="replace")[-2000:], flush=True)
        else:
            log.unlink()

    with ThreadPoolExecutor(given.jobs) as pool:
        list(pool.map(run_workers, range(given.jobs)))
    print(dict(totals), "slowest:", sorted(slowest, reverse=True)[:5])
    for kind, count in faults.most_common():
        print(f"{count:6} {kind}")
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
