"""The command `explain`: what a rule means, or how a line is parsed."""

from __future__ import annotations

from typing import Annotated

import typer

from ncclforensics.cli.configuration import configure
from ncclforensics.cli.options import Config, names_of_rules
from ncclforensics.errors import UsageError


def explain(
    rule: Annotated[
        str | None,
        typer.Argument(
            metavar="RULE|CATEGORY|VERDICT",
            help="The name of a rule, as findings show it, a category or a verdict; without it, list all rules.",
            autocompletion=names_of_rules,
        ),
    ] = None,
    line: Annotated[
        str | None,
        typer.Option(
            "--line",
            metavar="TEXT",
            help="Explain this line of a log instead: its pattern, or the nearest one.",
        ),
    ] = None,
    config: Config = None,
) -> None:
    """Explain a rule: its meaning, certainty, false alarms and remedy; list rules; or explain a line of a log."""
    from ncclforensics.formats import dialect
    from ncclforensics.parsing.explain_line import explain_line
    from ncclforensics.rules.registry import all_rules
    from ncclforensics.views import explain_text

    configure(config, quiet=True)
    if rule is not None and line is not None:
        raise UsageError("give explain either the name of a rule or --line TEXT")
    if line is not None:
        typer.echo(explain_text.of_line(explain_line(line, dialect().with_all_formats)))
        return
    rules = all_rules()
    typer.echo(explain_text.of_name(rule, rules) if rule else explain_text.of_rules(rules))
