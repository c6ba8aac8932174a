"""The command `explain`: what a rule means, or how a line is parsed."""

from __future__ import annotations

from typing import Annotated

import typer

from ncclforensics.errors import UsageError


def explain(
    rule: Annotated[str | None, typer.Argument(metavar="RULE", help="The name of a rule, as findings show it.")] = None,
    line: Annotated[
        str | None,
        typer.Option(
            "--line",
            metavar="TEXT",
            help="Explain this line of a log instead: its pattern, or the nearest one.",
        ),
    ] = None,
) -> None:
    """Explain a rule: its meaning, certainty, false alarms and remedy; or explain a line of a log."""
    from ncclforensics.formats import dialect
    from ncclforensics.parsing.explain_line import explain_line
    from ncclforensics.rules.registry import all_rules
    from ncclforensics.views import explain_text

    if (rule is None) == (line is None):
        raise UsageError("give explain either the name of a rule or --line TEXT")
    if line is not None:
        typer.echo(explain_text.of_line(explain_line(line, dialect().with_all_formats)))
        return
    rules = {registered.name: registered for registered in all_rules()}
    if rule not in rules:
        raise UsageError(f"{rule}: unknown rule; the rules are {', '.join(sorted(rules))}")
    typer.echo(explain_text.of_rule(rules[rule]))
