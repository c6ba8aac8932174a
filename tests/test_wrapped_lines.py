"""Lines that were wrapped at a width are put together, and counted as the lines of the file that they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclforensics import analyze

INCIDENTS = Path(__file__).parent.parent / "fixtures/incidents"
HANG = INCIDENTS / "one-rank-stops-before-an-allreduce"


def _wrapped(folder: Path, width: int, *, once: bool = False, prefix: str = "", end: str = "\n") -> None:
    for log in HANG.glob("*.log"):
        out = []
        for line in log.read_text().splitlines():
            parts = [line[start : start + width] for start in range(0, max(len(line), 1), width)]
            parts = [line[:width], line[width:]] if once and len(line) > width else parts
            out += [prefix + part + end for part in parts]
        (folder / log.name).write_text("".join(out), newline="")


@pytest.mark.parametrize(
    ("width", "once", "prefix", "end"),
    [(80, False, "", "\n"), (100, False, "", "\r\n"), (140, True, "", "\n"), (72, False, "> ", "\n")],
)
def test_wrapped_lines_give_the_same_verdict(tmp_path: Path, width: int, once: bool, prefix: str, end: str) -> None:
    _wrapped(tmp_path, width, once=once, prefix=prefix, end=end)
    plain, wrapped = analyze([str(HANG)], everything=True), analyze([str(tmp_path)], everything=True)
    assert wrapped.verdicts[0]["verdict"] == plain.verdicts[0]["verdict"]
    assert wrapped.verdicts[0]["culprits"] == plain.verdicts[0]["culprits"]


def test_calls_of_equal_length_are_no_wrapped_lines(tmp_path: Path) -> None:
    for log in HANG.glob("*.log"):
        lines = log.read_text().splitlines()
        (tmp_path / log.name).write_text("".join(f"{line}\nstep 7: loss 1.93\n" for line in lines))
    plain, mixed = analyze([str(HANG)], everything=True), analyze([str(tmp_path)], everything=True)
    assert mixed.verdicts[0]["verdict"] == plain.verdicts[0]["verdict"]
    assert mixed.run["operation"].height == plain.run["operation"].height
