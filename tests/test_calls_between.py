"""Calls between windows are counted instead of parsed where no counter of NCCL numbers them (2.27 and later)."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ncclforensics import analyze
from ncclforensics.analyses.job.calls import unread_calls
from ncclforensics.archive import write
from ncclforensics.formats import dialect
from ncclforensics.frames.open_run import open_run
from ncclforensics.frames.run import Run
from ncclforensics.inputs.read_policy import CALLS, ReadPolicy
from ncclforensics.inputs.sources import find
from ncclforensics.inputs.windows import InputReader
from ncclforensics.parsing import kept_calls
from ncclforensics.parsing.calls_between import POINTER, count_calls
from ncclforensics.report.build import Report, build_report
from ncclforensics.rules.registry import select_rules
from ncclforensics.simulate.generate import Fault, FaultKind, Finish, Layout, Plan, generate
from ncclforensics.simulate.handling import Handling
from ncclforensics.views.json_report import as_object
from tests.budget import IS_FULL, examples
from tests.test_generated_runs import answer, reported

STEPS = 60 if IS_FULL else 36  # of generated jobs: enough for calls between the windows
FEW = 1000  # calls that are kept, as of logs of gigabytes
CALL = dialect().template
PREFIX = "gpu-a012:41887:41887 [3] NCCL INFO "


def made(pointer: str) -> str:
    return (
        f"{PREFIX}AllReduce: opCount 0 sendbuff 0x7f00 recvbuff 0x7f10 count 1024 datatype 9 op 0 root 0 "
        f"comm {pointer} [nranks=8] stream 0x55d1\n"
    )


def created(pointer: str) -> str:
    return (
        f"{PREFIX}ncclCommInitRank comm {pointer} rank 3 nranks 8 cudaDev 3 nvmlDev 3 busId 5d000 commId 0x8f3b - "
        "Init START\n"
    )


def windows_of(folder: str | Path, window: int = 8 << 10, *, calls: int = CALLS) -> Run:
    policy = ReadPolicy(window=window, small_file=2 * window, calls=calls, chunk=16 << 10)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(kept_calls, "FEWEST", min(kept_calls.FEWEST, calls // 16))
        run = open_run(find([str(folder)]), policy)
        run.read_until_decided()
    return run


def between(folder: Path, text: str) -> InputReader:
    """A reader whose windows leave this text between them."""
    log = folder / "rank3.log"
    log.write_text("head\n" + text + "tail\n", encoding="utf-8")
    reader = InputReader(find([str(log)])[0], 0, ReadPolicy(window=500))
    reader.head_stop, reader.tail_start = 5, 5 + len(text)
    return reader


def test_calls_are_counted_by_communicator_whatever_stands_between_them(tmp_path: Path) -> None:
    text = made("0xa1") * 40 + "step 7 loss 0.3\n" * 5 + made("0xb1") * 3 + made("0xa1")

    assert count_calls(between(tmp_path, text), CALL, ["0xa1", "0xb1"]).calls == {"0xa1": 41, "0xb1": 3}


def test_calls_on_a_communicator_that_the_windows_do_not_show_are_not_counted(tmp_path: Path) -> None:
    counted = count_calls(between(tmp_path, made("0xa1") * 9 + made("0xc1")), CALL, ["0xa1"])

    assert (counted.calls, counted.named_until) == ({}, 0)


def test_calls_are_not_counted_where_one_is_torn(tmp_path: Path) -> None:
    torn = made("0xa1")[:99] + "step 7 loss 0.3\n" + made("0xa1")[99:]

    assert count_calls(between(tmp_path, made("0xa1") * 9 + torn), CALL, ["0xa1"]).calls == {}


def test_a_communicator_created_between_the_windows_has_to_be_read_first(tmp_path: Path) -> None:
    text = made("0xa1") * 9 + created("0xa1")

    counted = count_calls(between(tmp_path, text + made("0xa1") * 99), CALL, ["0xa1"])

    assert counted.calls == {}
    assert 5 + len(text) <= counted.named_until < 5 + len(text) + 1000


@pytest.mark.parametrize("frame", ["communicator", "ending", "revocation"])
def test_every_line_that_creates_or_ends_a_communicator_names_it_as_a_call_does(frame: str) -> None:
    shape = next(shape for shape in dialect().shapes if shape.frame == frame)

    assert all(CALL.around[POINTER][0] in example for example in shape.examples)


@pytest.mark.parametrize("handling", [(), (Handling.KUBECTL,), (Handling.JSON_LINES,)])
def test_only_the_logs_of_the_named_rank_and_two_others_are_read_whole(
    handling: tuple[Handling, ...], tmp_path: Path
) -> None:
    plan = Plan(
        nodes=2, gpus_per_node=8, tp=8, layers=2, steps=STEPS, version="2.27.7", finish=Finish.KILLED,
        handling=handling, fault=Fault(FaultKind.LAGGING, (11,), "tp"),
    )  # fmt: skip
    generate(plan, tmp_path)

    run = windows_of(tmp_path)
    windows, whole = as_object(build_report(run)), answer([str(tmp_path)], whole=True)

    assert reported(windows) == reported(whole)
    assert windows["hang"]["operation"] == whole["hang"]["operation"]
    assert windows["hang"]["culprits"] == [11]
    read_whole = [reader.source.path for reader in run.inputs if reader.is_whole]
    assert len(read_whole) == 3
    assert any(path.endswith("rank11.log") for path in read_whole)


def without_lines(log: Path, lost: list[int]) -> None:
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join(line for number, line in enumerate(lines) if number not in lost))


def test_a_rank_whose_log_lost_lines_between_the_windows_is_not_named_for_them(tmp_path: Path) -> None:
    plan = Plan(nodes=2, gpus_per_node=4, tp=4, layers=2, steps=STEPS, version="2.27.7", finish=Finish.KILLED,
                fault=Fault(FaultKind.LAGGING, (6,), "tp"))  # fmt: skip
    generate(plan, tmp_path)
    log = tmp_path / "nccl_rank1.log"
    calls = [number for number, line in enumerate(log.read_bytes().splitlines()) if b"AllReduce: opCount" in line]
    without_lines(log, [calls[len(calls) // 2]])

    windows, whole = as_object(build_report(windows_of(tmp_path))), answer([str(tmp_path)], whole=True)

    assert windows["hang"]["culprits"] == whole["hang"]["culprits"] == [6]
    assert windows["hang"]["certainty"] == whole["hang"]["certainty"]


@st.composite
def damaged_runs(draw: st.DrawFn) -> tuple[Plan, int, str, int]:
    """A plan of a run without messages, a rank whose log is damaged between its windows, how, and where."""
    nodes, gpus, tp = draw(st.sampled_from([(2, 4, 4), (2, 4, 1), (2, 2, 2), (1, 8, 4)]))
    kind = draw(st.sampled_from([None, FaultKind.LAGGING, FaultKind.OTHER_COUNT, FaultKind.SKIPPED_CALL]))
    fault = None
    if kind is not None:
        fault = Fault(kind, (draw(st.integers(0, nodes * gpus - 1)),), "tp" if tp > 1 else "world", 0)
    plan = Plan(
        nodes=nodes, gpus_per_node=gpus, tp=tp, layers=draw(st.integers(1, 2)), steps=draw(st.integers(20, 40)),
        version=draw(st.sampled_from(["2.27.7", "2.30.7"])), seed=draw(st.integers(0, 2**16)),
        finish=Finish.CLEAN if kind is None else Finish.KILLED, fault=fault,
    )  # fmt: skip
    damage = draw(st.sampled_from(["none", "lost", "torn", "text", "new communicator"]))
    return plan, draw(st.integers(0, nodes * gpus - 1)), damage, draw(st.integers(30, 70))


def damage_log(log: Path, damage: str, percent: int) -> None:
    lines = log.read_bytes().splitlines(keepends=True)
    place = len(lines) * percent // 100
    damaged = {
        "none": [lines[place]],
        "lost": [],
        "torn": [lines[place][:99], b"step 7 loss 0.3\n", lines[place][99:]],
        "text": [lines[place], b"step 7 loss 0.3\n"],
        "new communicator": [lines[place], created("0x77").encode()],
    }
    log.write_bytes(b"".join([*lines[:place], *damaged[damage], *lines[place + 1 :]]))


# A line that an uninvolved rank lost, and a call that only one rank made.
UNINVOLVED = Plan(nodes=2, gpus_per_node=4, tp=4, layers=1, steps=23, version="2.27.7", finish=Finish.KILLED,
                  fault=Fault(FaultKind.OTHER_COUNT, (4,), "tp", 0))  # fmt: skip


@examples(4)
@given(run=damaged_runs())
@example(run=(UNINVOLVED, 0, "lost", 30))
def test_counting_gives_the_verdict_of_a_full_read_whatever_stands_between_the_windows(
    run: tuple[Plan, int, str, int],
) -> None:
    plan, rank, damage, percent = run
    with TemporaryDirectory() as folder:
        generate(plan, Path(folder))
        damage_log(Path(folder) / f"nccl_rank{rank}.log", damage, percent)

        windows, whole = as_object(build_report(windows_of(folder))), answer([folder], whole=True)

    assert [windows["hang"][name] for name in ("verdict", "culprits", "certainty")] == [
        whole["hang"][name] for name in ("verdict", "culprits", "certainty")
    ]


@st.composite
def long_runs(draw: st.DrawFn) -> Plan:
    """A plan of a run with messages, or with several ranks in one file: nothing of it can be counted as text."""
    kinds = {
        FaultKind.LAGGING: "world", FaultKind.EXTRA_CALL: "tp", FaultKind.SKIPPED_CALL: "tp", FaultKind.KILLED: "tp",
        FaultKind.OTHER_COUNT: "world", FaultKind.OTHER_KIND: "tp", FaultKind.RECV_NEVER_POSTED: "pp",
    }  # fmt: skip
    kind = draw(st.sampled_from([None, *kinds]))
    layout = draw(st.sampled_from([Layout.FILE_PER_RANK, Layout.FILE_PER_RANK, Layout.MERGED]))
    is_piped = kind is FaultKind.RECV_NEVER_POSTED or layout is Layout.FILE_PER_RANK
    return Plan(
        nodes=2, gpus_per_node=4, tp=2, pp=2 if is_piped else 1, layers=draw(st.integers(1, 2)), steps=STEPS,
        version=draw(st.sampled_from(["2.21.5", "2.27.7", "2.30.7"])), seed=draw(st.integers(0, 2**16)), layout=layout,
        finish=Finish.CLEAN if kind is None else Finish.KILLED,
        fault=None if kind is None else Fault(kind, (draw(st.integers(0, 7)),), kinds[kind]),
    )  # fmt: skip


def long_answer(folder: str, plan: Plan) -> dict[str, Any]:
    """The answer on logs that are too long to keep every call where windows do not suffice."""
    window = (16 << 10) * (8 if plan.layout is Layout.MERGED else 1)
    run = windows_of(folder, window, calls=FEW)
    assert run.defects == []
    return as_object(build_report(run))


# Calls that are not kept on either side of one that is.
AROUND = Plan(nodes=2, gpus_per_node=4, tp=2, pp=2, layers=1, steps=60, version="2.27.7", finish=Finish.KILLED,
              fault=Fault(FaultKind.LAGGING, (0,), "world"))  # fmt: skip
# A call that is left out, or whose line is lost, behind calls that are not kept.
LEFT_OUT = replace(AROUND, pp=1, layout=Layout.MERGED, fault=Fault(FaultKind.SKIPPED_CALL, (0,), "tp"))


@examples(3)
@given(plan=long_runs())
@example(plan=AROUND)
@example(plan=LEFT_OUT)
def test_logs_too_long_to_keep_every_call_give_the_verdict_of_a_full_read(plan: Plan) -> None:
    with TemporaryDirectory() as folder:
        generate(plan, Path(folder))

        windows, whole = long_answer(folder, plan), answer([folder], whole=True)

    assert reported(windows) == reported(whole)


@examples(3)
@given(plan=long_runs(), rank=st.integers(0, 7), percent=st.integers(40, 60), lost=st.integers(1, 3))
def test_lines_lost_between_the_windows_of_long_logs_accuse_no_rank(
    plan: Plan, rank: int, percent: int, lost: int
) -> None:
    plan = replace(plan, layout=Layout.FILE_PER_RANK)
    with TemporaryDirectory() as folder:
        generate(plan, Path(folder))
        log = Path(folder) / f"nccl_rank{rank}.log"
        lines = log.read_bytes().splitlines(keepends=True)
        place = len(lines) * percent // 100
        log.write_bytes(b"".join([*lines[:place], *lines[place + lost :]]))

        windows, whole = long_answer(folder, plan), answer([folder], whole=True)

    at_fault = set(plan.fault.ranks) if plan.fault else set()
    assert set(windows["hang"]["culprits"]) <= at_fault | set(whole["hang"]["culprits"])


@pytest.mark.one_in(9)
@pytest.mark.parametrize("version", ["2.21.5", "2.27.7", "2.30.7"])
@pytest.mark.parametrize("lost", [9, 23, 200])
def test_many_lines_lost_between_the_windows_of_long_logs_accuse_no_rank(
    version: str, lost: int, tmp_path: Path
) -> None:
    fault = Fault(FaultKind.OTHER_COUNT, (6,), "world")
    plan = Plan(nodes=2, gpus_per_node=4, tp=2, layers=2, steps=80, version=version, finish=Finish.KILLED, fault=fault)
    generate(plan, tmp_path)
    log = tmp_path / "nccl_rank3.log"
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join([*lines[: len(lines) // 2], *lines[len(lines) // 2 + lost :]]))

    assert set(long_answer(str(tmp_path), plan)["hang"]["culprits"]) <= {6}


def test_a_communicator_whose_calls_cannot_be_placed_is_left_out_everywhere(tmp_path: Path) -> None:
    fault = Fault(FaultKind.EXTRA_CALL, (6,), "tp")
    plan = Plan(nodes=2, gpus_per_node=8, tp=2, layers=1, steps=90, version="2.27.7", seed=8077, finish=Finish.ABORTED,
                fault=fault)  # fmt: skip
    generate(plan, tmp_path)
    log = tmp_path / "nccl_rank10.log"
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join([*lines[:510], *lines[610:]]))

    run = windows_of(tmp_path, 24 << 10, calls=2 * FEW)

    assert build_report(run).defects == []
    placed = set(run["call"]["key"])
    assert placed < set(run["logged_call"]["key"])
    assert set(run["divergence"]["key"]) <= placed
    assert set(run["last_call"]["key"]) == placed


def test_messages_between_windows_are_counted_by_peer(tmp_path: Path) -> None:
    generate(Plan(nodes=1, gpus_per_node=4, tp=2, pp=2, steps=STEPS, version="2.27.7"), tmp_path)
    whole, windows = analyze([tmp_path], full=True).run, windows_of(tmp_path, calls=FEW)

    assert all(reader.is_read_through for reader in windows.inputs)
    last = [
        run["message"].group_by("key", "rank_id", "peer", "name").agg(pl.col("turn").max()) for run in (whole, windows)
    ]
    assert last[0].sort(pl.all()).equals(last[1].sort(pl.all()))
    assert windows["message"].height < whole["message"].height / 2


def test_a_pointer_that_a_second_communicator_gets_between_the_windows_is_counted_for_each(tmp_path: Path) -> None:
    log = tmp_path / "rank3.log"
    again = created("0xa1").replace("0x8f3b", "0x9c4d")
    between = made("0xa1") * 300 + f"{PREFIX}comm 0xa1 rank 3 nRanks 8 nNodes 1 localRanks 8 localRank 3 MNNVL 0\n" * 9
    log.write_text(
        created("0xa1") + made("0xa1") * 50 + between + again + f"{PREFIX}Connected all rings\n" * 9
        + made("0xa1") * 400, encoding="utf-8",
    )  # fmt: skip

    run = windows_of(tmp_path, 4 << 10, calls=200)
    last = run["last_call"].sort("pos")

    assert run["call"].height < 400
    assert last["calls"].to_list() == [350, 400]


def with_ends_kept(paths: list[str], monkeypatch: pytest.MonkeyPatch, calls: int = 1000) -> Report:
    """The report of a full read that keeps about so many calls, as of logs of gigabytes."""
    monkeypatch.setattr(kept_calls, "FEWEST", 60)
    run = open_run(find(paths), ReadPolicy(full=True, calls=calls, chunk=16 << 10))
    return build_report(run, rules=select_rules(everything=True))


@pytest.mark.one_in(12)
@pytest.mark.parametrize("kind", [FaultKind.LAGGING, FaultKind.OTHER_COUNT, FaultKind.RECV_NEVER_POSTED])
@pytest.mark.parametrize("layout", Layout)
def test_a_full_read_keeps_the_calls_at_both_ends_of_each_process(
    kind: FaultKind, layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = Fault(kind, (5,), "pp" if kind is FaultKind.RECV_NEVER_POSTED else "world")
    plan = Plan(nodes=2, gpus_per_node=4, tp=2, pp=2, steps=STEPS, version="2.27.7", finish=Finish.KILLED, fault=fault,
                layout=layout)  # fmt: skip
    generate(plan, tmp_path)
    whole = analyze(tmp_path, everything=True)

    ends = with_ends_kept([str(tmp_path)], monkeypatch)

    assert ends.run.defects == []
    assert all(reader.is_read_through for reader in ends.run.inputs)
    assert ends.run["call"].height < whole.run["call"].height / 2
    assert ends.run.tally.sort("source").equals(whole.run.tally.sort("source"))
    assert reported(as_object(ends)) == reported(as_object(whole))
    calls = [report.run["last_call"].sort("key", "rank_id")["calls"] for report in (ends, whole)]
    assert calls[0].equals(calls[1])


@examples(2)
@given(plan=long_runs(), calls=st.integers(1000, 4000), are_joined=st.booleans())
def test_keeping_the_ends_of_processes_gives_the_verdict_of_all_calls(plan: Plan, calls: int, are_joined: bool) -> None:
    """Also where one file holds the logs of all ranks, one behind the other: its ends are those of two of them."""
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as monkeypatch:
        generate(plan, Path(folder))
        if are_joined:
            logs = sorted(Path(folder).iterdir())
            joined = b"".join(log.read_bytes() for log in logs)
            for log in logs:
                log.unlink()
            Path(folder, "all.log").write_bytes(joined)

        ends, whole = with_ends_kept([folder], monkeypatch, calls), analyze(folder, everything=True)

    assert ends.run.defects == []
    assert reported(as_object(ends)) == reported(as_object(whole))


@pytest.mark.parametrize("kind", [FaultKind.LAGGING, FaultKind.OTHER_COUNT, FaultKind.RECV_NEVER_POSTED])
def test_saved_runs_of_long_logs_give_the_verdict_of_the_logs(
    kind: FaultKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs, is_message = tmp_path / "logs", kind is FaultKind.RECV_NEVER_POSTED
    fault = Fault(kind, (5,), "pp" if is_message else "world")
    plan = Plan(nodes=2, gpus_per_node=4, tp=2, pp=2, steps=STEPS, version="2.27.7", finish=Finish.KILLED, fault=fault)
    generate(plan, logs)
    whole = answer([str(logs)], whole=True)
    of_node = [[str(log) for log in sorted(logs.iterdir())[start : start + 4]] for start in (0, 4)]
    saved = [str(tmp_path / f"node{number}.ncclf") for number in range(2)]
    for paths, file in zip(of_node, saved, strict=True):
        write.save(with_ends_kept(paths, monkeypatch), Path(file))
    merged = tmp_path / "job.ncclf"
    write.save(analyze(saved, everything=True), merged)
    shutil.rmtree(logs)

    for paths in (saved, [str(merged)]):
        report = analyze(paths)
        assert all(reader.is_read_through for reader in report.run.inputs)
        assert reported(as_object(report)) == reported(whole)
    counted = [run["last_call"].sort("key", "rank_id")["calls"] for run in (report.run, analyze(saved).run)]
    assert counted[0].equals(counted[1])


def test_all_calls_in_the_windows_of_partly_read_files_are_kept(tmp_path: Path) -> None:
    """Nothing between such windows is counted: the calls of a window that were left out would be lost."""
    fault = Fault(FaultKind.LAGGING, (3,), "world")
    generate(
        Plan(nodes=1, gpus_per_node=4, tp=4, steps=STEPS, version="2.21.5", finish=Finish.KILLED, fault=fault), tmp_path
    )

    few, many = (windows_of(tmp_path, calls=calls) for calls in (16, CALLS))

    assert all(reader.is_windowed and not reader.is_whole for reader in few.inputs)
    assert not any(reader.is_read_through for reader in few.inputs)
    assert few["call"].equals(many["call"])
    assert as_object(build_report(few))["hang"]["culprits"] == [3]


@pytest.mark.parametrize(("called", "collectives"), [("AllReduce", 9), (None, 9), ("Send", 0), ("PutSignal", 0)])
def test_only_collectives_move_the_numbers_of_later_collectives(called: str | None, collectives: int) -> None:
    row = {"member": 0, "called": called, "root": None, "calls": 9, "pos": 5}
    between = pl.DataFrame([row], schema=unread_calls.ATTRIBUTED)
    calls = pl.DataFrame({"member": [0, 0], "pos": [1, 7]}, schema={"member": pl.UInt32, "pos": pl.Int64})

    assert unread_calls.unread_before(calls, between).rows() == [(1, 9, collectives, False)]
