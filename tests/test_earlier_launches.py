"""Launches that ended before the last one in the same file: what they printed accuses no rank of the next one."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclforensics import analyze
from ncclforensics.archive.write import save
from ncclforensics.cli import main
from ncclforensics.report.build import Report
from tests.incidents import INCIDENTS

AGAIN = INCIDENTS / "a-launch-fails-and-the-next-one-loses-a-rank" / "job.log"
LINES = AGAIN.read_text(encoding="utf-8").splitlines(keepends=True)
BANNER = next(line for line in LINES if "OMP_NUM_THREADS" in line)
STARTS = [number for number, line in enumerate(LINES) if "OMP_NUM_THREADS" in line]
SECOND = LINES[STARTS[1]] + "[rank2]: RuntimeError: the checkpoint has other shapes\n"
FIRST = "".join(LINES[: STARTS[1] - 2])
STEPS = "".join(f"step {number} loss 2.5\n" for number in range(1, 4))
LATER_STEPS = "".join(f"step {number} loss 2.5\n" for number in range(11, 14))
TIME_LIMIT = "slurmstepd: error: *** JOB 88123 ON node1 CANCELLED AT 2026-11-22T12:00:00 DUE TO TIME LIMIT ***\n"
OF_ANOTHER_JOB = TIME_LIMIT.replace("88123", "88124").replace(" DUE TO TIME LIMIT", "")
STEP_OF_THE_JOB = TIME_LIMIT.replace("JOB 88123", "STEP 88123.0")
ENDED_WELL = "Training completed successfully.\n"
UNCOMPILED = '  File "train.py", line 2\n    lr=1 2\n         ^\nSyntaxError: invalid syntax\n'
OF_A_MODULE = (
    'Traceback (most recent call last):\n  File "train.py", line 1, in <module>\n    import data\n' + UNCOMPILED
)
VLLM_ERROR = "ValueError: Free memory on device (10.2/79.1 GiB) on startup is less than desired GPU memory.\n"
VLLM = "INFO 11-22 10:12:11 [api_server.py:1090] vLLM API server version 0.8.5\n"
REFUSED = "train.py: error: unrecognized arguments: --lrr=1\n"
CALLER = "subprocess.CalledProcessError: Command '['python', 'train.py']' returned non-zero exit status 2.\n"
NO_SPACE = "OSError: [Errno 28] No space left on device: '/out/model.pt'\n"
WAITED = "torch.distributed.DistStoreError: Timed out after 301 seconds waiting for clients. 1/2 clients joined.\n"
SRUN = "srun: job 4711 queued and waiting for resources\n"
TRACKED = "wandb: Tracking run with wandb version 0.24.2\n"
TRACKER_END = "wandb: Find logs at: wandb/run-20261122_184021-lqx4zdjx/logs\n"
OF_AN_EPOCH = "2026-11-22 1{}:04:57,123 - mmdet - INFO - Epoch [{}][{}/400] lr: 1.978e-03, time: 1.145, loss: 1.2034\n"
EPOCHS, LATER_EPOCH = (
    "".join(OF_AN_EPOCH.format(hour, epoch, step) for hour, epoch, step in made)
    for made in ([(0, 1, 50), (0, 1, 100), (1, 2, 50)], [(2, 2, 100), (3, 3, 50)])
)
ANEW = "".join(OF_AN_EPOCH.format(hour, 1, step) for hour, step in [(4, 50), (5, 100)])
ENVIRONMENT = "2026-11-22 14:00:57,123 - mmdet - INFO - Environment info:\n"
RAY = "2026-11-22 1{}:00:57,123\tINFO worker.py:1832 -- Started a local Ray instance.\n"
TABLE = "|   0  NVIDIA H100 80GB HBM3          On  |   00000000:1B:00.0 Off |                    0 |\n"
COUNTED = "epoch 0 | step {}/30 | loss 0.0265 | 50.6 ms/step\n"
STEPS_IN_WORDS, AGAIN_IN_WORDS, NEXT_IN_WORDS, RESUMED_IN_WORDS, OF_TWO_JOBS = (
    "".join(COUNTED.format(step) for step in made)
    for made in (range(5), range(9), range(5, 9), range(3, 9), (0, 1, 0, 2, 1, 3, 2, 4))
)
OF_AGENT = (
    '  File "/opt/venv/lib/python3.12/site-packages/torch/distributed/launcher/api.py", line 383, in launch_agent\n'
    "    {}\n"
)
CLOSED = "".join(
    f"W1122 08:40:06.120000 2211 torch/distributed/elastic/multiprocessing/api.py:897] Sending process {pid} closing "
    "signal SIGTERM\n"
    for pid in (2247, 2248, 2250)
)
OF_TORCHRUN = FIRST.replace(
    "torch.distributed.elastic.multiprocessing.errors.Child",
    OF_AGENT.format("raise ChildFailedError(") + "torch.distributed.elastic.multiprocessing.errors.Child",
    1,
)
# What an agent prints that starts its workers again: of those that end, without its table.
RESTARTED = CLOSED + FIRST[: FIRST.rindex("Traceback")]
SIGNALLED = (
    "W1122 08:52:06.120000 2211 torch/distributed/elastic/agent/server/api.py:753] Received 15 death signal, shutting "
    "down workers\n"
)
UNSTARTED = (
    "Traceback (most recent call last):\n"
    + OF_AGENT.format("result = agent.run()")
    + '  File "/opt/venv/lib/python3.12/site-packages/torch/distributed/elastic/agent/server/api.py", line 916, in '
    "_initialize_workers\n    self._rendezvous(worker_group)\n"
    "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: "
    "29971, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use\n"
)
HUNG = INCIDENTS / "one-rank-stops-before-an-allreduce"


def _report(tmp_path: Path, text: str) -> Report:
    log = tmp_path / "job.log"
    log.write_text(text, encoding="utf-8")
    return analyze([str(log)])


def _titles(report: Report) -> str:
    return "\n".join(finding.title for finding in report.findings)


def test_the_answer_is_that_on_the_last_launch_alone(tmp_path: Path) -> None:
    whole = analyze([str(AGAIN)])
    alone = _report(tmp_path, "".join(LINES[STARTS[1] :]))

    assert whole.run["earlier_launch"].select("line").rows() == [(STARTS[1] + 1,)]
    assert [whole.title_of(answer) for answer in whole.verdicts] == [
        alone.title_of(answer) for answer in alone.verdicts
    ]
    assert "FileNotFoundError" not in _titles(whole)
    (note,) = (finding for finding in whole.findings if finding.rule == "app-launched-again")
    quoted = [row["text"] for row in whole.evidence(note)]
    assert ["FileNotFoundError" in text for text in quoted] == [True, False, False]


def test_the_screen_of_an_end_that_was_asked_for_tells_what_had_failed_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "job.log"
    log.write_text(RESTARTED + SIGNALLED + CLOSED.replace("22", "23"), encoding="utf-8")

    main(["hang", str(log)])

    first, _, beside = capsys.readouterr().out.partition("ALSO FOUND")
    assert "torchrun was told to end by SIGTERM" in first
    assert "the program was started again" in beside


def test_a_process_of_nccl_that_begins_below_an_ended_launch_is_of_another_one(tmp_path: Path) -> None:
    logs = "".join(path.read_text(encoding="utf-8") for path in sorted(HUNG.glob("*.log")))

    report = _report(tmp_path, FIRST + logs)
    answers = report.verdicts

    assert [answer.verdict for answer in answers] == ["lagging-ranks"]
    assert report.numbers(answers[0].culprits) == [11]


@pytest.mark.parametrize(
    ("text", "is_again"),
    [
        (FIRST + SECOND, True),
        (FIRST + SECOND + TIME_LIMIT, True),
        (STEPS + TIME_LIMIT + STEPS, True),
        (FIRST + TIME_LIMIT + "steps begin\n" + OF_ANOTHER_JOB, True),
        (TABLE + FIRST + TIME_LIMIT + TABLE + STEPS, True),
        (TABLE + FIRST + STEP_OF_THE_JOB + TABLE, False),
        (FIRST + TIME_LIMIT + TABLE, False),
        (FIRST + UNCOMPILED, True),
        (REFUSED + CALLER + STEPS, True),
        (REFUSED + REFUSED + CALLER + NO_SPACE, True),
        (TRACKED + TRACKER_END + FIRST + TRACKED + STEPS, True),
        (NO_SPACE + SRUN + STEPS, True),
        (EPOCHS + NO_SPACE + ANEW, True),
        (ENVIRONMENT + NO_SPACE + ENVIRONMENT, True),
        (RAY.format(1) + STEPS + NO_SPACE + RAY.format(2) + STEPS, True),
        (BANNER + FIRST + FIRST.replace("FileNotFoundError", "ValueError"), True),
        (FIRST + EPOCHS, True),
        (FIRST + BANNER + STEPS + ENDED_WELL, True),
        (FIRST + FIRST + 101 * "the next one\n" + STEPS, True),
        (STEPS_IN_WORDS + CLOSED + OF_TORCHRUN + AGAIN_IN_WORDS, True),
        (STEPS_IN_WORDS + CLOSED + OF_TORCHRUN + RESUMED_IN_WORDS, True),
        (STEPS_IN_WORDS + RESTARTED + AGAIN_IN_WORDS, True),
        (RESTARTED + SIGNALLED + CLOSED.replace("22", "23"), True),
        (RESTARTED + 101 * "the next one\n", True),
        (UNSTARTED + UNSTARTED + STEPS_IN_WORDS, True),
        (UNSTARTED + SIGNALLED + CLOSED, True),
        (FIRST + TIME_LIMIT, False),
        (FIRST + CALLER, False),
    ],
    ids=["torchrun", "and-an-end", "steps-of-a-requeued-job", "ends-of-two-jobs",
         "table-of-a-script", "of-a-step-that-ended", "table-of-a-person", "not-compiled", "steps-behind-a-refusal",
         "an-error-behind-a-refusal", "a-tracked-run-behind-the-end-of-one", "srun-waits-again",
         "a-training-begins-anew", "openmmlab", "ray", "two-reports-of-a-rank", "steps-later-than-a-report",
         "the-next-one-ends-well", "steps-behind-two-reports-of-a-rank",
         "a-sweep", "from-a-checkpoint", "restarted-by-its-agent", "told-to-end-then", "much-behind-it",
         "the-port-was-taken-first", "and-the-next-told-to-end",
         "the-end-of-the-job",
         "the-script-that-called-it"],
)  # fmt: skip
def test_a_launch_begins_with_what_no_ended_one_prints(tmp_path: Path, text: str, *, is_again: bool) -> None:
    report = _report(tmp_path, text)

    assert report.run["earlier_launch"].height == is_again
    assert ("FileNotFoundError" in _titles(report)) is (FIRST in text and not is_again)


@pytest.mark.parametrize(
    "text",
    [
        BANNER + FIRST + SECOND,  # another node has not reported its end
        BANNER + FIRST + BANNER + ENDED_WELL,  # the same
        FIRST + BANNER + STEPS,
        FIRST + FIRST.replace("rank2", "rank9").replace("rank      : 2", "rank      : 9"),  # the logs of two nodes
        FIRST + STEPS,  # stdout below stderr
        FIRST + EPOCHS.replace("2026-11-22 1", "2026-11-22 0"),  # the same, with times
        STEPS + TIME_LIMIT + LATER_STEPS,
        STEPS + TIME_LIMIT + STEPS[: STEPS.index("\n") + 1],
        EPOCHS + NO_SPACE + LATER_EPOCH,
        EPOCHS + NO_SPACE + EPOCHS,  # another rank prints the same
        VLLM_ERROR + VLLM,
        FIRST + STEP_OF_THE_JOB + TIME_LIMIT,
        FIRST + OF_A_MODULE,
        REFUSED + REFUSED + CALLER,
        REFUSED + WAITED,
        TRACKED + FIRST + TRACKED,
        STEPS_IN_WORDS + CLOSED + OF_TORCHRUN + NEXT_IN_WORDS,
        STEPS_IN_WORDS + CLOSED + OF_TORCHRUN + STEPS_IN_WORDS,
        STEPS_IN_WORDS + OF_TORCHRUN + AGAIN_IN_WORDS,
        CLOSED + OF_TORCHRUN + STEPS_IN_WORDS,
        CLOSED + UNSTARTED + SIGNALLED + CLOSED,
        RESTARTED + SIGNALLED + CLOSED,
        RESTARTED + 90 * "what was left\n",
        CLOSED + FIRST + 101 * "another node\n",
        OF_TWO_JOBS + CLOSED + OF_TORCHRUN + RESUMED_IN_WORDS,
    ],
    ids=["a-node-goes-on", "an-end-of-one-node", "a-start-alone", "two-nodes", "stdout",
         "stdout-with-times", "steps-on-their-way", "one-step",
         "an-epoch-goes-on",
         "each-rank-prints-its-steps", "a-server-wrote-to-stdout",
         "a-step-and-its-job", "a-module-that-is-imported", "every-rank-refuses",
         "a-node-waits-for-the-one-that-refused", "each-rank-is-tracked",
         "another-job-in-the-same-file", "stdout-below-stderr-with-the-same-steps", "a-rank-of-another-node",
         "stdout-in-words", "ranks-that-are-not-started-again",
         "told-to-end-first", "what-was-left", "an-agent-that-gave-up", "two-jobs-in-one-file"],
)  # fmt: skip
def test_what_one_launch_may_have_printed_shows_no_other(tmp_path: Path, text: str) -> None:
    assert _report(tmp_path, text).run["earlier_launch"].is_empty()


def test_processes_of_nccl_of_which_one_is_reported_are_of_that_launch(tmp_path: Path) -> None:
    logs = "".join(path.read_text(encoding="utf-8") for path in sorted(HUNG.glob("*.log")))
    pid = min(analyze([str(HUNG)]).run["rank"]["pid"])

    assert _report(tmp_path, FIRST.replace("2249", str(pid)) + logs).run["earlier_launch"].is_empty()


def test_a_server_that_is_started_again_and_is_ready_has_not_failed(tmp_path: Path) -> None:
    ready = "INFO:     Application startup complete.\n"

    once, again = _report(tmp_path, VLLM + VLLM_ERROR), _report(tmp_path, VLLM + VLLM_ERROR + VLLM + ready)

    assert "Free memory" in _titles(once)
    assert "Free memory" not in _titles(again)
    assert [finding.severity for finding in again.findings if finding.severity != "info"] == []


def test_a_saved_run_keeps_where_the_last_launch_begins(tmp_path: Path) -> None:
    report = analyze([str(AGAIN)])
    save(report, tmp_path / "saved")

    restored = analyze([str(tmp_path / "saved")])

    assert restored.run["earlier_launch"].rows() == report.run["earlier_launch"].rows()
    assert _titles(restored) == _titles(report)


def test_a_report_on_another_host_and_process_is_not_of_the_rank_of_that_number(tmp_path: Path) -> None:
    logs = sorted(HUNG.glob("*.log"))[:-1]  # one rank prints nothing, so that it is open whether the launch is another
    text = "".join(path.read_text(encoding="utf-8") for path in logs)

    report = _report(tmp_path, FIRST.replace("[rank2]: ", "") + text)

    assert report.run["earlier_launch"].is_empty()
    assert [answer.verdict for answer in report.verdicts] == ["undecidable"]  # the silent rank may be behind


KILLED = next(line for line in LINES if "failed (exitcode: 1)" in line).replace("exitcode: 1", "exitcode: -9")


@pytest.mark.parametrize(
    ("text", "pid", "verdict", "culprit"),
    [
        (FIRST, 2249, "lagging-ranks", 11),
        (FIRST, 23894, "rank-died", 2),
        (KILLED, 2249, "lagging-ranks", 11),
        (KILLED, 23894, "rank-died", 2),
    ],
    ids=["raised", "raised-in-this-launch", "killed", "killed-in-this-launch"],
)
def test_a_rank_did_not_end_whose_launcher_names_another_process(
    tmp_path: Path, text: str, pid: int, verdict: str, culprit: int
) -> None:
    errors = text.replace("pid: 2249", f"pid: {pid}").replace("node1", "gpu-node-00")
    (tmp_path / "job.err").write_text(errors, encoding="utf-8")

    report = analyze([str(tmp_path), *map(str, sorted(HUNG.glob("*.log")))])

    (answer,) = report.verdicts
    assert (answer.verdict, report.numbers(answer.culprits)) == (verdict, [culprit])
    assert (report.cause_of(answer) is not None) == (pid == 23894)


OTHER = "app-launched-again"
LSF = (
    "Sender: LSF System <lsfadmin@gpu-a012>\n"
    "Subject: Job {job}: <train> in cluster <hpc> Exited\n\n"
    "Exited with exit code 1.\n\n"
    "The output (if any) {place}\n\n"
)


@pytest.mark.parametrize("is_above", [True, False])
def test_a_job_whose_output_lsf_appends_to_a_file_is_judged_alone(tmp_path: Path, *, is_above: bool) -> None:
    place = "is above this job summary." if is_above else "follows:"
    errors = [UNSTARTED, UNSTARTED.replace("29971", "29972")]
    summaries = [LSF.format(job=job, place=place) for job in (4711, 4712)]
    parts = zip(errors, summaries, strict=True) if is_above else zip(summaries, errors, strict=True)

    report = _report(tmp_path, "".join("".join(part) for part in parts))

    others = [finding for finding in report.findings if finding.rule != OTHER]
    quoted = [row["text"] for finding in others for row in report.evidence(finding)]
    assert report.run["earlier_launch"].height == 1
    assert "29972" in "\n".join(quoted)
    assert "29971" not in "\n".join(quoted)


FAILED_BEFORE = """\
[rank3]: Traceback (most recent call last):
[rank3]:   File "/mnt/job/train.py", line 71, in main
[rank3]:     batch = next(batches)
[rank3]: ValueError: sample 1003: expected 16 features, got 15
train.py FAILED
Root Cause (first observed failure):
[0]:
  time      : 2026-03-02_08:10:44
  host      : gpu-a012
  rank      : 3 (local_rank: 3)
  exitcode  : 1 (pid: 5003)
