"""Results as a page of the documentation, and a plot of what missing logs cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from benchmark.intervals import wilson
from benchmark.judge import Outcome
from ncclforensics.data.names import CERTAINTIES
from tests.accuracy.calibration import ALL, CALIBRATION, FAMILIES, Worth, worth
from tests.accuracy.missing_logs import PLOT
from tests.accuracy.run import LOSING, Result
from tests.handlings import KEPT
from tests.small_worlds import Answer, Loss

HALF = 0.5  # of the logs are missing
MOST_NAMED = 60  # trials in one list
NO_FAULT = ("no-hang", "undecidable")  # verdicts that a cause would not explain: the finding is the headline there
CAUSES = ("expected", "known to be false", "not labelled", "none, although one is expected")
OUTSIDE = {"application-error", "oom", "cuda-error", "link-error", "shm"}  # faults outside of NCCL
HEAD = """\
# How often it is right
"""
CALIBRATED = f"![How often answers were true, by verdict and certainty, with 95 % intervals]({CALIBRATION})"
FIGURE = f"![Share of right, weaker and wrong answers over the share of logs that are missing]({PLOT})"
METHOD = """\
## What these figures are

Written by `make scores`, which asks the program about jobs whose truth is known, as they are and after everything that
people do to logs, and counts. Nothing here was chosen by hand, and the same version writes the same page.

What these figures are worth: **the program was written with most of these logs in view.** The tests demand the right
answer on the incidents as they ship, so what they show is only that nothing broke; what was done to their logs, and the
simulated jobs, are drawn by names and were not picked. Simulated jobs show what is known of NCCL's lines, not
what nobody thought of. Expect less on logs of a kind that nobody here has seen. A job of yours that gets a wrong answer
is the most useful report there is: `CONTRIBUTING.md` says how to send one. What other tools say about some of these
incidents stands [side by side](side-by-side.md).

How an answer is judged, by the verdict of `hang` (of `check` where the job did not hang, for nobody asked):

- **right**: a true verdict, and exactly the true culprits. Where the lines of that version cannot show the fault, to
  leave it open, or a true verdict that names no innocent rank.
- **weaker**: nothing false is claimed: not decided, fewer culprits, or a wrong one marked as no more than *possible*.
- **wrong**: an innocent rank, or a false verdict, as *likely* or *certain*; or no answer.
- **innocent named**: answers with an innocent rank among the culprits: as *possible*, and as *likely* or *certain*.

