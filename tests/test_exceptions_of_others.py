"""Exceptions that stand in the text of another program, that several processes raised, and that a program survived."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclforensics import analyze

TRACEBACK = 'Traceback (most recent call last):\n  File "/mnt/job/train.py", line 7, in main\n'
LACKING = f"{TRACEBACK}ModuleNotFoundError: No module named 'amp_C'\n"
OF_MONARCH = (
    "Traceback (most recent call last):\n"
    '  File "/mnt/job/run.py", line 143, in main\n'
    "monarch._rust_bindings.monarch_hyperactor.supervision.SupervisionError: Endpoint call generator.pull() failed\n"
    "  actor explicitly aborted due to: Traceback (most recent call last):\n"
    '    File "/opt/venv/lib/python3.12/site-packages/transformers/auto.py", line 405, in from_pretrained\n'
    "  KeyError: 'kimi'\n"
    "  \n"
    "  During handling of the above exception, another exception occurred:\n"
    "  \n"
    "  Traceback (most recent call last):\n"
    '    File "/mnt/job/generator.py", line 289, in __init__\n'
    "  ValueError: the model type is not known\n"
)


def _written(tmp_path: Path, text: str) -> Path:
    (tmp_path / "job.log").write_text(text)
    return tmp_path


def _titles(tmp_path: Path, text: str) -> list[str]:
    return [finding.title for finding in analyze([_written(tmp_path, text)]).findings]


def test_the_error_that_ended_an_actor_leads_and_not_the_one_that_passes_it_on(tmp_path: Path) -> None:
    assert _titles(tmp_path, OF_MONARCH)[0] == "a process raised ValueError: the model type is not known"


@pytest.mark.parametrize(
    ("times", "title"),
    [(2, "a process raised ModuleNotFoundError: No module named 'amp_C'"),
     (4, "4 processes raised ModuleNotFoundError: No module named 'amp_C'")],
)  # fmt: skip
def test_processes_are_counted_where_each_rank_printed_its_error(times: int, title: str, tmp_path: Path) -> None:
    ranks = "".join(f"[rank {rank}] joined world of 4\n" for rank in range(4))
    table = "".join(
        f"  rank      : {rank} (local_rank: {rank})\n  exitcode  : -15 (pid: {40 + rank})\n" for rank in range(4)
    )

    assert title in _titles(tmp_path, f"{ranks}{LACKING * times}{table}")


def test_an_error_before_the_end_of_the_whole_program_was_survived(tmp_path: Path) -> None:
    assert _titles(tmp_path, f"{LACKING}step 1 loss 2.1\nTraining completed successfully.\n") == []
    failed_again = f"{LACKING}Training completed successfully.\n{TRACEBACK}KeyError: 'lr'\n"
    assert "a process raised KeyError: 'lr'" in _titles(tmp_path, failed_again)


@pytest.mark.parametrize(
    ("line", "is_told"),
    [
        (
            "[2026-03-02 11:04:57] Failed to load generation config for m. Proceeding without generation config.\n",
            False,
        ),
        ("2026-03-02 11:04:57 ERROR Failed to read the cache of kernels (non-fatal)\n", False),
        ("2026-03-02 11:04:57 ERROR Failed to read the cache of kernels\n", True),
        ("2026-03-02 11:04:57 ERROR cannot continue without a connection to the store\n", True),
    ],
)
def test_what_a_program_says_it_does_without_is_no_failure(line: str, is_told: bool, tmp_path: Path) -> None:
    assert any(words in title for title in _titles(tmp_path, line) for words in ("Failed", "cannot")) is is_told


def test_an_error_that_returns_until_the_end_of_the_text_is_told(tmp_path: Path) -> None:
    spent = f"{TRACEBACK}openai.APIStatusError: Error code: 402 - the balance is spent\n"
    notes = "2026-03-02 11:04:57 INFO the next request is sent\n"

    assert "a process raised APIStatusError: Error code: 402 - the balance is spent" in _titles(
        tmp_path, spent + notes * 200 + spent
    )
    found = analyze([_written(tmp_path, spent + notes * 200)]).findings
    assert [str(finding.severity) for finding in found] == ["info"]


def test_a_refused_request_and_words_of_a_heading_are_no_failure(tmp_path: Path) -> None:
    refused = (
        "ERROR 03-02 11:04:57 [serving_chat.py:136] Error with model object='error' message='The model `m` does not "
        "exist.' type='NotFoundError' param=None code=404\n"
    )
    heading = "program | error_type | verifier_verdict\n" + "program a | none | accepted\n" * 120

    for text in (refused, heading):
        assert not any("rror" in title for title in _titles(tmp_path, text))


def test_a_server_that_was_told_to_end_while_it_waited_is_no_stuck_job(tmp_path: Path) -> None:
    """Both tracebacks are of one program that ended, so that nothing can be looked at again."""
    ended = (
        'Traceback (most recent call last):\n  File "/mnt/job/worker.py", line 53, in wait\nKeyboardInterrupt\n'
        "During handling of the above exception, another exception occurred:\n\n"
        'Traceback (most recent call last):\n  File "/mnt/job/serve.py", line 9, in <module>\n'
        "KeyboardInterrupt: terminated\n"
    )

    report = analyze([_written(tmp_path, ended)])

    assert not any("take the stacks of all ranks again" in str(answer) for answer in report.verdicts)
    assert any(title.startswith("told to end by SIGTERM") for title in (found.title for found in report.findings))


def test_what_the_tracker_of_experiments_cannot_send_is_no_failure(tmp_path: Path) -> None:
    failed = "wandb: ERROR Error while calling W&B API: context deadline exceeded (<Response [500]>)\n"

    assert not any("deadline" in title for title in _titles(tmp_path, failed))


def test_memory_that_tensorflow_lacks_follows_from_no_other_error(tmp_path: Path) -> None:
    lacking = (
        f"{TRACEBACK}tensorflow.python.framework.errors_impl.ResourceExhaustedError: 2 root error(s) found.\n"
        "  (0) Resource exhausted: OOM when allocating tensor with shape[32,256,128,128]\n"
        "0 successful operations.\n"
    )

    lead = analyze([_written(tmp_path, lacking)]).findings[0]

    assert "ResourceExhaustedError" in lead.title
    assert "follows from something else" not in lead.detail


def test_memory_of_a_gpu_that_an_error_counts_as_its_cause_is_what_ran_out(tmp_path: Path) -> None:
    lacking = (
        f"{TRACEBACK}tensorflow.python.framework.errors_impl.ResourceExhaustedError: 2 root error(s) found.\n"
        "  (0) Resource exhausted: OOM when allocating tensor with shape[15,192,75,75] and type float on "
        "/job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc\n"
    )

    assert _titles(tmp_path, lacking) == ["out of GPU memory"]


def test_memory_that_is_larger_than_the_gpu_is_not_told(tmp_path: Path) -> None:
    """In WSL2 the driver does not tell what a process holds."""
    lacking = (
        f"{TRACEBACK}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 260.00 MiB. GPU 0 has a total "
        "capacity of 6.00 GiB of which 0 bytes is free. Including non-PyTorch memory, this process has {held} GiB "
        "memory in use. Of the allocated memory 5.43 GiB is allocated by PyTorch, and 53.63 MiB is reserved by PyTorch "
        "but unallocated.\n"
    )

    told, untold = (
        analyze([_written(tmp_path, lacking.format(held=held))]).findings[0].detail
        for held in ("5.90", "17179869184.00")
    )

    assert "held 5.9 GiB" in told
    assert "held" not in untold
