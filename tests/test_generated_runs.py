"""Laws of the verdict, over generated runs: what a fault is called, and that neither windows nor order change it."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ncclforensics import analyze
from ncclforensics.frames.open_run import open_run
from ncclforensics.inputs.read_policy import ReadPolicy
from ncclforensics.inputs.sources import find
from ncclforensics.report.build import build_report
from ncclforensics.simulate.generate import Fault, FaultKind, Finish, Layout, Plan, Truth, generate, truth_of
from ncclforensics.views.json_report import as_object
from tests.benchmarks.lifelike import BUFFERS, make_lifelike
from tests.budget import examples

KINDS = {
    FaultKind.LAGGING: ("tp", "dp", "world"),
    FaultKind.EXTRA_CALL: ("tp", "dp", "world"),
    FaultKind.SKIPPED_CALL: ("tp", "dp"),
    FaultKind.OTHER_COUNT: ("tp", "dp", "world"),
    FaultKind.OTHER_KIND: ("tp", "dp", "world"),
    FaultKind.OTHER_ROOT: ("tp",),
    FaultKind.SWAPPED_ORDER: ("tp", "dp"),
    FaultKind.KILLED: ("tp", "dp", "world"),
    FaultKind.RANK_MISSING: ("world",),
}


def sizes(draw: st.DrawFn, *, layers: int, steps: int) -> dict[str, Any]:
    """How long a run is, to so many layers and steps at most, its version of NCCL, and its seed."""
    return {
        "layers": draw(st.integers(1, layers)),
        "steps": draw(st.integers(1, steps)),
        "version": draw(st.sampled_from(["2.21.5", "2.27.7", "2.30.7"])),
        "seed": draw(st.integers(0, 2**16)),
    }


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    kind = draw(st.sampled_from([None, *KINDS]))
    fault = None
    if kind is not None:
        fault = Fault(kind, (draw(st.integers(0, 15)),), draw(st.sampled_from(KINDS[kind])))
    return Plan(
        nodes=2,
        gpus_per_node=8,
        tp=4,
        **sizes(draw, layers=3, steps=12),
        blocking=kind is FaultKind.SWAPPED_ORDER or draw(st.booleans()),
        finish=Finish.CLEAN if kind is None else draw(st.sampled_from([Finish.KILLED, Finish.ABORTED])),
        fault=fault,
    )


def answer(paths: list[str], *, whole: bool = False) -> dict[str, Any]:
    return as_object(analyze(paths, full=whole))


def reported(out: dict[str, Any]) -> dict[str, Any]:
    """The part of an answer that must not depend on how the files were read."""
    operation = {k: v for k, v in (out["hang"]["operation"] or {}).items() if k != "ordinal"}
    return {
        "operation": operation,
        **{name: out["hang"][name] for name in ("verdict", "certainty", "culprits", "victims", "communicator")},
        "findings": [(f["rule"], f["title"].partition(" #")[0], f["ranks"]) for f in out["findings"]],
    }


@examples(3)
@given(plan=plans())
def test_windows_give_the_verdict_of_a_full_read(plan: Plan) -> None:
    with TemporaryDirectory() as folder:
        generate(plan, Path(folder))
        run = open_run(find([folder]), ReadPolicy(window=8 << 10, small_file=8 << 10))
        run.read_until_decided()

        windows, whole = as_object(build_report(run)), answer([folder], whole=True)

    assert reported(windows) == reported(whole)


def made(number: int, communicator: str, first: int = 0) -> list[str]:
    """Lines of so many calls on a communicator, from this one on; `{rank}` is left for the rank."""
    return [
        f"AllReduce: opCount {first + place:x} sendbuff 0x7f00 recvbuff 0x7f10 count 1024 datatype 9 op 0 root 0 comm "
        f"0x{communicator}5d1{{rank:04x}} [nranks=8] stream 0x55d1"
        for place in range(number)
    ]


def created(communicator: str) -> list[str]:
    return [
        f"ncclCommInitRank comm 0x{communicator}5d1{{rank:04x}} rank {{rank}} nranks 8 cudaDev 0 nvmlDev 0 busId "
        f"{{rank}}b000 commId 0x{communicator}f3bd2a4c1e07755 - Init {phase}"
        for phase in ("START", "COMPLETE")
    ]


# What all ranks print, but for the last line, which rank 3 lacks; and lines of the application behind it.
UNEQUAL_WINDOWS = {
    "one communicator": (made(200, "a"), 0),
    "used at the start only, and used on": (made(3, "a") + made(200, "b"), 0),
    "used further than one window": (made(80, "a") + made(200, "b"), 0),
    "used again where no window is": (
        made(60, "a") + made(60, "b") + made(40, "a", 60) + made(80, "b", 60) + made(1, "a", 100),
        0,
    ),
    "used rarely": (made(100, "b") + made(1, "a") + made(100, "b", 100) + made(1, "a", 1), 0),
    "output behind the calls": (made(150, "a"), 800),
}


@pytest.mark.parametrize("version", ["2.21.5", "2.27.7"])  # of the second, opCount is no number of calls
@pytest.mark.parametrize("case", UNEQUAL_WINDOWS)
def test_windows_that_hold_unequal_numbers_of_calls_give_the_verdict_of_a_full_read(
    case: str, version: str, tmp_path: Path
) -> None:
    lines, output = UNEQUAL_WINDOWS[case]
    for rank in range(8):
        prefix = f"node{'0' * 4 * rank}:{1000 + rank}:{1000 + rank} [0] NCCL INFO "  # lines of unequal length
        own = lines[:-1] if rank == 3 else lines
        printed = [f"NCCL version {version}+cuda12.4", *created("a"), *created("b"), *own]
        text = "".join(f"{prefix}{line.format(rank=rank)}\n" for line in printed) + "epoch\n" * output
        (tmp_path / f"rank{rank}.log").write_text(text, encoding="utf-8")
    run = open_run(find([str(tmp_path)]), ReadPolicy(window=4 << 10, small_file=4 << 10))
    run.read_until_decided()

    windows, whole = as_object(build_report(run)), answer([str(tmp_path)], whole=True)

    assert reported(windows) == reported(whole)
    assert (whole["hang"]["verdict"], whole["hang"]["culprits"]) == ("lagging-ranks", [3])
    if case == "one communicator":
        # Of a rank that is named, more of the end is read; where calls were counted, its file and two others are.
        assert sum(reader.is_whole for reader in run.inputs) == (1 if version == "2.21.5" else 3)
        assert whole["hang"]["certainty"] == "likely"


@examples(3)
@given(plan=plans())
def test_the_generated_fault_is_named_with_its_culprits(plan: Plan) -> None:
    with TemporaryDirectory() as folder:
        truth: Truth = generate(plan, Path(folder))

        hang = answer([folder])["hang"]

    if not truth.visibility:  # the lines of this version cannot show it
        return
    if plan.blocking and plan.fault and plan.fault.kind is FaultKind.SKIPPED_CALL:
        # Where each call is waited for, a call that is left out looks like one that is made later.
        assert hang["verdict"] in (truth.verdict, "cross-communicator-deadlock")
        assert set(hang["culprits"]) <= set(truth.culprits)
        return
    assert (hang["verdict"], hang["culprits"]) == (truth.verdict, sorted(truth.culprits))


@st.composite
def pipelines(draw: st.DrawFn) -> Plan:
    """Plans with Send and Recv between stages, and a fault on any communicator."""
    nodes, gpus, tp, pp = draw(st.sampled_from([(1, 8, 2, 2), (2, 4, 1, 2), (2, 8, 4, 2), (1, 8, 1, 8), (2, 8, 2, 4)]))
    families = ["world", "pp", *(["tp"] if tp > 1 else []), *(["dp"] if tp * pp < nodes * gpus else [])]
    kind = draw(st.sampled_from([*KINDS, FaultKind.RECV_NEVER_POSTED]))
    plan = Plan(
        nodes=nodes, gpus_per_node=gpus, tp=tp, pp=pp, layers=draw(st.integers(1, 3)), steps=draw(st.integers(0, 6)),
        version=draw(st.sampled_from(["2.21.5", "2.27.7", "2.30.7"])), seed=draw(st.integers(0, 2**16)),
        blocking=kind is FaultKind.SWAPPED_ORDER or draw(st.booleans()), finish=draw(st.sampled_from(Finish)),
    )  # fmt: skip
    fault = Fault(kind, (draw(st.integers(0, nodes * gpus - 1)),), draw(st.sampled_from(families)))
    try:
        plan = replace(plan, fault=fault)
        truth_of(plan)
    except (ValueError, KeyError, StopIteration):  # no such call on this communicator
        assume(False)
    return plan


@examples(4)
@given(plan=pipelines())
def test_a_rank_that_waits_is_at_most_a_possible_culprit(plan: Plan) -> None:
    with TemporaryDirectory() as folder:
        truth = generate(plan, Path(folder))
        hang = answer([folder])["hang"]

    innocent = set(hang["culprits"]) - set(truth.culprits) - set(truth.at_fault)
    assert not innocent or hang["certainty"] == "possible"


@examples(2)
@given(plan=plans(), seed=st.integers(0, 2**16))
def test_the_order_of_the_files_does_not_matter(plan: Plan, seed: int) -> None:
    with TemporaryDirectory() as folder:
        generate(plan, Path(folder))
        files = sorted(str(file) for file in Path(folder).iterdir())
        shuffled = random.Random(seed).sample(files, len(files))

        straight, mixed = answer(files), answer(shuffled)

    assert straight["hang"] == mixed["hang"]
    assert straight["findings"] == mixed["findings"]


@pytest.mark.parametrize("version", ["2.21.5", "2.27.7", "2.30.7"])
def test_one_merged_file_gives_the_verdict_of_one_file_per_rank(version: str, tmp_path: Path) -> None:
    fault = Fault(FaultKind.LAGGING, (11,), "tp")
    apart, merged = tmp_path / "apart", tmp_path / "merged"
    for folder, layout in ((apart, Layout.FILE_PER_RANK), (merged, Layout.MERGED)):
        folder.mkdir()
        generate(Plan(version=version, layout=layout, fault=fault, finish=Finish.KILLED), folder)

    one, other = (answer([str(folder)])["hang"] for folder in (apart, merged))

    assert one["culprits"] == other["culprits"] == [11]
    assert one["verdict"] == other["verdict"] == "lagging-ranks"
    assert one["operation"] == other["operation"]


def test_a_skipped_call_is_laid_to_its_rank_and_not_to_all_members_that_it_stopped(tmp_path: Path) -> None:
    fault = Fault(FaultKind.SKIPPED_CALL, (2,), "tp")
    plan = Plan(version="2.30.7", layers=1, steps=7, seed=2827, fault=fault, finish=Finish.ABORTED)
    generate(plan, tmp_path)

    hang = answer([str(tmp_path)])["hang"]

    assert (hang["verdict"], hang["certainty"], hang["culprits"]) == ("collective-mismatch", "possible", [2])


def test_a_recv_that_a_rank_posted_each_time_before_is_laid_to_it_and_not_to_the_sender(tmp_path: Path) -> None:
    fault = Fault(FaultKind.RECV_NEVER_POSTED, (10,), "pp")
    generate(Plan(nodes=4, tp=4, pp=4, version="2.30.7", steps=6, fault=fault, finish=Finish.ABORTED), tmp_path)

    hang = answer([str(tmp_path)])["hang"]

    assert (hang["verdict"], hang["culprits"]) == ("p2p-unmatched", [10])


def test_a_rank_that_left_out_the_first_collective_is_told_from_its_pipeline_neighbour(tmp_path: Path) -> None:
    fault = Fault(FaultKind.SKIPPED_CALL, (18,), "world")
    generate(Plan(nodes=4, tp=1, pp=2, version="2.21.5", steps=0, seed=2, blocking=True, fault=fault), tmp_path)

    hang = answer([str(tmp_path)])["hang"]

    assert (hang["culprits"], hang["certainty"]) == ([18], "possible")


def test_a_call_that_one_of_two_ranks_left_out_or_its_log_lost_accuses_neither(tmp_path: Path) -> None:
    fault = Fault(FaultKind.SKIPPED_CALL, (0,), "tp")
    generate(Plan(gpus_per_node=4, tp=2, pp=2, version="2.30.7", steps=0, seed=5, blocking=True, fault=fault), tmp_path)

    hang = answer([str(tmp_path)])["hang"]

    assert (hang["verdict"], hang["culprits"]) == ("undecidable", [])
    assert "rank 0 left out a call that was made by rank 1, or the log of rank 0 lost its line" in hang["reason"]


def test_a_lost_last_line_does_not_add_a_rank_to_a_host_that_stopped(tmp_path: Path) -> None:
    fault = Fault(FaultKind.LAGGING, (4, 5, 6, 7), "world")
    generate(Plan(nodes=4, gpus_per_node=4, tp=2, layers=1, steps=3, fault=fault, finish=Finish.KILLED), tmp_path)
    log = tmp_path / "nccl_rank13.log"
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:-1]))

    hang = answer([str(tmp_path)])["hang"]

    assert (hang["verdict"], hang["certainty"], hang["culprits"]) == ("lagging-ranks", "likely", [4, 5, 6, 7])
    assert "rank 13" in hang["reason"]


def test_counting_by_opcount_reads_a_fraction_of_long_logs(tmp_path: Path) -> None:
    plan = Plan(steps=400, version="2.21.5", fault=Fault(FaultKind.LAGGING, (3,), "tp"), finish=Finish.KILLED)
    generate(plan, tmp_path)

    inputs = answer([str(tmp_path)])["inputs"]

    assert sum(i["bytes_read"] for i in inputs) < sum(i["bytes"] for i in inputs) / 3


def test_buffers_that_differ_and_lines_of_an_application_change_no_verdict(tmp_path: Path) -> None:
    fault = Fault(FaultKind.LAGGING, (5,), "tp")
    truth = generate(Plan(nodes=1, tp=4, bytes_per_rank=20_000, fault=fault), tmp_path)
    make_lifelike(tmp_path)

    found = answer([str(tmp_path)])["hang"]
    assert (found["verdict"], found["culprits"]) == (truth.verdict, list(truth.culprits))
    assert len({buffers for path in tmp_path.iterdir() for buffers in BUFFERS.findall(path.read_text())}) > 100