Behind each share stands its 95 % interval after Wilson.
"""


@dataclass(frozen=True, slots=True)
class Measured:
    """The results of one part of the page."""

    plain: list[Result]  # logs as they are
    handled: list[Result]
    missing: list[Result]  # with a share of the logs missing

    @property
    def everything(self) -> list[Result]:
        """All results."""
        return [*self.plain, *self.handled, *self.missing]


def page(shipped: Measured, beside: Measured | None, *drawn: str) -> str:
    """The page: what ships and what is simulated, drawn cases, then the logs beside the repository, where they are."""
    parts = [
        HEAD,
        _lead(shipped),
        FIGURE,
        "How often *certain*, *likely* and *possible* were true, of all trials below:",
        CALIBRATED,
        METHOD,
        "## What ships, and simulated jobs",
        *_sections(shipped),
        *drawn,
        "## Logs beside the repository",
    ]
    if beside is None:
        parts.append("Skipped at the last run: there is no `../shared/corpus` beside the repository.")
    else:
        parts.append(
            "Runs of the real NCCL library on emulated GPUs, jobs of PyTorch over gloo that failed in a known way, and "
            "public logs of others; they are not part of the repository. Of the labels of public logs only those "
            "are judged that are categories of the program; one that a more special finding answers counts as missed."
        )
        parts += _sections(beside)
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _lead(measured: Measured) -> str:
    """The page in three sentences."""
    plain = [result for result in measured.plain if result.judgement]
    judged = [result for result in measured.everything if result.judgement]
    wrong = [result for result in judged if result.outcome is Outcome.WRONG]
    accusing = sum(bool(result.judgement and result.judgement.innocent) for result in wrong)
    half = [result for result in measured.missing if result.judgement and result.trial.missing == HALF]
    right, half_right, half_wrong = (
        sum(result.outcome is outcome for result in results)
        for results, outcome in ((plain, Outcome.RIGHT), (half, Outcome.RIGHT), (half, Outcome.WRONG))
    )
    return (
        f"Of {len(plain)} logs as they are, whose truth is known, `hang` is right in {right / len(plain):.1%}. "
        f"Of {len(judged):,} trials in all, in which logs were also cut, mixed or lost, {len(wrong)} gave a wrong "
        f"answer, and {accusing} of these accused an innocent rank. Where evidence is missing, the answer becomes "
        f"weaker rather than wrong: with half of the logs lost, {half_right} of {len(half)} are right and "
        f"{half_wrong} wrong."
    )


def _sections(measured: Measured) -> Iterable[str]:
    yield _summary(measured)
    if measured.missing:
        yield "### When logs are missing"
        yield (
            "Simulated jobs with a fault, 8 or 16 ranks; the missing logs are drawn, the culprits' among them. The "
            "figure at the top shows those of the jobs that ship."
        )
        yield _verdicts(measured.missing, "missing", lambda result: f"{result.trial.missing:.1%}")
    plain = [*measured.plain, *measured.handled]
    yield "### By what was done to the logs"
    yield "First what leaves all that a verdict needs: *weaker* is a miss there. Then what loses something."
    kept = [result for result in measured.handled if result.trial.handling in KEPT]
    lost = [result for result in measured.handled if result.trial.handling not in KEPT]
    for title, results in (("nothing is lost", kept), ("lost", lost)):
        yield _verdicts(results, title, lambda result: result.trial.handling)
    yield "### What the certainties are worth"
    yield (
        "How often an answer was true: its verdict, and every rank that it names. Answers that name no fault are left "
        "out. *Likely* and *possible* say what would have to be true instead, so some of these have to be false."
    )
    yield _certainties(measured.everything)
    yield "### Suspects and the next step"
    yield (
        "Of answers on jobs with a culprit: whether one is among the ranks that are named as suspects, and whether "
        "what to collect next names the place of one. Where the answer is right, neither is needed."
    )
    yield _suspects_and_steps(measured.everything)
    yield "### The line of the cause"
    yield (
        "Of the logs as they are: what the line `Cause` names, by the categories that are expected or known to be "
        "false there; and how often there is none although a fault outside of NCCL is expected beside a verdict."
    )
    yield _causes(measured.plain)
    yield "### By kind of incident"
    yield _verdicts(plain, "fault or verdict", lambda result: result.trial.case.kind)
    yield "### By version of NCCL"
    yield _verdicts(plain, "version", lambda result: result.trial.case.version or "none, or not known")
    yield "### By source"
    yield _verdicts(plain, "source", lambda result: result.trial.case.source)
    yield "### What is wrong, and what is missed"
    yield _by_name(measured)


def _summary(measured: Measured) -> str:
    judged = [result for result in measured.everything if result.judgement]
    wrong = [result for result in judged if result.outcome is Outcome.WRONG]
    accusing = [result for result in wrong if result.judgement and result.judgement.innocent]
    kept = [result for result in measured.handled if result.trial.handling in KEPT]
    kept_right = sum(result.outcome is Outcome.RIGHT for result in kept)
    plain = [result for result in measured.plain if result.judgement]
    plain_right = sum(result.outcome is Outcome.RIGHT for result in plain)
    expected = sum(len(result.trial.case.expected) for result in measured.plain)
    missed = sum(len(result.missed) for result in measured.plain)
    forbidden = sum(len(result.trial.case.forbidden) for result in measured.plain)
    alarms = sum(len(result.alarms) for result in measured.plain)
    rows = [
        ("verdicts right, logs as they are", plain_right, len(plain)),
        ("verdicts right, nothing lost", kept_right, len(kept)),
        ("wrong answers, everything", len(wrong), len(judged)),
        ("of these: an innocent rank accused", len(accusing), len(judged)),
        ("expected findings found", expected - missed, expected),
        ("findings reported that are known to be false", alarms, forbidden),
    ]
    lines = [f"| {name} | {hits} of {trials} | {_share(hits, trials)} |" for name, hits, trials in rows if trials]
    return "\n".join(["| | | share |", "|---|---|---|", *lines])


def _verdicts(results: Sequence[Result], title: str, group: Callable[[Result], str]) -> str:
    """A table: how many answers of each group are right, weaker and wrong."""
    groups: dict[str, list[Result]] = {}
    for result in results:
        if result.judgement:
            groups.setdefault(group(result), []).append(result)
    lines = [f"| {title} | trials | right | weaker | wrong | right | wrong | innocent named |", "|---" * 8 + "|"]
    for name in sorted(groups, key=_natural):
        counts = Counter(result.outcome for result in groups[name])
        innocent = [result for result in groups[name] if result.judgement and result.judgement.innocent]
        sure = sum(result.outcome is Outcome.WRONG for result in innocent)
        total = len(groups[name])
        cells = [name, str(total), *(str(counts[outcome]) for outcome in Outcome)]
        cells += [_share(counts[outcome], total) for outcome in (Outcome.RIGHT, Outcome.WRONG)]
        lines.append(f"| {' | '.join(cells)} | {len(innocent) - sure} + {sure} |")
    return "\n".join(lines)


def _certainties(results: Sequence[Result]) -> str:
    """A table: how many answers of each family are true, by how sure they are."""
    counts = worth(results)
    lines = ["| verdicts | certain | likely | possible |", "|---|---|---|---|"]
    for family in [*dict.fromkeys(FAMILIES.values()), ALL]:
        found = [counts.get((family, sure), Worth()) for sure in CERTAINTIES]
        if any(cell.answers for cell in found):
            cells = [
                f"{cell.true} of {cell.answers}: {_share(cell.true, cell.answers)}" if cell.answers else "-"
                for cell in found
            ]
            lines.append(f"| {family} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _suspects_and_steps(results: Sequence[Result]) -> str:
    """A table: where the suspects and the next step of an answer lead, by what the answer is worth."""
    lines = ["| the answer is | answers | suspects: with a culprit | without | none | ", "|---" * 8 + "|"]
    lines[0] += "next step: names a culprit | names none | none |"
    for outcome in Outcome:
        of = [result for result in results if result.outcome is outcome and result.guilty]
        suspects = Counter(_holds_culprit(result, result.suspects) for result in of)
        steps = Counter(_holds_culprit(result, result.next_ranks) for result in of if result.has_next_step)
        cells = [outcome, str(len(of)), *(str(suspects[lead]) for lead in ("with", "without", "none"))]
        cells += [str(steps["with"]), str(steps["without"] + steps["none"]), str(len(of) - steps.total())]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _holds_culprit(result: Result, ranks: frozenset[int]) -> str:
    if not ranks:
        return "none"
    return "with" if ranks & result.guilty else "without"


def _causes(results: Sequence[Result]) -> str:
    counts: Counter[str] = Counter()
    for result in results:
        case = result.trial.case
        if result.cause:
            is_known = {result.cause in case.causes: "expected", result.cause in case.forbidden: "known to be false"}
            counts[is_known.get(True, "not labelled")] += 1
        elif case.causes & OUTSIDE and case.kind not in NO_FAULT:
            counts["none, although one is expected"] += 1
    total = counts.total()
    rows = [f"| {name} | {counts[name]} of {total} | {_share(counts[name], total)} |" for name in CAUSES]
    return "\n".join(["| the cause is | | share |", "|---|---|---|", *rows])


def of_small_worlds(worlds: int, answers: Sequence[Answer], groups: int) -> str:
    """A paragraph and a table on the small worlds: how many, and how often answers are true in them."""
    lines = ["| | groups | true in all worlds | false where something was lost | false where nothing was lost |"]
    lines.append("|---" * 5 + "|")
    for sure in CERTAINTIES:
        of = [answer for answer in answers if answer.certainty == sure]
        lost = [answer for answer in of if answer.false_in and Loss.NOTHING not in answer.false_in]
        nothing = [answer for answer in of if Loss.NOTHING in answer.false_in]
        lines.append(f"| {sure} | {len(of)} | {len(of) - len(lost) - len(nothing)} | {len(lost)} | {len(nothing)} |")
    text = (
        "All programs of three and four ranks with up to three calls, every fault at every place and every loss of a "
        f"line, an end or a log: {worlds:,} worlds, which leave {groups:,} different sets of logs. Of the answers that "
        "name a fault, how many are true in all worlds that leave these logs, and what was lost in the others:"
    )
    return "\n\n".join(["## Small worlds", text, "\n".join(lines)])


def _natural(name: str) -> list[tuple[int, str]]:
    """A key that sorts 2.9 before 2.21, and 7.5% before 12.5%."""
    parts = name.replace("%", "").split(".")
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts]


def _share(hits: int, trials: int) -> str:
    low, high = wilson(hits, trials)
    return f"{hits / trials:.1%} ({low:.1%} to {high:.1%})" if trials else ""


def _by_name(measured: Measured) -> str:
    """Every wrong answer, and every miss where nothing was lost, by name."""
    wrong = [result for result in measured.everything if result.outcome is Outcome.WRONG]
    weaker = [
        result
        for result in [*measured.plain, *measured.handled]
        if result.outcome is Outcome.WEAKER and result.trial.handling not in LOSING
    ]
    findings = [result for result in measured.plain if result.missed or result.alarms]
    parts = [_list("Wrong", [_answer(result) for result in wrong])]
    parts.append(_list("Weaker although nothing was lost", [_answer(result) for result in weaker]))
    named = [
        f"`{result.trial.case.name}`: "
        + "; ".join(
            f"{what} {', '.join(names)}"
            for what, names in (("not found:", result.missed), ("false:", result.alarms))
            if names
        )
        for result in findings
    ]
    return "\n\n".join([*parts, _list("Findings missed, or known to be false", named)])


def _answer(result: Result) -> str:
    truth = result.trial.case.truth
    said = result.judgement.answer if result.judgement else ""
    if truth is None:
        return f"`{result.trial.name}`: {said}"
    culprits = dict.fromkeys(str(sorted(ranks)) for ranks in truth.culprits)
    return f"`{result.trial.name}`: {said}; true: {' or '.join(sorted(truth.verdicts))} {' or '.join(culprits)}"


def _list(title: str, items: list[str]) -> str:
    shown = [f"- {item}" for item in sorted(items)[:MOST_NAMED]]
    if len(items) > MOST_NAMED:
        shown.append(f"- and {len(items) - MOST_NAMED} more")
    return "\n".join([f"**{title}**: {len(items) or 'none'}", "", *shown]).strip()
