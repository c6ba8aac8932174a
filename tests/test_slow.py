"""`slow`: what makes a running job slow, and when nothing is named."""

from __future__ import annotations

import gzip
import json
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from ncclforensics import analyze
from ncclforensics.analyses.slow.answer import SlowAnswer, SlowKind
from ncclforensics.analyses.slow.step_window import Named, StepWindow
from ncclforensics.cli import main
from ncclforensics.simulate import slow
from ncclforensics.simulate.slow import SlowFault, SlowPlan, generate_slow, write_metrics
from ncclforensics.views.text_slow import screen
from tests import incidents
from tests.budget import IS_FULL
from tests.incidents import ROOT

STUCK = ROOT / "fixtures" / "incidents" / "one-rank-stops-before-an-allreduce"
JOBS = ROOT / "fixtures" / "slow"  # real jobs of four ranks over gloo, made slow in a known way
SHUFFLES = 200 if IS_FULL else 3  # of each of ten jobs


def report_of(*paths: Path | str) -> Any:
    """The frames of a run that was read whole."""
    return incidents.analyzed(paths, full=True)


def answer_of(*paths: Path | str) -> SlowAnswer:
    """What `slow` answers on these paths."""
    answer = SlowAnswer.of(report_of(*paths).run["slow_answer"])
    assert answer is not None
    return answer


def simulated(folder: Path, fault: SlowFault, **options: Any) -> Path:
    """A folder with the traces of a simulated job of two hosts with four ranks each."""
    generate_slow(SlowPlan(fault, gpus_per_node=4, tp=2, **options), folder)
    return folder


def printed(capsys: pytest.CaptureFixture[str], *arguments: Path | str) -> tuple[int, str]:
    """The exit code and the output of a command."""
    code = main(list(map(str, arguments)))
    return code, capsys.readouterr().out


@pytest.mark.parametrize(
    ("job", "verdict", "ranks"),
    [
        ("late-in-groups", "slow-rank", (2,)),
        ("late-since", "slow-rank", (1,)),
        ("periodic", "periodic-stalls", (3,)),
        ("net-slow-link", "slow-communication", ()),
        ("imbalance", "uneven-work", ()),
        ("late-in-a-capture", "slow-rank", (2,)),  # --profile --inject slow:2:40
        ("a-capture", "even", ()),
        ("balanced-groups", "even", ()),
        ("busy-machine", "even", ()),
        ("late-on-a-busy-machine", "slow-rank", (6,)),
        ("periodic-on-a-busy-machine", "periodic-stalls", (2,)),
    ],
)
def test_real_jobs_that_were_made_slow_in_a_known_way(job: str, verdict: str, ranks: tuple[int, ...]) -> None:
    answer = answer_of(JOBS / job)

    assert (answer.verdict, answer.ranks) == (verdict, ranks)


def test_the_rank_that_arrives_last_in_nearly_all_calls_is_no_culprit_where_groups_nest() -> None:
    """Rank 3 waits for rank 2 in their group, and so comes last to the calls of all ranks."""
    calls = report_of(JOBS / "late-in-groups").run["call_wait"]
    of_all = calls.filter(calls["bytes"] == 1 << 20).sort("duration_us").unique("nth", keep="first")

    assert (of_all["rank"] == 3).mean() > 0.4
    assert answer_of(JOBS / "late-in-groups").ranks == (2,)


def test_the_step_from_which_on_a_rank_is_late_is_found() -> None:
    answer = answer_of(JOBS / "late-since")

    assert answer.since_step is not None
    assert abs(answer.since_step - 25) <= 1
    assert answer.since is not None


def test_transfers_that_a_busy_machine_delays_are_no_slow_network() -> None:
    """Eight ranks share two cores: their calls are as slow as over a slow link, but not all of them."""
    busy, behind_a_link = (report_of(JOBS / job).run["call_rate"] for job in ("busy-machine", "net-slow-link"))

    assert busy["busbw"].max() < 0.125  # GB/s: 1 Gbit/s
    assert (busy["is_steady"].any(), behind_a_link["is_steady"].any()) == (False, True)


