"""What the signatures of commands are made of: choices, and the options that several commands share."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Format(StrEnum):
    """How a report is printed."""

    TEXT = "text"
    JSON = "json"
    MARKDOWN = "markdown"
    JUNIT = "junit"
    SARIF = "sarif"


class Sheet(StrEnum):
    """How a comparison is printed."""

    TEXT = "text"
    JSON = "json"
    MARKDOWN = "markdown"


class FailOn(StrEnum):
    """The lowest severity that makes exit code 1."""

    ERROR = "error"
    WARNING = "warning"
    NEVER = "never"


Paths = Annotated[
    list[str],
    typer.Argument(
        metavar="PATH",
        help="Files, folders, globs, saved runs, or - for standard input; .gz .zst .xz .bz2 are read as they are.",
    ),
]
_SIDE = "A file, a folder or a quoted glob of the run that"
Good = Annotated[str, typer.Argument(metavar="GOOD", help=f"{_SIDE} was as it should be.")]
Bad = Annotated[str, typer.Argument(metavar="BAD", help=f"{_SIDE} was not.")]
SheetOption = Annotated[Sheet, typer.Option("--format", help="How to print the comparison.")]
FormatOption = Annotated[Format, typer.Option("--format", help="How to print the report.")]
Output = Annotated[
    Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write the report there, not to stdout.")
]
FailOnOption = Annotated[FailOn, typer.Option("--fail-on", help="The lowest severity that makes exit code 1.")]
Full = Annotated[
    bool, typer.Option("--full", help="Read every byte, in place of both ends of each file as far as needed.")
]
RankFrom = Annotated[
    str | None,
    typer.Option(
        "--rank-from", metavar="REGEX", help="Finds the rank in a path (first group), where the log does not tell it."
    ),
]
Ranks = Annotated[str | None, typer.Option("--ranks", metavar="0-7,12", help="Show only what concerns these ranks.")]
Host = Annotated[str | None, typer.Option("--host", metavar="NAME", help="Show only what concerns this host.")]
Comm = Annotated[str | None, typer.Option("--comm", metavar="ID", help="Show only what concerns this communicator.")]
Since = Annotated[
    str | None,
    typer.Option("--since", metavar="TIME", help="Judge only lines printed from then on, where lines have times."),
]
Until = Annotated[str | None, typer.Option("--until", metavar="TIME", help="Judge only lines printed up to then.")]
Select = Annotated[
    list[str] | None,
    typer.Option("--select", metavar="RULE|CATEGORY", help="Ask only these rules; may be given several times."),
]
Ignore = Annotated[
    list[str] | None, typer.Option("--ignore", metavar="RULE|CATEGORY", help="Do not ask these; as often as needed.")
]
Redact = Annotated[
    bool, typer.Option("--redact", help="Pseudonyms for hosts, addresses, users and paths; secrets vanish.")
]
RedactMap = Annotated[
    Path | None,
    typer.Option(
        "--redact-map", metavar="FILE", help="Keep there what stands for what, and go on with it; implies --redact."
    ),
]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="No progress bar, no warnings on stderr.")]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="Also the last call of every rank, and lists in full.")]
NoColor = Annotated[bool, typer.Option("--no-color", envvar="NO_COLOR", help="No colours.")]
