"""The command `mcp`: answers for agents over the Model Context Protocol."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ncclforensics.cli.configuration import configure
from ncclforensics.cli.options import Config
from ncclforensics.data.installation import install_command
from ncclforensics.errors import UsageError


def mcp(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="FOLDER", help="Folders with logs; nothing outside of them is read."),
    ],
    config: Config = None,
) -> None:
    """Answer agents over the Model Context Protocol on stdin and stdout. Reads only, and only below the folders."""
    for folder in folders:
        if not folder.is_dir():
            raise UsageError(f"{folder} is not a folder")
    try:
        from ncclforensics.mcp.server import server
    except ModuleNotFoundError as missing:
        raise UsageError(f"{missing.name} is not installed; run {install_command('mcp')}") from missing
    server(folders, configure(config)).run("stdio")
