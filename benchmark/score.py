"""Score the answers of tools on a set of cases: `python -m benchmark.score FOLDER ANSWERS.json …`.

Needs nothing but Python. A file of answers is an object with `tool`, `version` and `answers`: the name of a case -> its
`verdict`, `culprits` (ranks, or names of hosts and switches) and `certainty` (certain, likely or possible). A case
without an answer was left open, which is not wrong.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmark.case_files import QUESTIONS, BenchmarkCase, read_cases
from benchmark.intervals import wilson
from benchmark.judge import OPEN, Json, Judgement, Outcome, judge

CERTAINTIES = ("certain", "likely", "possible")
PAGE = """\
# Results

Written by `make benchmark`, on the set of the default seed. `README.md` says how answers are judged, and `DATASHEET.md`
what the set is worth: its cases are simulated by the program that is scored here.

"""
UNANSWERED = {"verdict": OPEN, "culprits": [], "certainty": "possible"}


@dataclass(frozen=True, slots=True)
class Scored:
    """One answer, held against the truth of its case."""

    case: BenchmarkCase
    judgement: Judgement

    @property
    def is_false_alarm(self) -> bool:
        """Whether something is accused, as likely or certain, where nothing is wrong."""
        return self.case.is_healthy and self.judgement.outcome is Outcome.WRONG


def score(cases: Iterable[BenchmarkCase], answers: Json) -> list[Scored]:
    """Hold all answers of a tool against the truth. Raises ValueError for an answer to a case that is not there."""
    known = {case.name: case for case in cases}
    if unknown := sorted(set(answers) - set(known)):
        raise ValueError(f"answers to cases that are not in this set: {', '.join(unknown[:5])}")
    return [Scored(case, judge({**UNANSWERED, **answers.get(name, {})}, case.truth)) for name, case in known.items()]


def table(tools: dict[str, list[Scored]]) -> str:
    """The results of tools as Markdown: all cases, then each question, each certainty and each kind."""
    parts = ["| tool | cases | " + " | ".join(Outcome) + " | right | wrong | healthy accused |", "|---" * 8 + "|"]
    parts += [_row(tool, rows) for tool, rows in tools.items()]
    for title, groups in _groups():
        parts += ["", f"### {title}", "", f"| | {' | '.join(tools)} |", "|---" * (len(tools) + 1) + "|"]
        named = {group: None for rows in tools.values() for row in rows for group in [groups(row)] if group}
        for group in named:
            cells = [_cell([row for row in rows if groups(row) == group]) for rows in tools.values()]
            parts.append(f"| {group} | {' | '.join(cells)} |")
    return "\n".join(parts) + "\n"


def _groups() -> Iterator[tuple[str, Callable[[Scored], str]]]:
    yield "By question: right, weaker, wrong", lambda row: row.case.question
    yield "By certainty, of answers that decide: right, weaker, wrong", _certainty
    yield "By what was done: right, weaker, wrong", lambda row: f"{row.case.question}: {row.case.kind}"


def _certainty(row: Scored) -> str:
    is_decided = row.judgement.verdict != OPEN
    return row.judgement.certainty if is_decided and row.judgement.certainty in CERTAINTIES else ""


def _row(tool: str, rows: Sequence[Scored]) -> str:
    counts = Counter(row.judgement.outcome for row in rows)
    healthy = [row for row in rows if row.case.is_healthy]
    shares = [_share(counts[outcome], len(rows)) for outcome in (Outcome.RIGHT, Outcome.WRONG)]
    alarms = f"{sum(row.is_false_alarm for row in healthy)} of {len(healthy)}"
    cells = [tool, str(len(rows)), *(str(counts[outcome]) for outcome in Outcome), *shares, alarms]
    return f"| {' | '.join(cells)} |"


def _cell(rows: Sequence[Scored]) -> str:
    counts = Counter(row.judgement.outcome for row in rows)
    return ", ".join(str(counts[outcome]) for outcome in Outcome) if rows else ""


def _share(hits: int, trials: int) -> str:
    """A share with the interval that holds it with 95 %."""
    low, high = wilson(hits, trials)
    return f"{100 * hits / trials:.1f}% ({100 * low:.1f}% to {100 * high:.1f}%)" if trials else "none"


def main() -> None:
    """Print the table, and with `--wrong` each wrong answer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", type=Path)
    parser.add_argument("answers", type=Path, nargs="+")
    parser.add_argument("--page", type=Path, help="write the table as a page instead of printing it")
    parser.add_argument("--wrong", action="store_true", help="print every wrong answer with its truth")
    wanted = parser.parse_args()
    cases = sorted(read_cases(wanted.cases), key=lambda case: QUESTIONS.index(case.question))
    tools = {}
    for path in wanted.answers:
        given = json.loads(path.read_text(encoding="utf-8"))
        tools[f"{given['tool']} {given['version']}".strip()] = score(cases, given["answers"])
    if wanted.page:
        wanted.page.write_text(PAGE + table(tools), encoding="utf-8")
    else:
        print(table(tools))
    for tool, rows in tools.items() if wanted.wrong else ():
        for row in rows:
            if row.judgement.outcome is Outcome.WRONG:
                truth = f"{sorted(row.case.truth.verdicts)} of {[sorted(c, key=str) for c in row.case.truth.culprits]}"
                print(f"{tool}: {row.case.name}: {row.judgement.answer}; the truth: {truth}")


if __name__ == "__main__":
    main()
