"""The generator against its own promises: what is written is what the truth says."""

from __future__ import annotations

import filecmp
import json
import re
from collections import Counter
from pathlib import Path

import pytest

from ncclforensics import analyze
from ncclforensics.cli import main
from ncclforensics.data.names import VERDICTS
from ncclforensics.simulate.fabric import FabricFault, simulated_fabric
from ncclforensics.simulate.generate import (
    Fault,
    FaultKind,
    Finish,
    Layout,
    Plan,
    generate,
    truth_of,
)
from ncclforensics.simulate.handling import TAGS, Handling
from ncclforensics.simulate.plan import OF_WORLD, RELEASES
from ncclforensics.simulate.program import Job, step_calls
from ncclforensics.simulate.slow import SlowFault, SlowPlan, generate_slow
from ncclforensics.views.json_report import as_object
from tests.benchmarks.conventional import operation, parse
from tests.json_schemas import violations

FAULTS = [
    Fault(kind, (5,), "pp" if kind is FaultKind.RECV_NEVER_POSTED else "tp")
    for kind in FaultKind
    if kind not in (FaultKind.SWAPPED_ORDER, *OF_WORLD)
] + [Fault(kind, (2, 3)) for kind in OF_WORLD]


@pytest.mark.parametrize("blocking", [False, True])
def test_only_the_call_the_culprit_leaves_out_stays_open(blocking: bool) -> None:
    plan = Plan(pp=4, tp=2, blocking=blocking, fault=Fault(FaultKind.LAGGING, (15,), "world", -1))

    processes = Job(plan).processes

    for rank, process in processes.items():
        step = step_calls(plan, rank)
        assert process.issued == (step[:-1] if rank == 15 else step)
        assert len(process.issued) - len(process.completed) == (rank != 15)


def test_where_all_members_are_killed_the_call_that_others_wait_in_stays_open() -> None:
    fault = Fault(FaultKind.KILLED, (3, 7), "pp")

    truth = truth_of(Plan(nodes=2, gpus_per_node=4, tp=2, pp=2, layers=2, steps=2, seed=6001, fault=fault))

    assert truth.culprits == (3, 7)
    assert truth.operation is not None
    assert truth.operation.communicator not in ("pp0", "pp1", "pp2", "pp3")


@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize("fault", [None, *FAULTS], ids=lambda f: f.kind.value if f else "none")
def test_every_rank_prints_exactly_the_calls_of_the_truth(tmp_path: Path, version: str, fault: Fault | None) -> None:
    plan = Plan(nodes=2, pp=2, tp=4, layers=1, steps=70, version=version, fault=fault)

    truth = generate(plan, tmp_path)

    for rank in range(plan.ranks):
        log = tmp_path / f"nccl_rank{rank}.log"
        if truth.states[rank] == "absent":
            assert not log.exists()
            continue
        lines = log.read_text().splitlines()
        printed = Counter(found[-2] for line in lines if (found := operation(line)))
        pointers = {name: int(each[rank], 16) for name, each in truth.pointers.items() if rank in each}
        assert printed == Counter({pointers[n]: c for n, c in truth.calls[rank].items()})


def test_the_same_seed_writes_the_same_bytes(tmp_path: Path) -> None:
    plan = Plan(layers=1, steps=2, seed=3, layout=Layout.MERGED)

    generate(plan, tmp_path / "a")
    generate(plan, tmp_path / "b")

    assert (tmp_path / "a/job.log").read_bytes() == (tmp_path / "b/job.log").read_bytes()


def test_a_merged_log_holds_the_lines_of_every_rank_in_order(tmp_path: Path) -> None:
    plan = Plan(nodes=1, layers=1, steps=3, fault=Fault(FaultKind.LAGGING, (2,), "tp"))

    generate(plan, tmp_path)
    generate(Plan(nodes=1, layers=1, steps=3, layout=Layout.MERGED, fault=plan.fault), tmp_path)

    merged = (tmp_path / "job.log").read_text().splitlines()
    for rank in range(8):
        own = (tmp_path / f"nccl_rank{rank}.log").read_text().splitlines()
        process = re.match(r"[^:]+:\d+:", own[0])
        assert process
        prefix = process.group()
        assert [line for line in merged if line.startswith(prefix)] == [line for line in own if line.startswith(prefix)]


