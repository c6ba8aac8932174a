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

SURE = ("certain", "likely")
CERTAINTIES = (*SURE, "possible")
NOTHING_WRONG = (OPEN, "no-hang", "even", "healthy")  # verdicts that accuse nothing
COLUMNS = (
    "tool", "cases", *Outcome, "right", "wrong", "fault seen", "exactly the culprits", "innocent named",
    "healthy accused",
)  # fmt: skip
MARK = "<!-- What follows is written by benchmark.score. -->\n"
UNANSWERED = {"verdict": OPEN, "culprits": [], "certainty": "possible"}


@dataclass(frozen=True, slots=True)
class Scored:
    """One answer, held against the truth of its case."""

    case: BenchmarkCase
    answer: Json
    judgement: Judgement

    @property
    def sees_fault(self) -> bool:
        """Whether the answer says that something is wrong, however sure, and with whichever culprits."""
        return bool(self.answer.get("sees_fault", self.judgement.verdict not in NOTHING_WRONG))

    @property
    def is_false_alarm(self) -> bool:
        """Whether something is accused, as likely or certain, where nothing is wrong."""
        return self.case.is_healthy and self.sees_fault and self.answer["certainty"] in SURE

    @property
    def names_exactly(self) -> bool:
        """Whether the answer names the culprits and no other, whatever its verdict."""
        return bool(self.answer["culprits"]) and frozenset(self.answer["culprits"]) in self.case.truth.culprits


def score(cases: Iterable[BenchmarkCase], answers: Json) -> list[Scored]:
    """Hold the answers of a tool against the truth, to all cases of the questions of which it answers any.

    A case is left out where its files are others by now than those that the answer was given to. Raises ValueError for
    an answer to a case that is not there.
    """
    known = {case.name: case for case in cases}
    if unknown := sorted(set(answers) - set(known)):
        raise ValueError(f"answers to cases that are not in this set: {', '.join(unknown[:5])}")
    questions = {known[name].question for name in answers}
    given = [
        (case, {**UNANSWERED, **answers.get(case.name, {})})
        for case in known.values()
        if case.question in questions and answers.get(case.name, {}).get("digest", case.digest) == case.digest
    ]
    return [Scored(case, answer, judge(answer, case.truth)) for case, answer in given]


def table(tools: dict[str, list[Scored]]) -> str:
    """The results of tools as Markdown: all cases, then each question, each certainty and each kind."""
    parts = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
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
    yield "By source: right, weaker, wrong", lambda row: row.case.source
    yield "By certainty, of answers that decide: right, weaker, wrong", _certainty
    yield "By what was done: right, weaker, wrong", lambda row: row.case.group


def _certainty(row: Scored) -> str:
    is_decided = row.judgement.verdict != OPEN
    return row.judgement.certainty if is_decided and row.judgement.certainty in CERTAINTIES else ""


def _row(tool: str, rows: Sequence[Scored]) -> str:
    counts = Counter(row.judgement.outcome for row in rows)
    healthy = [row for row in rows if row.case.is_healthy]
    faulty = [row for row in rows if row.case.shows_fault]
    guilty = [row for row in rows if row.case.truth.guilty]
    shares = [_share(counts[outcome], len(rows)) for outcome in (Outcome.RIGHT, Outcome.WRONG)]
    accusing = Counter(row.answer["certainty"] in SURE for row in rows if row.judgement.innocent)
    cells = [
        tool, str(len(rows)), *(str(counts[outcome]) for outcome in Outcome), *shares,
        f"{sum(row.sees_fault for row in faulty)} of {len(faulty)}",
        f"{sum(row.names_exactly for row in guilty)} of {len(guilty)}",
        f"{accusing[True]} + {accusing[False]}",
        f"{sum(row.is_false_alarm for row in healthy)} of {len(healthy)}",
    ]  # fmt: skip
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
    parser.add_argument("--page", type=Path, help="write the table below the mark of a page, not on the screen")
    parser.add_argument("--wrong", action="store_true", help="print every wrong answer with its truth")
    wanted = parser.parse_args()
    cases = sorted(read_cases(wanted.cases), key=lambda case: QUESTIONS.index(case.question))
    tools = {}
    for path in wanted.answers:
        given = json.loads(path.read_text(encoding="utf-8"))
        tools[f"{given['tool']} {given['version']}".strip()] = score(cases, given["answers"])
    if wanted.page:
        head, mark, _ = wanted.page.read_text(encoding="utf-8").partition(MARK)
        if not mark:
            parser.error(f"{wanted.page} has no line {MARK.strip()}")
        wanted.page.write_text(f"{head}{MARK}\n{table(tools)}", encoding="utf-8")
    else:
        print(table(tools))
    for tool, rows in tools.items() if wanted.wrong else ():
        for row in rows:
            if row.judgement.outcome is Outcome.WRONG:
                truth = f"{sorted(row.case.truth.verdicts)} of {[sorted(c, key=str) for c in row.case.truth.culprits]}"
                print(f"{tool}: {row.case.name}: {row.judgement.answer}; the truth: {truth}")


if __name__ == "__main__":
    main()
