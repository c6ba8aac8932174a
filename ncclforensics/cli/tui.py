"""The command `tui`: interactive screens, on this terminal or in a browser."""

from __future__ import annotations

import gc
import os
from typing import Annotated

import typer

from ncclforensics.cli.configuration import configure
from ncclforensics.cli.options import Config, NoColor, Paths, RankFrom, Redact, RedactMap
from ncclforensics.data.installation import install_command
from ncclforensics.errors import UsageError


def tui(
    paths: Paths,
    serve: Annotated[
        bool, typer.Option("--serve", help="Serve the screens to browsers that have the token in the printed address.")
    ] = False,
    bind: Annotated[
        str, typer.Option("--bind", metavar="ADDRESS", help="Address to listen on, with --serve.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", metavar="NUMBER", help="Port to listen on, with --serve.")] = 8000,
    rank_from: RankFrom = None,
    redact: Redact = False,
    redact_map: RedactMap = None,
    config: Config = None,
    no_color: NoColor = False,
) -> None:
    """Browse a run interactively: verdict, ranks, calls, waiting ranks, connections, benchmarks and logs."""
    gc.enable()
    if no_color:
        os.environ["NO_COLOR"] = "1"  # Textual reads this variable
    try:
        if serve:
            from ncclforensics.tui import web

            if bind not in web.LOOPBACK:
                typer.echo(f"{bind}: {web.EXPOSED}", err=True)
            options = [f"--rank-from={rank_from}"] if rank_from is not None else []
            options += [f"--redact-map={redact_map}"] if redact_map else ["--redact"] if redact else []
            options += [f"--config={config}"] if config else []
            web.serve(paths, bind, port, options=[*options, *["--no-color"] * no_color])
        else:
            from ncclforensics.tui import terminal

            is_redacted = redact or redact_map is not None
            settings = configure(config)
            code = terminal.show(
                paths, rank_from=rank_from, settings=settings, redact=is_redacted, redact_map=redact_map
            )
            raise typer.Exit(code)
    except ModuleNotFoundError as missing:
        library = str(missing.name).partition(".")[0]
        raise UsageError(f"{library} is not installed; `tui` needs it: {install_command('tui')}") from missing
