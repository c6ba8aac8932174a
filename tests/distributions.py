"""Build what people install."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

BUILD: list[str | Path] = [sys.executable, "-m", "build", "--no-isolation", "--outdir"]


def tried(command: list[str | Path], folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command in an environment without Python's variables."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")} | variables
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
