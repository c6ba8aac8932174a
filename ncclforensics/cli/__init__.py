"""The command line: one module per command. Only this package prints, and only here exceptions become exit codes.

Importing the command modules imports neither polars nor lark nor rich, which keeps `--help` under 0.2 seconds.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import Annotated

import typer
from typer.core import TyperGroup

from ncclforensics import __version__
from ncclforensics.cli.defects import report_defects
from ncclforensics.cli.output import Exit
from ncclforensics.data.names import printable
from ncclforensics.errors import Defect, ForensicsError, GrammarError, Terminated

# Polars' allocator returns memory only under pressure by default; on a shared login node it should do so soon. At once
# would cost some of the time, for the next part of a log needs as much again.
JEMALLOC = "background_thread:true,narenas:2,dirty_decay_ms:200,muzzy_decay_ms:0"
JEMALLOC_OF_LIMITED = "background_thread:false,narenas:1,dirty_decay_ms:100,muzzy_decay_ms:0"
M_ARENA_MAX = -8  # of `mallopt`

SIGNALLED = 128  # plus the number of the signal is the exit code of a program that a signal ended
NO_THREAD = "can't start new thread"  # what Python says where the system has no memory, or no process, for one more
MOST_THREADS = 1024  # Polars tries to start any number

# In the order of the help; each is a function, or a group of commands, in the module of its name, with underscores for
# dashes.
COMMANDS = [
    "hang",
    "slow",
    "watch",
    "check",
    "collect",
    "capture",
    "diff",
    "report",
    "save",
    "merge",
    "history",
    "tui",
    "mcp",
    "simulate",
    "explain",
    "test-rules",
    "demo",
]


def _print_version(is_requested: bool) -> None:
    if is_requested:
        from ncclforensics.cli.extras import describe_extras

        typer.echo("\n".join([f"ncclforensics {__version__}", *describe_extras()]))
        raise typer.Exit


def _main(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Print the version and the extras, and exit.",
        ),
    ] = False,
) -> None:
    pass


class _Program(TyperGroup):
    """Lists the commands in the order of COMMANDS; typer would list groups last."""

    def list_commands(self, ctx: object) -> list[str]:
        return [name for name in COMMANDS if name in self.commands]


def app(argv: Sequence[str] = ()) -> typer.Typer:
    """The program with the command that the arguments begin with, or with all: importing all takes 40 ms."""
    program = typer.Typer(
        cls=_Program,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
        help="Find out from its logs and traces why an NCCL job hangs or is slow: which ranks are stuck, in which "
        "call, and which ranks caused it.",
        epilog="Exit codes: 0 no findings, 1 findings, 2 wrong usage or no readable input, 3 not decidable, "
        "4 the program itself failed, 130 interrupted.",
    )
    program.callback()(_main)
    for name in argv[:1] if argv and argv[0] in COMMANDS else COMMANDS:
        module = name.replace("-", "_")
        command = getattr(import_module(f"{__name__}.{module}"), module)
        description = command.info.help if isinstance(command, typer.Typer) else command.__doc__
        first_sentence = str(description).partition("\n")[0].partition(". ")[0].removesuffix(".")
        if isinstance(command, typer.Typer):
            program.add_typer(command, name=name, short_help=first_sentence)
        else:
            program.command(short_help=first_sentence)(command)  # typer would cut the docstring
    return program


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit code. Errors are printed to stderr as a sentence each, never a traceback."""
    arguments = sys.argv[1:] if argv is None else argv
    try:
        app(arguments)(arguments)
    except SystemExit as exit_request:
        return exit_request.code if isinstance(exit_request.code, int) else Exit.OK
    except Terminated as ended:
        return ended.code
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except GrammarError as error:
        report_defects([Defect.of("its grammars", error)])
        return Exit.DEFECT
    except ForensicsError as error:
        typer.echo(f"ncclforensics: {printable(str(error))}", err=True)
    except OSError as error:
        typer.echo(f"ncclforensics: {printable(str(error.filename or ''))} {error.strerror or error}", err=True)
    except MemoryError:
        typer.echo("ncclforensics: not enough memory", err=True)
        return Exit.DEFECT
    except BaseException as error:
        # Also what Polars raises where its own code fails, which is no `Exception`.
        if str(error) == NO_THREAD:
            typer.echo("ncclforensics: no thread can be started: see `ulimit -u` and `ulimit -v`", err=True)
            return Exit.DEFECT
        _report_failure(error)
        return Exit.DEFECT
    finally:
        _remove_temporary_files()
    return Exit.USAGE


def _report_failure(error: BaseException) -> None:
    try:
        report_defects([Defect.of(f"the command {' '.join(sys.argv[1:2])}", error)])
    except BaseException:  # where memory is full, the report on that fails as well
        typer.echo(f"ncclforensics: the program failed ({type(error).__name__}): is there enough memory?", err=True)


def _remove_temporary_files() -> None:
    """Delete the copies of pipes and of files in archives, if this command has read any inputs."""
    if (sources := sys.modules.get("ncclforensics.inputs.sources")) is not None:
        sources.forget_spooled()


def _end_by_signal(number: int, _: object) -> None:
    """End as after an error, so that temporary files are removed and the terminal is restored."""
    raise Terminated(SIGNALLED + number)


def _spare_addresses() -> None:
    """Where `ulimit -v` limits addresses, let no thread reserve a heap of its own, which takes 128 MB of them."""
    import ctypes

    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)


def _prepare_environment() -> None:
    """Set up allocators; let a closed stdout or stderr, and a number of threads that Polars refuses, do no harm."""
    is_limited = resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY
    if is_limited:
        _spare_addresses()
    # Polars reads this when it is loaded.
    os.environ.setdefault("_RJEM_MALLOC_CONF", JEMALLOC_OF_LIMITED if is_limited else JEMALLOC)
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")
    threads = os.environ.get("POLARS_MAX_THREADS", "1")
    if not (threads.isascii() and threads.isdecimal() and 0 < int(threads) <= MOST_THREADS):
        del os.environ["POLARS_MAX_THREADS"]


def run() -> None:
    """Run the console script and end the process."""
    _prepare_environment()
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # as under `nohup`
            signal.signal(number, _end_by_signal)
    # Nearly all objects live until the end; garbage collection would take a twentieth of a short run.
    gc.disable()
    code = main()
    # All output is written. Shutting down the threads of Polars would take another 0.1 s, so `os._exit` skips it.
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            code = code if code > SIGNALLED else Exit.USAGE  # the reader of a pipe has ended, or the terminal is closed
    os._exit(code)
