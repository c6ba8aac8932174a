"""The command `hang`: the verdict on a hung job."""

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
    Full,
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
    SinceLook,
    Until,
    Verbose,
)
from ncclforensics.cli.output import exit_code_of, is_on_terminal, write_report


def hang(
    paths: Paths,
    report_format: FormatOption = Format.TEXT,
    output: Output = None,
    fail_on: FailOnOption = FailOn.WARNING,
    full: Full = False,
    rank_from: RankFrom = None,
    ranks: Ranks = None,
    host: Host = None,
    comm: Comm = None,
    since: Since = None,
    until: Until = None,
    since_look: SinceLook = None,
    redact: Redact = False,
    redact_map: RedactMap = None,
    on: On = None,
    config: Config = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
    no_color: NoColor = False,
) -> None:
    """Find the ranks that block a hung job: the verdict, culprits, victims and the log lines that prove it."""
    report = load_report(
        paths,
        full=full,
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
        since_look=since_look,
    )
    if redact or redact_map:
        from ncclforensics.report.redacted_run import redact_report

        report, _ = redact_report(report, redact_map)
    write_report(report, report_format, output, fail_on=fail_on, verbose=verbose, no_color=no_color)
    raise typer.Exit(exit_code_of(report, fail_on, asks_for_hang=True))
