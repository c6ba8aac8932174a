"""Arguments and options that several commands share, and the values they accept."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ncclforensics.cli.configuration import configured_paths
from ncclforensics.cli.output_file import check_writable


def writable(output: Path | None) -> Path | None:
    """Return a path that a file can be written to; raise OSError for another one, before anything is read."""
    if output is not None:
        check_writable(output)
    return output


def names_of_rules(incomplete: str) -> list[str]:
    """Complete the name of a rule or of a category."""
    from ncclforensics.rules.finding import Category
    from ncclforensics.rules.registry import all_rules

    names = [*map(str, Category), *(rule.name for rule in all_rules())]
    return [name for name in dict.fromkeys(names) if name.startswith(incomplete)]


class Format(StrEnum):
    """Output formats of a report."""

    TEXT = "text"
    JSON = "json"
    JSONL = "jsonl"
    MARKDOWN = "markdown"
    JUNIT = "junit"
    SARIF = "sarif"


class DiffFormat(StrEnum):
    """Output formats of a comparison of runs, and of a history."""

    TEXT = "text"
    JSON = "json"
    MARKDOWN = "markdown"


class FailOn(StrEnum):
    """Thresholds of severity for exit code 1."""

    ERROR = "error"
    WARNING = "warning"
    NEVER = "never"


Paths = Annotated[
    list[str],
    typer.Argument(
        metavar="[PATH]…",
        default_factory=list,
        show_default=False,
        callback=configured_paths,
        help="Files, folders, globs, saved runs, URLs (s3://, gs://, az://, https://), or - for standard input; also "
        ".tar, .zip, .gz, .zst, .xz and .bz2. Without any, `paths` of ncclforensics.toml.",
    ),
]
Good = Annotated[str, typer.Argument(metavar="GOOD", help="The good run: a file, a folder or a quoted glob.")]
Bad = Annotated[str, typer.Argument(metavar="BAD", help="The bad run: a file, a folder or a quoted glob.")]
DiffFormatOption = Annotated[DiffFormat, typer.Option("--format", help="Output format of the comparison.")]
HistoryFormatOption = Annotated[DiffFormat, typer.Option("--format", help="Output format of the history.")]
FormatOption = Annotated[Format, typer.Option("--format", help="Output format of the report.")]
Output = Annotated[
    Path | None,
    typer.Option("-o", "--output", metavar="FILE", callback=writable, help="Write to this file instead of stdout."),
]
FailOnOption = Annotated[FailOn, typer.Option("--fail-on", help="Lowest severity that gives exit code 1.")]
Full = Annotated[
    bool,
    typer.Option(
        "--full", help="Read every byte. By default only both ends of each file are read, and more where it is needed."
    ),
]
RankFrom = Annotated[
    str | None,
    typer.Option(
        "--rank-from",
        metavar="REGEX",
        help="Take the rank from the path where a log does not show it: first group of REGEX.",
    ),
]
Ranks = Annotated[
    str | None,
    typer.Option("--ranks", metavar="0-7,12", help="Show only findings about these ranks."),
]
Host = Annotated[
    str | None,
    typer.Option("--host", metavar="NAME", help="Show only findings about this host."),
]
Comm = Annotated[str | None, typer.Option("--comm", metavar="ID", help="Show only findings about this communicator.")]
Since = Annotated[
    str | None,
    typer.Option("--since", metavar="TIME", help="Ignore lines before this time; lines without a time are kept."),
]
Until = Annotated[str | None, typer.Option("--until", metavar="TIME", help="Ignore lines after this time.")]
SinceLook = Annotated[
    str | None,
    typer.Option(
        "--since-look",
        metavar="EARLIER.ncclf",
        help="A saved run of the same logs from a minute ago or earlier: if no rank has made a call since, the job "
        "stands still. Copies of logs prove nothing.",
    ),
]
Select = Annotated[
    list[str] | None,
    typer.Option(
        "--select",
        metavar="RULE|CATEGORY",
        help="Run only these rules (repeatable).",
        autocompletion=names_of_rules,
    ),
]
Ignore = Annotated[
    list[str] | None,
    typer.Option(
        "--ignore", metavar="RULE|CATEGORY", help="Skip these rules (repeatable).", autocompletion=names_of_rules
    ),
]
Redact = Annotated[
    bool, typer.Option("--redact", help="Replace hosts, addresses, users and paths by pseudonyms, and remove secrets.")
]
RedactMap = Annotated[
    Path | None,
    typer.Option(
        "--redact-map", metavar="FILE", help="Store the pseudonym map, and reuse it on the next run. Implies --redact."
    ),
]
On = Annotated[
    str | None,
    typer.Option(
        "--on",
        metavar="dask://HOST:PORT",
        help="Read and parse the logs on this Dask cluster, whose workers see the same paths; reads every byte.",
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="Take the settings of the site from this file, instead of ncclforensics.toml (docs/configuration.md).",
    ),
]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Print no progress bar and no warnings.")]
Verbose = Annotated[
    bool,
    typer.Option(
        "-v", "--verbose", help="Show the whole report: findings in detail, evidence, ranks and their last calls."
    ),
]
NoColor = Annotated[bool, typer.Option("--no-color", help="Print without colours, as NO_COLOR=1 does.")]
