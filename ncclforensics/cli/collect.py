"""The command `collect`: the evidence of a job that is stuck on this host, in one folder."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from time import strftime
from typing import Annotated

import typer

from ncclforensics.data.names import count_of, printable


class Launcher(StrEnum):
    """Launchers for which there is a recipe."""

    SRUN = "srun"
    PDSH = "pdsh"
    KUBECTL = "kubectl"


def collect(
    pids: Annotated[
        list[int] | None, typer.Argument(metavar="[PID]...", help="The ranks; default: processes that have a rank.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="DIR", help="New or empty folder; default collect-TIME.")
    ] = None,
    limit: Annotated[float, typer.Option("--limit", min=5, metavar="SECONDS", help="Never run longer.")] = 120,
    print_recipe: Annotated[
        Launcher | None, typer.Option("--print", help="Print how to run this on all hosts, and exit.")
    ] = None,
) -> None:
    """Collect what a stuck job leaves on this host: stacks, RAS, kernel log, GPUs, counters, logs, recorder dumps.

    Nothing is changed: no process is ended, no counter cleared. Give the folder to `hang`.
    """
    from ncclforensics.capture import collect as collecting
    from ncclforensics.capture.collect_recipes import recipe

    folder = output or Path(strftime("collect-%Y%m%d-%H%M%S"))
    if print_recipe:
        typer.echo(recipe(print_recipe.value, str(folder), limit), nl=False)
        return
    collection = collecting.collect(folder, pids or [], limit)
    typer.echo(f"{count_of(len(collection.collected), 'file')} in {printable(str(folder))}")
    for what, reason in collection.missing.items():
        typer.echo(printable(f"missing  {what}: {reason}"), err=True)
    typer.echo(f"next: ncclforensics hang {printable(str(folder))}")
