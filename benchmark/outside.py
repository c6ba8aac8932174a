"""Write cases out of sets that others publish: `python -m benchmark.outside SOURCES FOLDER`.

SOURCES holds a clone of each repository, at the commit that SETS names; nothing of them is copied into this one. Needs
nothing but Python. Sets whose clone is not there are named with the command that fetches them.
"""

from __future__ import annotations

import argparse
import ast
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmark.case_files import FILES, BenchmarkCase, write_case
from benchmark.judge import OPEN, Truth

# What is true of Ray's captures, by their names; ranks of the job.
RAY_CAPTURES = {
    "HEALTHY_RAS_JSON": ("none", Truth(frozenset({"no-hang", OPEN}))),
    "DEAD_RANK_RAS_JSON": ("rank-died", Truth(frozenset({"rank-died"}), (frozenset({1}),))),
    # Rank 1 of a group of two made fewer calls; its process is rank 3.
    "MULTI_COMM_RAS_JSON": ("lagging-ranks", Truth(frozenset({"lagging-ranks"}), (frozenset({3}),))),
}
FAULT_RANKS = re.compile(r"Fault ranks: \[([\d, ]+)\]")
GF_RUN = re.compile(r"(?P<fault>oom|slow)_trial_\d+_(?P<rank>\d+)_|(?P<healthy>normal)_trial")
GF_LOGS = ("nccl_logs_*.txt", "stdout.log", "stderr.log")


@dataclass(frozen=True, slots=True)
class OutsideSet:
    """A set of others: where it is, and how its cases and their truth are read."""

    repository: str  # its name is that of the clone
    commit: str
    write: Callable[[Path, Path], Iterator[BenchmarkCase]]  # a clone and the folder of this set

    @property
    def name(self) -> str:
        """The name of the clone."""
        return self.repository.rpartition("/")[2]

    @property
    def recipe(self) -> str:
        """The command that fetches it."""
        return f"git clone https://github.com/{self.repository} && git -C {self.name} checkout {self.commit}"


def nvrx_dumps(clone: Path, root: Path) -> Iterator[BenchmarkCase]:
    """Flight Recorder dumps of 16 ranks, two of which were stopped by an error of the GPU or a lock."""
    for log in sorted((clone / "tests/attribution/unit/fr_traces").glob("*/fault_injection.log")):
        found = FAULT_RANKS.search(log.read_text(encoding="utf-8"))
        ranks = frozenset(map(int, found[1].split(","))) if found else frozenset()
        folder = root / "lagging-ranks" / log.parent.name
        shutil.copytree(log.parent, folder / FILES, ignore=shutil.ignore_patterns(log.name), dirs_exist_ok=True)
        truth = Truth(frozenset({"lagging-ranks", "rank-died"}), (ranks,))
        yield _written(root, folder, "dumps", "lagging-ranks", truth)


def ray_captures(clone: Path, root: Path) -> Iterator[BenchmarkCase]:
    """Reports of RAS that are constants of a test."""
    path = clone / "python/ray/train/v2/tests/test_nccl_ras_callback.py"
    for statement in ast.parse(path.read_text(encoding="utf-8")).body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=str(text))) if name in RAY_CAPTURES:
                kind, truth = RAY_CAPTURES[name]
                folder = root / kind / name
                (folder / FILES).mkdir(parents=True, exist_ok=True)
                (folder / FILES / "ras.json").write_text(text, encoding="utf-8")
                yield _written(root, folder, "ras", kind, truth)


def gf_bench_runs(clone: Path, root: Path) -> Iterator[BenchmarkCase]:
    """Logs of two ranks, one of which ran out of memory or was slow before every call, or neither."""
    for run in sorted((clone / "dataset").glob("phase*_runs/*")):
        found = GF_RUN.match(run.name)
        if not found:
            continue
        fault = found["fault"] or "none"
        truth = Truth(frozenset({"no-hang"}))
        if found["fault"]:
            verdict = "rank-died" if fault == "oom" else "lagging-ranks"
            truth = Truth(frozenset({verdict}), (frozenset({int(found["rank"])}),))
        folder = root / fault / run.name
        (folder / FILES).mkdir(parents=True, exist_ok=True)
        for log in (log for pattern in GF_LOGS for log in run.glob(pattern)):
            shutil.copy(log, folder / FILES)
        yield _written(root, folder, "hang", fault, truth)


def _written(root: Path, folder: Path, question: str, kind: str, truth: Truth) -> BenchmarkCase:
    name = f"{root.name}/{folder.relative_to(root).as_posix()}"
    return write_case(BenchmarkCase(name, question, kind, truth, {}), folder)


SETS = (
    OutsideSet("NVIDIA/nvidia-resiliency-ext", "d8686d9c7015c39ce91dd01788c0ab111a24818b", nvrx_dumps),
    OutsideSet("ray-project/ray", "b098c77627e7dc4686226355a4a8086c8034477f", ray_captures),
    OutsideSet("cuiboyuan/nccl_log_rca_bench", "0e282ae371ebfb3fdaf3eaa27f0880236f355a62", gf_bench_runs),
)


def write_outside(sources: Path, root: Path) -> Iterator[BenchmarkCase]:
    """Write the cases of all sets of which there is a clone, and yield them."""
    for one in SETS:
        if (sources / one.name).is_dir():
            yield from one.write(sources / one.name, root / one.name)
        else:
            print(f"no clone {sources / one.name}: {one.recipe}", file=sys.stderr)


def main() -> None:
    """Write the cases of all sets that are there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sources", type=Path)
    parser.add_argument("folder", type=Path)
    wanted = parser.parse_args()
    cases = list(write_outside(wanted.sources, wanted.folder))
    print(f"{len(cases)} cases in {wanted.folder}")


if __name__ == "__main__":
    main()
