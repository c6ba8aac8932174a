"""Put what a first start would compute into the wheel: hatchling runs this hook when it builds one."""

from __future__ import annotations

import os
import subprocess
import sys
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PRECOMPILE = [sys.executable, "-m", "ncclforensics.extensions.precompile"]


class PrecompileHook(BuildHookInterface):
    """Compile the grammars into a folder that the wheel takes in beside the modules."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Fill the folder, except for an editable installation: there grammars change."""
        if version == "editable":
            return
        self._folder = TemporaryDirectory()
        environment = {**os.environ, "PYTHONPATH": self.root}
        subprocess.run([*PRECOMPILE, self._folder.name], cwd=self.root, env=environment, check=True)
        build_data["force_include"][self._folder.name] = "ncclforensics/compiled"
