"""Tell the user that the program failed, and write what its authors need to mend it."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer

from ncclforensics import __version__
from ncclforensics.data.names import printable
from ncclforensics.errors import Defect

MOST_SHOWN = 3
LIBRARIES = ("polars", "lark", "typer", "rich", "orjson")


def report_defects(defects: Sequence[Defect]) -> None:
    """Print what failed to stderr, and write the tracebacks to a file beside other temporary files.

    What failed on an input is printed with the problems of the inputs.
    """
    unnamed = [defect for defect in defects if not defect.is_of_input]
    for defect in unnamed[:MOST_SHOWN]:
        typer.echo(f"ncclforensics: {printable(str(defect))}", err=True)
    if len(unnamed) > MOST_SHOWN:
        typer.echo(f"ncclforensics: {len(unnamed) - MOST_SHOWN} more parts of the program failed", err=True)
    import tempfile

    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="ncclforensics-defect-", suffix=".txt", delete=False, encoding="utf-8", errors="replace"
        ) as stream:
            stream.write("\n".join([_versions(), *(f"{defect}\n{defect.trace}" for defect in defects)]))
    except OSError as error:
        typer.echo(f"ncclforensics: the tracebacks could not be written: {error.strerror or error}", err=True)
        return
    if all(defect.own_place for defect in defects):
        typer.echo(f"ncclforensics: this is a defect of your own rules; {stream.name} holds the tracebacks", err=True)
        return
    typer.echo(
        f"ncclforensics: this is a defect of the program, not of the job. Please report it with {stream.name}, "
        "which may quote words of your logs.",
        err=True,
    )


def _versions() -> str:
    import platform
    from importlib.metadata import PackageNotFoundError, version  # takes 10 ms, and nothing needs it where all is well

    installed = [f"ncclforensics {__version__}", f"Python {platform.python_version()} on {platform.platform()}"]
    for library in LIBRARIES:
        try:
            installed.append(f"{library} {version(library)}")
        except PackageNotFoundError:
            installed.append(f"{library} is not installed as a package")
    return "\n".join([*installed, f"command: {sys.argv[1:2]}", ""])
