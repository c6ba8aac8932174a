"""Lines that lost their right end, as in a copy of a screen, are damaged: what they lack proves nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ncclforensics import analyze
from ncclforensics.views import json_report
from tests.incidents import INCIDENTS


def cut(incident: str, width: int, folder: Path, *, tagged: bool = False) -> dict[str, Any]:
    """The answer on an incident whose lines were cut, each log of its own, or all in one file with tags of ranks."""
    for rank, path in enumerate(sorted((INCIDENTS / incident).glob("*.log"))):
        tag = f"{rank:2}: " if tagged else ""
        lines = [f"{tag}{line}"[:width] + "\n" for line in path.read_text(encoding="utf-8").splitlines()]
        with (folder / ("job.out" if tagged else path.name)).open("a", encoding="utf-8") as file:
            file.writelines(lines)
    return json_report.as_object(analyze([str(folder)]))


@pytest.mark.parametrize("tagged", [False, True])
def test_lines_without_their_ends_show_no_call_and_the_report_says_so(tagged: bool, tmp_path: Path) -> None:
    answer = cut("one-rank-stops-before-an-allreduce", 140, tmp_path, tagged=tagged)

    assert sum(given["unrecognised"] for given in answer["inputs"]) == 0
    assert sum(given["damaged"] for given in answer["inputs"]) > 500
    assert answer["hang"]["verdict"] == "undecidable"
    assert "lines of NCCL are cut or torn" in answer["hang"]["reason"]


def test_where_only_some_calls_are_whole_nothing_is_more_than_possible(tmp_path: Path) -> None:
    hang = cut("one-rank-stops-before-an-allreduce", 180, tmp_path)["hang"]

    assert hang["verdict"] == "undecidable" or hang["certainty"] == "possible"
    assert set(hang["culprits"]) <= {11}


@pytest.mark.parametrize("name", ["a-healthy-run", "one-rank-stops-before-an-allreduce"])
def test_whole_lines_of_equal_length_are_not_cut(name: str, tmp_path: Path) -> None:
    answer = cut(name, 100_000, tmp_path)

    assert sum(given["damaged"] for given in answer["inputs"]) == 0


@pytest.mark.parametrize("is_torn", [False, True])
def test_a_torn_line_behind_the_last_call_of_another_rank_makes_it_no_culprit(is_torn: bool, tmp_path: Path) -> None:
    """A whole log shows that its rank did not make the call; the torn line may be that call."""
    for path in (INCIDENTS / "links-of-other-hosts-go-down").glob("nccl_rank*.log"):
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        if path.name == "nccl_rank1.log":
            line = lines.pop()
            place = line.index("NCCL INFO") + len("NCCL INFO AllR")
            lines += [line[:place] + "epoch 3: loss 1.93\n", line[place:]] if is_torn else []
        (tmp_path / path.name).write_text("".join(lines), encoding="utf-8")
    hang = json_report.as_object(analyze([str(tmp_path)]))["hang"]

    assert hang["verdict"] == "lagging-ranks"
    assert hang["culprits"] == ([3] if is_torn else [1, 3])
