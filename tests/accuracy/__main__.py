"""How often the program is right, on jobs whose truth is known: writes docs/accuracy.md and its plot.

    python -m tests.accuracy [--each 12] [--processes 2] [--docs docs] [--against COMMIT]

Run from the root of the repository, as `make scores` does. Logs beside the repository are skipped where there are none.
With `--against`, an earlier version answers the same trials, and the answers that changed are printed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.accuracy import calibration, missing_logs
from tests.accuracy.against import answers_of, changed_answers, noted, write_answers
from tests.accuracy.calibration import CALIBRATION
from tests.accuracy.cases import Case, beside, can_be_handled, shipped, simulated
from tests.accuracy.missing_logs import PLOT
from tests.accuracy.page import Measured, of_small_worlds, page
from tests.accuracy.run import Result, Trial, handled, run_all, with_missing_logs
from tests.accuracy.slow_jobs import section
from tests.real_logs import CORPUS
from tests.small_worlds import ask, worlds

CALLS = 3
SHARES = [eighths / 8 for eighths in range(8)]


def main() -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--each", type=int, default=12, help="jobs with each handling")
    parser.add_argument("--processes", type=int, default=None)
    parser.add_argument("--docs", type=Path, default=Path("docs"))
    parser.add_argument("--against", help="a commit, such as HEAD~1: print the answers that changed since")
    parser.add_argument("--answers", type=Path, help="write all answers to this file, and no page")
    wanted = parser.parse_args()
    ours = _measured([*shipped(), *simulated()], simulated(jobs=1), wanted.each, wanted.processes)
    others = None
    if CORPUS.is_dir():
        others = _measured(beside(), [], max(1, wanted.each // 4), wanted.processes)
    else:
        print(f"{CORPUS}: not here, skipped", file=sys.stderr)
    everything = [*ours.everything, *(others.everything if others else [])]
    if wanted.answers:
        write_answers(everything, wanted.answers)
        return
    if wanted.against:
        print(changed_answers(answers_of(wanted.against, wanted.each), noted(everything)))
    (wanted.docs / "accuracy.md").write_text(page(ours, others, _small_worlds(), section()), encoding="utf-8")
    (wanted.docs / PLOT).write_text(missing_logs.plot(ours.missing), encoding="utf-8")
    (wanted.docs / CALIBRATION).write_text(calibration.plot(calibration.worth(everything)), encoding="utf-8")
    print(wanted.docs / "accuracy.md")


def _measured(cases: list[Case], to_thin: list[Case], each: int, processes: int | None) -> Measured:
    """All jobs as they are, a draw of them with each handling, and `to_thin` with ever fewer logs."""
    faulty = [case for case in to_thin if can_be_handled(case) and not case.asks_check]
    return Measured(
        _results([Trial(case) for case in cases], processes),
        _results(handled([case for case in cases if can_be_handled(case)], each), processes),
        _results(with_missing_logs(faulty, SHARES), processes),
    )


def _small_worlds() -> str:
    """What certainties are worth in all small worlds."""
    groups = {logs: behind for ranks in (3, 4) for logs, behind in worlds(ranks, CALLS).items()}
    with tempfile.TemporaryDirectory() as folder:
        answers = ask(groups, Path(folder))
    return of_small_worlds(sum(map(len, groups.values())), answers, len(groups))


def _results(trials: Sequence[Trial], processes: int | None) -> list[Result]:
    started = time.monotonic()
    results = list(run_all(trials, processes))
    print(f"{len(results)} trials in {time.monotonic() - started:.0f} s", file=sys.stderr)
    return results


if __name__ == "__main__":
    main()
