"""Logs that are too long to keep every call, without Init lines: a training loop, and a call that one rank lacks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ncclforensics.frames.open_run import open_run
from ncclforensics.frames.run import Run
from ncclforensics.inputs.read_policy import ReadPolicy
from ncclforensics.inputs.sources import find
from ncclforensics.parsing import kept_calls, load
from ncclforensics.report.build import build_report
from ncclforensics.views.json_report import as_object

RANKS, GROUP = 8, 4
LAGGARD = 5
CALLS = 500  # of each rank on the communicator of its group
KEPT = 800  # calls of all ranks together
STEP = (("AllGather", 4096), ("AllReduce", 26214400), ("AllReduce", 1024), ("ReduceScatter", 8192))


def call(rank: int, communicator: str, place: int, version: str, *, made: tuple[str, int]) -> str:
    """A COLL line; from NCCL 2.27 on, the counter stands still on communicators of one host."""
    nranks = RANKS if communicator == "world" else GROUP
    name, count = made
    pointer = f"0x55d{'c' if communicator == 'world' else 'd'}{rank:x}b60"
    counter = 0 if version == "2.27.7" and communicator == "group" else place
    return (
        f"gpu-a{rank // GROUP:03d}:{400 + rank}:{400 + rank} [{rank % GROUP}] NCCL INFO {name}: opCount {counter:x} "
        f"sendbuff 0x7f00 recvbuff 0x7f10 count {count} datatype 9 op 0 root 0 comm {pointer} [nranks={nranks}] "
        "stream 0x55d1\n"
    )


def lines_of(rank: int, version: str, *, lagging: int | None, world_every: int) -> Iterator[str]:
    for place in range(CALLS):
        yield call(rank, "group", place, version, made=STEP[place % len(STEP)])
        if world_every and place % world_every == world_every - 1:
            yield call(rank, "world", place // world_every, version, made=("AllReduce", 1))
    if rank != lagging:
        yield call(rank, "world", CALLS // world_every if world_every else 0, version, made=("AllReduce", 512))


def write_logs(folder: Path, version: str, *, lagging: int | None, world_every: int = 0) -> None:
    for rank in range(RANKS):
        lines = lines_of(rank, version, lagging=lagging, world_every=world_every)
        (folder / f"nccl_rank{rank}.log").write_text("".join(lines), encoding="utf-8")


def run_of(path: Path, monkeypatch: pytest.MonkeyPatch, *, full: bool) -> Run:
    """The logs read with few calls kept, as of gigabytes of them."""
    monkeypatch.setattr(kept_calls, "FEWEST", 16)
    monkeypatch.setattr(load, "LONGEST_WINDOWS", 100_000)
    window = 4 << 10
    policy = ReadPolicy(full=full, window=window, small_file=2 * window, calls=KEPT, chunk=16 << 10)
    run = open_run(find([str(path)]), policy)
    run.read_until_decided()
    return run


def answer(run: Run) -> tuple[str, list[int]]:
    report = build_report(run)
    assert report.defects == []
    hang = as_object(report)["hang"]
    return hang["verdict"], hang["culprits"]


@pytest.mark.parametrize(
    ("version", "world_every", "full"),
    [("2.21.5", 0, False), ("2.21.5", 50, True), ("2.27.7", 0, True), ("2.27.7", 50, False)],
)
def test_the_rank_that_lacks_the_last_call_is_named(
    version: str, world_every: int, full: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_logs(tmp_path, version, lagging=LAGGARD, world_every=world_every)

    run = run_of(tmp_path, monkeypatch, full=full)

    assert answer(run) == ("lagging-ranks", [LAGGARD])
    assert any(reader.is_read_through for reader in run.inputs)
    assert run["call"].height < RANKS * CALLS / 2


@pytest.mark.parametrize(
    ("version", "world_every", "full"),
    [("2.21.5", 0, False), ("2.21.5", 50, True), ("2.27.7", 0, True), ("2.27.7", 50, False)],
)
def test_no_rank_is_named_where_all_made_the_last_call(
    version: str, world_every: int, full: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_logs(tmp_path, version, lagging=None, world_every=world_every)

    assert answer(run_of(tmp_path, monkeypatch, full=full)) == ("no-hang", [])


@pytest.mark.parametrize("lagging", [LAGGARD, None])
def test_logs_of_all_ranks_behind_one_another_in_one_text_give_the_same_answer(
    lagging: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As from `cat *.log | ncclforensics hang -`; no file name gives a number, so that ranks are named by host."""
    write_logs(tmp_path, "2.27.7", lagging=lagging)
    joined = tmp_path / "all.log"
    logs = sorted(tmp_path.glob("nccl_rank*.log"))
    joined.write_text("".join(log.read_text(encoding="utf-8") for log in logs), encoding="utf-8")

    run = run_of(joined, monkeypatch, full=False)

    culprits = run["verdict"]["culprits"].explode().drop_nulls().implode()
    named = run["rank"].filter(run["rank"]["rank_id"].is_in(culprits))
    assert named.select("pid").to_series().to_list() == ([400 + LAGGARD] if lagging is not None else [])


@pytest.mark.parametrize("version", ["2.21.5", "2.27.7"])
@pytest.mark.parametrize(("kept", "of_laggard"), [(300, 100), (241, 201)])
def test_a_log_that_begins_behind_a_call_shows_nothing_about_it(
    version: str, kept: int, of_laggard: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ends of logs of a healthy run, of unequal lengths: that of one rank begins behind the only call of all ranks."""
    write_logs(tmp_path, version, lagging=None)
    for rank in range(RANKS):
        log = tmp_path / f"nccl_rank{rank}.log"
        *before, world = log.read_text(encoding="utf-8").splitlines(keepends=True)
        lines = [*before[: 20 - kept], world, *before[20 - kept :]]
        log.write_text("".join(lines[-(of_laggard if rank == LAGGARD else kept) :]), encoding="utf-8")

    assert answer(run_of(tmp_path, monkeypatch, full=True))[1] == []
