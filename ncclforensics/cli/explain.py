"""The command `explain`: what a rule, an error or a line of a log means."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from ncclforensics.cli.configuration import configure
from ncclforensics.cli.options import Config, names_of_rules
from ncclforensics.errors import UsageError

STDIN = "-"
MOST_LINES = 20  # that are explained, one by one


def explain(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="RULE|CATEGORY|VERDICT|ERROR|VARIABLE|LINE",
            help="The name of a rule, a category or a verdict; an error (`Xid 79`, `12/129`, `ncclSystemError`); a "
            "variable (`NCCL_IB_HCA`); a line of a log, or several; `-`: lines from stdin. Without it, list all rules.",
            autocompletion=names_of_rules,
        ),
    ] = None,
    line: Annotated[
        str | None,
        typer.Option("--line", metavar="TEXT", help="Explain this text as a line of a log, whatever it looks like."),
    ] = None,
    config: Config = None,
) -> None:
    """Explain a rule, an error, a variable or a line: what it means, how sure that is, and what to do."""
    from ncclforensics.views.explain_variable import of_variable

    if what is not None and line is not None:
        raise UsageError("give explain either a name or --line TEXT")
    if what is not None and (page := of_variable(what)):  # first, for it needs no rules, whose import takes long
        typer.echo(page)
        return
    configure(config, quiet=True)
    from ncclforensics.rules.registry import all_rules
    from ncclforensics.views import explain_text

    rules = all_rules()
    unknown: UsageError | None = None
    if line is None and (what is None or not explain_text.is_line(what)):
        try:
            typer.echo(explain_text.of_name(what, rules) if what else explain_text.of_rules(rules))
            return
        except UsageError as error:
            if what is None or " " not in what.strip():
                raise
            unknown = error  # unless it is a line as short as a name
    from ncclforensics.formats import dialect
    from ncclforensics.parsing.explain_line import explain_line

    text = sys.stdin.read() if what == STDIN else (line or what or "")
    lines = [found for found in text.splitlines() if found.strip()]
    for number, found in enumerate(explain_line(line, dialect()) for line in lines[:MOST_LINES]):
        if unknown is not None and (found.shape is None or found.shape.priority < 0):
            raise unknown
        if len(lines) > 1:
            typer.echo(("\n" if number else "") + explain_text.quoted(lines[number]))
        typer.echo(explain_text.of_line(found, rules))
    if len(lines) > MOST_LINES:
        typer.echo(f"\n{len(lines) - MOST_LINES} further lines are left out; give them to `ncclforensics check`.")
