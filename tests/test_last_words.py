"""What a rank printed last is cited where others lost it or wait for it, and nothing else says how it ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclforensics import analyze
from ncclforensics.analyses.verdict.answer import LAST_WORDS
from ncclforensics.inputs.lines import SHOWN

LOST = """\
[rank{rank}]: Traceback (most recent call last):
[rank{rank}]:   File "/srv/job/train.py", line 41, in main
[rank{rank}]:     dist.all_reduce(loss)
[rank{rank}]:   File "/venv/torch/distributed/distributed_c10d.py", line 3252, in all_reduce
[rank{rank}]:     work.wait()
[rank{rank}]: RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer \
[10.0.0.7]:7580.
"""
OTHERS = LOST.format(rank=0) + LOST.format(rank=1)


def last_words(folder: Path, **files: str) -> list[str]:
    for name, text in files.items():
        (folder / f"{name}.log").write_text(text)
    report = analyze(str(folder))
    cited = [line for job in report.verdicts for line in job.evidence_lines if line.what == LAST_WORDS]
    return [text[:SHOWN] for _, text in report.run.quote((line.source, line.line) for line in cited).values()]


def test_the_tag_of_a_rank_shows_what_it_printed_last(tmp_path: Path) -> None:
    output = "[rank2] saving to /ckpt\n[rank2] out of shards, leaving\n[rank0] step done\n"

    assert last_words(tmp_path, job=output + OTHERS) == ["[rank2] out of shards, leaving"]


def test_a_step_in_any_words_is_what_a_rank_printed_last(tmp_path: Path) -> None:
    step = "2026-11-22 09:12:10,120 [rank{}] INFO train: epoch 0 | step {}/30 | loss 0.02\n"
    output = "".join(step.format(rank, number) for number in range(4) for rank in range(3))

    assert last_words(tmp_path, job=output + OTHERS) == [step.format(2, 3).rstrip()]


def test_the_file_of_a_rank_ends_with_what_it_printed_last(tmp_path: Path) -> None:
    files = {"rank0": LOST.format(rank=0), "rank1": LOST.format(rank=1), "rank2": "loading\nout of shards, leaving\n\n"}

    assert last_words(tmp_path, **files) == ["out of shards, leaving"]


def test_a_rank_whose_file_goes_on_with_known_lines_printed_them_last(tmp_path: Path) -> None:
    known = "gpu-a012:77:77 [0] NCCL INFO Connected all rings\n" * 6
    files = {"rank0": LOST.format(rank=0), "rank1": LOST.format(rank=1), "rank2": "loading\n" + known}

    assert last_words(tmp_path, **files) == []


@pytest.mark.parametrize(
    ("labels", "expected"),
    [((0, 1, 2), ["out of shards, leaving"]), ((0, 0, 2), [])],
    ids=["of-ranks", "of-nodes"],
)
def test_a_launcher_s_label_is_a_rank_where_pytorch_prints_the_same(
    labels: tuple[int, int, int], expected: list[str], tmp_path: Path
) -> None:
    """`srun -l` numbers its tasks: with torchrun as a task, a label is that of a node."""
    lost = [f"{label}: {line}" for rank, label in enumerate(labels[:2]) for line in LOST.format(rank=rank).splitlines()]
    lines = [f"{labels[2]}: out of shards, leaving", *lost]

    cited = last_words(tmp_path, job="\n".join([*lines, ""]))

    assert [line.partition(": ")[2] for line in cited] == expected


@pytest.mark.parametrize(("label", "expected"), [("", ["out of shards, leaving"]), ("1: ", [])])
def test_a_label_is_a_rank_where_torchrun_has_none(label: str, expected: list[str], tmp_path: Path) -> None:
    """What starts the ranks stands outside of their labels, and inside of those of nodes."""
    lines = ["2: out of shards, leaving", *LOST.format(rank=0).splitlines(), *LOST.format(rank=1).splitlines()]
    agent = f"{label}failed (exitcode: 1) local_rank: 0 (pid: 41887) of binary: /usr/bin/python3"
    others = [f"{rank}: step {step} loss 2.5" for step in range(1, 40) for rank in range(3)]

    cited = last_words(tmp_path, job="\n".join([*others, *lines, agent, ""]))

    assert [line.partition(": ")[2] for line in cited] == expected


def test_a_rank_that_reported_its_end_has_said_enough(tmp_path: Path) -> None:
    assert last_words(tmp_path, job="[rank0] step done\n[rank1] step done\n" + OTHERS) == []


@pytest.mark.parametrize(("first", "silent"), [(0, 1), (4, 5)])
def test_the_folders_of_torchrun_are_of_ranks_where_a_line_names_one(first: int, silent: int, tmp_path: Path) -> None:
    """Torchrun numbers the folders on each node, so that a tag shows which node they are of."""
    for local, text in enumerate((LOST.format(rank=first), "loading shard 31\n", LOST.format(rank=first + 2))):
        folder = tmp_path / "run_x1y2" / "attempt_0" / str(local)
        folder.mkdir(parents=True)
        (folder / "stdout.log").write_text(text)

    hints = analyze(str(tmp_path)).run["source"].sort("path")["hint"].to_list()

    assert hints == [first, silent, first + 2]


def test_the_folders_of_torchrun_are_of_no_rank_where_no_line_names_one(tmp_path: Path) -> None:
    folder = tmp_path / "run_x1y2" / "attempt_0" / "2"
    folder.mkdir(parents=True)
    (folder / "stdout.log").write_text("loading shard 31\n")

    assert analyze(str(tmp_path)).run["source"]["hint"].to_list() == [None]


@pytest.mark.parametrize(
    ("name", "order", "expected"),
    [
        ("logs/none_x1y2/attempt_0/{}/stderr.log", (0, 1, 2), ["out of shards, leaving"]),
        ("logs/none_x1y2/attempt_0/{}/stderr.log", (2, 0, 1), ["out of shards, leaving"]),
        ("rank{}.log", (0, 1, 2), ["out of shards, leaving"]),
        ("worker{}.log", (0, 1, 2), []),
    ],
)
def test_the_ends_of_several_files_in_one_text_are_told_apart(
    name: str, order: tuple[int, ...], expected: list[str], tmp_path: Path
) -> None:
    """As `tail` and `head` print them: a heading, and an empty line above the next one."""
    ends = [LOST.format(rank=0), LOST.format(rank=1), "loading\nout of shards, leaving\n"]
    text = "\n".join(f"==> {name.format(number)} <==\n{ends[number]}" for number in order)

    assert last_words(tmp_path, job=text) == expected


@pytest.mark.parametrize(("before", "expected"), [("[rank2] saving\n", ["[rank2] saving"]), ("", [])])
def test_what_stands_behind_the_report_of_an_end_is_of_another_launch(
    before: str, expected: list[str], tmp_path: Path
) -> None:
    table = """\
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
Root Cause (first observed failure):
[0]:
  time      : 2026-11-30_06:23:09
  host      : node-a
  rank      : 2 (local_rank: 2)
  exitcode  : -9 (pid: 4902)
"""
    behind = "" if before else "[rank2] begins\n"

    assert last_words(tmp_path, job=before + OTHERS + table + behind) == expected
