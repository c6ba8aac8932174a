"""The text of `explain`: a rule, or a line of a log."""

from __future__ import annotations

from ncclforensics.data.names import printable
from ncclforensics.parsing.explain_line import LineExplanation
from ncclforensics.rules.registry import Rule


def of_rule(rule: Rule) -> str:
    """Return the page of a rule."""
    return f"{rule.name}  ({rule.category}, {rule.severity})\n\n{rule.page}"


def of_line(line: LineExplanation) -> str:
    """What a line is, field by field; or how far the nearest shape goes."""
    told = [f"{name}: {value}" for name, value in line.labels.items() if value is not None]
    if line.shape is not None:
        form = f", form {line.form}" if line.form else ""
        told += [f"{line.shape.frame}  (grammars/{line.shape.grammar}.lark{form})"]
        told += [f"  {name} = {value}" for name, value in line.fields.items()]
    elif line.nearest is not None:
        told += [
            f"no shape knows this line; the nearest is {line.nearest.frame} (grammars/{line.nearest.grammar}.lark)",
            f"  {line.text}",
            f"  {' ' * line.at}^ here it wants {line.expected}",
        ]
    else:
        told += ["no shape knows even the beginning of this line: it counts as the application's"]
    return "\n".join(printable(each) for each in told)
