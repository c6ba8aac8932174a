"""What is wrong? A run judged, two runs compared, a rule or a line explained."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ncclforensics.cli.analysis import analyzed, read, redacted
from ncclforensics.cli.options import (
    Bad,
    Comm,
    FailOn,
    FailOnOption,
    Format,
    FormatOption,
    Full,
    Good,
    Host,
    Ignore,
    NoColor,
    Output,
    Paths,
    Quiet,
    RankFrom,
    Ranks,
    Redact,
    RedactMap,
    Select,
    Sheet,
    SheetOption,
    Since,
    Until,
    Verbose,
)
from ncclforensics.cli.output import Exit, exit_code, is_colored, put, show
from ncclforensics.errors import UsageError

if TYPE_CHECKING:
    from ncclforensics.diff import Comparison
    from ncclforensics.report.build import Report

PACKAGE = Path(__file__).parents[1]
DEMO = (
    PACKAGE / "demo"  # in a wheel
    if (PACKAGE / "demo").is_dir()
    else PACKAGE.parent / "fixtures/incidents/one-rank-stops-before-an-allreduce"
)


def hang(
    paths: Paths,
    form: FormatOption = Format.TEXT,
    output: Output = None,
    fail_on: FailOnOption = FailOn.WARNING,
    full: Full = False,
    rank_from: RankFrom = None,
    ranks: Ranks = None,
    host: Host = None,
    comm: Comm = None,
    since: Since = None,
    until: Until = None,
    redact: Redact = False,
    redact_map: RedactMap = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
    no_color: NoColor = False,
) -> None:
    """Who is stuck, on what, and who is to blame? Names culprits, victims and the lines that prove it."""
    report = analyzed(
        paths, full=full, rank_from=rank_from, quiet=quiet, ranks=ranks, host=host, comm=comm, since=since, until=until
    )
    if redact or redact_map:
        report, _ = redacted(report, redact_map)
    show(report, form, output, fail_on=fail_on, verbose=verbose, no_color=no_color)
    raise typer.Exit(exit_code(report, fail_on))


def check(
    paths: Paths,
    form: FormatOption = Format.TEXT,
    output: Output = None,
    fail_on: FailOnOption = FailOn.WARNING,
    select: Select = None,
    ignore: Ignore = None,
    rank_from: RankFrom = None,
    ranks: Ranks = None,
    host: Host = None,
    comm: Comm = None,
    since: Since = None,
    until: Until = None,
    redact: Redact = False,
    redact_map: RedactMap = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
    no_color: NoColor = False,
) -> None:
    """What the logs tell about a run, and everything that the rules find in it. Reads every byte."""
    report = analyzed(
        paths,
        full=True,
        everything=True,
        select=select or (),
        ignore=ignore or (),
        rank_from=rank_from,
        quiet=quiet,
        ranks=ranks,
        host=host,
        comm=comm,
        since=since,
        until=until,
    )
    if redact or redact_map:
        report, _ = redacted(report, redact_map)
    show(report, form, output, fail_on=fail_on, verbose=verbose, no_color=no_color, everything=True)
    raise typer.Exit(exit_code(report, fail_on, is_measured=report.run["benchmark"].height > 0))


def diff(
    good: Good,
    bad: Bad,
    form: SheetOption = Sheet.TEXT,
    output: Output = None,
    rank_from: RankFrom = None,
    ranks: Ranks = None,
    host: Host = None,
    comm: Comm = None,
    since: Since = None,
    until: Until = None,
    quiet: Quiet = False,
    no_color: NoColor = False,
) -> None:
    """What differs between two runs that matters: how they came out, and what may explain it. Reads every byte.

    Logs, benchmarks and dumps of machines alike; what only one of both tells is named and never counted as a
    difference. Exit code 0: nothing that matters differs, 1: something does, 3: too little in common to tell.
    """
    from ncclforensics.diff.compare import compared
    from ncclforensics.inputs.sources import forget_spooled

    def side(path: str) -> Report:
        return read(
            [path],
            full=True,
            quiet=quiet,
            everything=True,
            rank_from=rank_from,
            ranks=ranks,
            host=host,
            comm=comm,
            since=since,
            until=until,
        )

    try:
        comparison = compared(side(good), side(bad))
    finally:
        forget_spooled()
    put(_drawn(comparison, form, color=is_colored(output, no_color)), output)
    if not comparison.is_enough:
        raise typer.Exit(Exit.UNDECIDABLE)
    raise typer.Exit(Exit.FINDINGS if comparison.matters else Exit.NOTHING)


def _drawn(comparison: Comparison, form: Sheet, *, color: bool) -> bytes:
    from ncclforensics.views import json_difference, text_difference, text_report

    if form is Sheet.JSON:
        return json_difference.json(comparison)
    if form is Sheet.MARKDOWN:
        return text_difference.markdown(comparison).encode()
    return text_difference.text(comparison, width=text_report.width_of_terminal(), color=color).encode()


def explain(
    rule: Annotated[str | None, typer.Argument(metavar="RULE", help="A rule's name, as findings give it.")] = None,
    line: Annotated[
        str | None, typer.Option("--line", metavar="TEXT", help="A line of a log: which shape it is, or nearly is.")
    ] = None,
) -> None:
    """What a rule means, how sure it is and what would make it a false alarm; or what a line of a log is."""
    from ncclforensics.formats import dialect
    from ncclforensics.parsing.explain_line import anatomy
    from ncclforensics.rules.registry import all_rules
    from ncclforensics.views import explain_text

    if (rule is None) == (line is None):
        raise UsageError("explain wants either the name of a rule or --line TEXT")
    if line is not None:
        typer.echo(explain_text.of_line(anatomy(line, dialect().whole)))
        return
    known = {each.name: each for each in all_rules()}
    if rule not in known:
        raise UsageError(f"{rule}: no such rule; there are {', '.join(sorted(known))}")
    typer.echo(explain_text.of_rule(known[rule]))


def demo(form: FormatOption = Format.TEXT, no_color: NoColor = False) -> None:
    """Run `hang` on an incident that ships with the program: a rank stops before an AllReduce."""
    report = analyzed([str(DEMO / "*.log")], full=False, quiet=True)
    show(report, form, None, fail_on=FailOn.WARNING, verbose=False, no_color=no_color)
    raise typer.Exit(exit_code(report, FailOn.WARNING))
