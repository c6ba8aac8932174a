"""The command `explain`: what a rule means, or how a line is parsed."""

from __future__ import annotations

from typing import Annotated

import typer

from ncclforensics.cli.configuration import configure
from ncclforensics.cli.options import Config, names_of_rules
from ncclforensics.errors import UsageError

MOST_SUGGESTIONS = 6


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
    wanted = (rule or "").lower()  # a report prints verdicts in capitals
    named = [known for known in rules if wanted in (known.name, known.verdict)]
    of_category = [known for known in rules if wanted in ("", known.category)]
    if wanted and len(named) == 1 and not of_category:
        typer.echo(explain_text.of_rule(named[0]))
    elif of_category:
        typer.echo(explain_text.of_rules(of_category))
    else:
        names = {name for known in rules for name in (known.name, str(known.category), known.verdict)}
        raise UsageError(_unknown(rule or "", names - {""}))


def _unknown(wanted: str, known: set[str]) -> str:
    """Say that there is no such rule or category, and which have a similar name."""
    from difflib import get_close_matches

    parts = {part for part in wanted.lower().replace("_", "-").replace(" ", "-").split("-") if part}
    similar = get_close_matches(wanted.lower(), known, n=MOST_SUGGESTIONS, cutoff=0.6)
    similar += sorted((name for name in known if parts & set(name.split("-")) and name not in similar), key=len)
    if not similar:
        return f"{wanted}: unknown rule; `ncclforensics explain` lists all rules"
    return f"{wanted}: unknown rule; similar names: {', '.join(similar[:MOST_SUGGESTIONS])}"
