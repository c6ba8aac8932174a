"""Reading logs needs no network: every connection and every look-up of a name is refused, and none is tried.

The calls are refused in the C library, so that those of Polars and of other compiled libraries are seen, too.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.incidents import INCIDENTS, ROOT

SOURCE = ROOT / "tests" / "faults" / "refuse_network.c"
COMPILER = shutil.which("cc")
pytestmark = pytest.mark.skipif(COMPILER is None or sys.platform != "linux", reason="needs a C compiler and LD_PRELOAD")
HUNG = str(INCIDENTS / "one-rank-stops-before-an-allreduce")
HEALTHY = str(INCIDENTS / "a-healthy-run")
BENCHMARK = str(INCIDENTS / "a-benchmark-gets-wrong-results")
COMMANDS = [
    ["demo"],
    ["hang", HUNG, "-q"],
    ["check", HUNG, BENCHMARK, "-q", "--format", "json"],
    ["check", HUNG, "-q", "--redact"],
    ["diff", HEALTHY, HUNG, "-q"],
    ["report", HUNG, "-q", "-o", "incident.html"],
    ["save", HUNG, "-q", "-o", "run.ncclf"],
    ["hang", "run.ncclf", "-q"],
    ["simulate", "-o", "job"],
    ["explain", "coll-lagging-ranks"],
    ["--version"],
]
RUN = """
import json, sys
from ncclforensics.cli import main
print([int(main(command)) for command in json.loads(sys.argv[1])], file=sys.stderr)
"""
CONNECTED = "import socket; socket.socket().connect(('127.0.0.1', 9))"
LOOKED_UP = "import socket; socket.getaddrinfo('localhost', 9)"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("library") / "refuse_network.so"
    command = [str(COMPILER), "-shared", "-fPIC", "-Wall", "-Werror", "-o", str(path), str(SOURCE), "-ldl"]
    subprocess.run(command, check=True, timeout=60)
    return path


def without_network(library: Path, folder: Path, *arguments: str) -> tuple[str, list[str]]:
    """The last line of stderr of a Python without a network, and the calls that it tried."""
    calls = folder / "network-calls"
    environment = {**os.environ, "LD_PRELOAD": str(library), "NETWORK_CALLS": str(calls), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-P", "-c", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, timeout=300)
    return ended.stderr.strip().rpartition("\n")[2], calls.read_text().splitlines() if calls.exists() else []


@pytest.mark.nightly
def test_no_command_on_logs_connects_or_looks_up_a_name(library: Path, tmp_path: Path) -> None:
    pytest.importorskip("vl_convert", reason="the extra `report` is not installed")

    codes, calls = without_network(library, tmp_path, RUN, json.dumps(COMMANDS))

    assert calls == []
    assert json.loads(codes) == [1, 1, 1, 1, 1, 0, 0, 1, 0, 0, 0]


@pytest.mark.parametrize(("code", "call"), [(CONNECTED, "connect"), (LOOKED_UP, "getaddrinfo")])
def test_a_connection_would_be_seen(code: str, call: str, library: Path, tmp_path: Path) -> None:
    last_line, calls = without_network(library, tmp_path, code)

    assert calls == [call]
    assert "rror" in last_line
