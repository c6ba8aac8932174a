"""Failures behind which their file shows work: they were caught, or ended an earlier run, and lead no report."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclforensics import analyze
from ncclforensics.report.build import Report

RAISED = "Traceback (most recent call last):\n{}\n"
ORDINAL = RAISED.format("torch.AcceleratorError: CUDA error: invalid device ordinal")
NO_KEY = RAISED.format("wandb.errors.UsageError: api_key not configured")
SHAPES = RAISED.format("RuntimeError: the checkpoint has other shapes")
OF_RANK = SHAPES.replace("\n", "\n[rank2]: ").removesuffix("[rank2]: ")
TRACED = 6 * ('  File "train.py", line 9, in step\n    loss.backward()\n' + 20 * "  the code around it\n")
KILLED = "train.sh: line 18: 41887 Killed                  python train.py\n"
TALK = "the learning rate is what it was\n"
STEPS = "".join(f"step {number} loss 2.5\n" for number in range(1, 4))
LATER_STEPS = "".join(f"step {number} loss 2.5\n" for number in range(11, 14))
AGENT = (
    "failed (exitcode: 1) local_rank: 0 (pid: 41887) of binary: /usr/bin/python\n"
    "Root Cause (first observed failure):\n[0]:\n  rank      : 0 (local_rank: 0)\n  exitcode  : 1 (pid: 41887)\n"
)
IN_WORDS = "epoch 0 | step 8/30 | loss 0.02\n"
BAR = "  0%|          | 0/{} [00:00<?, ?it/s]\n"


def reported(folder: Path, text: str) -> Report:
    (folder / "train.log").write_text(text, encoding="utf-8")
    return analyze([folder])


def severities(report: Report) -> dict[str, tuple[str, str]]:
    return {f.title: (str(f.severity), f.certainty) for f in report.findings if f.job is None and f.evidence}


@pytest.mark.parametrize(
    ("text", "is_outlived"),
    [
        (ORDINAL + 101 * TALK + NO_KEY, True),
        (ORDINAL + 101 * TALK + STEPS, True),
        (SHAPES + 501 * TALK, True),
        (SHAPES + 5 * TALK + BAR.format(40), True),
        (STEPS + OF_RANK + 101 * TALK + LATER_STEPS, True),
        (ORDINAL + 90 * TALK, False),  # what the process had not yet written
        (ORDINAL + 101 * TALK + NO_KEY + AGENT, False),  # of several processes, the first error is the cause
        (SHAPES + STEPS + AGENT, False),
        (BAR.format(40) + SHAPES + 5 * TALK + BAR.format(40), False),  # printed again as the loop is left
        (STEPS + OF_RANK + 101 * TALK + STEPS, False),  # logs of ranks, one below the other
        (ORDINAL + 101 * TALK + ORDINAL, False),
        (KILLED + 101 * TALK, True),  # the script goes on
        (KILLED + 90 * TALK, False),
        (STEPS + OF_RANK + TRACED + LATER_STEPS + AGENT, False),  # what rank 0 had buffered
    ],
    ids=["an-error-of-the-next-run", "steps", "a-long-output", "a-bar-begins", "later-steps-of-a-named-rank",
         "what-was-buffered", "of-several-processes", "buffered-steps", "the-bar-again", "steps-of-another-log",
         "the-same-again", "a-command-of-a-script", "the-end-of-a-script", "steps-behind-all-tracebacks"],
)  # fmt: skip
def test_a_failure_that_its_file_outlived_leads_no_report(tmp_path: Path, text: str, *, is_outlived: bool) -> None:
    report = reported(tmp_path, text)
    first = {title: rest for title, rest in severities(report).items() if "UsageError" not in title}

    led = [*first.values(), *((a.verdict, a.certainty) for a in report.verdicts if a.verdict != "undecidable")]
    assert all(certainty == "possible" for _, certainty in led) == is_outlived
    assert all(severity != "error" for severity, _ in led) == is_outlived


@pytest.mark.parametrize(("steps", "certainty"), [(IN_WORDS, "possible"), (TALK, "likely")])
def test_steps_in_any_words_outlive_an_error_that_another_end_would_confirm(
    steps: str, certainty: str, tmp_path: Path
) -> None:
    killed = AGENT.replace("(exitcode: 1)", "(exitcode: -9)").replace("exitcode  : 1", "exitcode  : -9")
    report = reported(tmp_path, SHAPES + 101 * TALK + 3 * steps + killed)

    assert [f.certainty for f in report.findings if "RuntimeError" in f.title] == [certainty]


@pytest.mark.parametrize(("rank", "severity"), [(0, "info"), (1, "error")])
def test_an_error_ended_no_rank_where_each_that_ended_has_one_of_its_own(
    rank: int, severity: str, tmp_path: Path
) -> None:
    """PyTorch puts the rank in front of what ends it: an error without it was caught, unless a rank lacks one."""
    own = "".join(f"[rank{rank}]: {line}" for line in SHAPES.splitlines(keepends=True))

    found = severities(reported(tmp_path, NO_KEY + TALK + own + AGENT))

    (caught,) = (severity for title, (severity, _) in found.items() if "UsageError" in title)
    assert caught == severity


def test_what_ended_a_thread_may_be_why_its_rank_stands(tmp_path: Path) -> None:
    own = "".join(f"[rank0]: {line}" for line in SHAPES.splitlines(keepends=True))

    found = severities(reported(tmp_path, "Exception in thread prefetch:\n" + NO_KEY + TALK + own + AGENT))

    assert [severity for title, (severity, _) in found.items() if "UsageError" in title] == ["error"]


def test_an_error_at_a_place_whose_errors_were_outlived_is_only_possible_at_the_end(tmp_path: Path) -> None:
    placed = 'Traceback (most recent call last):\n  File "prepare.py", line 9, in item\n    read(path)\n{}\n'
    errors = [placed.format(f"ValueError: document {number}: not UTF-8") for number in (5, 22)]

    found = severities(reported(tmp_path, errors[0] + 101 * TALK + errors[1] + TALK))
    other = severities(reported(tmp_path, errors[0] + 101 * TALK + SHAPES))

    assert set(found.values()) == {("info", "possible")}
    assert ("error", "likely") in other.values()


def test_the_last_error_of_one_process_leads(tmp_path: Path) -> None:
    found = severities(reported(tmp_path, ORDINAL + 101 * TALK + NO_KEY))

    assert {title: severity for title, (severity, _) in found.items() if severity == "error"} == {
        "a process raised UsageError: api_key not configured": "error"
    }
    assert any("work goes on below" in f.detail for f in reported(tmp_path, ORDINAL + 101 * TALK + NO_KEY).findings)


def test_a_log_of_powershell_is_read(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(STEPS + SHAPES.replace("\n", "\r\n"), encoding="utf-16")

    found = severities(analyze([tmp_path]))

    assert "a process raised RuntimeError: the checkpoint has other shapes" in found


OF_TRACKER = (
    "Exception in thread NetStatThr:\nTraceback (most recent call last):\n"
    '  File "/usr/lib/python3.10/threading.py", line 1016, in _bootstrap_inner\n    self.run()\n'
    '  File "/opt/venv/lib/python3.10/site-packages/wandb/sdk/lib/sock_client.py", line 99, in send\n'
    "    raise SockClientClosedError()\nwandb.sdk.lib.sock_client.SockClientClosedError\n"
)
LOGGED_BY_TRACKER = OF_TRACKER.replace("Exception in thread NetStatThr:\n", "message_loop has been closed\n").replace(
    '  File "/usr/lib/python3.10/threading.py", line 1016, in _bootstrap_inner\n    self.run()\n', ""
)
OF_LOGGER = (
    "--- Logging error ---\nTraceback (most recent call last):\n"
    '  File "/usr/lib/python3.10/logging/__init__.py", line 369, in getMessage\n    msg = msg % self.args\n'
    "TypeError: not all arguments converted during string formatting\nCall stack:\n"
)


@pytest.mark.parametrize(
    "survived",
    [
        OF_TRACKER,
        LOGGED_BY_TRACKER,
        OF_LOGGER,
        OF_TRACKER.replace("Exception in t", "T").replace("NetStatThr", "SenderThread"),
    ],
)
def test_a_program_goes_on_without_its_tracker_and_a_line_of_its_logger(tmp_path: Path, survived: str) -> None:
    found = severities(reported(tmp_path, survived + SHAPES))

    assert [severity for severity, _ in found.values() if severity != "info"] == ["error"]
    assert all(
        "Sock" not in title and "TypeError" not in title
        for title, (severity, _) in found.items()
        if severity == "error"
    )


def test_a_message_that_begins_on_the_next_line_is_told(tmp_path: Path) -> None:
    text = (
        "[rank1]: Traceback (most recent call last):\n"
        '[rank1]:   File "/mnt/job/train.py", line 88, in <module>\n'
        "[rank1]: RuntimeError: \n"
        "[rank1]:         An attempt has been made to start a new process before the\n"
        "[rank1]:         current process has finished its bootstrapping phase.\n"
        "[rank1]: \n"
    )

    (title,) = (title for title in severities(reported(tmp_path, text)) if "RuntimeError" in title)

    assert title.endswith("a new process before the current process has finished its bootstrapping phase.")


OF_RAY = "(Trainer pid={}) {}\n"


def test_an_actor_that_ray_starts_again_has_survived_its_error(tmp_path: Path) -> None:
    failed = "".join(OF_RAY.format(41887, line) for line in SHAPES.splitlines())
    again = "".join(OF_RAY.format(42001, line) for line in STEPS.splitlines())

    once = severities(reported(tmp_path, OF_RAY.format(41887, "step 1 loss 2.5") + failed))
    later = severities(reported(tmp_path, OF_RAY.format(41887, "step 1 loss 2.5") + failed + again))

    assert ("error", "likely") in once.values()
    assert set(later.values()) == {("info", "possible")}


@pytest.mark.parametrize(
    "outcome",
    [
        "FAILED tests/test_ddp.py::test_sum - RuntimeError: the checkpoint has other shapes\n",
        "FAIL: test_sum (a.Sums)\n",
    ],
)
def test_a_runner_of_tests_caught_what_a_test_raised(tmp_path: Path, outcome: str) -> None:
    found = severities(reported(tmp_path, SHAPES + outcome))

    assert found["a test failed"] == ("warning", "certain")
    assert {severity for severity, _ in found.values()} == {"warning", "info"}


def test_a_request_to_a_hub_that_is_made_again_has_not_failed(tmp_path: Path) -> None:
    request = "'(ProtocolError('Connection aborted.', RemoteDisconnected('closed')))' thrown while requesting HEAD https://a/b\n"

    assert not severities(reported(tmp_path, request + "Retrying in 1s [Retry 1/5].\n" + TALK))


@pytest.mark.parametrize("is_relayed", [True, False])
def test_what_the_driver_of_ray_relays_behind_its_error_is_of_others(tmp_path: Path, *, is_relayed: bool) -> None:
    talk = "".join((OF_RAY.format(41887, f"{TALK[:-1]} {n}") if is_relayed else TALK) for n in range(160))

    found = severities(reported(tmp_path, OF_RAY.format(41887, TALK[:-1]) + SHAPES + talk))

    assert set(found.values()) == {("error", "likely") if is_relayed else ("info", "possible")}


@pytest.mark.parametrize(("pid", "severity"), [(41887, "info"), (41888, "error")])
def test_an_actor_that_raises_such_an_error_again_had_caught_the_first(pid: int, severity: str, tmp_path: Path) -> None:
    text = (
        f"(Loop pid=41887) ValueError: no answer in: one\n(Loop pid={pid}) ValueError: no answer in: another\n"
        + 5 * TALK
    )

    found = severities(reported(tmp_path, text))

    assert {level for level, _ in found.values()} == {severity}


@pytest.mark.parametrize("reason", ["terminated", "MQLLMEngine terminated"])
def test_an_engine_that_is_told_to_end_did_not_fail(reason: str, tmp_path: Path) -> None:
    text = f'Traceback (most recent call last):\n  File "engine.py", line 374, in stop\nKeyboardInterrupt: {reason}\n'

    assert {level for level, _ in severities(reported(tmp_path, text)).values()} == {"info"}


@pytest.mark.parametrize(
    "steps",
    [
        "TimeHistory: 42.09 seconds, 4865.61 examples/second between steps {} and {}\n",
        "{}/600 [==============>...............] - ETA: 3:29 - loss: 6.9\n",
        "{}/600 ━━━━━━━━━━━━━━━━━━━━ 254s 423ms/step - accuracy: 0.78 - loss: 6.0\n",
    ],
)
def test_a_library_that_tensorflow_does_without_is_no_warning(steps: str, tmp_path: Path) -> None:
    missing = (
        "2026-03-02 11:04:57.123456: E tensorflow/profiler/cupti.cc:1441] Subscribe failed with error: no library\n"
    )

    alone, later = (
        severities(reported(tmp_path, missing + "".join(steps.format(n, n + 100) for n in numbers)))
        for numbers in ((), (100, 200, 300))
    )

    assert ("warning", "certain") in alone.values()
    assert not {severity for severity, _ in later.values()} & {"warning", "error"}


def test_processes_that_end_alike_are_named_in_one_sentence(tmp_path: Path) -> None:
    killed = "".join(KILLED.replace("41887", pid) for pid in ("41887", "41888"))

    assert "2 processes were killed by SIGKILL" in severities(reported(tmp_path, killed))


PORT_TAKEN = (
    "RuntimeError: The server socket has failed to listen on any local network address. port: 4321, useIpv6: 0, "
    "code: -98, name: EADDRINUSE, message: address already in use\n"
)
BASICSR = (
    "2026-03-02 11:04:57,123 INFO: [fit_x..][epoch:  1, iter:   {},100, lr:(3e-05,)] "
    "[eta: 1 day, 2:37:00, time (data): 2.064 (0.521)] l_pix: 2.6e-03 \n"
)


@pytest.mark.parametrize("work", ["", STEPS, BASICSR.format(1) + BASICSR.format(2), "".join(map(BAR.format, (40, 50)))])
def test_a_store_whose_port_was_taken_does_not_lead_where_work_goes_on(work: str, tmp_path: Path) -> None:
    found = {finding.rule for finding in reported(tmp_path, RAISED.format(PORT_TAKEN) + work).findings}

    assert ("torch-store-failed" in found) == (not work)


@pytest.mark.parametrize(("work", "severity"), [("", "warning"), (STEPS, "info")])
def test_a_warning_of_a_plugin_that_steps_stand_behind_is_noted(work: str, severity: str, tmp_path: Path) -> None:
    warning = "gpu-a:41887:42001 [0] /w/plugin/config.cc:101 NCCL WARN No communicator config was selected\n"

    found = [finding for finding in reported(tmp_path, warning + work).findings if finding.rule == "warn-unexplained"]

    assert [str(finding.severity) for finding in found] == [severity]


OF_PROGRAM = (
    "[rank2]: Traceback (most recent call last):\n"
    '[rank2]:   File "/mnt/job/train.py", line 269, in <module>\n'
    "[rank2]:     main()\n"
    "[rank2]: {}\n"
)
NO_DATA = OF_PROGRAM.format("FileNotFoundError: [Errno 2] No such file or directory: '/data/tokens.bin'")
CLOSED = OF_PROGRAM.format(
    "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer "
    "[10.11.0.10]:58504"
)
HANDLED = "[rank2]: During handling of the above exception, another exception occurred:\n"


@pytest.mark.parametrize(("between", "is_of_another_launch"), [("", True), (HANDLED, False)])
def test_a_rank_that_ends_a_second_time_ended_in_another_launch(
    between: str, is_of_another_launch: bool, tmp_path: Path
) -> None:
    report = reported(tmp_path, NO_DATA + between + CLOSED)

    named = [report.numbers(answer.culprits) for answer in report.verdicts]
    assert named == [[] if is_of_another_launch else [2]]
