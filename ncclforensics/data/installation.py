"""How an extra is added to this installation of the program."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

# Files that installers leave in the environments they make.
OF_PIPX = "pipx_metadata.json"
OF_UV_TOOL = "uv-receipt.toml"
OF_ENVIRONMENT = "pyvenv.cfg"
MADE_BY_UV = "\nuv = "


def install_command(extra: str, prefix: Path | None = None) -> str:
    """Return the command that adds an extra: of pipx, uv or pip, whichever made the environment at `prefix`."""
    place = prefix or Path(sys.prefix)
    package = f"'ncclforensics[{extra}]'"
    if (place / OF_PIPX).exists():
        return f"pipx inject ncclforensics {package}"
    if (place / OF_UV_TOOL).exists():
        return f"uv tool install {package}"
    try:
        settings = (place / OF_ENVIRONMENT).read_text(encoding="utf-8")
    except OSError:
        settings = ""
    if MADE_BY_UV in settings:  # has no pip
        return f"uv pip install --python {shlex.quote(str(place))} {package}"
    return f"pip install {package}"
