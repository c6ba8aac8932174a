"""The command `check`: the summary of a run and the findings of all rules."""

from __future__ import annotations

import typer

from ncclforensics.cli.analysis import load_report
from ncclforensics.cli.configuration import configure
from ncclforensics.cli.options import (
    Comm,
    Config,
    FailOn,
    FailOnOption,
    Format,
    FormatOption,
    Host,
    Ignore,
    NoColor,
    On,
    Output,
    Paths,
    Quiet,
    RankFrom,
    Ranks,
    Redact,
    RedactMap,
    Select,
    Since,
    Until,
    Verbose,
)
from ncclforensics.cli.output import exit_code_of, is_on_terminal, write_report


def check(
    paths: Paths,
    report_format: FormatOption = Format.TEXT,
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
    on: On = None,
    config: Config = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
    no_color: NoColor = False,
) -> None:
    """Summarise a run and list everything that the rules find in it. Reads every byte."""
    report = load_report(
        paths,
        full=True,
        everything=True,
        select=select or (),
        ignore=ignore or (),
        rank_from=rank_from,
        on=on,
        settings=configure(config, quiet=quiet),
        quiet=quiet,
        shows_problems=is_on_terminal(report_format, output),
        ranks=ranks,
        host=host,
        comm=comm,
        since=since,
        until=until,
    )
    if redact or redact_map:
        from ncclforensics.report.redacted_run import redact_report

        report, _ = redact_report(report, redact_map)
    write_report(report, report_format, output, fail_on=fail_on, verbose=verbose, no_color=no_color, everything=True)
    raise typer.Exit(exit_code_of(report, fail_on, has_benchmark=report.run["benchmark"].height > 0))
