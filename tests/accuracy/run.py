"""Handle the logs of jobs, ask the program, and hold its answers against the truth."""

from __future__ import annotations

import os
import random
import re
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmark.judge import Json, Judgement, Named, Outcome, judge
from ncclforensics import analyze
from ncclforensics.views import json_report
from tests.accuracy.cases import Case, logs_of
from tests.handlings import KEPT, LOST, Handling, without_share, write_logs
from tests.selected_lines import SELECTED

RANKS = re.compile(r"\branks? (\d+(?:-\d+)?(?:(?:, | and )\d+(?:-\d+)?)*)")
NUMBERS = re.compile(r"(\d+)(?:-(\d+))?")
AS_THEY_ARE = "as they are"
LOSING = {**LOST, **SELECTED}  # what leaves less than the logs had
# A finding of any of these answers a case that only says that the job hangs.
LIKE_A_HANG = frozenset({"hang", "lagging-rank", "collective-mismatch", "missing-rank", "timeout"})


@dataclass(frozen=True, slots=True)
class Trial:
    """One job with its logs handled in one way, or with a share of them missing."""

    case: Case
    handling: str = AS_THEY_ARE
    missing: float = 0.0

    @property
    def name(self) -> str:
        """The job and what was done to its logs."""
        return f"{self.case.name} · {self.handling}"

    @property
    def function(self) -> Handling | None:
        """What is done to the logs."""
        if self.missing:
            return without_share(self.missing)
        return {**KEPT, **LOSING}.get(self.handling)


@dataclass(frozen=True, slots=True)
class Result:
    """How the program did in one trial; of its findings, what was expected and not found, and what was no fault."""

    trial: Trial
    judgement: Judgement | None  # None: no verdict is known to be true
    missed: tuple[str, ...] = ()
    alarms: tuple[str, ...] = ()
    cause: str = ""  # category of what the cause line names; empty without one
    suspects: frozenset[int] = frozenset()  # ranks one of which may be the culprit
    next_ranks: frozenset[int] = frozenset()  # ranks that the next step names
    has_next_step: bool = False

    @property
    def outcome(self) -> Outcome | None:
        """What the verdict is worth."""
        return self.judgement.outcome if self.judgement else None

    @property
    def guilty(self) -> frozenset[Named]:
        """All that may be called a culprit."""
        truth = self.trial.case.truth
        return truth.guilty if truth else frozenset()


def run(trial: Trial) -> Result:
    """Handle the logs, ask, judge. No answer is a wrong one."""
    case, handle = trial.case, trial.function
    logs = logs_of(case)
    if handle is not None:
        logs = handle(logs, random.Random(trial.name))
    with tempfile.TemporaryDirectory() as folder:
        write_logs(logs, Path(folder))
        try:
            found = analyze([folder], everything=case.asks_check or not case.is_simulated)
            report = json_report.as_object(found)
            cause = found.cause_of(found.verdicts[0]) if found.verdicts else None
        except Exception as error:
            return Result(trial, Judgement(Outcome.WRONG, (), f"no answer: {error!r}"))
    hang = report["hang"]
    found_and_cause: tuple[Any, ...] = ((), (), "")
    if handle is None:
        found_and_cause = (*_findings(report, case), cause.finding.category if cause else "")
    return Result(
        trial, judge(hang, case.truth) if case.truth else None, *found_and_cause,
        frozenset(hang["suspects"]), _ranks_in(" ".join(hang["collect_next"])), bool(hang["collect_next"]),
    )  # fmt: skip


def _ranks_in(text: str) -> frozenset[int]:
    """The ranks that a text names: `ranks 0-2, 7`."""
    numbers = [number for named in RANKS.findall(text) for number in NUMBERS.findall(named)]
    return frozenset(rank for low, high in numbers for rank in range(int(low), int(high or low) + 1))


def _findings(report: Json, case: Case) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Expected categories that are not reported, and forbidden ones that are, as warnings or errors."""
    found = {finding["category"] for finding in report["findings"]}
    alarms = {finding["category"] for finding in report["findings"] if finding["severity"] != "info"}
    if found & LIKE_A_HANG:
        found.add("hang")
    return tuple(sorted(case.expected - found)), tuple(sorted(case.forbidden & alarms))


def run_all(trials: Iterable[Trial], processes: int | None = None) -> Iterator[Result]:
    """Run trials on all cores; those of one job should stand together, for its logs are kept in memory."""
    os.environ["POLARS_MAX_THREADS"] = "1"  # each process takes one core
    with ProcessPoolExecutor(processes or os.cpu_count(), mp_context=get_context("spawn")) as pool:
        yield from pool.map(run, trials, chunksize=8)


def handled(cases: list[Case], each: int) -> list[Trial]:
    """Every handling with so many of the jobs, drawn by its name; in the order of the jobs."""
    trials = []
    for handling in (*KEPT, *LOSING):
        chosen = random.Random(handling).sample(cases, min(each, len(cases)))
        trials += [Trial(case, handling) for case in chosen]
    return sorted(trials, key=lambda trial: trial.case.name)


def with_missing_logs(cases: list[Case], shares: Iterable[float]) -> list[Trial]:
    """Every job with each share of its logs missing."""
    return [Trial(case, f"{share:.1%} of the logs missing", share) for case in cases for share in shares]