def test_run_ahead_victims_reach_the_end_of_the_step_and_blocking_ones_do_not() -> None:
    fault = Fault(FaultKind.LAGGING, (11,), "tp", 5)

    ahead = truth_of(Plan(fault=fault))
    blocking = truth_of(Plan(fault=fault, blocking=True))

    last = ahead.last_calls[10], blocking.last_calls[10]
    assert [call and call.communicator for call in last] == ["world", "tp2"]
    assert ahead.operation == blocking.operation == last[1]


def test_an_order_swapped_on_one_rank_deadlocks_two_communicators() -> None:
    truth = truth_of(Plan(blocking=True, fault=Fault(FaultKind.SWAPPED_ORDER, (1,), "dp")))

    waits = {wait.communicator: wait.for_ranks for wait in truth.waits}
    assert waits == {"world": (5, 9, 13), "dp1": (1,)}


def test_a_size_is_met_within_two_hundredths(tmp_path: Path) -> None:
    generate(Plan(nodes=1, bytes_per_rank=1_000_000), tmp_path)

    for log in tmp_path.iterdir():
        assert log.stat().st_size == pytest.approx(1_000_000, rel=0.02)
        assert parse([log]).lines > 4000


def test_an_aborted_hang_leaves_abort_lines_on_the_waiting_ranks_only(tmp_path: Path) -> None:
    fault = Fault(FaultKind.LAGGING, (3,), "tp")

    generate(Plan(layers=1, fault=fault, finish=Finish.ABORTED), tmp_path)

    aborted = [log.name for log in tmp_path.iterdir() if "Abort COMPLETE" in log.read_text()]
    assert len(aborted) == 15
    assert "nccl_rank3.log" not in aborted


@pytest.mark.parametrize(("steps", "certainty", "culprits"), [(4, "likely", [5]), (0, "possible", [5, 13])])
def test_a_skipped_receive_is_laid_to_its_rank_where_earlier_steps_show_it(
    tmp_path: Path, steps: int, certainty: str, culprits: list[int]
) -> None:
    """Without earlier steps: which of sender and receiver waits for the other, only their groups would show."""
    generate(Plan(pp=2, steps=steps, fault=Fault(FaultKind.RECV_NEVER_POSTED, (5,), "pp")), tmp_path)

    verdict = analyze(tmp_path).verdicts[0]

    assert (verdict.verdict, verdict.certainty) == ("p2p-unmatched", certainty)
    assert [*verdict.culprits] == culprits


