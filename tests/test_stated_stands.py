"""Programs that wait for something by their own words are named where their output ends, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from ncclforensics import analyze
from ncclforensics.cli import main
from tests.incidents import INCIDENTS

STEPS = "".join(f"step {number} loss 2.5\n" for number in range(1, 4))
STANDS = {
    "app-stands-in-debugger": "> /srv/job/train.py(118)train_epoch()\n-> loss = model(batch)\n(Pdb) \n",
    "app-waits-for-answer": "Do you wish to run the custom code? [y/N] \n",
    "app-waits-for-lock": "Still waiting to acquire lock on /srv/cache/model.lock (elapsed: 10.0 seconds)\n",
    "app-waits-for-resources": "Warning: The following resource request cannot be scheduled right now: {'GPU': 8.0}.\n",
    "app-ends-at-join": "| distributed init (rank 3): env://\n| distributed init (rank 0): env://\n",
    "app-ends-in-phase": 'Setting up PyTorch plugin "bias_act_plugin"... \n',
}
BAR = "  0%|          | 0/1218 [00:00<?, ?it/s]\n"
ENDS = {
    "where an extension of PyTorch is built": STANDS["app-ends-in-phase"],
    "with a progress bar at 0 of 1,218": BAR,
    "where the program saves a checkpoint": STEPS
    + " saving checkpoint at iteration     600 to /ckpt/run7 in torch_dist format\n",
    "where weights are loaded": "Loading checkpoint shards:  33%|###       | 1/3 [00:02<00:05,  2.50s/it]\n",
    "before the first step": "[before the start of training step] datetime: 2026-03-02 11:04:57 \n",
    "where more steps begin": STEPS + "| INFO | fairseq.trainer | begin training epoch 4\n",
}
ASKED = "*** SIGTERM received at time=1772449497 on cpu 0 ***\n"
CANCELLED = "slurmstepd: error: *** JOB 4711 ON gpu-a012 CANCELLED AT 2026-03-02T11:04:57 DUE TO TIME LIMIT ***\n"
BEFORE = "".join(f"loading shard {number} of 9\n" for number in range(1, 10))
TIME_OUT = (
    "[rank{rank}]:[E302 11:41:14.112213445 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective "
    "operation timeout: WorkNCCL(SeqNum=41, OpType=ALLREDUCE, NumelIn=16384, NumelOut=16384, Timeout(ms)=1800000) "
    "ran for 1800025 milliseconds before timing out.\n"
)
TIME_OUTS = "".join(TIME_OUT.format(rank=rank) for rank in (1, 2, 3))
every_stand = pytest.mark.parametrize(("rule", "lines"), STANDS.items(), ids=list(STANDS))


def rules_of(folder: Path, text: str) -> set[str]:
    log = folder / "job.log"
    log.write_text(text)
    return {finding.rule for finding in analyze(str(log)).findings} & STANDS.keys()


@every_stand
def test_a_program_stands_where_its_output_ends(tmp_path: Path, rule: str, lines: str) -> None:
    assert rules_of(tmp_path, BEFORE + lines) == {rule}


@every_stand
def test_what_waits_before_others_time_out_is_named_in_front_of_what_they_print(
    tmp_path: Path, rule: str, lines: str
) -> None:
    assert rules_of(tmp_path, BEFORE + lines + TIME_OUTS + BEFORE) == {rule}


@every_stand
@pytest.mark.parametrize("end", [ASKED, CANCELLED])
def test_what_waits_until_it_is_told_to_end_is_named(tmp_path: Path, rule: str, lines: str, end: str) -> None:
    assert rules_of(tmp_path, BEFORE + lines + end + "cleaning up\n" * 6) == {rule}


@every_stand
def test_a_program_that_goes_on_stands_nowhere(tmp_path: Path, rule: str, lines: str) -> None:
    assert rules_of(tmp_path, lines + BEFORE) == set()
    assert rules_of(tmp_path, lines + BEFORE + TIME_OUTS) == set()


def test_the_name_of_a_file_tells_which_rank_stands_there(tmp_path: Path) -> None:
    (tmp_path / "rank0.log").write_text(BEFORE + STANDS["app-stands-in-debugger"])
    for rank in (1, 2, 3):
        (tmp_path / f"rank{rank}.log").write_text(BEFORE + TIME_OUT.format(rank=rank))
    report = analyze(str(tmp_path))

    assert any(found.title.startswith("rank 0 stands at the prompt of a debugger") for found in report.findings)
    assert (report.verdicts[0].verdict, list(report.verdicts[0].missing)) == ("lagging-ranks", [0])


@pytest.mark.parametrize(("place", "lines"), ENDS.items(), ids=list(ENDS))
def test_the_part_of_its_work_is_named_that_the_last_line_of_a_program_names(
    tmp_path: Path, place: str, lines: str
) -> None:
    (tmp_path / "job.log").write_text(BEFORE + lines)
    (found,) = analyze(str(tmp_path / "job.log")).findings

    assert (found.title.startswith(f"the output ends {place}"), found.certainty) == (True, "possible")


def test_blank_lines_and_rules_of_dashes_say_nothing_behind_the_last_line(tmp_path: Path) -> None:
    registered = "All distributed processes registered. Starting with 2 processes\n"

    assert rules_of(tmp_path, BEFORE + registered + 40 * "-" + "\n\n") == {"app-ends-in-phase"}


def test_what_one_rank_prints_before_its_first_step_shows_nothing_beside_the_steps_of_another(tmp_path: Path) -> None:
    (tmp_path / "rank0.log").write_text(BEFORE + STEPS)
    (tmp_path / "rank1.log").write_text(BEFORE + ENDS["before the first step"])

    assert not [found for found in analyze(str(tmp_path)).findings if found.rule == "app-ends-in-phase"]


def test_an_output_that_shows_an_error_ends_in_no_part_of_its_work(tmp_path: Path) -> None:
    error = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\nValueError: no data\n'

    assert rules_of(tmp_path, error + BEFORE + ENDS["before the first step"]) == set()


def test_those_who_do_not_come_to_the_process_group_are_named(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    waits = "server not ready, wait 3 sec to retry...\nnot ready endpoints:['10.0.4.13:6170', '10.0.4.13:6171']\n"
    log.write_text(BEFORE + 3 * waits)
    (found,) = analyze(str(log)).findings

    assert found.title.startswith("processes wait for 10.0.4.13:6170, 10.0.4.13:6171 at the start")
    assert found.certainty == "likely"


def test_a_bar_that_moved_or_was_left_is_not_at_its_first_step(tmp_path: Path) -> None:
    moved = "  1%|          | 12/1218 [02:31<22:12,  1.48s/it]\n" + BAR

    left = "  0%|          | 0/1218 [00:29<?, ?it/s]\n"  # printed again when its loop is left

    assert rules_of(tmp_path, BEFORE + moved) == set()
    assert rules_of(tmp_path, BEFORE + BAR + left) == set()


def test_the_only_rank_without_a_time_out_stands_at_a_prompt_that_names_none(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text((INCIDENTS / "a-rank-stands-in-the-debugger" / "train.log").read_text())
    known = analyze(str(log)).verdicts[0]
    log.write_text(BEFORE + STANDS["app-stands-in-debugger"] + TIME_OUT.format(rank=2) + TIME_OUT.format(rank=3))
    unknown = analyze(str(log)).verdicts[0]

    assert (known.verdict, list(known.missing)) == ("lagging-ranks", [0])
    assert unknown.verdict != "lagging-ranks"  # of ranks 0 and 1, nothing tells which it is


def test_the_screen_of_a_hang_says_how_far_a_program_came_whose_last_line_is_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "job.log"
    log.write_text(BEFORE + ENDS["where weights are loaded"] + "/srv/job/train.py:7: warnings.warn('beta')\n")
    main(["hang", str(log)])
    near = " ".join(capsys.readouterr().out.split())
    log.write_text(BEFORE + ENDS["where weights are loaded"] + 2 * BEFORE)
    main(["hang", str(log)])
    far = capsys.readouterr().out

    assert "How far it came: where weights are loaded (job.log:10" in near
    assert "How far it came" not in far
