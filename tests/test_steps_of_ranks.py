"""Ranks are compared by the last step that each printed, where nothing failed."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclforensics import analyze
from ncclforensics.views.text_times import steps_text

RULE = "app-rank-behind-in-steps"


def steps(last: int, every: int = 1, minute: int = 4) -> str:
    numbers = range(every, last + 1, every)
    return "".join(f"2026-03-02 11:{minute:02d}:{n % 60:02d},120 INFO train: step {n} loss 2.5\n" for n in numbers)


def ranks_behind(folder: Path, *texts: str) -> list[list[int]]:
    for rank, text in enumerate(texts):
        (folder / f"rank{rank}.log").write_text(text)
    return [list(found.ranks) for found in analyze([str(folder)]).findings if found.rule == RULE]


def test_a_rank_whose_output_ends_a_step_earlier_is_named(tmp_path: Path) -> None:
    assert ranks_behind(tmp_path, steps(50), steps(50), steps(49), steps(50)) == [[2]]


def test_ranks_at_one_step_are_not_behind(tmp_path: Path) -> None:
    assert ranks_behind(tmp_path, steps(50), steps(50), steps(50)) == []


def test_a_rank_that_prints_fewer_steps_is_behind_by_more_than_its_interval_only(tmp_path: Path) -> None:
    assert ranks_behind(tmp_path, steps(59), steps(59), steps(50, every=10)) == []


def test_half_of_the_ranks_are_not_behind(tmp_path: Path) -> None:
    assert ranks_behind(tmp_path, steps(50), steps(50), steps(49), steps(49)) == []


def test_a_file_of_an_earlier_run_is_not_behind(tmp_path: Path) -> None:
    assert ranks_behind(tmp_path, steps(50, minute=9), steps(50, minute=9), steps(40)) == []


def test_files_without_a_rank_may_be_of_several_runs(tmp_path: Path) -> None:
    for name, text in {"a.log": steps(50), "b.log": steps(50), "c.log": steps(40)}.items():
        (tmp_path / name).write_text(text)

    assert [found for found in analyze([str(tmp_path)]).findings if found.rule == RULE] == []


@pytest.mark.parametrize(("tag", "expected"), [("rank {task}: ", [[2]]), ("rank {node}: ", [])])
def test_a_label_of_a_launcher_is_no_rank_where_another_one_stands_behind_it(
    tag: str, expected: list[list[int]], tmp_path: Path
) -> None:
    """`srun -l` numbers its tasks: with torchrun as a task, a label is that of a node."""
    lines = [
        f"{task}: {tag.format(task=task, node=8 * task) if step == 1 else ''}step {step} loss 2.5\n"
        for step in range(1, 51)
        for task in range(4)
        if (task, step) != (2, 50)
    ]
    (tmp_path / "job.log").write_text("".join(lines))

    assert [list(found.ranks) for found in analyze([str(tmp_path)]).findings if found.rule == RULE] == expected


def test_a_failure_says_more_than_the_step_before_it(tmp_path: Path) -> None:
    failed = steps(49) + "ValueError: the sample has no label\n"

    assert ranks_behind(tmp_path, steps(50), steps(50), failed) == []


@pytest.mark.parametrize(("of_rank_1", "where"), [(50, "step 50 of ranks 0, 1 alike, "), (49, "step 50, ")])
def test_ranks_that_made_the_same_last_step_are_named_with_it(of_rank_1: int, where: str, tmp_path: Path) -> None:
    (tmp_path / "rank0.log").write_text(steps(50))
    (tmp_path / "rank1.log").write_text(steps(of_rank_1))

    assert steps_text(analyze(str(tmp_path))).startswith(f"Last training step that was read: {where}")