def test_the_command_writes_what_the_other_commands_find(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "job"
    options = ["--nodes", "1", "--fault", "other-count", "--ranks", "5", "--comm", "tp"]
    assert main(["simulate", "-o", str(folder), "--format", "json", *options]) == 0
    truth = json.loads(capsys.readouterr().out)

    assert main(["hang", str(folder), "--format", "json", "-q"]) == 1
    found = json.loads(capsys.readouterr().out)["hang"]
    assert (
        (found["verdict"], found["culprits"]) == (truth["verdict"], truth["culprits"]) == ("collective-mismatch", [5])
    )
    assert found["operation"]["ordinal"] == truth["operation"]["ordinal"]


def test_what_is_true_of_a_job_is_printed_in_a_few_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "job"

    assert main(["simulate", "-o", str(folder), *SMALL, "--fault", "lagging", "--ranks", "2"]) == 0

    shown = capsys.readouterr().out.splitlines()
    assert "wrote 8 files" in shown[0]
    assert [line.split() for line in shown[1:4]] == [
        ["verdict", "lagging-ranks"], ["culprits", "rank", "2"], ["victims", "ranks", "0,", "1,", "3-7"],
    ]  # fmt: skip
    assert shown[-1] == f"find it: ncclforensics hang {folder}"
    assert len(shown) < 12


@pytest.mark.parametrize("fault", [*SlowFault, *FabricFault], ids=lambda fault: f"{type(fault).__name__}-{fault}")
def test_what_is_true_of_slow_jobs_and_fabrics_agrees_with_its_schema(
    fault: SlowFault | FabricFault, tmp_path: Path
) -> None:
    if isinstance(fault, SlowFault):
        truth = generate_slow(SlowPlan(fault, gpus_per_node=2, tp=2), tmp_path)
    else:
        truth = simulated_fabric(24, 4, fault, seed=0).truth

    assert violations("simulated.schema.json", truth) == []


SMALL = ["--nodes", "2", "--gpus", "4", "--tp", "2", "--steps", "1"]
OF_VERDICTS = {
    "no-hang": [],
    "lagging-ranks": ["--fault", "lagging"],
    "collective-mismatch": ["--fault", "other-datatype"],
    "p2p-unmatched": ["--fault", "recv-never-posted", "--comm", "pp", "--pp", "2"],
    "cross-communicator-deadlock": ["--fault", "swapped-order", "--comm", "dp", "--blocking"],
    "init-incomplete": ["--fault", "init-stopped"],
    "init-failed": ["--fault", "shared-gpu", "--ranks", "2,3"],
    "rank-missing": ["--fault", "rank-missing"],
    "rank-died": ["--fault", "killed"],
    "stuck-together": ["--fault", "network-lost"],
    "undecidable": ["--fault", "lagging", "--handling", "log-lost"],
}


@pytest.mark.parametrize("verdict", VERDICTS)
def test_every_verdict_can_be_simulated(verdict: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder in ("job", "again"):
        assert main(["simulate", "-o", str(tmp_path / folder), "--format", "json", *SMALL, *OF_VERDICTS[verdict]]) == 0
        truth = json.loads(capsys.readouterr().out)
    assert violations("simulated.schema.json", truth) == []
    names = sorted(path.name for path in (tmp_path / "job").iterdir())
    assert filecmp.cmpfiles(tmp_path / "job", tmp_path / "again", names, shallow=False) == (names, [], [])

    found = as_object(analyze(tmp_path / "job"))["hang"]

    assert found["verdict"] == verdict
    assert truth["verdict"] == (verdict if verdict != "undecidable" else "lagging-ranks")
    assert found["culprits"] == (truth["culprits"] if truth["visibility"] else [])


@pytest.mark.parametrize(
    "handlings", [[kind] for kind in Handling] + [[Handling.CRI, Handling.KUBECTL, Handling.ROTATED]]
)
def test_handled_logs_show_the_same(handlings: list[Handling], tmp_path: Path) -> None:
    fault = Fault(FaultKind.OTHER_COUNT, (5,), "tp")
    layout = Layout.MERGED if handlings[0] in TAGS else Layout.FILE_PER_RANK
    plan = Plan(nodes=1, layers=1, steps=2, fault=fault, layout=layout, handling=tuple(handlings))
    truth = generate(plan, tmp_path)

    found = as_object(analyze(tmp_path))["hang"]

    shown = (truth.verdict, list(truth.culprits)) if truth.visibility else ("undecidable", [])
    assert (found["verdict"], found["culprits"]) == shown


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--fault", "lagging", "--ranks", "99"], "must be some of"),
        (["--tp", "3"], "do not divide"),
        (["--nccl", "1.0"], "is none of"),
        (["--network", "RoCE"], "not IB or Socket"),
        (["--fault", "swapped-order", "--comm", "tp"], "only where each call is waited for"),
        (["--fault", "shared-gpu", "--ranks", "7,8"], "several ranks of one host"),
        (["--fault", "network-lost", "--nodes", "1"], "several hosts"),
        (["--fault", "network-lost", "--comm", "tp"], "concerns the communicator world"),
        (["--slow", "rank", "--fault", "lagging"], "choose one"),
        (["--slow", "rank", "--fabric", "slow-link"], "choose one"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(
    tmp_path: Path, options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", "-o", str(tmp_path / "job"), *options]) == 2
    assert said in capsys.readouterr().err


def test_files_are_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.log").write_text("mine\n")

    assert main(["simulate", "-o", str(tmp_path)]) == 2
    assert "not an empty folder" in capsys.readouterr().err


def test_a_lost_line_of_a_pair_does_not_move_the_fault_to_its_rank(tmp_path: Path) -> None:
    """Rank 5 stops before a call of all; rank 1's log lost the last call of the two: either may be behind."""
    generate(Plan(nodes=1, fault=Fault(FaultKind.LAGGING, (5,), "world")), tmp_path)
    log = tmp_path / "nccl_rank1.log"
    lines = log.read_text().splitlines(keepends=True)
    last = max(number for number, line in enumerate(lines) if "AllGather: " in line and "[nranks=2]" in line)
    log.write_text("".join([*lines[:last], *lines[last + 1 :]]))

    verdict = analyze(tmp_path).verdicts[0]

    assert set(verdict.culprits) <= {5}
    assert verdict.verdict == "undecidable"