def test_a_rank_is_named_where_ends_lie_apart_if_the_others_wait_for_it() -> None:
    window = StepWindow(report_of(JOBS / "late-on-a-busy-machine").run["own_time"])

    assert not window.ends_together
    named = window.named({}, {})
    assert named is not None
    assert (named.found.members, window.numbers[named.since or 0]) == ((6,), 30)

    window.waits = [[0.0] * len(times) for times in window.waits]
    assert window.named({}, {}) is None


def test_a_set_of_half_of_the_ranks_is_not_named_for_being_last_in_half_of_the_steps() -> None:
    """Two ranks of four are late in each step, drawn anew."""
    generator, named = random.Random(3), 0
    own_time = report_of(JOBS / "balanced-groups").run["own_time"]
    for _ in range(100):
        window = StepWindow(own_time)
        late = [generator.sample([0.0, 0.0, 15_000.0, 15_000.0], 4) for _ in window.own]
        window.own = [[20_000 + generator.gauss(0, 1500) + more for more in step] for step in late]
        named += window.named({"a": frozenset({0, 1}), "b": frozenset({2, 3})}, {}) is not None

    assert named == 0


@pytest.mark.parametrize(("late", "named"), [((1, 6), (1, 6)), ((0, 1, 2, 6), None)])
def test_few_ranks_that_are_late_together_are_named_and_half_of_them_are_not(
    late: tuple[int, ...], named: tuple[int, ...] | None
) -> None:
    generator = random.Random(5)
    window = StepWindow(report_of(JOBS / "busy-machine").run["own_time"])
    window.own = [
        [20_000 + 15_000 * (rank in late) + generator.gauss(0, 1500) for rank in window.ranks] for _ in window.own
    ]
    window.apart = [0.0] * len(window.apart)
    found = window.named({}, {})

    assert (found and (found.kind, found.found.members)) == (named and ("rank", named))


def test_what_traces_say_that_list_several_groups_and_name_none_is_only_possible(tmp_path: Path) -> None:
    for trace in (JOBS / "late-in-groups").glob("*.pt.trace.json.gz"):
        shutil.copy(trace, tmp_path)
    alone, with_dumps = answer_of(tmp_path), answer_of(JOBS / "late-in-groups")

    assert (alone.ranks, alone.certainty) == ((2,), "possible")
    assert any("Flight Recorder" in request for request in alone.collect)
    assert (with_dumps.ranks, with_dumps.certainty) == ((2,), "certain")


