"""Lines that were wrapped at a width are put together, and counted as the lines of the file that they are."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from ncclforensics import analyze
from ncclforensics.formats import dialect
from ncclforensics.inputs import lines
from ncclforensics.parsing.wrapped_lines import detect_widths
from ncclforensics.views.json_report import as_object

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
    assert wrapped.verdicts[0].verdict == plain.verdicts[0].verdict
    assert wrapped.verdicts[0].culprits == plain.verdicts[0].culprits


def test_the_last_line_of_a_screen_that_is_filled_with_blanks_is_whole(tmp_path: Path) -> None:
    for log in (INCIDENTS / "a-healthy-run").glob("*.log"):
        lines = log.read_text().splitlines()
        parts = [line[start : start + 80] for line in lines for start in range(0, max(len(line), 1), 80)]
        (tmp_path / log.name).write_text("".join(part.ljust(80) + "\n" for part in parts))
    report = analyze([str(tmp_path)], everything=True)
    assert (report.verdicts[0].verdict, report.verdicts[0].certainty) == ("no-hang", "certain")


def test_calls_of_equal_length_are_no_wrapped_lines(tmp_path: Path) -> None:
    for log in HANG.glob("*.log"):
        lines = log.read_text().splitlines()
        (tmp_path / log.name).write_text("".join(f"{line}\nstep 7: loss 1.93\n" for line in lines))
    plain, mixed = analyze([str(HANG)], everything=True), analyze([str(tmp_path)], everything=True)
    assert mixed.verdicts[0].verdict == plain.verdicts[0].verdict
    assert mixed.run["operation"].height == plain.run["operation"].height


CALL = (
    "node1:77:78 [0] NCCL INFO AllReduce: opCount 1a sendbuff 0x7f3c2a000000 recvbuff 0x7f3c2a000000 count 1048576 "
    "datatype 9 op 0 root 0 comm 0x55d1c3e0a2b0 [nranks=16] stream 0x55d1b0a0c3d0"
)


@pytest.mark.parametrize("rest", ["\n{}", " \n  {}", "Epoch 3: loss 1.93 acc 0.55\n{}"])
def test_the_rest_of_a_line_is_found_on_the_next_line(tmp_path: Path, rest: str) -> None:
    at = CALL.index("datatype") if rest.startswith(" ") else CALL.index("8576")
    (tmp_path / "job.log").write_text(CALL[:at].rstrip() + rest.format(CALL[at:]) + "\nstep 7\n")
    run = analyze([str(tmp_path)], everything=True).run
    assert run["operation"].select("line", "count").rows() == [(1, 1048576)]
    (counted,) = run.tally.select("recognised", "application", "unrecognised", "damaged").rows()
    assert counted == ((0, 1, 0, 2) if "Epoch" in rest else (2, 1, 0, 0))


def test_a_name_is_not_guessed_where_a_line_was_torn(tmp_path: Path) -> None:
    at = CALL.index("Reduce")
    (tmp_path / "job.log").write_text(f"{CALL[:at]}Epoch 3: loss 1.93\n{CALL[at:]}\n")
    assert analyze([str(tmp_path)], everything=True).run["operation"].is_empty()


def test_unrecognised_lines_stay_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text("node1:77:78 [0] NCCL INFO some text that no grammar knows\nstep 7\nstep 8\n")
    run = analyze([str(tmp_path)], everything=True).run
    assert run.tally.select("recognised", "application", "unrecognised", "damaged").rows() == [(0, 2, 1, 0)]


WATCHDOG = (
    "[rank3]:[E813 12:25:30.948355712 ProcessGroupNCCL.cpp:633] [Rank 3] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=57, OpType=ALLREDUCE, NumelIn=1048576, NumelOut=1048576, Timeout(ms)=600000) ran for 600032 "
    "milliseconds before timing out."
)


@pytest.mark.parametrize(("width", "front"), [(60, ""), (72, "> > "), (80, "    ")])
def test_a_sentence_of_pytorch_that_was_wrapped_is_put_together(tmp_path: Path, width: int, front: str) -> None:
    parts = [front + part for part in textwrap.wrap(WATCHDOG, width)]
    (tmp_path / "job.log").write_text("\n".join([*parts, *parts, ""]))
    run = analyze([str(tmp_path)], everything=True).run
    assert run["work_timeout"]["sequence"].to_list() == [57, 57]


def test_a_line_that_is_known_alone_goes_on_in_a_log_that_was_wrapped(tmp_path: Path) -> None:
    front = "node1:77:78 [0] NCCL INFO "
    begun = f"{front}comm 0x55d1c3e0a2b0 rank 3 nranks 16"
    wrapped = f"{front}Channel 00/0 : 1[1] -> 2[0] [send] via\nNET/IB/1/GDRDMA\n"
    (tmp_path / "plain.log").write_text(f"{begun}\ncudaDev 3 busId 5d000 - Destroy COMPLETE\n")
    (tmp_path / "wrapped.log").write_text(f"{2 * wrapped}{begun}\ncudaDev 3 busId 5d000 - Destroy COMPLETE\n")
    forms = analyze([str(tmp_path)], everything=True).run["communicator"].select("source", "form").cast({"form": str})
    assert forms.rows() == [(0, "begun")]


@pytest.mark.parametrize(
    "text",
    [
        "NCCL_DEBUG=INFO\nPATH=/usr/bin\nHOME=/root\nNCCL_IB_HCA=mlx5_0\nSHELL=/bin/sh\n",
        "+ NCCL_TEST=0\n+ NCCL_TEST=0\nls: cannot access '/data': No such file or directory\n",
    ],
    ids=["env", "set -x"],
)
def test_variables_on_lines_of_their_own_are_no_command_and_each_line_counts_once(tmp_path: Path, text: str) -> None:
    (tmp_path / "env.txt").write_text(text)
    run = analyze(tmp_path, everything=True).run

    assert run["launch_command"].is_empty()
    assert sum(run.tally.drop("source").row(0)) == text.count("\n")


def test_text_of_pytorch_alone_is_unwrapped_and_blanks_at_its_end_are_left_out(tmp_path: Path) -> None:
    text = (
        "[rank{0}]:[E303 15:22:17.210116508 ProcessGroupNCCL.cpp:1895] [PG ID 0 PG GUID 0(default_pg) Rank {0}] Process"
        " group watchdog thread terminated with exception: [Rank {0}] Watchdog caught collective operation timeout:"
        " WorkNCCL(SeqNum=3399, OpType=_ALLGATHER_BASE, NumelIn=8, NumelOut=32, Timeout(ms)=1800000) ran for 1800062"
        " milliseconds before timing out."
    )
    lines = [text.format(rank)[start : start + 85] for rank in (2, 3) for start in range(0, len(text) - 4, 85)]
    (tmp_path / "job.out").write_text("".join(f"{line:<85}\n" for line in lines))

    assert analyze([str(tmp_path)]).run["work"]["rank"].to_list() == [2, 3]


TERMINATED = (
    "[rank3]:[E813 12:25:31.348355712 ProcessGroupNCCL.cpp:1595] [PG ID 0 PG GUID 0(default_pg) Rank 3] Process group "
    "watchdog thread terminated with exception: [Rank 3] " + WATCHDOG[WATCHDOG.index("Watchdog") :]
)
STATUS = (
    "[rank3]:[E813 12:25:30.948455712 ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID 0(default_pg) Rank 3] Exception "
    "(either an error or timeout) detected by watchdog at work: 57, last enqueued NCCL work: 57, last completed NCCL "
    "work: 56."
)


@pytest.mark.parametrize("width", [60, 100, 165, 200, 280, 400])
@pytest.mark.parametrize(
    "form", ["│ {:<{}} │", "> {:.{}}", "    {:.{}}", "{:.{}}"], ids=["box", "quote", "indent", "plain"]
)
@pytest.mark.parametrize("is_by_words", [False, True])
def test_a_time_out_gives_one_answer_however_it_is_wrapped(
    tmp_path: Path, width: int, form: str, is_by_words: bool
) -> None:
    lines = [WATCHDOG, STATUS, TERMINATED]
    cut = [
        part
        for line in lines
        for part in (
            textwrap.wrap(line, width, drop_whitespace=False)
            if is_by_words
            else [line[start : start + width] for start in range(0, len(line), width)]
        )
    ]
    (tmp_path / "job.log").write_text("".join(form.format(part, width) + "\n" for part in cut))
    report = analyze([str(tmp_path)])
    assert [finding.title for finding in report.findings if finding.severity != "info"] == [
        "the watchdog of rank 3 timed out at work 57 of process group 0"
    ]
    assert report.verdicts[0].reason.startswith("rank 3 of at least 4 waited")


@pytest.mark.parametrize("width", range(90, 210, 15))
def test_a_single_time_out_goes_on_on_the_next_line_wherever_it_was_cut(tmp_path: Path, width: int) -> None:
    thrown = "  what():  " + TERMINATED[TERMINATED.index("[PG ID") :]
    parts = [thrown[start : start + width] for start in range(0, len(thrown), width)]
    (tmp_path / "job.log").write_text("".join(part + "\n" for part in parts))

    assert analyze([str(tmp_path)]).run["work_timeout"].select("form", "line", "sequence").rows() == [("thrown", 1, 57)]


SITE_PACKAGES = "/opt/venv/lib/python3.10/site-packages"
TRACEBACK = [
    f"INFO 03-02 11:04:12 llm_engine.py:87] Initializing with config: {', '.join(f'option_{n}={n}' for n in range(9))}",
    *(
        f"(RayWorkerVllm pid=41887) ERROR 03-02 11:04:57 ray_utils.py:50] {text}"
        for text in (
            "Traceback (most recent call last):",
            f'  File "{SITE_PACKAGES}/vllm/worker/worker.py", line 97, in init_device',
            "    torch.cuda.set_device(self.device)",
            f'  File "{SITE_PACKAGES}/torch/cuda/__init__.py", line 399, in set_device',
            "RuntimeError: HIP error: invalid device ordinal",
        )
    ),
]


@pytest.mark.parametrize("width", [90, 100, 120])
def test_a_text_without_lines_of_nccl_is_unwrapped_by_its_split_words(tmp_path: Path, width: int) -> None:
    parts = [line[start : start + width] for line in TRACEBACK for start in range(0, len(line), width)]
    (tmp_path / "engine.log").write_text("".join(part + "\n" for part in parts))
    (finding, *_) = analyze([str(tmp_path)], everything=True).findings
    assert finding.title == "a GPU is not visible to process 41887 (RayWorkerVllm): invalid device ordinal"


def test_the_longest_lines_of_a_timer_are_not_joined_with_the_next() -> None:
    steps = [f"MinTime: 3453.0{step}ms | MaxTime: 3468.2{step}ms | MinClock: 1950MHz/{step}" for step in range(9)]
    in_turn = "".join(f"{step}\ntimes across ranks (ms):\n" for step in steps)
    inside_words = "".join(f"{step}\n{word} ranks (ms):\n" for step, word in zip(steps, "abcdefghi", strict=True))
    texts = lines.texts({0: in_turn.encode(), 1: inside_words.encode()})
    assert detect_widths(texts, dialect()) == {1: len(steps[0])}


def test_tracebacks_with_the_tags_of_their_ranks_are_put_together_and_shown_at_their_lines(tmp_path: Path) -> None:
    """All that a terminal cut stands behind commas, brackets and underscores, so that no word shows it."""
    places = [("logger", 90, "wrapper"), ("utils", 485, "inner_func"), ("state_dict_saver", 196, "save")]
    frames = [
        f'  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/checkpoint/{name}.py", line {line}, in {at}'
        for name, line, at in places
    ]
    passed_on = "torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([2])"
    begin, own = "Traceback (most recent call last):", "OSError: [Errno 28] No space left on device"
    raised = [begin, *frames, passed_on, f"{begin} (RANK 2)", *frames, own, ""]
    printed = [f"[rank{rank}]: {line}".strip() for rank in (2, 0, 1) for line in raised]
    wrapped = [line[start : start + 100] for line in printed for start in range(0, len(line), 100)]
    log = tmp_path / "job.log"
    log.write_text("step 1\n" + "".join(line + "\n" for line in wrapped))

    report = analyze([str(log)])

    place = 2 + wrapped.index(f"[rank2]: {own}")
    assert [(answer.verdict, report.numbers(answer.culprits)) for answer in report.verdicts] == [("rank-died", [2])]
    assert [row["line"] for row in report.evidence(report.findings[0])][:1] == [place]
    assert f",{place}p" in " ".join(as_object(report)["hang"]["collect_next"])
