"""The command `explain`: what a rule, an error or a line of a log means."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ncclforensics.cli.configuration import configure
from ncclforensics.cli.options import Config, names_of_rules
from ncclforensics.errors import UsageError

if TYPE_CHECKING:
    from ncclforensics.parsing.explain_line import LineExplanation

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
    if line is None and (what is None or not explain_text.is_line(what)):
        typer.echo(explain_text.of_name(what, rules) if what else explain_text.of_rules(rules))
        return
    from ncclforensics.formats import dialect
    from ncclforensics.parsing.explain_line import explain_line

    text = sys.stdin.read() if what == STDIN else (line or what or "")
    lines = [found for found in text.splitlines() if found.strip()]
    for number, found in enumerate(explain_line(line, dialect()) for line in lines[:MOST_LINES]):
        if len(lines) > 1:
            typer.echo(("\n" if number else "") + explain_text.quoted(lines[number]))
        is_known = found.shape is not None and found.shape.priority >= 0
        typer.echo(explain_text.of_line(found, rules) if is_known else _judged(lines[number], found))
    if len(lines) > MOST_LINES:
        typer.echo(f"\n{len(lines) - MOST_LINES} further lines are left out; give them to `ncclforensics check`.")


def _judged(line: str, found: LineExplanation) -> str:
    """What a line says of which the shape does not, by what a log of nothing but this line shows."""
    from ncclforensics import analyze
    from ncclforensics.views import explain_text

    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "line.log"
        log.write_text(f"{line}\n", encoding="utf-8", errors="replace")
        return explain_text.of_judged_line(found, analyze(log, everything=True))