def test_a_long_step_of_another_rank_does_not_change_the_period_of_stalls() -> None:
    window = StepWindow(report_of(JOBS / "periodic").run["own_time"])
    assert window.stalls is not None
    first, second = window.stalls.places[:2]
    window = StepWindow(report_of(JOBS / "periodic").run["own_time"])
    window.own[(first + second) // 2][0] = max(window.own[first])

    stalls = window.stalls

    assert stalls is not None
    assert (stalls.period, window.ranks[stalls.owner or 0], stalls.owned, len(stalls.places)) == (10, 3, 4, 5)


def test_ranks_that_are_late_by_chance_are_not_said_to_work_longest() -> None:
    generator = random.Random(1)
    own_time = report_of(JOBS / "busy-machine").run["own_time"]
    named = 0
    for _ in range(50):
        window = StepWindow(own_time)
        window.own = [[generator.gauss(20_000, 8_000) for _ in window.ranks] for _ in window.own]
        named += len(window.late_ranks())

    assert named <= 3


def test_a_host_is_found_among_hundreds_without_comparing_each_with_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Comparisons of sets take time that grows with their number times all ranks: 92 s at 4,096 ranks."""
    generator = random.Random(5)
    compared: list[str] = []
    times = [
        {
            "rank": rank, "step": step, "number": step, "ended_us": 1e5 * step, "length_us": 1.3e5, "wait_us": 1e4,
            "own_us": 1e5 * (1 + generator.gauss(0, 0.01) + 0.1 * (rank // 4 == 7)),
        }
        for step in range(25)
        for rank in range(200)
    ]  # fmt: skip
    compare = StepWindow._set

    def counted(window: StepWindow, kind: str, name: str, members: frozenset[int]) -> Named | None:
        compared.append(name)
        return compare(window, kind, name, members)

    monkeypatch.setattr(StepWindow, "_set", counted)
    hosts = {f"host{number}": frozenset(range(4 * number, 4 * number + 4)) for number in range(50)}

    named = StepWindow(pl.DataFrame(times)).named({}, hosts)

    assert named is not None
    assert (named.kind, named.name, compared) == ("host", "host7", ["host7"])


def test_nothing_is_asked_for_that_is_there(tmp_path: Path) -> None:
    folder = simulated(tmp_path, SlowFault.NONE, steps=45)
    with_traces = answer_of(folder)
    step_lines_alone = answer_of(folder / "train.log")

    assert (with_traces.verdict, step_lines_alone.verdict) == ("even", "even")
    assert with_traces.collect == ()
    assert "traces" in step_lines_alone.collect[0]


def test_traces_are_asked_for_again_if_they_are_older_than_the_change(tmp_path: Path) -> None:
    folder = simulated(tmp_path, SlowFault.RANK, steps=60, since=40, by=0.6)
    log = (folder / "train.log").read_text()
    before = simulated(tmp_path / "before", SlowFault.NONE)
    (before / "train.log").write_text(log)
    during = simulated(tmp_path / "during", SlowFault.NONE, steps=60)
    (during / "train.log").write_text(log)

    assert answer_of(before).verdict == answer_of(during).verdict == "slowed-down"
    assert any("while it is slow" in step for step in answer_of(before).collect)
    assert not any("traces" in step for step in answer_of(during).collect)


def test_the_stall_of_a_rank_is_told_before_that_of_step_lines_which_name_none(tmp_path: Path) -> None:
    answer = answer_of(simulated(tmp_path, SlowFault.PERIOD, steps=45, rank=5))

    assert (answer.verdict, answer.ranks) == ("periodic-stalls", (5,))
    assert not any(verdict == "periodic-stalls" for verdict, *_ in answer.considered)


@pytest.mark.parametrize(
    ("fault", "verdict", "ranks"),
    [
        (SlowFault.NONE, "even", ()),
        (SlowFault.RANK, "slow-rank", (5,)),
        (SlowFault.HOST, "slow-host", (4, 5, 6, 7)),
        (SlowFault.GROUP, "slow-group", (4, 5)),
        (SlowFault.LINK, "slow-communication", ()),
        (SlowFault.PERIOD, "periodic-stalls", (5,)),
        (SlowFault.LAUNCH, "even", ()),  # late by a sixth of a step
        (SlowFault.EXPERTS, "uneven-work", ()),
    ],
)
def test_simulated_jobs_on_gpus(tmp_path: Path, fault: SlowFault, verdict: str, ranks: tuple[int, ...]) -> None:
    answer = answer_of(simulated(tmp_path, fault, rank=5, steps=45))

    assert (answer.verdict, answer.ranks) == (verdict, ranks)


def test_calls_are_exposed_where_kernels_compute_that_could_hide_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slow, "COMPUTE_US", 10_000.0)

    answer = answer_of(simulated(tmp_path, SlowFault.NONE))

    assert (answer.verdict, answer.certainty) == ("exposed-communication", "likely")


def test_gpus_wait_for_hosts_where_all_launch_their_kernels_late(tmp_path: Path) -> None:
    folder = simulated(tmp_path, SlowFault.LAUNCH, by=0.5)

    answer = answer_of(folder)

    assert (answer.verdict, answer.certainty) == ("waits-for-host", "possible")
    assert "ten times `py-spy dump`" in answer.collect[0]

    trace = folder / "rank3.pt.trace.json"
    trace.write_text(trace.read_text().replace("cudaLaunchKernel", "cudaEventQuery"))  # as where CUDA is not traced
    assert answer_of(folder).verdict == "even"


def test_gpus_that_rest_although_kernels_are_launched_do_not_wait_for_their_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slow, "LATE_US", 100_000.0)

    assert answer_of(simulated(tmp_path, SlowFault.LAUNCH, by=0.5)).verdict == "even"


def test_waits_within_calls_of_unequal_sizes_are_only_possibly_communication(tmp_path: Path) -> None:
    """Of an all-to-all of unequal sizes no trace shows how much is waiting for the rank with most tokens."""
    generate_slow(SlowPlan(SlowFault.EXPERTS, gpus_per_node=4, tp=4, by=0.8), tmp_path)

    answer = answer_of(tmp_path)

    assert answer.verdict == "uneven-work"
    assert ("exposed-communication", "possible") in {(verdict, sure) for verdict, _, sure, _ in answer.considered}


def test_a_measurement_of_calls_alone_is_no_exposed_communication() -> None:
    answer = answer_of(JOBS / "a-capture")

    assert answer.verdict == "even"
    assert "calls take 87.4 % of a step on all ranks alike; whether computation could hide them" in answer.details[0]


def test_what_a_slow_rank_costs_is_what_was_injected(tmp_path: Path) -> None:
    healthy = answer_of(simulated(tmp_path / "healthy", SlowFault.NONE)).step_seconds
    answer = answer_of(simulated(tmp_path / "slow", SlowFault.RANK, by=0.3))

    assert None not in (healthy, answer.step_seconds, answer.step_share)
    assert isinstance(answer.step_seconds, float)
    assert isinstance(answer.step_share, float)
    assert answer.step_seconds * (1 - answer.step_share) == pytest.approx(healthy, rel=0.02)
    assert answer.gpu_hours_per_day == pytest.approx(answer.step_share * 8 * 24)


def test_a_rank_that_becomes_slow_is_dated(tmp_path: Path) -> None:
    answer = answer_of(simulated(tmp_path, SlowFault.RANK, steps=40, since=25))

    assert (answer.verdict, answer.ranks) == ("slow-rank", (3,))
    assert answer.since_step == 30  # the first traced step is step 5


def test_a_group_that_becomes_slow_is_dated(tmp_path: Path) -> None:
    answer = answer_of(simulated(tmp_path, SlowFault.GROUP, rank=5, steps=45, since=25))

    assert (answer.verdict, answer.ranks, answer.since_step) == ("slow-group", (4, 5), 30)


def test_step_lines_do_not_hide_that_the_trace_of_a_rank_is_missing(tmp_path: Path) -> None:
    folder = simulated(tmp_path, SlowFault.RANK, steps=45, since=25, by=0.6)
    (folder / "rank6.pt.trace.json").unlink()

    answer = answer_of(folder)

    assert (answer.verdict, answer.missing, answer.since_step) == ("undecidable", (6,), 30)
    assert [verdict for verdict, *_ in answer.considered] == ["slowed-down"]


@pytest.mark.parametrize("absent", [3, 5])
def test_without_the_trace_of_a_rank_none_is_named(tmp_path: Path, absent: int) -> None:
    folder = simulated(tmp_path, SlowFault.RANK)
    (folder / f"rank{absent}.pt.trace.json").unlink()

    answer = answer_of(folder)

    assert (answer.verdict, answer.ranks, answer.missing) == ("undecidable", (), (absent,))
    assert f"rank {absent}" in answer.collect[0]


def test_too_few_steps_decide_nothing(tmp_path: Path) -> None:
    answer = answer_of(simulated(tmp_path, SlowFault.RANK, steps=12))

    assert (answer.verdict, answer.ranks) == ("undecidable", ())
    assert "20 are the least" in answer.claim


def test_the_ranks_of_shuffled_steps_are_not_named() -> None:
    """The same work, but another rank has it in each step: chance may name at most one job in two hundred."""
    generator = random.Random(7)
    named = 0
    for job in sorted(JOBS.iterdir()):
        run = report_of(job).run
        groups = {key: frozenset(members) for key, members in run["call_group"].select("key", "members").iter_rows()}
        for _ in range(SHUFFLES):
            window = StepWindow(run["own_time"])
            orders = [generator.sample(range(len(times)), len(times)) for times in window.own]
            window.own, window.waits = (
                [[times[rank] for rank in order] for times, order in zip(steps, orders, strict=True)]
                for steps in (window.own, window.waits)
            )
            stalls = window.stalls
            named += window.named(groups, {}) is not None or (stalls is not None and stalls.owner is not None)

    assert named <= max(1, SHUFFLES * 5 // 100)


def test_traces_may_be_compressed_cut_and_without_the_rank(tmp_path: Path) -> None:
    folder = simulated(tmp_path, SlowFault.RANK)
    for rank in range(8):
        path = folder / f"rank{rank}.pt.trace.json"
        text = path.read_bytes()
        if rank == 1:
            text = text.replace(b'"rank": 1, ', b"")
        if rank == 2:
            text = text[: -len(text) // 9]
        (folder / f"worker_rank{rank}.json.gz").write_bytes(gzip.compress(text, 1))
        path.unlink()

    report = report_of(folder)
    answer = SlowAnswer.of(report.run["slow_answer"])

    assert answer is not None
    assert (answer.verdict, answer.ranks) == ("slow-rank", (3,))
    assert [problem for _, problem in report.input_problems()] == ["is JSON that was cut off"]


def test_traces_of_gloo_that_tell_no_size_of_the_job_are_taken_for_all_ranks(tmp_path: Path) -> None:
    for path in (JOBS / "late-since").glob("*.gz"):
        trace = json.loads(gzip.decompress(path.read_bytes()))
        del trace["distributedInfo"]
        (tmp_path / path.name).write_bytes(gzip.compress(json.dumps(trace).encode()))

    answer = answer_of(tmp_path)

    assert (answer.verdict, answer.certainty, answer.ranks) == ("slow-rank", "possible", (1,))
    assert "there is no trace" in answer.assumes[-1]


def test_traces_are_no_flight_recorder_dumps() -> None:
    report = report_of(JOBS / "late-since")

    assert set(report.run.kinds.values()) == {"profiler-trace"}
    assert report.run["recorder_dump"].is_empty()


def test_logs_without_times_decide_nothing_and_say_what_to_collect(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = printed(capsys, "slow", STUCK, "--format", "json", "-q")
    slow = json.loads(out)["slow"]

    assert (code, slow["verdict"], slow["ranks"]) == (3, "undecidable", [])
    assert "torch.profiler" in slow["collect_next"][0]


@pytest.mark.parametrize(
    ("job", "code"), [("late-since", 1), ("balanced-groups", 0), ("imbalance", 0), ("net-slow-link", 1)]
)
def test_exit_codes(capsys: pytest.CaptureFixture[str], job: str, code: int) -> None:
    assert printed(capsys, "slow", JOBS / job)[0] == code
    assert printed(capsys, "slow", JOBS / job, "--fail-on", "error")[0] == 0


def test_the_text_names_rank_cost_and_since(capsys: pytest.CaptureFixture[str]) -> None:
    _, out = printed(capsys, "slow", JOBS / "late-since", "-q")

    assert "SLOW-RANK (certain)  rank 1 on vm" in out
    assert "Without it a step would take" in out
    assert "Since step 25" in out
    assert out.rstrip().splitlines()[-1] == "meaning and what to do: ncclforensics explain slow-rank"


def test_check_tells_of_slow_jobs_and_hang_does_not(capsys: pytest.CaptureFixture[str]) -> None:
    checked = json.loads(printed(capsys, "check", JOBS / "late-since", "--format", "json")[1])
    hung = json.loads(printed(capsys, "hang", JOBS / "late-since", "--format", "json")[1])

    assert checked["slow"]["ranks"] == [1]
    assert "slow" not in hung


def test_hang_leads_traces_of_a_slow_job_to_slow(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = printed(capsys, "hang", JOBS / "late-since", "-q")

    assert code == 3
    assert "these files hold traces of profilers" in " ".join(out.split())
    assert "ncclforensics slow" in out


def test_kernels_that_are_slower_alike_are_the_cause(tmp_path: Path) -> None:
    slow = answer_of(simulated(tmp_path / "rank", SlowFault.RANK))

    assert slow.cause is not None
    assert "1.20 times as long as on the other ranks, all kinds alike" in slow.cause


def test_a_late_host_process_is_the_cause_where_kernels_take_no_longer(tmp_path: Path) -> None:
    generate_slow(SlowPlan(SlowFault.HOST, nodes=8, gpus_per_node=1, tp=1), tmp_path)  # one rank on each host

    answer = answer_of(tmp_path)

    assert (answer.verdict, answer.ranks) == ("slow-rank", (3,))

    assert answer.cause is not None
    assert "the host is late" in answer.cause


def test_a_report_shows_the_answer_with_a_heat_map(tmp_path: Path) -> None:
    page = tmp_path / "slow.html"

    assert main(["report", str(JOBS / "late-since"), "-o", str(page), "-q"]) in (0, 1, 3)
    text = page.read_text(encoding="utf-8")
    assert "slow-rank" in text
    assert 'aria-label="How much longer each rank works, step by step"' in text


def test_a_saved_run_gives_the_same_answer(tmp_path: Path) -> None:
    saved = tmp_path / "run.ncclf"
    main(["save", str(JOBS / "late-since"), "-o", str(saved), "-q"])

    assert answer_of(saved) == answer_of(JOBS / "late-since")


@pytest.mark.parametrize("verdict", SlowKind)
def test_verdicts_are_explained(capsys: pytest.CaptureFixture[str], verdict: str) -> None:
    code, out = printed(capsys, "explain", verdict)

    assert code == 0
    assert "a verdict of `slow`" in out


def inspected(folder: Path, durations: dict[int, int], key: str = "0x7f8c496ae9f661") -> None:
    """Write the Inspector's records of ranks whose calls take so many microseconds; the call itself takes 100."""
    for rank, duration in durations.items():
        head = {"id": key, "rank": rank, "n_ranks": 4, "nnodes": 1}
        meta = {
            "inspector_output_format_version": "v4.0",
            "dump_timestamp_us": 1772449497000000,
            "hostname": "gpu-a012",
        }
        rows = [
            {
                "header": head,
                "metadata": {**meta, "pid": 4000 + rank},
                "coll_perf": {
                    "coll": "AllReduce",
                    "coll_sn": number,
                    "coll_msg_size_bytes": 1 << 20,
                    "coll_exec_time_us": duration + number % 3,
                    "coll_algobw_gbs": 1.5,
                    "coll_busbw_gbs": 2.5,
                },
            }
            for number in range(40)
        ]
        text = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)
        (folder / f"inspector-{key}-{rank}.log").write_text(text)


