"""What a rank printed last is cited where others lost it or wait for it, and nothing else says how it ended."""

from __future__ import annotations

from pathlib import Path

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
    said = "[rank2] saving to /ckpt\n[rank2] out of shards, leaving\n[rank0] step done\n"

    assert last_words(tmp_path, job=said + OTHERS) == ["[rank2] out of shards, leaving"]


def test_the_file_of_a_rank_ends_with_what_it_printed_last(tmp_path: Path) -> None:
    files = {"rank0": LOST.format(rank=0), "rank1": LOST.format(rank=1), "rank2": "loading\nout of shards, leaving\n\n"}

    assert last_words(tmp_path, **files) == ["out of shards, leaving"]


def test_a_rank_whose_file_goes_on_with_known_lines_printed_them_last(tmp_path: Path) -> None:
    known = "gpu-a012:77:77 [0] NCCL INFO Connected all rings\n" * 6
    files = {"rank0": LOST.format(rank=0), "rank1": LOST.format(rank=1), "rank2": "loading\n" + known}

    assert last_words(tmp_path, **files) == []


def test_a_rank_that_reported_its_end_has_said_enough(tmp_path: Path) -> None:
    assert last_words(tmp_path, job="[rank0] step done\n[rank1] step done\n" + OTHERS) == []
