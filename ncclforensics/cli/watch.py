"""The command `watch`: follow the logs of a running job, and print the verdict when it hangs."""

from __future__ import annotations

import gc
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Annotated

import typer

from ncclforensics.cli.configuration import configure, configured_paths
from ncclforensics.cli.option_groups import Printing, with_options
from ncclforensics.cli.options import Config, Quiet, RankFrom
from ncclforensics.cli.output import exit_code_of, write_report
from ncclforensics.data.installation import install_command
from ncclforensics.data.names import count_of, printable
from ncclforensics.data.paths import STDIN
from ncclforensics.errors import UsageError

if TYPE_CHECKING:
    from ncclforensics.report.build import Report

COLLECTING = 120.0  # seconds
RAS_LIMIT = 10.0  # seconds for an answer


@with_options
def watch(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH",
            default_factory=list,
            show_default=False,
            callback=configured_paths,
            help="Files, folders or quoted globs of one job; they may appear later. Without any, `paths` of "
            "ncclforensics.toml.",
        ),
    ],
    *,
    interval: Annotated[
        float, typer.Option("--interval", metavar="SECONDS", min=0.05, help="Time between two reads of the logs.")
    ] = 1.0,
    longest_pause: Annotated[
        float | None,
        typer.Option(
            "--longest-pause",
            metavar="SECONDS",
            min=0,
            help="No healthy pause is longer; learnt from the job without it.",
        ),
    ] = None,
    on_hang: Annotated[
        str | None,
        typer.Option("--on-hang", metavar="CMD", help="Run this in a shell, with the JSON report on its stdin."),
    ] = None,
    collect: Annotated[
        Path | None,
        typer.Option("--collect", metavar="DIR", help="On a hang, fill this folder as the command `collect` does."),
    ] = None,
    metrics: Annotated[
        int | None, typer.Option("--metrics", metavar="PORT", min=0, max=65535, help="Serve metrics to Prometheus.")
    ] = None,
    bind: Annotated[
        str, typer.Option("--bind", metavar="ADDRESS", help="Address to listen on, with --metrics.")
    ] = "127.0.0.1",
    printing: Printing,
    rank_from: RankFrom = None,
    config: Config = None,
    quiet: Quiet = False,
) -> None:
    """Follow the logs of a running job until it hangs or ends, then print the verdict and exit as `hang` does.

    How long the job may go without a call is learnt from its own pauses. Two looks must agree before ranks are named.
    """
    from ncclforensics.inputs.remote import is_remote
    from ncclforensics.inputs.sources import forget_spooled
    from ncclforensics.watch.followed_files import FollowedFiles
    from ncclforensics.watch.step_times import StepTimes
    from ncclforensics.watch.watch import Watch

    gc.enable()  # `run` disables it, for commands that end soon
    if not_followed := [path for path in paths if path == STDIN or is_remote(path)]:
        raise UsageError(f"{not_followed[0]}: watch follows files and folders only")
    if collect is not None and collect.exists() and (not collect.is_dir() or any(collect.iterdir())):
        raise UsageError(f"{collect}: is not an empty folder")

    def notify(text: str) -> None:
        if not quiet:
            typer.echo(printable(f"{time.strftime('%H:%M:%S')}  {text}"), err=True)

    settings = configure(config, quiet=quiet)
    job = Watch(
        FollowedFiles(paths),
        rank_from=rank_from,
        longest_pause=longest_pause,
        settings=settings,
        notify=notify,
        step_times=StepTimes(rank_from, settings),
    )
    with ExitStack() as stack:
        stack.callback(forget_spooled)
        reports = _RasReports()
        removal = stack.enter_context(ExitStack())
        removal.callback(reports.remove)
        job.ask_ras = reports.ask
        if metrics is not None:
            from ncclforensics.watch.metrics import serve

            try:
                stack.callback(serve(job, metrics, bind))
            except ModuleNotFoundError as missing:
                raise UsageError(
                    f"{missing.name} is not installed; `--metrics` needs it: {install_command('watch')}"
                ) from missing
        ending = job.step()
        files = len(job.files.names)
        notify(f"following {count_of(files, 'file')}" if files else "no file is there yet")
        while ending is None:
            time.sleep(interval)
            ending = job.step()
        report = ending.report
        write_report(report, printing)
        if ending.is_hang and reports.paths:
            removal.pop_all()  # the verdict may cite them
            notify(f"what RAS reported: {', '.join(reports.paths)}")
        if ending.is_hang and collect is not None:
            _collect(collect, notify)
        if ending.is_hang and on_hang is not None:
            _run(on_hang, report, notify)
    raise typer.Exit(exit_code_of(report, printing.fail_on))


@dataclass(slots=True)
class _RasReports:
    """What RAS, NCCL's own monitor, reported of a job on this host: a file for each time that it was asked."""

    folder: str = ""
    paths: list[str] = field(default_factory=list)

    def ask(self) -> str | None:
        """Ask the processes of this host; return the path of the report, or None where RAS does not answer."""
        from ncclforensics.capture.external_programs import run_program

        output, problem = run_program(("ncclras", "-v"), RAS_LIMIT)
        if problem:
            return None
        self.folder = self.folder or mkdtemp(prefix="ncclras-")
        report = Path(self.folder, f"ncclras.{len(self.paths) + 1}.txt")
        report.write_bytes(output)
        self.paths.append(str(report))
        return str(report)

    def remove(self) -> None:
        """Delete the reports."""
        if self.folder:
            rmtree(self.folder, ignore_errors=True)


def _collect(folder: Path, notify: Callable[[str], None]) -> None:
    """Collect evidence on this host, as the command `collect` does."""
    from ncclforensics.capture.collect import collect

    collection = collect(folder, [], COLLECTING)
    notify(f"{count_of(len(collection.collected), 'file')} in {folder}")
    for what, reason in collection.missing.items():
        notify(f"missing  {what}: {reason}")


def _run(command: str, report: Report, notify: Callable[[str], None]) -> None:
    """Run the user's command with the report on its stdin; what it prints goes to stderr, beside the report."""
    from ncclforensics.views import json_report

    ended = subprocess.run(command, shell=True, input=json_report.json(report), stdout=2, check=False)
    if ended.returncode:
        notify(f"--on-hang: {command} ended with exit code {ended.returncode}")
