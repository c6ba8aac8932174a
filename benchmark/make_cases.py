"""Write a set of cases whose truth is known, because they were made: `python -m benchmark.make_cases FOLDER`.

Needs ncclforensics, whose simulator writes them. What is drawn follows from the name of the case and from `--seed`.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmark import ras_reports, recorder_dumps
from benchmark.case_files import FILES, QUESTIONS, BenchmarkCase, write_case
from benchmark.judge import OPEN, Named, Truth
from benchmark.recorded import write_recorded
from ncclforensics import __version__
from ncclforensics.simulate.fabric import FabricFault, simulated_fabric
from ncclforensics.simulate.fabric_text import write_fabric
from ncclforensics.simulate.generate import generate, truth_of
from ncclforensics.simulate.plan import OF_WORLD, RELEASES, Fault, FaultKind, Finish, Plan
from ncclforensics.simulate.slow import SlowFault, SlowPlan, generate_slow, write_metrics

EACH = 10  # cases of a kind
# The communicators on which each fault is tried.
FAMILIES = {
    FaultKind.RECV_NEVER_POSTED: ("pp",),
    FaultKind.SWAPPED_ORDER: ("tp", "dp"),
    FaultKind.SKIPPED_CALL: ("tp", "dp"),
    FaultKind.SPLIT_MISSING: ("tp",),
    FaultKind.RANK_MISSING: ("world",),
    FaultKind.OTHER_ROOT: ("tp",),
    **dict.fromkeys(OF_WORLD, ("world",)),
}
ANY_FAMILY = ("tp", "dp", "world")
# What `slow` calls each kind; a transfer that is slow has no culprit among the ranks.
SLOW_VERDICTS = {
    SlowFault.NONE: "even",
    SlowFault.RANK: "slow-rank",
    SlowFault.HOST: "slow-host",
    SlowFault.GROUP: "slow-group",
    SlowFault.LINK: "slow-communication",
    SlowFault.PERIOD: "periodic-stalls",
    SlowFault.LAUNCH: "waits-for-host",
    SlowFault.EXPERTS: "uneven-work",
}
HEALTHY, FAULTY = "healthy", "fabric-fault"
HOSTS, ADAPTERS = 24, 4  # of a fabric
RECORDED_VERSION = "2.30.7"  # of jobs that leave dumps or RAS reports and no logs


Make = Callable[[random.Random, Path], tuple[Truth, dict[str, Any]]]  # writes the files of a case


def drawn_plan(version: str, kind: FaultKind | None, drawn: random.Random) -> Plan:
    """Draw a job with this fault, or without one."""
    nodes, gpus = drawn.choice([(2, 4), (2, 8)])
    family = drawn.choice(FAMILIES.get(kind, ANY_FAMILY)) if kind else "world"
    at_fault = drawn.randrange(nodes * gpus)
    ranks = (at_fault & ~1, at_fault | 1) if kind is FaultKind.SHARED_GPU else (at_fault,)
    return Plan(
        nodes=nodes, gpus_per_node=gpus, tp=4, pp=2 if family == "pp" else 1, layers=drawn.choice((1, 2)),
        steps=drawn.randrange(2, 6), version=version, seed=drawn.randrange(1 << 16),
        fault=Fault(kind, ranks, family) if kind else None, blocking=kind is FaultKind.SWAPPED_ORDER,
        finish=drawn.choice((Finish.KILLED, Finish.ABORTED)) if kind else Finish.CLEAN,
    )  # fmt: skip


def truth_of_plan(plan: Plan) -> Truth:
    """What is true of a job: where no majority decides, all that differ are culprits, or the one that was at fault."""
    known = truth_of(plan)
    culprits = (frozenset(known.culprits), frozenset(known.at_fault))
    return Truth(frozenset({known.verdict}), culprits, known.visibility)


def _hang(kind: FaultKind | None, drawn: random.Random, folder: Path) -> tuple[Truth, dict[str, Any]]:
    plan = drawn_plan(drawn.choice(list(RELEASES)), kind, drawn)
    generate(plan, folder)
    return truth_of_plan(plan), {"nccl": plan.version}


def _dumps(kind: FaultKind | None, drawn: random.Random, folder: Path) -> tuple[Truth, dict[str, Any]]:
    plan = drawn_plan(RECORDED_VERSION, kind, drawn)
    recorder_dumps.write_dumps(plan, folder)
    return _seen_without_logs(plan), {"nccl": plan.version}


def _ras(kind: FaultKind | None, drawn: random.Random, folder: Path) -> tuple[Truth, dict[str, Any]]:
    plan = drawn_plan(RECORDED_VERSION, kind, drawn)
    ras_reports.write_reports(plan, folder)
    return _seen_without_logs(plan), {"nccl": plan.version}


def _seen_without_logs(plan: Plan) -> Truth:
    """What is true of a job of which dumps or counts alone are there: of a healthy one, they may leave it open."""
    known = truth_of_plan(plan)
    if plan.fault is None:
        return replace(known, verdicts=known.verdicts | {OPEN})
    # A missing dump is no proof of a death.
    return replace(known, is_visible=plan.fault.kind is not FaultKind.KILLED)


def _slow(fault: SlowFault, drawn: random.Random, folder: Path) -> tuple[Truth, dict[str, Any]]:
    tp = drawn.choice((2, 4))
    plan = SlowPlan(
        fault, nodes=2, gpus_per_node=4, tp=tp, steps=60, rank=drawn.randrange(8), by=drawn.choice((0.3, 0.5)),
        seed=drawn.randrange(1 << 16),
    )  # fmt: skip
    generate_slow(plan, folder)
    write_metrics(plan, folder)
    verdicts = {SLOW_VERDICTS[fault]}
    if fault is SlowFault.GROUP and tp == plan.gpus_per_node:  # its group is all of a host
        verdicts.add(SLOW_VERDICTS[SlowFault.HOST])
    return Truth(frozenset(verdicts), (frozenset(plan.slow_ranks),)), {"by": plan.by}


def _fabric(fault: FabricFault, drawn: random.Random, folder: Path) -> tuple[Truth, dict[str, Any]]:
    seed = drawn.randrange(1 << 16)
    built = simulated_fabric(HOSTS, ADAPTERS, fault, seed)
    write_fabric(built, fault, folder)
    if fault is FabricFault.NONE:
        return Truth(frozenset({HEALTHY})), {"seed": seed}
    parts: set[Named] = {str(built.truth[part]) for part in ("host", "switch", "other_switch") if part in built.truth}
    names = [node.name.split(" ")[0] for node in built.nodes.values()]
    if fault is FabricFault.LEAF_ABSENT:  # of which no map tells the name; its hosts show it
        parts.update(name for name in names if name.startswith(f"gpu-{built.truth['unit']:02d}-"))
    whole: list[frozenset[Named]] = [frozenset(parts)]
    if not parts:  # no single part is at fault, and any switch may stand for all
        parts, whole = {name for name in names if not name.startswith("gpu")}, [frozenset()]
    return Truth(frozenset({FAULTY}), (*whole, *(frozenset({part}) for part in sorted(parts, key=str)))), {"seed": seed}


def make_cases(
    root: Path, each: int = EACH, seed: int = 0, questions: Collection[str] = QUESTIONS
) -> Iterator[BenchmarkCase]:
    """Write the cases of some questions below a folder and yield them; a case that is there is written again."""
    makers: list[tuple[str, str, Make]] = [
        *(("hang", str(kind or "none"), partial(_hang, kind)) for kind in (None, *FaultKind)),
        *(("dumps", str(kind or "none"), partial(_dumps, kind)) for kind in (None, *recorder_dumps.SHOWN)),
        *(("ras", str(kind or "none"), partial(_ras, kind)) for kind in (None, *ras_reports.SHOWN)),
        *(("slow", str(fault), partial(_slow, fault)) for fault in SlowFault),
        *(("fabric", str(fault), partial(_fabric, fault)) for fault in FabricFault),
    ]
    for question, kind, make in makers:
        for number in range(each if question in questions else 0):
            name = f"{question}/{kind}/{number}"
            folder = root / name
            (folder / FILES).mkdir(parents=True, exist_ok=True)
            truth, facts = make(random.Random(f"{name} {seed}"), folder / FILES)
            made_from = {"ncclforensics": __version__, "seed_of_set": seed, **facts}
            yield write_case(BenchmarkCase(name, question, kind, truth, made_from), folder)
    yield from write_recorded(root, questions)


def main() -> None:
    """Write a set."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--each", type=int, default=EACH, help="cases of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--questions", nargs="+", choices=QUESTIONS, default=QUESTIONS)
    wanted = parser.parse_args()
    cases = list(make_cases(wanted.folder, wanted.each, wanted.seed, wanted.questions))
    print(f"{len(cases)} cases of {len({(case.question, case.kind) for case in cases})} kinds in {wanted.folder}")


if __name__ == "__main__":
    main()
