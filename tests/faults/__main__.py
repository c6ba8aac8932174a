"""Let every call fail that a command makes on its files, one at a time.

Run as `LD_PRELOAD=fail_nth.so python -m tests.faults`. For each command and each n, the n-th open, read, write, fsync,
close or rename of a file fails, or transfers fewer bytes, until a run makes fewer than n such calls. Prints a line of
JSON for each answer that must not be.
"""

from __future__ import annotations

import argparse
import ctypes
import errno
import io
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from ncclforensics import cli
from ncclforensics.capture import collect
from ncclforensics.inputs import file_state
from tests.incidents import INCIDENTS

SHORTER = -1  # in place of an error: fewer bytes than asked for
HARMLESS = (errno.EINTR, SHORTER)  # the call is repeated, or continued
ERRORS = {
    "in": (errno.EIO, errno.EACCES, *HARMLESS),
    "out": (errno.ENOSPC, errno.EIO, errno.EACCES, *HARMLESS),
    "tmp": (errno.ENOSPC, *HARMLESS),
}
OLD = b"the old file"
HISTORY = ".db"  # a file that runs are added to
INCIDENT = INCIDENTS / "one-rank-stops-before-an-allreduce"
LOGS = ("nccl_rank0.log", "nccl_rank11.log")
OTHER_LOG = "nccl_rank1.log"
# The command line, with the folders that it reads and writes.
COMMANDS = {
    "hang": "hang {in}/logs -o {out}/answer.txt",
    "redact": "hang {in}/logs --redact-map {out}/map.json -o {out}/answer.json",
    "check": "check {in}/logs --format json -o {out}/answer.json",
    "report": "report {in}/logs -o {out}/answer.html",
    "save": "save {in}/logs -o {out}/answer.ncclf",
    "saved": "hang {in}/run.ncclf -o {out}/answer.txt",
    "stdin": "hang - -o {out}/answer.txt",
    "merge": "merge {out}/answer.ncclf {in}/run.ncclf {in}/other.ncclf",
    "history": "history add {in}/logs --db {out}/runs.db",
    "diff": "diff {in}/run.ncclf {in}/logs -o {out}/answer.txt",
    "simulate": "simulate -o {out}/job --nodes 1 --steps 0",
    "collect": "collect -o {out}/incident --limit 5",
}
ANSWERED = (cli.Exit.OK, cli.Exit.FINDINGS, cli.Exit.UNDECIDABLE)


@dataclass(slots=True)
class Ended:
    """A run of a command, and how many calls it made on files."""

    code: int
    errors: str
    calls: int
    failed: str  # the call and its path; empty if none failed
    written: bytes  # what its output file holds


class Command:
    """A command, and the folders of what it reads, what it writes, and of its temporary files."""

    def __init__(self, root: Path, line: str) -> None:
        self.root = root
        folders = {name: str(root / name) for name in ERRORS}
        self.arguments = [part.format(**folders) for part in line.split()]
        self.output = Path([part for part in self.arguments if part.startswith(folders["out"])][-1])
        self.is_history = self.output.suffix == HISTORY
        self.replaces = "-o" in self.arguments and self.output.suffix != ""

    def run(self, library: ctypes.CDLL, below: str, number: int, error: int) -> Ended:
        """Run it; its n-th call on the files below a folder fails."""
        for name in ("out", "tmp"):
            shutil.rmtree(self.root / name, ignore_errors=True)
            (self.root / name).mkdir()
        if self.replaces:
            self.output.write_bytes(OLD)
        errors, before = io.StringIO(), sys.stdin
        with (
            redirect_stdout(io.TextIOWrapper(io.BytesIO())),
            redirect_stderr(errors),
            open(self.root / "in" / "logs" / LOGS[1], encoding="utf-8") as sys.stdin,
        ):
            library.fail_arm(os.fsencode(self.root / below), number, error)
            try:
                code = cli.main(self.arguments)
            finally:
                calls = library.fail_disarm()
                stdin, sys.stdin = sys.stdin, before
                stdin.close()
        written = self.output.read_bytes() if self.output.is_file() and not self.is_history else b""
        return Ended(code, errors.getvalue(), calls, library.fail_place().decode(), written)

    def faults(self, ended: Ended, good: Ended, error: int) -> Iterator[str]:
        """What is wrong with how it ended."""
        if "Traceback" in ended.errors or ended.code == cli.Exit.DEFECT:
            yield "the program failed"
        left = [*self.root.glob("tmp/*"), *self.root.glob("out/**/.*")]
        if left:
            yield f"temporary files are left: {[path.name for path in left]}"
        if error in HARMLESS:
            if (ended.code, ended.errors) != (good.code, good.errors):
                yield "a call that was interrupted or shorter changes the answer"
        elif ended.code not in ANSWERED and len(ended.errors.splitlines()) != 1:
            yield "not one message"
        elif ended.errors == good.errors and ended.written != good.written:
            yield "another answer without a message"
        if self.is_history:
            with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as errors:
                code = cli.main(self.arguments)
            if code != cli.Exit.OK:
                yield f"the next run cannot add to the file: {errors.getvalue()}"
        if self.replaces and (ended.written == OLD) == (ended.code in ANSWERED):
            yield "the old file is still there" if ended.written == OLD else "the old file is gone"
        is_new_file = not self.replaces and not self.is_history and self.output.suffix != ""
        if is_new_file and self.output.is_file() != (ended.code in ANSWERED):
            yield "a file without an answer, or an answer without a file"


def all_faults(library: ctypes.CDLL, name: str, root: Path, step: int) -> Iterator[dict[str, object]]:
    """Let each call of a command fail in turn; yields what was tried, with a fault or an empty text."""
    command = Command(root, COMMANDS[name])
    for below, errors in ERRORS.items():
        good = command.run(library, below, 0, 0)
        for error in errors:
            number = 1
            while (ended := command.run(library, below, number, error)).failed:
                what = "fewer bytes" if error == SHORTER else errno.errorcode[error]
                tried = {"command": name, "call": number, "failed": ended.failed, "with": what}
                faults = [*command.faults(ended, good, error)]
                yield tried | {"faults": faults, "code": ended.code, "errors": ended.errors}
                number += step


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=list(COMMANDS), help="names of commands")
    parser.add_argument("--step", type=int, default=1, help="let only every n-th call fail")
    given = parser.parse_args()
    library = ctypes.CDLL(os.environ["LD_PRELOAD"])
    library.fail_place.restype = ctypes.c_char_p
    collect.BETWEEN_LOOKS = 0.0
    began = time.time()
    file_state.time = lambda: began  # a saved run holds when its files were looked at
    tried = wrong = 0
    with tempfile.TemporaryDirectory(prefix="ncclforensics-faults-") as folder:
        root = Path(folder)
        (root / "in" / "logs").mkdir(parents=True)
        for log in LOGS:
            shutil.copy(INCIDENT / log, root / "in" / "logs")
        cli.main(["save", str(root / "in" / "logs"), "-o", str(root / "in" / "run.ncclf")])
        cli.main(["save", str(INCIDENT / OTHER_LOG), "-o", str(root / "in" / "other.ncclf")])
        tempfile.tempdir = str(root / "tmp")
        for name in given.only:
            for result in all_faults(library, name, root, given.step):
                tried += 1
                if result["faults"]:
                    wrong += 1
                    sys.stdout.write(json.dumps(result) + "\n")
                    sys.stdout.flush()
        tempfile.tempdir = None
    sys.stdout.write(json.dumps({"tried": tried, "wrong": wrong}) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
