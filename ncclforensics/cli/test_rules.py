"""The command `test-rules`: the examples and incidents of rules and shapes of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ncclforensics.cli.output import Exit
from ncclforensics.data.names import count_of, printable


def test_rules(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="A folder with grammars, Python modules and incidents; its code is executed."
        ),
    ],
) -> None:
    """Test rules and line shapes of one's own: the examples in their grammars, and their sample incidents.

    Exit code 0: all passed, 1: problems, each with its file and line, 2: the folder cannot be loaded.
    """
    from ncclforensics.extensions.examples import example_problems
    from ncclforensics.extensions.incidents import count_incidents, incident_problems
    from ncclforensics.extensions.loading import load_folder

    extension = load_folder(folder)
    problems = [*example_problems(extension), *incident_problems(extension)]
    for problem in problems:
        typer.echo(printable(problem))
    examples = sum(len(shape.examples) for shape in extension.shapes)
    counts = [
        count_of(len(extension.shapes), "shape"),
        count_of(examples, "example"),
        count_of(len(extension.rules), "rule"),
        count_of(count_incidents(extension), "incident"),
    ]
    typer.echo(f"{', '.join(counts)}: {count_of(len(problems), 'problem') if problems else 'all passed'}")
    raise typer.Exit(Exit.FINDINGS if problems else Exit.OK)
