"""What a file system does: pipes and sockets among logs, files that vanish or grow; an exit code for each failure."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ncclforensics import cli
from ncclforensics.frames.open_run import open_run
from ncclforensics.inputs.read_policy import ReadPolicy
from ncclforensics.inputs.sources import find
from ncclforensics.report.build import build_report
from tests.incidents import INCIDENTS

HUNG = INCIDENTS / "one-rank-stops-before-an-allreduce"
HEALTHY = INCIDENTS / "a-healthy-run"


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """A folder with the logs of a job in which rank 11 stops."""
    folder = tmp_path / "logs"
    shutil.copytree(HUNG, folder, ignore=shutil.ignore_patterns("*.json", "*.md"))
    return folder


def add_pipe(folder: Path) -> None:
    os.mkfifo(folder / "pipe.log")


def add_socket(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as unix:
        here = Path.cwd()
        os.chdir(folder)  # the address of a socket has at most 108 bytes
        unix.bind("socket.log")
        os.chdir(here)


def add_loops(folder: Path) -> None:
    (folder / "loop.log").symlink_to("loop.log")
    (folder / "up").symlink_to(folder, target_is_directory=True)
    (folder / "nowhere.log").symlink_to("/no/such/file")


def add_endless_device(folder: Path) -> None:
    (folder / "zero.log").symlink_to("/dev/zero")


def add_strange_names(folder: Path) -> None:
    for name in (b"\xff\xfe.log", b"a\nb.log", b"-rf.log", b"\x1b[31m.log", "\u202e.log".encode()):
        Path(os.fsdecode(os.fsencode(folder) + b"/" + name)).write_bytes(b"a line\n")


def add_nothing_but_space(folder: Path) -> None:
    with open(folder / "sparse.log", "wb") as file:
        file.truncate(200 << 20)


@pytest.mark.parametrize(
    "add",
    [add_pipe, add_socket, add_loops, add_endless_device, add_strange_names, add_nothing_but_space],
    ids=lambda add: add.__name__,
)
def test_what_is_no_log_costs_only_itself(
    add: Callable[[Path], None], logs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add(logs)

    assert cli.main(["hang", "--format", "json", str(logs)]) == cli.Exit.FINDINGS

    output = capsys.readouterr()
    assert json.loads(output.out)["hang"]["culprits"] == [11]
    assert not set("\x1b\u202e") & set(output.out + output.err)


@pytest.mark.parametrize("change", ["vanishes", "is emptied", "grows"])
def test_a_file_that_changes_after_it_was_found_costs_only_itself(change: str, logs: Path) -> None:
    sources = find([str(logs)])
    changed = next(source.file for source in sources if source.path.endswith("rank0.log"))
    if change == "vanishes":
        changed.unlink()
    elif change == "is emptied":
        changed.write_bytes(b"")
    else:
        changed.write_bytes(changed.read_bytes() * 3)

    run = open_run(sources, ReadPolicy())
    run.read_until_decided()

    report = build_report(run)
    assert report.defects == []
    assert 11 in report.numbers(report.verdicts[0].culprits)


# Command line, exit code, and what stands on stderr. {hung}, {healthy} and {tmp} are folders.
FAILURES: tuple[tuple[str, int, str], ...] = (
    ("hang {hung}", 1, ""),
    ("hang {hung} --fail-on never", 0, ""),
    ("hang {healthy}", 0, ""),
    ("check {healthy}", 0, ""),
    ("hang {hung} --format json", 1, ""),
    ("hang {hung} --format nonsense", 2, "nonsense"),
    ("hang {hung} --ranks x", 2, "--ranks x"),
    ("hang {hung} --ranks 0-99999999999", 2, "below 1,048,576"),
    ("hang {hung} --ranks 9-1", 2, "ascend"),
    ("hang {hung} --rank-from (", 2, "--rank-from ("),
    ("hang {hung} --rank-from x", 2, "needs a group"),
    ("hang {hung} --since yesterday", 2, "--since"),
    ("hang {hung} --until 25:61:00", 2, "--until"),
    ("hang {hung} --since-look {tmp}/none.ncclf", 2, "none.ncclf"),
    ("hang {hung} --since-look {hung}/nccl_rank0.log", 2, "nccl_rank0.log"),
    ("hang {hung} --fail-on sometimes", 2, "sometimes"),
    ("hang {hung} --no-such-option", 2, "no-such-option"),
    ("hang", 2, "PATH"),
    ("hang {tmp}/none", 2, "does not exist"),
    ("hang {tmp}/none/*.log", 2, "does not exist"),
    ("hang {tmp}/empty", 2, "no file"),
    ("hang {tmp}/zero.log", 3, ""),
    ("hang {tmp}/words.txt", 3, ""),
    ("check {tmp}/words.txt", 3, ""),
    ("hang {tmp}/binary.bin", 3, ""),
    ("hang {tmp}/cut.log.gz", 3, "cut.log.gz"),
    ("hang {tmp}/bad.ncclf", 2, "damaged saved run"),
    ("check {tmp}/bad.ncclf", 2, "damaged saved run"),
    ("hang {hung} {tmp}/bad.ncclf", 1, "damaged saved run"),
    ("hang {hung} {tmp}/none", 1, "does not exist"),
    ("hang {tmp}/pipe --fail-on nothing", 2, "nothing"),
    ("hang /dev/zero", 2, "neither a file nor a folder"),
    ("hang {hung} -o {tmp}/none/out.txt", 2, "No such file"),
    ("hang {hung} -o {tmp}/empty", 2, "Is a directory"),
    ("hang {tmp}/words.txt -o {tmp}/words.txt", 2, "is an input"),
    ("hang {hung} --redact-map {tmp}/words.txt", 2, "not a pseudonym map"),
    ("hang {hung} --redact-map {tmp}/none/map.json", 2, "No such file"),
    ("check {hung} --select no-such-rule", 2, "neither a rule nor a category"),
    ("check {hung} --ignore no-such-rule", 2, "neither a rule nor a category"),
    ("report {hung}", 2, "--output"),
    ("report {hung} -o {tmp}/out.pdf", 2, "unknown suffix"),
    ("report {hung} -o {tmp}/none/out.md", 2, "No such file"),
    ("report {hung} -o {tmp}/out.md --note {tmp}/none.md", 2, "none.md"),
    ("report {tmp}/none -o {tmp}/out.md", 2, "does not exist"),
    ("save {hung}", 2, "--output"),
    ("save {tmp}/none -o {tmp}/out.ncclf", 2, "does not exist"),
    ("save {hung} -o {tmp}/none/out.ncclf", 2, "No such file"),
    ("save {tmp}/words.txt -o {tmp}/words.txt", 2, "is an input"),
    ("diff {hung}", 2, "BAD"),
    ("diff {hung} {tmp}/none", 2, "does not exist"),
    ("diff {tmp}/none {hung}", 2, "does not exist"),
    ("diff {hung} {hung} --format nonsense", 2, "nonsense"),
    ("diff {tmp}/words.txt {tmp}/words.txt", 3, ""),
    ("explain no-such-rule", 2, "no-such-rule"),
    ("explain", 0, ""),
    ("tui {tmp}/none", 2, ""),
    ("capture --steps -1", 2, ""),
    ("capture --inject nonsense", 2, ""),
    ("collect -o {tmp}/empty --pid 99999999", 2, ""),
    ("no-such-command", 2, "no-such-command"),
    ("", 2, ""),
    ("--version", 0, ""),
    ("--help", 0, ""),
)  # fmt: skip


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("places")
    (folder / "empty").mkdir()
    (folder / "zero.log").write_bytes(b"")
    (folder / "words.txt").write_bytes(b"some words\n" * 10)
    (folder / "binary.bin").write_bytes(bytes(range(256)) * 20)
    data = gzip.compress(b"a line\n" * 1000)
    (folder / "cut.log.gz").write_bytes(data[: len(data) // 2])
    beginning = b"PK\x03\x04" + bytes(26) + b"mimetypeapplication/vnd.ncclforensics.run"
    (folder / "bad.ncclf").write_bytes(beginning + bytes(50))
    return {"tmp": folder, "hung": HUNG, "healthy": HEALTHY}


@pytest.mark.parametrize(("line", "code", "reported"), FAILURES, ids=[line for line, _, _ in FAILURES])
def test_each_way_to_fail_has_its_exit_code(
    line: str, code: int, reported: str, places: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [part.format(**places) for part in line.split()]

    ended = cli.main(arguments)

    output = capsys.readouterr()
    assert (ended, reported in output.err, "Traceback" in output.out + output.err) == (code, True, False), output.err


def test_a_pipe_may_end_before_the_report(tmp_path: Path) -> None:
    command = f"{sys.executable} -m ncclforensics hang {HUNG} --format json | head -c 10"

    ended = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60)

    assert "Traceback" not in ended.stderr
