"""What all adapters do: ask a tool about the cases that it can read, and write its answers."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmark.case_files import FILES, BenchmarkCase, read_cases, write_answers
from benchmark.judge import OPEN, Json

NO_ANSWER: Json = {"verdict": OPEN, "culprits": [], "certainty": "possible"}
Ask = Callable[[BenchmarkCase, Path], Json]  # a case and the folder of its files -> an answer


def answer_all(tool: str, version: str, ask: Ask, questions: tuple[str, ...], needs: str = "") -> None:
    """Answer all cases of some questions of a set, by the arguments of the command line.

    `needs` is the program that has to be installed; without it, the command ends with a message.
    """
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument("cases", type=Path)
    parser.add_argument("answers", type=Path)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--tool-version", default=version, help="as the results name it")
    wanted = parser.parse_args()
    if needs and shutil.which(needs) is None:
        parser.error(f"{tool} is not installed here: no program {needs}")
    cases = [case for case in read_cases(wanted.cases) if case.question in questions]
    with ThreadPoolExecutor(wanted.processes) as pool:
        found = pool.map(lambda case: ask(case, wanted.cases / case.name / FILES), cases)
        write_answers(tool, wanted.tool_version, zip(cases, found, strict=True), wanted.answers)


def blame(verdict: str, sets: list[list[int]]) -> Json:
    """The answer of a tool that lists ranks several times: its first list, as likely if all lists are the same."""
    certainty = "likely" if len({tuple(ranks) for ranks in sets}) == 1 else "possible"
    return {"verdict": verdict, "culprits": sets[0], "certainty": certainty}
