"""The command line. Exceptions become exit codes here, and nothing else prints.

A command is a function in one of these modules, named in the list below. Importing them imports neither polars nor lark
nor rich, so that `--help` answers at once.
"""

from __future__ import annotations

import gc
import os
import sys
from typing import Annotated

import typer

from ncclforensics import __version__
from ncclforensics.cli.capture import capture
from ncclforensics.cli.judging import check, demo, diff, explain, hang
from ncclforensics.cli.output import Exit
from ncclforensics.cli.report_save import report, save
from ncclforensics.cli.tui import tui
from ncclforensics.data.names import printable
from ncclforensics.errors import ForensicsError

# Polars' allocator gives memory back only under pressure; a tool that runs on a login node gives it back at once.
# Read when the library is loaded, so it is set before that.
os.environ.setdefault("_RJEM_MALLOC_CONF", "background_thread:true,narenas:2,dirty_decay_ms:100,muzzy_decay_ms:0")

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Who is stuck, on what, and who is to blame? From the logs of a stuck NCCL job.",
    epilog="Exit codes: 0 nothing found, 1 findings, 2 wrong usage or no input, 3 not decidable, 130 interrupted.",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ncclforensics {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


for _command in (hang, check, capture, diff, report, save, tui, explain, demo):  # in the order of the help
    app.command()(_command)


def main(argv: list[str] | None = None) -> int:
    """Run a command and return its exit code; one sentence on stderr in place of a traceback."""
    try:
        app(argv)
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else Exit.NOTHING
    except ForensicsError as error:
        typer.echo(f"ncclforensics: {printable(str(error))}", err=True)
    except OSError as error:
        typer.echo(f"ncclforensics: {printable(str(error.filename or ''))} {error.strerror or error}", err=True)
    return Exit.USAGE


def run() -> None:
    """The console script."""
    # What it makes it needs to the end; looking for what has become garbage takes a twentieth of a short run.
    gc.disable()
    code = main()
    # Everything is written; to wind down the threads of Polars one by one would take another tenth of a second.
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            code = Exit.USAGE  # the reader of a pipe has gone
    os._exit(code)
