"""Step lines: one form for all frameworks, since when steps are slower, and silence on healthy runs."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from ncclforensics import analyze
from ncclforensics.analyses.slow.change_points import levels
from ncclforensics.analyses.slow.stalls import period
from ncclforensics.cli import main
from ncclforensics.extensions.loading import load_folder
from tests.budget import IS_FULL
from tests.incidents import ROOT

START = datetime(2026, 3, 2, 11)  # as loggers print it
HEALTHY_RUNS = 2000 if IS_FULL else 50
MOST_FALSE = 0.01  # of healthy runs


def megatron(step: int, seconds: float, time: datetime, batch: int = 256) -> str:
    return (
        f" [{time:%Y-%m-%d %H:%M:%S}] iteration {step:8d}/   10000 | consumed samples: {step * batch:12d} |"
        f" elapsed time per iteration (ms): {seconds * 1e3:.1f} | learning rate: 1.5E-04 |"
        f" global batch size: {batch:5d} | lm loss: 2.345678E+00 | number of nan iterations:   0 |"
    )


def torchtitan(step: int, seconds: float, time: datetime) -> str:
    return (
        f"[rank0]:[titan] {time:%Y-%m-%d %H:%M:%S},123 - root - INFO - step: {step:2d}  loss:  7.1234"
        f"  grad_norm:  1.2345  memory: 48.87GiB(51.44%)  tps: {8192 / seconds:,.0f}  tflops: 253.41  mfu: 25.62%"
    )


def nanotron(step: int, seconds: float, time: datetime) -> str:
    return (
        f"{time:%m/%d/%Y %H:%M:%S} [INFO|DP=0|PP=0|TP=0|gpu-a012]: iteration: {step} / 10000 | consumed_tokens: 1.57M |"
        f" time_per_iteration_ms: {seconds:.4f}K | tokens_per_sec: {524.288 / seconds:.1f}K |"
        f" tokens_per_sec_per_gpu: {65.536 / seconds:.2f}K | global_batch_size: 128 | lm_loss: 7.1"
    )


def nemo(step: int, seconds: float, time: datetime) -> str:
    return (
        f"Training epoch {step // 100}, iteration {step % 100}/99 | lr: 1e-07 | global_batch_size: 512 |"
        f" global_step: {step} | reduced_train_loss: 11.03 | train_step_timing in s: {seconds:.4g}"
    )


def deepspeed(step: int, seconds: float, time: datetime) -> str:
    return (
        f"[{time:%Y-%m-%d %H:%M:%S},123] [INFO] [timer.py:260:stop] [Rank 0] epoch=0/micro_step={step * 4}/"
        f"global_step={step}, RunningAvgSamplesPerSec=61.2, CurrSamplesPerSec={64 / seconds}, MemAllocated=4.34GB"
    )


def verl(step: int, seconds: float, time: datetime) -> str:
    return f"step:{step} - actor/pg_loss:-0.005 - timing_s/gen:{seconds / 2:.3f} - timing_s/step:{seconds:.3f}"


def mlperf(step: int, seconds: float, time: datetime) -> str:
    return (
        f':::MLLOG {{"namespace": "", "time_ms": {int(time.timestamp() * 1e3)}, "event_type": "POINT_IN_TIME", "key":'
        f' "tracked_stats", "value": {{"train_step_time": {seconds}}}, "metadata": {{"lineno": 3, "step": {step}}}}}'
    )


def composer(step: int, seconds: float, time: datetime) -> str:
    return f"[batch={step}/10000]:\n\t Train time/epoch: 0\n\t Train throughput/batches_per_sec: {1 / seconds:.5f}"


def nanogpt(step: int, seconds: float, time: datetime) -> str:
    return f"iter {step}: loss 4.2012, time {seconds * 1e3:.2f}ms, mfu 12.34%"


def printed(step: int, seconds: float, time: datetime) -> str:
    return f"step {step}/10000 loss 4.2 step_time={seconds:.4f}s"


Printer = Callable[[int, float, datetime], str]
PRINTERS: list[Printer] = [
    megatron, torchtitan, nanotron, nemo, deepspeed, verl, mlperf, composer, nanogpt, printed,
]  # fmt: skip


def log(printer: Printer, lengths: Iterable[float], first: int = 1, every: int = 1) -> str:
    """The step lines of steps of these lengths; `every`: a line for so many steps."""
    time, lines = START, []
    for number, seconds in enumerate(lengths):
        time += timedelta(seconds=seconds * every)
        lines.append(printer(first + number * every, seconds, time))
    return "\n".join(lines) + "\n"


def noisy(rng: random.Random, *parts: tuple[int, float], spread: float = 0.005) -> list[float]:
    """Steps of some levels, one after the other: (how many, seconds)."""
    return [rng.gauss(seconds, spread * seconds) for count, seconds in parts for _ in range(count)]


def changes(tmp_path: Path, text: str) -> list[dict[str, Any]]:
    (tmp_path / "train.log").write_text(text, encoding="utf-8")
    return analyze(tmp_path, everything=True).frames["step_change"].to_dicts()


def answer(capsys: pytest.CaptureFixture[str], folder: Path) -> dict[str, Any]:
    main(["slow", str(folder), "--format", "json", "-q"])
    answered: dict[str, Any] = json.loads(capsys.readouterr().out)["slow"]
    return answered


@pytest.mark.parametrize("printer", PRINTERS, ids=lambda printer: printer.__name__)
def test_the_step_and_the_factor_of_a_slowdown_are_found_in_lines_of_every_framework(
    printer: Printer, tmp_path: Path
) -> None:
    (change,) = changes(tmp_path, log(printer, noisy(random.Random(1), (60, 1.2), (40, 1.44))))

    assert change["since_step"] == 61
    assert change["ratio"] == pytest.approx(1.2, rel=0.01)
    assert (change["has_ended"], change["explained_by"]) == (False, None)


@pytest.mark.parametrize("prefix", ["0: ", "[default0]:", "[1,0]<stdout>:", "(Trainer pid=4711) "])
def test_prefixes_of_launchers_change_nothing(prefix: str, tmp_path: Path) -> None:
    text = log(megatron, noisy(random.Random(1), (60, 1.2), (40, 1.44)))

    (change,) = changes(tmp_path, "".join(prefix + line for line in text.splitlines(keepends=True)))

    assert (change["since_step"], change["line"]) == (61, 61)


def test_a_line_of_many_steps_dates_the_change_by_the_first_of_them(tmp_path: Path) -> None:
    (change,) = changes(tmp_path, log(megatron, noisy(random.Random(1), (30, 2.0), (30, 2.3)), first=100, every=100))

    assert (change["since_step"], change["until_step"], change["steps"]) == (3001, 6000, 3000)


def test_a_slow_interval_that_ended_is_told_with_both_ends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (change,) = changes(tmp_path, log(megatron, noisy(random.Random(1), (200, 1.0), (30, 1.3), (200, 1.0))))

    assert (change["since_step"], change["until_step"], change["has_ended"]) == (201, 230, True)
    assert answer(capsys, tmp_path)["step_share"] is None


def test_a_larger_batch_explains_longer_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = random.Random(1)
    small, large = noisy(rng, (60, 1.2)), noisy(rng, (40, 2.4))
    text = log(megatron, small) + log(lambda *line: megatron(*line, batch=512), large, first=61)

    (change,) = changes(tmp_path, text)

    assert change["explained_by"] == "batch"
    assert answer(capsys, tmp_path)["verdict"] == "even"


def test_tokens_per_second_are_compared_where_the_lines_have_them(tmp_path: Path) -> None:
    """Longer steps at the same rate of tokens hold more work."""

    def line(step: int, seconds: float, _: datetime) -> str:
        milliseconds = f"elapsed time per iteration (ms): {seconds * 1e3:.1f}"
        return f" iteration {step}/ 1000 | {milliseconds} | tokens per second: 8000 |"

    assert changes(tmp_path, log(line, noisy(random.Random(1), (60, 1.2), (40, 2.4)))) == []


def test_a_restart_at_the_change_makes_it_possible_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = random.Random(1)
    text = log(megatron, noisy(rng, (60, 1.2))) + log(megatron, noisy(rng, (60, 1.44)), first=41)

    (change,) = changes(tmp_path, text)
    slow = answer(capsys, tmp_path)

    assert (change["since_step"], change["explained_by"]) == (41, "restart")
    assert (slow["verdict"], slow["certainty"]) == ("slowed-down", "possible")


def test_a_slowdown_that_the_rate_of_tokens_shows_is_certain_and_names_nobody(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.log").write_text(log(nanotron, noisy(random.Random(1), (60, 1.2), (40, 1.5))), encoding="utf-8")

    slow = answer(capsys, tmp_path)

    assert (slow["verdict"], slow["certainty"], slow["ranks"], slow["hosts"]) == ("slowed-down", "certain", [], [])
    assert (slow["since_step"], slow["since"]) == (61, (START + timedelta(seconds=73)).isoformat())
    assert slow["step_share"] == pytest.approx(0.2, abs=0.01)
    assert slow["gpu_hours_per_day"] == pytest.approx(0.2 * 8 * 24, rel=0.05)  # 524 of 65.5 K tokens: 8 GPUs


def test_the_order_and_the_number_of_ranks_files_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = random.Random(1)
    lengths = noisy(rng, (30, 0.02), (30, 0.026), spread=0.002)
    for rank in (3, 0, 2, 1):
        lines = [f"1795650586.{step:06d} rank {rank} step {step} {1e3 * seconds + rng.random() / 50:.3f} ms"
                 for step, seconds in enumerate(lengths)]  # fmt: skip
        (tmp_path / f"rank{rank}.log").write_text("\n".join(lines) + "\n", encoding="utf-8")
    together = answer(capsys, tmp_path)
    alone = answer(capsys, tmp_path / "rank2.log")

    frames = analyze([tmp_path / f"rank{rank}.log" for rank in (2, 1, 3, 0)], everything=True).frames

    assert frames["step_change"]["since_step"].to_list() == [30]
    assert together["since_step"] == alone["since_step"] == 30


def test_a_change_that_noise_hides_is_neither_told_nor_denied(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = random.Random(3)
    lengths = [rng.gauss(1.0, 0.3) for _ in range(22)] + [rng.gauss(1.3, 0.3) for _ in range(23)]
    (tmp_path / "train.log").write_text(log(megatron, lengths), encoding="utf-8")

    slow = answer(capsys, tmp_path)

    assert slow["verdict"] == "undecidable"
    assert "no change beyond noise" in slow["reason"]


def healthy(kind: str, rng: random.Random, records: int) -> list[float]:
    if kind == "even":
        return [rng.gauss(1, 0.01) for _ in range(records)]
    if kind == "noise":
        return [rng.gauss(1, 0.03) for _ in range(records)]
    if kind == "work":
        return [rng.lognormvariate(0, 0.2) for _ in range(records)]
    if kind == "stalls":
        return [rng.gauss(1, 0.01) + 2 * (rng.random() < 0.005) for _ in range(records)]
    return [rng.gauss(1, 0.01) * (1 + 3 * 0.8**step) for step in range(records)]  # warm-up


def test_healthy_runs_are_not_called_slower() -> None:
    rng = random.Random(44)
    kinds = ("even", "noise", "work", "stalls", "warm-up")
    false = 0
    for number in range(HEALTHY_RUNS):
        parts = levels(healthy(kinds[number % len(kinds)], rng, rng.choice((24, 60, 200, 600))))
        false += any(after.middle > before.middle for before, after in pairwise(parts))

    assert false <= MOST_FALSE * HEALTHY_RUNS


@pytest.mark.parametrize("factor", [1.1, 1.25, 2.0])
def test_a_slowdown_of_a_tenth_is_found_at_its_step_beneath_noise_and_stalls(factor: float) -> None:
    rng = random.Random(7)
    for _ in range(20):
        cut, records = rng.randrange(20, 180), 200
        series = [
            value * (factor if place >= cut else 1) for place, value in enumerate(healthy("stalls", rng, records))
        ]

        found = [level.start for level in levels(series)[1:]]

        assert len(found) == 1
        assert abs(found[0] - cut) <= 1


def test_stalls_at_equal_distances_are_told_with_their_period_and_cost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = random.Random(1)
    lengths = [rng.gauss(0.5, 0.002) + 2.0 * (step % 25 == 0) for step in range(1, 251)]
    (tmp_path / "train.log").write_text(log(megatron, lengths), encoding="utf-8")

    slow = answer(capsys, tmp_path)

    assert slow["verdict"] == "periodic-stalls"
    assert slow["step_share"] == pytest.approx(20 / (125 + 20), rel=0.03)


def test_irregular_distances_are_no_period() -> None:
    assert period([3, 20, 31, 60, 64, 90]) is None
    assert period([25, 50, 75]) == 25
    assert period([25, 75, 100]) is None  # three may stand so by chance


def bar_that_slows_down(rate: str) -> str:
    elapsed, updates = 0.0, []
    for step in range(1, 2001):
        elapsed += 1.5 if step > 1200 else 1.0
        clock = f"{int(elapsed) // 3600}:{int(elapsed) // 60 % 60:02d}:{int(elapsed) % 60:02d}"
        updates.append(f"{step // 20:3d}%|██    | {step}/2000 [{clock.removeprefix('0:')}<9:59,  {rate}]")
    return "\r".join(updates) + "\n"


def test_a_progress_bar_that_writes_over_itself_dates_a_slowdown(tmp_path: Path) -> None:
    (change,) = changes(tmp_path, bar_that_slows_down("1.20s/it"))

    assert 1160 <= change["since_step"] <= 1240
    assert change["ratio"] == pytest.approx(1.5, rel=0.05)


@pytest.mark.parametrize("rate", ["2.04 examples/s", "2.05s/ examples"])
def test_a_bar_of_the_preparation_of_data_counts_no_steps(rate: str, tmp_path: Path) -> None:
    assert not changes(tmp_path, bar_that_slows_down(rate))


def test_a_bar_that_begins_anew_with_another_pace_is_no_slowdown(tmp_path: Path) -> None:
    paces = {1.0: range(1, 601), 3.0: range(1, 301)}
    updates = [
        f"{step // 6:3d}%|##    | {step}/600 [{int(step * pace) // 60:02d}:{int(step * pace) % 60:02d}<9:59,  1.20s/it]"
        for pace, steps in paces.items()
        for step in steps
    ]

    assert not changes(tmp_path, "\n".join(updates) + "\n")


def test_lines_of_a_users_own_fill_the_same_frame(own_registries: None, tmp_path: Path) -> None:
    folder = ROOT / "docs" / "example-rules"
    load_folder(folder)
    lines = [f"acme> step {step} done, {800 if step <= 40 else 640} tokens/s" for step in range(80)]

    (change,) = changes(tmp_path, "\n".join(lines) + "\n")

    assert (change["since_step"], change["unit"]) == (41, "token")
    assert change["ratio"] == pytest.approx(1.25)


def test_a_log_of_step_lines_is_no_log_of_nccl_and_shows_no_hang(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.log").write_text(log(megatron, noisy(random.Random(1), (100, 1.0))), encoding="utf-8")
    main(["hang", str(tmp_path), "--format", "json", "-q"])
    report = json.loads(capsys.readouterr().out)

    assert report["inputs"][0]["kind"] == "step-log"
    assert (report["hang"]["verdict"], report["hang"]["culprits"]) == ("undecidable", [])


def test_step_lines_among_lines_of_nccl_leave_its_log_what_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    incident = ROOT / "fixtures" / "incidents" / "one-rank-stops-before-an-allreduce" / "nccl_rank0.log"
    lines = incident.read_text(encoding="utf-8").splitlines()
    steps = log(megatron, noisy(random.Random(1), (40, 1.0))).splitlines()
    (tmp_path / "rank0.log").write_text("\n".join([*lines, *steps]) + "\n", encoding="utf-8")

    report = analyze(tmp_path, everything=True)
    main(["check", str(tmp_path), "--format", "json", "-q"])

    assert json.loads(capsys.readouterr().out)["inputs"][0]["kind"] == "nccl-log"
    assert report.frames["timed_step"].height == 40
    assert report.frames["timed_step"]["rank"].unique().to_list() == [0]