def test_the_inspector_names_the_rank_that_waits_least_as_possible(tmp_path: Path) -> None:
    inspected(tmp_path, {0: 900, 1: 880, 2: 100, 3: 910})

    answer = answer_of(tmp_path)

    assert (answer.verdict, answer.certainty, answer.ranks) == ("slow-rank", "possible", (2,))


def test_the_inspector_names_none_where_calls_are_alike_or_groups_nest(tmp_path: Path) -> None:
    inspected(tmp_path, {0: 104, 1: 103, 2: 100, 3: 105})
    assert answer_of(tmp_path).ranks == ()

    inspected(tmp_path, {0: 900, 1: 880, 2: 100, 3: 910})
    inspected(tmp_path, {0: 900, 1: 880, 2: 100, 3: 910}, key="0x11111")
    assert answer_of(tmp_path).ranks == ()


def test_hostile_traces_are_read_without_harm(tmp_path: Path) -> None:
    kernel = {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce", "ts": 1, "dur": 2, "args": {}}
    events: list[Any] = [
        {**kernel, "ts": 1e308, "dur": 1e308},
        {**kernel, "dur": -7},
        {**kernel, "ts": 2**80},
        {**kernel, "name": 5},
        {**kernel, "args": {"Collective name": 7, "Process Group Ranks": "[[1]", "Seq": 2**63, "External id": {}}},
        {**kernel, "cat": "user_annotation", "name": f"ProfilerStep#{10**30}"},
        None,
    ]
    info = {"rank": 0, "world_size": 2**31 - 1, "pg_config": [{"pg_name": "\x1b[31m", "ranks": [0, -1, 2**40]}]}
    trace = {"schemaVersion": 1, "distributedInfo": info, "host_name": "\x1b]0;x\x07", "traceEvents": events}
    (tmp_path / "rank0.json").write_text(json.dumps(trace))
    (tmp_path / "rank1.json").write_text('{"schemaVersion": 1, "traceEvents": ' + "[" * 3000)
    (tmp_path / "rank2.json").write_text('{"schemaVersion": 1, "traceEvents": [{"ph":"X","cat":"kernel","ts":NaN}]}')

    report = report_of(tmp_path)
    answer = SlowAnswer.of(report.run["slow_answer"])

    assert report.defects == []
    assert answer is not None
    assert (answer.verdict, answer.ranks) == ("undecidable", ())
    assert "nan" not in answer.claim


@pytest.mark.parametrize(("by", "certainty"), [(0.2, "certain"), (0.04, "likely")])
def test_a_small_gain_is_less_sure(tmp_path: Path, by: float, certainty: str) -> None:
    answer = answer_of(simulated(tmp_path, SlowFault.RANK, by=by))

    assert (answer.ranks, answer.certainty) == ((3,), certainty)


SLOWDOWN = "clocks_event_reasons.hw_thermal_slowdown"


def smi_of(host: str, clock: int, is_hot: str) -> str:
    """What nvidia-smi shows of four busy GPUs of a host, one of which has this clock."""
    rows = [
        f"{gpu}, 100 %, {clock if gpu == 3 else 1980} MHz, {is_hot if gpu == 3 else 'Not Active'}" for gpu in range(4)
    ]
    names = f"index, utilization.gpu [%], clocks.current.sm [MHz], {SLOWDOWN}"
    return "\n".join([f"===== {host} =====", names, *rows]) + "\n"


@pytest.mark.parametrize(
    ("clock", "is_hot", "said"),
    [
        (1410, "Active", "the clocks of GPU 3 are lowered: hw thermal slowdown"),
        (1410, "Not Active", "GPU 3 runs at 1410 MHz, the others at 1980 MHz (median)"),
        (1975, "Not Active", ""),
    ],
)
def test_the_state_of_its_gpu_explains_a_slow_rank(tmp_path: Path, clock: int, is_hot: str, said: str) -> None:
    folder = simulated(tmp_path, SlowFault.RANK)
    before = answer_of(folder)
    (host,) = before.hosts
    other = next(name for name in report_of(folder).run["rank_time"]["host"] if name != host)
    (folder / "smi.txt").write_text(smi_of(host, clock, is_hot) + smi_of(other, 1980, "Not Active"))
    answer = answer_of(folder)

    assert before.cause is not None
    assert answer.cause == (f"{before.cause}; on {host} {said}" if said else before.cause)
    assert any("nvidia-smi" in text and f"on {host}" in text for text in before.collect)
    assert not any("nvidia-smi" in text for text in answer.collect)
    assert answer.ranks == before.ranks


def test_a_hot_gpu_of_another_host_or_in_an_even_job_accuses_no_rank(tmp_path: Path) -> None:
    even = simulated(tmp_path / "even", SlowFault.NONE, steps=45)
    slow = simulated(tmp_path / "slow", SlowFault.RANK)
    (host,) = answer_of(slow).hosts
    other = next(name for name in report_of(slow).run["rank_time"]["host"] if name != host)
    for folder in (even, slow):
        (folder / "smi.txt").write_text(smi_of(other, 1410, "Active"))

    assert (answer_of(even).verdict, answer_of(even).ranks, answer_of(even).cause) == ("even", (), None)
    assert other not in (answer_of(slow).cause or "")


@pytest.mark.parametrize(
    ("sample", "unit", "name"),
    [
        ('DCGM_FI_DEV_SM_CLOCK{{gpu="{gpu}",Hostname="{host}"}} {clock}', 1, "GPU 1"),
        ('nvidia_smi_clocks_current_sm_clock_hz{{uuid="a{gpu}",instance="{host}:9835"}} {clock}', 10**6, "GPU a1"),
    ],
)
def test_exporters_show_the_lower_clock_of_the_slow_rank(sample: str, unit: int, name: str, tmp_path: Path) -> None:
    folder = simulated(tmp_path, SlowFault.RANK)
    (host,) = answer_of(folder).hosts
    clocks = [1200 if gpu == 1 else 1980 for gpu in range(4)]
    samples = [sample.format(gpu=gpu, host=host, clock=clock * unit) for gpu, clock in enumerate(clocks)]
    (folder / "metrics.txt").write_text("\n".join(samples) + "\n")

    assert f"on {host} {name} runs at 1200 MHz" in (answer_of(folder).cause or "")


@pytest.mark.parametrize(
    ("fault", "cause", "found"),
    [
        (SlowFault.RANK, "GPU 1 runs at 1650 MHz, the others at 1980 MHz", ""),
        (SlowFault.GROUP, "GPUs 0, 1 run at 1650 MHz, the others at 1980 MHz", ""),
        (SlowFault.LINK, "", "gpu-b001 GPU0 NVLinks: errors at some time"),
        (SlowFault.NONE, "", ""),
    ],
)
def test_metrics_of_the_hosts_at_fault_stand_beside_the_verdict(
    fault: SlowFault, cause: str, found: str, tmp_path: Path
) -> None:
    plan = SlowPlan(fault, gpus_per_node=4, tp=2, rank=1)
    generate_slow(plan, tmp_path)
    write_metrics(plan, tmp_path)
    report = replace(analyze([str(tmp_path)], full=True, everything=True), is_about_slow=True)

    text = screen(report, width=500)

    assert cause in text
    assert found in text
    assert ("ALSO FOUND THERE" in text) == bool(found)
    assert (" MHz" in text) == bool(cause)


def test_the_verdict_on_a_slow_job_stays_on_a_small_terminal(tmp_path: Path) -> None:
    report = replace(report_of(simulated(tmp_path, SlowFault.GROUP)), is_about_slow=True)

    full, low = (screen(report, width=80, height=height) for height in (float("inf"), 24))

    assert "Seconds in a usual step" in full
    assert "-v:" not in full
    assert len(low.splitlines()) <= 22 < len(full.splitlines())
    assert "SLOW-GROUP" in low
    assert "COLLECT" in low
    assert low.splitlines()[-1].startswith("-v: ")
