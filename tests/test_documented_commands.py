"""Every command of the README and of situations.md runs on files such as it names; the tutorial has its own test."""

from __future__ import annotations

import glob
import io
import re
import shutil
import sys
import tarfile
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from shlex import split

import pytest

from ncclforensics import cli
from ncclforensics.simulate.generate import generate
from ncclforensics.simulate.plan import Fault, FaultKind, Plan
from tests.budget import drawn
from tests.incidents import INCIDENTS, ROOT

PAGES = ("README.md", "docs/situations.md")
# These wait for a job, a terminal or an agent, or start one: that their options exist is tested in test_docs.py.
NOT_RUN = ("tui", "mcp", "watch", "collect", "capture", "test-rules")
COMMAND = re.compile(r"^    (?:[^#\n]*[|;] *)?ncclforensics (?P<arguments>[a-z][^\n]*)$", re.MULTILINE)


def documented(page: str) -> list[list[str]]:
    """The arguments of the commands of a page, without comments and what follows in a pipe."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [split(found["arguments"], comments=True) for found in COMMAND.finditer(text)]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The files that the pages name, in the working directory."""
    monkeypatch.chdir(tmp_path)
    lagging = Fault(FaultKind.LAGGING, (1,))
    for folder, fault in (("logs", lagging), ("incidents", lagging), ("yesterday", None), ("today", lagging)):
        generate(Plan(nodes=1, gpus_per_node=2, tp=2, steps=1, fault=fault), Path(folder))
    lines = "".join(path.read_text() for path in sorted(Path("logs").iterdir()))
    for name in ("slurm-4711.out", "pasted.txt", "nccl.gpu-d000.1.log"):
        Path(name).write_text(lines)
    for path in sorted(Path("logs").iterdir()):
        shutil.copy(path, path.name)
    with tarfile.open("nccl_logs.tar.gz", "w:gz") as archive:
        archive.add("logs")
    (sweep,) = sorted((INCIDENTS / "a-healthy-benchmark").glob("*.log"))[:1]
    shutil.copy(sweep, "sweep.txt")
    for moment in ("before", "after"):
        shutil.copy(INCIDENTS / "a-cable-goes-bad-under-a-job" / f"fabric-{moment}.log", f"fabric-{moment}.txt")
    assert cli.main(["save", "logs", "-o", "node0.ncclf", "-q"]) == 0
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines.encode())))
    return


def test_the_commands_of_the_pages_run(files: None, capsys: pytest.CaptureFixture[str]) -> None:
    of_pages = [[tuple(command) for command in documented(page) if command[0] not in NOT_RUN] for page in PAGES]
    assert all(len(commands) > 10 for commands in of_pages)
    for command in drawn([*dict.fromkeys(chain.from_iterable(of_pages))], 9):
        if command[0] == "simulate":
            shutil.rmtree(command[command.index("-o") + 1], ignore_errors=True)
        local = [argument.removeprefix("/tmp/") for argument in command]
        arguments = [path for argument in local for path in (sorted(glob.glob(argument)) or [argument])]

        code = cli.main(arguments)

        assert code in (0, 1, 3), (command, capsys.readouterr().err)
    assert "wrong usage" not in capsys.readouterr().err
