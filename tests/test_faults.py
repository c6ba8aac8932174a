"""Every call on a file may fail: the old file stays, no temporary file remains, and one message says what failed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.budget import IS_FULL
from tests.incidents import ROOT

SOURCE = ROOT / "tests" / "faults" / "fail_nth.c"
COMPILER = shutil.which("cc")
pytestmark = pytest.mark.skipif(COMPILER is None or sys.platform != "linux", reason="needs a C compiler and LD_PRELOAD")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("library") / "fail_nth.so"
    command = [str(COMPILER), "-shared", "-fPIC", "-Wall", "-Werror", "-o", str(path), str(SOURCE), "-ldl"]
    subprocess.run(command, check=True, timeout=60)
    return path


@pytest.mark.nightly
@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("command", "step"), [("stdin", "197"), ("save", "3607"), ("merge", "997"), ("history", "1321")]
)
def test_any_call_on_a_file_may_fail(command: str, step: str, library: Path) -> None:
    _try(library, "--only", command, "--step", step)


@pytest.mark.slow
@pytest.mark.skipif(not IS_FULL, reason="takes minutes")
def test_every_call_on_a_file_may_fail(library: Path) -> None:
    _try(library)


def _try(library: Path, *options: str) -> None:
    environment = {**os.environ, "LD_PRELOAD": str(library), "POLARS_MAX_THREADS": "1"}
    command = [sys.executable, "-m", "tests.faults", *options]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=1800)

    *wrong, total = [json.loads(line) for line in ended.stdout.splitlines()]
    assert (wrong, ended.returncode) == ([], 0), ended.stderr
    assert total["tried"] > 5
