"""What it is worth that nothing was found: whether rules judge such lines, and what none of them can judge."""

from __future__ import annotations

import polars as pl
from rich.console import RenderableType
from rich.text import Text

from ncclforensics.data.names import count_of, some_of
from ncclforensics.report.build import Report
from ncclforensics.rules.finding import Category
from ncclforensics.rules.registry import all_rules
from ncclforensics.views.text_benchmarks import decisive_runs, expected
from ncclforensics.views.text_layout import STYLE, indented

SPEED = (
    "Not judged: how fast {tests} should be there. Compare with other hosts of this kind (ncclforensics diff), or set "
    "what they should reach (busbw in the configuration)."
)
UNSEEN = ("read-subsystem-gap", "bench-not-judged")  # notes on what is not shown, which the sentences say
PAIRS = "Not judged: whether such links should be faster; equal ones are only compared with each other."
NEEDS_OTHERS = (
    "No rule judges such lines by themselves. Give them together with logs, counters or dumps of the same hosts."
)
MOST_TESTS = 3  # named
UNKNOWN = "No line is of a known format: nothing is known of what these files show."


def without_findings(report: Report) -> list[RenderableType]:
    """Say that there is no finding, how many rules looked for one, and what they cannot judge."""
    of_faults = (
        rule
        for rule in all_rules()  # others answer what none of these does, or say what is missing
        if not (rule.fallback or rule.last) and rule.category is not Category.INCOMPLETE_EVIDENCE
    )
    number = sum(_looks(report, *rule.of) for rule in of_faults)
    if not number:
        return [
            Text("\nnot judged", style=STYLE["warning"]),
            indented(Text(NEEDS_OTHERS if report.run.kinds else UNKNOWN)),
        ]
    noted = " but what the notes below say" * any(note.rule not in UNSEEN for note in report.findings)
    sentences = [f"{count_of(number, 'rule')} looked at these lines and found no fault{noted}.", *_open(report)]
    return [Text("\nno findings", style=STYLE["no-hang"]), *(indented(Text(sentence)) for sentence in sentences)]


def _looks(report: Report, *frames: str) -> bool:
    return any(report.run.has(frame) for frame in frames)


def _open(report: Report) -> list[str]:
    """Return a sentence for each question that no rule can decide, and what would decide it."""
    run = report.run
    runs = decisive_runs(run["benchmark"])
    down = run["port_state"].filter(pl.col("state") == "down").unique(["guid", "host", "device", "port", "node"])
    which = "the port that is down" if down.height == 1 else f"the {down.height} ports that are down"
    ports = f"Not judged: whether {which} should be up. Give the log of a job there, or an earlier dump, too."
    tests = list(dict.fromkeys(row["collective"] or "a test" for row in runs if not expected(row)))
    return [
        *([SPEED.format(tests=some_of(tests, MOST_TESTS))] if tests else []),
        *([PAIRS] if not runs and _looks(report, "gpu_pair", "link_measurement") else []),
        *([ports] if down.height else []),
    ]
