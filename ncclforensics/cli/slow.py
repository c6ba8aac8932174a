"""The command `slow`: what makes a job slow that runs."""

from __future__ import annotations

import typer

from ncclforensics.cli.analysis import load_report
from ncclforensics.cli.configuration import configure
from ncclforensics.cli.options import (
    Config,
    FailOn,
    FailOnOption,
    Format,
    FormatOption,
    Host,
    NoColor,
    On,
    Output,
    Paths,
    Quiet,
    RankFrom,
    Ranks,
    Redact,
    RedactMap,
    Since,
    Until,
    Verbose,
)
from ncclforensics.cli.output import exit_code_of_slow, is_on_terminal, write_report


def slow(
    paths: Paths,
    report_format: FormatOption = Format.TEXT,
    output: Output = None,
    fail_on: FailOnOption = FailOn.WARNING,
    rank_from: RankFrom = None,
    ranks: Ranks = None,
    host: Host = None,
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
    """Find what makes a running job slow: whom the others wait for, since when, and what it costs.

    From profiler traces, tables, step lines, Inspector records and Flight Recorder dumps; reads every byte.
    """
    report = load_report(
        paths,
        full=True,
        rank_from=rank_from,
        on=on,
        settings=configure(config, quiet=quiet),
        quiet=quiet,
        shows_problems=is_on_terminal(report_format, output),
        ranks=ranks,
        host=host,
        since=since,
        until=until,
    )
    if redact or redact_map:
        from ncclforensics.report.redacted_run import redact_report

        report, _ = redact_report(report, redact_map)
    report.is_about_slow = True
    write_report(report, report_format, output, fail_on=fail_on, verbose=verbose, no_color=no_color)
    raise typer.Exit(exit_code_of_slow(report, fail_on))
