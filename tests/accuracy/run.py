"""Handle the logs of jobs, ask the program, and hold its answers against the truth."""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from benchmark.judge import Json, Judgement, Outcome, judge
from ncclforensics import analyze
from ncclforensics.views import json_report
from tests.accuracy.cases import Case, logs_of
from tests.handlings import KEPT, LOST, Handling, without_share, write_logs
from tests.selected_lines import SELECTED

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

    @property
    def outcome(self) -> Outcome | None:
        """What the verdict is worth."""
        return self.judgement.outcome if self.judgement else None


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
    judgement = judge(report["hang"], case.truth) if case.truth else None
    if handle is not None:
        return Result(trial, judgement)
    return Result(trial, judgement, *_findings(report, case), cause.finding.category if cause else "")


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
