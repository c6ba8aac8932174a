"""The text of `explain`: a rule, or a line of a log."""

from __future__ import annotations

from ncclforensics.data.names import printable
from ncclforensics.parsing.explain_line import LineExplanation
from ncclforensics.rules.registry import Rule


def of_rule(rule: Rule) -> str:
    """Return the page of a rule."""
    return f"{rule.name}  ({rule.category}, {rule.severity})\n\n{rule.page}"


def of_line(line: LineExplanation) -> str:
    """Return the pattern and fields of a line; or the nearest pattern, and where the line stops matching it."""
    rows = [f"{name}: {value}" for name, value in line.labels.items() if value is not None]
    if line.shape is not None:
        form = f", form {line.form}" if line.form else ""
        rows += [f"{line.shape.frame}  (grammars/{line.shape.grammar}.lark{form})"]
        rows += [f"  {name} = {value}" for name, value in line.fields.items()]
    elif line.nearest is not None:
        rows += [
            f"unknown line; nearest pattern: {line.nearest.frame} (grammars/{line.nearest.grammar}.lark)",
            f"  {line.text}",
            f"  {' ' * line.at}^ expected here: {line.expected}",
        ]
    else:
        rows += ["unknown line: no pattern matches its beginning; it counts as a line of the application"]
    return "\n".join(printable(row) for row in rows)
