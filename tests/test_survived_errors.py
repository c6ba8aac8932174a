"""Errors that a program caught, and work that went on behind them, in outputs of programs with words of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclforensics import analyze
from ncclforensics.rules.finding import Severity

TRACEBACK = """\
Traceback (most recent call last):
  File "/mnt/job/train.py", line 31, in load
    return torch.load(path)
  File "/mnt/job/store.py", line 12, in load
    raise FileNotFoundError(path)
FileNotFoundError: shard {shard} is not there
"""
OWN_WORDS = [
    "epoch 0 | step {}/90 | loss 0.0265 | 50.6 ms/step",
    "2026-03-02 11:04:57.123 | INFO     | __main__:train:42 - [2/3] epoch 0 | step {}/90 | loss 0.0265",
    '[2026-03-02 11:04:57,123][train_inner][INFO] - {{"epoch": {}, "loss": "1329.02"}}',
    "Epoch {}/90 - Train Loss: 0.0000 - Train Accuracy: 1.0000",
    "\titers: {}, epoch: 1 | loss: 0.3911109",
    "eta: 0:02:25  epoch: 0  step: {}  mask_loss: 1.0157  loss: 19.7439  lr: 0.000033",
]
KILLED = "./train.sh: line 4: 41887 {}                  {} train.py\n"


def answer(text: str, folder: Path) -> list[tuple[str, str, str]]:
    """Title, certainty and severity of what the first screen tells first of a text."""
    path = folder / "train.log"
    path.write_text(text)
    return [(finding.title, finding.certainty, finding.severity) for finding in analyze([str(path)]).findings]


def steps(form: str, first: int, last: int) -> str:
    return "".join(form.format(step) + "\n" for step in range(first, last))


@pytest.mark.parametrize("form", OWN_WORDS)
def test_an_error_before_steps_in_any_words_is_only_possible(form: str, tmp_path: Path) -> None:
    text = steps(form, 1, 9) + TRACEBACK.format(shard=3) + steps(form, 9, 40)

    (found,) = answer(text, tmp_path)

    assert found == ("a process raised FileNotFoundError: shard 3 is not there", "possible", "info")


def test_an_error_at_the_end_behind_such_steps_stays_likely(tmp_path: Path) -> None:
    (found,) = answer(steps(OWN_WORDS[0], 1, 40) + TRACEBACK.format(shard=3), tmp_path)

    assert found[1:] == ("likely", "error")


def test_an_error_like_one_that_was_survived_before_is_only_possible(tmp_path: Path) -> None:
    caught = TRACEBACK.format(shard=3) + steps(OWN_WORDS[0], 9, 20)

    end = OWN_WORDS[0].format(20) + "\nevaluating\nsaved the model to out\n"
    found = answer(steps(OWN_WORDS[0], 1, 9) + caught + TRACEBACK.format(shard=4) + end, tmp_path)
    (alone,) = answer(steps(OWN_WORDS[0], 1, 20) + TRACEBACK.format(shard=4) + end, tmp_path)

    assert {row[1:] for row in found} == {("possible", "info")}
    assert alone[1:] == ("likely", "error")


@pytest.mark.parametrize(
    "command", ["torchrun --nproc_per_node 8", "/opt/venv/bin/torchrun", "timeout -s KILL 60 mpirun"]
)
def test_who_kills_the_launcher_explains_no_error(command: str, tmp_path: Path) -> None:
    caught = steps(OWN_WORDS[0], 1, 9) + TRACEBACK.format(shard=3) + steps(OWN_WORDS[0], 9, 40)

    found = answer(caught + KILLED.format("Killed", command), tmp_path)
    alone = answer(steps(OWN_WORDS[0], 1, 9) + KILLED.format("Killed", command), tmp_path)

    assert [row[1] for row in found] == ["possible"]
    assert alone == [("told to end by SIGKILL: process 41887 (a launcher)", "certain", "info")]


@pytest.mark.parametrize("command", ["python", "python finetune.py --launcher mpirun"])
def test_a_program_that_is_killed_itself_is_a_failure(command: str, tmp_path: Path) -> None:
    (found,) = answer(steps(OWN_WORDS[0], 1, 9) + KILLED.format("Killed", command), tmp_path)

    assert found == ("process 41887 was killed by SIGKILL", "certain", "error")


OF_TASK = """\
{heading}ray::load() (pid=41887, ip=10.0.4.13)
  File "/mnt/job/prepare.py", line 8, in load
    raise OSError(f"cannot open {{path}}")
OSError: cannot open shard-{shard}
"""
RETRIED = (
    "(raylet) Task load failed. There are 3 retries remaining, so the task will be retried. Error: User exception:\n"
)
END_OF_DRIVER = "prepared 5 of 8 shards, done\nsaved the list\nbye\n"


def test_an_error_of_a_task_that_ray_runs_again_is_only_possible(tmp_path: Path) -> None:
    retried = answer(RETRIED + OF_TASK.format(heading="", shard=3), tmp_path)
    passed_on = answer(OF_TASK.format(heading="ray.exceptions.RayTaskError(OSError): ", shard=3), tmp_path)

    assert retried == [("process 41887 (load) on 10.0.4.13 raised OSError: cannot open shard-3", "possible", "info")]
    assert passed_on[0][1:] == ("likely", "error")


def test_errors_of_one_process_at_one_place_did_not_end_it(tmp_path: Path) -> None:
    def text(*shards: int) -> str:
        return "".join(OF_TASK.format(heading="skipping: ", shard=shard) for shard in shards) + END_OF_DRIVER

    assert [row[1] for row in answer(text(3), tmp_path)] == ["likely"]
    assert [row[1] for row in answer(text(3, 6), tmp_path)] == ["possible", "possible"]


@pytest.mark.parametrize(("pids", "severity"), [((4711, 4711), Severity.INFO), ((4711, 4712), Severity.ERROR)])
def test_an_error_that_a_logger_prints_again_with_its_process_did_not_end_it(
    pids: tuple[int, int], severity: Severity, tmp_path: Path
) -> None:
    lines = []
    for pid in pids:
        record = f"E0302 11:04:57.162000 {pid} torch/distributed/debug/_frontend.py:305] "
        raised = ("Traceback (most recent call last):", '  File "build.py", line 7, in build', "KeyError: 'group'")
        lines += [record + line for line in raised]
    log = tmp_path / "job.log"
    log.write_text("\n".join([*lines, "the evaluation begins", "512 samples"]) + "\n")

    (found, *_) = [finding for finding in analyze(log).findings if finding.rule == "app-exception"]

    assert found.severity is severity
