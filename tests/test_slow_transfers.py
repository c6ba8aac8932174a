"""`slow` on calls that take long once all ranks are there: what they are compared with, and when that says nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ncclforensics import analyze
from ncclforensics.analyses.slow.answer import SlowAnswer
from ncclforensics.simulate import slow
from ncclforensics.simulate.slow import SlowFault, SlowPlan, generate_slow

H100, V100 = "NVIDIA H100 80GB HBM3", "Tesla V100-SXM2-32GB"


def simulated(folder: Path, fault: SlowFault = SlowFault.NONE, **options: Any) -> Path:
    """A folder with the traces of a simulated job of eight ranks, without its step lines."""
    generate_slow(SlowPlan(fault, **{"nodes": 2, "gpus_per_node": 4, "tp": 2, "steps": 45, **options}), folder)
    (folder / "train.log").unlink()
    return folder


def nccl_tests(hosts: list[str], busbw: float) -> str:
    """The output of all_reduce_perf on four GPUs of each host, which reaches this bandwidth at all sizes."""
    ranks = 4 * len(hosts)
    devices = "\n".join(
        f"#  Rank {rank:2} Group  0 Pid {100 + rank:6} on {host:>10} device {rank % 4:2} [0000:1b:00] {H100}"
        for rank, host in enumerate(host for host in hosts for _ in range(4))
    )
    rows = []
    for size in (64 << 20, 256 << 20, 1 << 30):
        algbw = busbw / (2 * (ranks - 1) / ranks)
        half = f"{size / algbw / 1000:8.1f} {algbw:7.2f} {busbw:7.2f}       0"
        rows.append(f"{size:12}{size // 4:14}     float     sum      -1 {half} {half}")
    table = "\n".join(rows)
    return f"""\
# nccl-tests version 2.17.6 nccl-headers=22807 nccl-library=22807
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 1 minBytes 67108864 maxBytes 1073741824 step: 4(factor) warmup iters: 5 iters: 20 agg iters: 1 \
validation: 1 graph: 0
#
# Using devices
{devices}
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
{table}
# Out of bounds values : 0 OK
# Avg bus bandwidth    : {busbw:.1f}
#
# Collective test concluded: all_reduce_perf
"""


def with_model(folder: Path, model: str = H100) -> Path:
    """The same traces with the model of the GPUs."""
    devices = f'"deviceProperties": [{{"name": "{model}"}}]'
    for path in folder.glob("*.json"):
        path.write_text(path.read_text().replace('"deviceProperties": []', devices))
    return folder


def answer_of(folder: Path) -> SlowAnswer:
    """What `slow` answers on a folder."""
    answer = SlowAnswer.of(analyze(str(folder), full=True).run["slow_answer"])
    assert answer is not None
    return answer


@pytest.mark.parametrize(("tp", "since"), [(2, 30), (4, 20)])
def test_a_group_whose_calls_become_slow_is_dated_by_its_own_past(tmp_path: Path, tp: int, since: int) -> None:
    answer = answer_of(simulated(tmp_path, SlowFault.LINK, rank=5, tp=tp, since=since))

    assert (answer.verdict, answer.certainty, answer.ranks) == ("slow-communication", "likely", ())
    assert answer.group is not None
    assert "3.0 times as long as before" in answer.claim
    assert answer.since_step == 5 + since  # the first traced step is step 5


def test_one_sister_group_suffices_and_one_of_another_kind_is_none(tmp_path: Path) -> None:
    folder = simulated(tmp_path, SlowFault.LINK, rank=5, tp=4)

    assert answer_of(folder).group == "group tp (ranks 4-7)"
    for rank in range(4, 8):
        path = folder / f"rank{rank}.pt.trace.json"
        path.write_text(path.read_text().replace('"pg_desc": "tp"', '"pg_desc": "dp"'))
    assert answer_of(folder).verdict == "even"


@pytest.mark.parametrize(
    ("hosts", "busbw", "verdict"),
    [
        (["gpu-b001", "gpu-b002"], 120.0, "slow-communication"),
        (["gpu-b001", "gpu-b002"], 50.0, "even"),
        (["gpu-c001", "gpu-c002"], 120.0, "even"),
    ],
    ids=["slower", "as-fast", "other-hosts"],
)
def test_calls_are_compared_with_tests_of_the_same_hosts(
    tmp_path: Path, hosts: list[str], busbw: float, verdict: str
) -> None:
    folder = simulated(tmp_path, steps=25)
    (folder / "all_reduce.txt").write_text(nccl_tests(hosts, busbw))

    answer = answer_of(folder)

    assert answer.verdict == verdict
    if verdict != "even":
        assert answer.certainty == "possible"
        assert "moves 44.9 GB/s at best, nccl-tests on as many ranks of these hosts 120" in answer.claim


def test_calls_of_a_host_are_compared_with_such_machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow, "GPU_LINK", 90e3)
    folder = simulated(tmp_path, nodes=1, gpus_per_node=8, tp=4, steps=25)
    of_unknown_machine = answer_of(folder).verdict

    answer = answer_of(with_model(folder))

    assert (of_unknown_machine, answer.verdict, answer.certainty) == ("even", "slow-communication", "possible")
    assert "such a machine 360" in answer.claim


@pytest.mark.parametrize("model", [H100, V100])
def test_a_rate_that_no_link_carries_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str) -> None:
    monkeypatch.setattr(slow, "GPU_LINK", 900e3)
    monkeypatch.setattr(slow, "COMPUTE_US", 10.0)  # so that ranks begin together
    folder = with_model(simulated(tmp_path, nodes=1, gpus_per_node=8, tp=4, steps=25), model)

    rates = analyze(str(folder), full=True).run["call_rate"]

    assert rates["is_impossible"].all()
    assert rates["busbw"].null_count() == rates.height


def test_the_size_of_an_allgather_is_that_of_its_output(tmp_path: Path) -> None:
    folder = simulated(tmp_path, steps=3)
    for path in folder.iterdir():
        gathered = path.read_text().replace('"allreduce"', '"_allgather_base"')
        path.write_text(gathered.replace('"In msg nelems": ', '"In msg nelems": 1, "was": '))

    calls = analyze(str(folder), full=True).run["timed_call"]

    assert set(calls["operation"]) == {"all_gather"}
    assert set(calls["bytes"]) == {slow.GRADIENTS}


def test_small_calls_are_told_where_most_time_goes_into_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("COMPUTE_US", 100.0), ("GRADIENTS", 4096), ("ACTIVATIONS", 4096), ("LATENCY_US", 150.0)):
        monkeypatch.setattr(slow, name, value)

    answer = answer_of(simulated(tmp_path))

    assert answer.verdict == "exposed-communication"
    assert "calls below 1 MiB" in answer.details[0]
