"""The text of `explain`: a rule, or a line of a log."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from textwrap import wrap

from ncclforensics.data.names import printable
from ncclforensics.grammar.folders import path_of, shown
from ncclforensics.parsing.explain_line import LineExplanation
from ncclforensics.rules.registry import Rule

WIDTH = 100  # columns of a list of rules


def of_rule(rule: Rule) -> str:
    """Return the page of a rule."""
    return f"{rule.name}  ({rule.category}, {rule.severity})\n\n{rule.page}"


def of_rules(rules: Iterable[Rule]) -> str:
    """Return the names of rules by category, each with the first sentence of what it means."""
    rows: list[str] = []
    for category, group in groupby(sorted(rules, key=_place), key=lambda rule: str(rule.category)):
        rows += ["", category]
        for rule in group:
            meaning = rule.section("Means").partition(". ")[0].rstrip(".")
            rows += wrap(f"{rule.name}: {meaning}", WIDTH, initial_indent="  ", subsequent_indent="      ")
    return "\n".join([*rows[1:], "", "ncclforensics explain RULE shows one of them whole."])


def _place(rule: Rule) -> tuple[str, str]:
    return str(rule.category), rule.name


def of_line(line: LineExplanation) -> str:
    """Return the pattern and fields of a line; or the nearest pattern, and where the line stops matching it."""
    rows = [f"{name}: {value}" for name, value in line.labels.items() if value is not None]
    if line.shape is not None:
        form = f", form {line.form}" if line.form else ""
        rows += [f"{line.shape.frame}  ({shown(path_of(line.shape.grammar))}{form})"]
        rows += [f"  {name} = {value}" for name, value in line.fields.items()]
    elif line.nearest is not None:
        rows += [
            f"unknown line; nearest pattern: {line.nearest.frame} ({shown(path_of(line.nearest.grammar))})",
            f"  {line.text}",
            f"  {' ' * line.at}^ expected here: {line.expected}",
        ]
    else:
        rows += ["unknown line: no pattern matches its beginning; it counts as a line of the application"]
    return "\n".join(printable(row) for row in rows)
