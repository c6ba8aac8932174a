"""What launchers put in front of a line is split off, and tells who is who; nothing else is taken for it."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import ncclforensics.analyses  # noqa: F401  # registers the analyses
from ncclforensics import analyze
from ncclforensics.formats import nccl
from ncclforensics.frames.open_run import open_run
from ncclforensics.inputs import lines
from ncclforensics.inputs.read_policy import ReadPolicy
from ncclforensics.inputs.sources import find
from ncclforensics.parsing.launcher_prefixes import detect_prefixes, may_have_prefixes, strip_prefixes
from tests.incidents import INCIDENTS

LANGUAGE = nccl.dialect()
LINES = [
    "gpu-a012:77:77 [0] NCCL INFO cudaDriverVersion 12040",
    "step 7: loss 0.25",
    "gpu-a012:77:177 [0] NCCL INFO Connected all rings",
]


def texts(decorated: list[str]) -> list[str]:
    rows = lines.block("\n".join([*decorated, ""]).encode(), 1)
    return strip_prefixes(rows, LANGUAGE, detect_prefixes(rows, LANGUAGE))["text"].to_list()


@pytest.mark.parametrize(
    "front",
    [
        "[1,3]<stdout>:",
        "[1,3]<stderr>: ",
        "Thu Nov 20 10:11:12 2025[1,3]<stdout>:",
        "[prterun-n1-4711@1,3][n1:77]<stdout>: ",
        "  3: ",
        "[3] ",
        "gpu-a012: ",
        "[default3]:",
        "(Worker pid=77) ",
        "(Worker pid=77, ip=10.0.0.1) ",
        "2025-11-20T10:11:12.123456789Z ",
        "2025-11-20T10:11:12.123456789Z stdout F ",
        "[pod/train-3/pytorch] ",
        "Nov 20 10:11:12 n1 train.service[77]: ",
        "> ",
        ">> ",
        "train-1  | ",
        "2025-11-20T10:11:12.123456789Z [1,3]<stdout>:",
        "n1: [1,3]<stdout>:",
        "265.0s 158 ",
    ],
)
def test_a_launcher_prefix_is_removed_from_every_line(front: str) -> None:
    assert texts([front + line for line in LINES]) == LINES


@pytest.mark.parametrize(
    "plain",
    [
        ["INFO: starting", "INFO: ready", LINES[0]],
        ["1: first", "2: second", "see below", LINES[0], LINES[2]],
        ["[0] epoch", *LINES],
        ["[rank3]: Traceback (most recent call last):", "[rank3]: ValueError: 3"],
        ["[2026-03-02 11:04:57] " + LINES[0], "[2026-03-02 11:04:58] " + LINES[2]],
    ],
)
def test_text_that_resembles_a_launcher_prefix_stays(plain: list[str]) -> None:
    assert texts(plain) == plain


def test_prefixes_are_looked_for_only_in_inputs_that_show_one() -> None:
    logs = [["epoch 0 loss 0.0", "done"], ["[1,3]<stdout>:epoch 0"], LINES, [f"<algo-1> {line}" for line in LINES]]
    rows = [lines.block("\n".join([*log, ""]).encode(), 1, source) for source, log in enumerate(logs)]

    assert may_have_prefixes(pl.concat(rows), LANGUAGE) == [1, 3]
    assert [bool(detect_prefixes(log, LANGUAGE)) for log in rows] == [False, True, False, True]


def test_records_of_a_program_and_lines_of_its_workers_have_a_prefix_where_nccl_has_none() -> None:
    message = "Error executing method init_device. This might cause deadlock in distributed execution."
    record = f"ERROR 03-02 11:04:57 worker_base.py:581] {message}"

    assert texts([LINES[0], record, f"(Worker pid=77, ip=10.0.0.1) {record}", "step 7: loss 0.25"]) == [
        LINES[0],
        message,
        message,
        "step 7: loss 0.25",
    ]


def test_a_line_with_only_a_launcher_prefix_is_empty() -> None:
    assert texts(["[1,0]<stdout>:" + LINES[0], "[1,0]<stdout>:", "[1,0]<stdout>: "]) == [LINES[0], "", ""]


def test_the_launcher_prefix_gives_the_rank_where_nccl_does_not(tmp_path: Path) -> None:
    """The log of a run whose beginning is lost: calls on a communicator that nobody names."""
    call = (
        "{host}:{pid}:{pid} [0] NCCL INFO AllReduce: opCount {n} sendbuff 0x7f recvbuff 0x7f count 8 datatype 7 op 0 "
        "root 0 comm 0x5{pid} [nranks=2] stream 0x55"
    )
    both = [
        f"[1,{rank}]<stdout>:" + call.format(host=f"n{rank}", pid=10 + rank, n=n)
        for n in range(3)
        for rank in (1, 0)
        if (rank, n) != (1, 2)
    ]
    (tmp_path / "job.log").write_text("\n".join([*both, ""]))

    run = open_run(find([str(tmp_path)]), ReadPolicy(full=True))

    assert dict(run["process"].select("host", "hint").iter_rows()) == {"n0": 0, "n1": 1}
    assert run["operation"]["launcher_rank"].to_list() == [1, 0, 1, 0, 0]


def test_evidence_is_quoted_with_its_launcher_prefix(tmp_path: Path) -> None:
    twice = "Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 9d000"
    warning = f"[1,0]<stdout>:n0:10:11 [0] init.cc:795 NCCL WARN {twice}"
    (tmp_path / "job.log").write_text("\n".join([*(f"[1,0]<stdout>:{line}" for line in LINES), warning, ""]))

    report = analyze([str(tmp_path / "job.log")])

    assert [line["text"] for finding in report.findings for line in report.evidence(finding)].count(warning) >= 1


@pytest.mark.parametrize(
    "time", ["2026-11-22T10:00:0%d.123Z", "2026-11-22T10:00:0%d.123456789+00:00", "2026/11/22 10:00:0%d"]
)
def test_a_time_that_a_collector_glued_to_the_host_is_no_part_of_its_name(time: str, tmp_path: Path) -> None:
    line = "gpu-a012:41887:42107 [3] NCCL INFO Bootstrap: Using eth0:10.0.0.1<0>\n"
    log = tmp_path / "export.log"
    log.write_text("".join(time % second + line for second in range(6)))
    assert set(analyze([str(log)]).run["process"]["host"].to_list()) == {"gpu-a012"}


@pytest.mark.parametrize(
    "tagged",
    [
        "[rank3] loading",
        "rank 3: loading",
        "2026-03-02 11:04:57,123 - INFO - Rank 3: loading",
        "[rank3]: loading",
        "[Rank 3] loading",
        "[rank: 3] loading",
        "2026-03-02 11:04:57,123 [rank3] INFO train: loading",
        "2026-03-02 11:04:57,123 INFO [rank3] loading",
        "2026-03-02 11:04:57,123: rank3[4711][MainThread]: INFO: composer: loading",
        "[03/02/2026-11:04:57] [TRT-LLM] [RANK 3] [I] loading",
        "[2026-03-02 11:04:57,123] [INFO] [engine.py:96:log_dist] [Rank 3] loading",
        "[1,3]<stdout>:loading",
    ],
)
def test_a_tag_shows_which_rank_printed_last(tmp_path: Path, tagged: str) -> None:
    (tmp_path / "job.log").write_text("\n".join(["begin", "", tagged, tagged, "done with rank 5", ""]))

    assert _last_of_ranks(tmp_path) == [(4, 3), (5, None)]


@pytest.mark.parametrize("text", ["rank 3 has 8 GPUs", "ranks [3] are absent", "[rankings] 3", "see [rank 3] above"])
def test_a_text_about_a_rank_is_not_that_rank_s(tmp_path: Path, text: str) -> None:
    (tmp_path / "job.log").write_text(text + "\n")

    assert _last_of_ranks(tmp_path) == [(1, None)]


def test_the_tag_of_a_rank_is_told_apart_from_the_label_of_its_node(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text("1: [rank5] loading\n0: hello\n1: hello\n")

    lines = analyze(str(tmp_path)).run["voice"].select("line", "rank", "launcher_rank").rows()

    assert lines == [(1, 5, None), (2, None, 0), (3, None, None), (3, None, 1)]


def _last_of_ranks(folder: Path) -> list[tuple[int, int | None]]:
    voices = analyze(str(folder)).run["voice"]
    return voices.select("line", pl.coalesce("rank", "launcher_rank")).rows()


@pytest.mark.parametrize("blank", ["", " "])
def test_a_time_stands_in_front_of_blank_lines_too(tmp_path: Path, blank: str) -> None:
    report = INCIDENTS / "ras-shows-a-dead-process" / "ras.log"
    printed = [f" {line}" if line else blank for line in report.read_text(encoding="utf-8").splitlines()]
    stamped = tmp_path / "ras.log"
    stamped.write_text("".join(f"2026-11-30T03:00:{number:02}.274Z{line}\n" for number, line in enumerate(printed)))

    (plain,), (answer,) = analyze([str(report)]).verdicts, analyze([str(stamped)]).verdicts

    assert (answer.verdict, answer.culprits, answer.missing) == (plain.verdict, plain.culprits, plain.missing)