"""
TIMED_OUT = (
    "[rank{rank}]:[E{day} {time}.034512345 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective operation"
    " timeout: WorkNCCL(SeqNum=1085, OpType=ALLREDUCE, NumelIn=4096, NumelOut=4096, Timeout(ms)={waited}) ran for"
    " {waited} milliseconds before timing out.\n"
)


@pytest.mark.parametrize(
    ("day", "time", "waited", "is_earlier"),
    [
        ("302", "11:04:57", 600_000, True),
        ("303", "07:04:57", 600_000, True),
        ("302", "08:40:57", 600_000, False),  # the other node of one launch, which waited for the rank that failed
        ("302", "11:04:57", 9_000_000, False),
        ("302", "06:04:57", 600_000, False),
    ],
)
def test_a_file_of_a_launch_that_was_over_before_that_of_another_file_accuses_no_rank_of_it(
    day: str, time: str, waited: int, is_earlier: bool, tmp_path: Path
) -> None:
    (tmp_path / "run1.log").write_text(FAILED_BEFORE)
    lines = [TIMED_OUT.format(rank=rank, day=day, time=time, waited=waited) for rank in range(4)]
    (tmp_path / "run2.log").write_text("".join(lines))

    report = analyze(tmp_path)

    assert report.run["earlier_launch"]["line"].to_list() == [None] * is_earlier
    assert [verdict.verdict for verdict in report.verdicts] == ["undecidable" if is_earlier else "rank-died"]
    assert any(finding.rule == "app-launched-again" for finding in report.findings) == is_earlier
