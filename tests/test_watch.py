"""`watch`: what it reads of growing logs, how long it lets a job be silent, and when it names ranks."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from ncclforensics.cli import main
from ncclforensics.simulate.generate import Journal
from ncclforensics.simulate.plan import Fault, FaultKind, Finish, Plan
from ncclforensics.simulate.program import Job
from ncclforensics.watch.followed_files import FollowedFiles
from ncclforensics.watch.rhythm import TIMEOUT, Rhythm
from ncclforensics.watch.step_times import LAST_SEARCH, StepTimes
from ncclforensics.watch.watch import Ending, Watch
from tests.budget import IS_FULL
from tests.incidents import INCIDENTS

CALL = (
    "node1:77:77 [0] NCCL INFO AllReduce: opCount 1a sendbuff 0x7f3c2a000000 recvbuff 0x7f3c2a000000 count 26214400 "
    "datatype 9 op 0 root 0 comm 0x55d1c3e0a2b0 [nranks=16] stream 0x55d1b0a0c3d0\n"
)
WARNING = "node1:77:77 [0] misc/socket.cc:50 NCCL WARN socketProgress: Connection closed by remote peer\n"
HOUR = 3600
PLAN = Plan(nodes=1, gpus_per_node=4, tp=2, version="2.27.7", layers=1, steps=1_000_000, finish=Finish.KILLED)


@dataclass
class Replay:
    """A job whose logs are written, and watched, in simulated time."""

    folder: Path
    plan: Plan = PLAN
    interval: float = 1.0  # seconds between two reads
    now: float = field(default_factory=time.time)
    told: list[str] = field(default_factory=list)
    ending: Ending | None = None

    def __post_init__(self) -> None:
        job = Job(self.plan)
        self.ranks = range(self.plan.ranks)
        self._logs = {rank: Journal(self.plan, self.plan.steps, job, rank).chunks(1) for rank in self.ranks}
        self._halves: dict[int, bytes] = {}
        self.watch = Watch(FollowedFiles([str(self.folder)]), notify=self.told.append, clock=lambda: self.now)
        if not IS_FULL:  # each search for step lines is an analysis, and few of these jobs print any
            self.watch.step_times = StepTimes(_search=LAST_SEARCH)

    def write(self, ranks: Iterable[int] | None = None) -> None:
        """Every rank prints the calls of one step, or what is left of it."""
        for rank in self.ranks if ranks is None else ranks:
            self._print(rank, self._halves.pop(rank, None) or next(self._logs[rank]))

    def begin_step(self, ranks: Iterable[int]) -> None:
        """These ranks print the first half of a step, in which they wait for the others."""
        for rank in ranks:
            lines = next(self._logs[rank]).splitlines(True)
            self._halves[rank] = b"".join(lines[len(lines) // 2 :])
            self._print(rank, b"".join(lines[: len(lines) // 2]))

    def _print(self, rank: int, text: bytes) -> None:
        with (self.folder / f"rank{rank}.log").open("ab") as log:
            log.write(text)

    def wait(self, seconds: float) -> float:
        """Let time pass until the watch ends; return the seconds that passed."""
        began = self.now
        while self.ending is None and self.now - began < seconds:
            self.now += min(self.interval, seconds - (self.now - began))
            self.ending = self.watch.step()
        return self.now - began

    def train(self, seconds: float, step: float = 1.0, ranks: Iterable[int] | None = None) -> None:
        """Every rank makes a step every `step` seconds."""
        end = self.now + seconds
        while self.ending is None and self.now < end:
            self.write(ranks)
            self.wait(step)

    def start(self) -> None:
        """The job sets NCCL up, and compiles its model in the first step."""
        self.wait(3)
        self.write()
        self.wait(20)

    @property
    def verdict(self) -> tuple[str, list[int]]:
        assert self.ending is not None
        row = self.row
        return row.verdict, self.ending.report.numbers(row.culprits)

    @property
    def row(self) -> dict[str, Any]:
        assert self.ending is not None
        return self.ending.report.verdicts[0]


@pytest.fixture
def replay(tmp_path: Path) -> Replay:
    return Replay(tmp_path)


@pytest.mark.parametrize(
    ("kind", "seconds", "ready"),
    [
        ("a checkpoint that rank 0 writes", 120, (1, 2, 3)),
        ("an evaluation without calls", 200, ()),
        ("the compilation of another graph", 60, (3,)),
        ("one slow data loader", 90, (0, 1, 2)),
    ],
)
def test_healthy_pauses_are_no_hangs(replay: Replay, kind: str, seconds: float, ready: tuple[int, ...]) -> None:
    replay.start()
    for _ in range(2):
        replay.train(210)
        replay.begin_step(ready)
        replay.wait(seconds)
        replay.write()

    assert replay.ending is None, kind


@pytest.mark.parametrize("step", [0.5, 10])
def test_a_rank_that_stops_is_named_when_the_rhythm_is_broken(replay: Replay, step: float) -> None:
    replay.start()
    replay.train(400, step)
    replay.begin_step({0, 1, 3})
    stopped = replay.wait(HOUR)

    assert replay.ending is not None
    assert replay.ending.is_hang
    assert replay.verdict == ("lagging-ranks", [2])
    assert replay.watch.rhythm is not None
    assert stopped <= replay.watch.rhythm.allowed + 5
    assert "two-looks" in replay.row.stall_evidence
    assert len(replay.told) == 1


def test_a_pause_learnt_from_the_job_is_allowed_twice_as_long(replay: Replay) -> None:
    replay.start()
    replay.train(100)
    replay.wait(400)  # an evaluation
    replay.train(100)
    replay.begin_step({0, 1, 3})
    stopped = replay.wait(HOUR)

    assert replay.ending is not None
    assert replay.ending.is_hang
    assert 780 < stopped < 830


def test_nothing_is_said_while_only_one_look_was_taken(replay: Replay) -> None:
    replay.start()
    replay.train(400)
    replay.begin_step({0, 1, 3})
    replay.wait(290)
    replay.write()
    replay.train(10)

    assert replay.ending is None
    assert [text.partition(";")[0] for text in replay.told] == [
        "no call for 200 s, of 300 s that the rhythm allows", "the job goes on after 290 s",
    ]  # fmt: skip


def test_a_rank_that_stays_behind_while_others_go_on_is_named(replay: Replay) -> None:
    replay.start()
    replay.train(200)
    replay.train(400, ranks=[0, 1, 3])

    assert replay.ending is not None
    assert replay.ending.is_hang
    assert replay.verdict == ("lagging-ranks", [2])
    assert replay.row.certainty == "possible"
    assert replay.watch.logs_behind() == [str(replay.folder / "rank2.log")]


def test_a_killed_rank_is_told_before_the_rhythm_is_broken(tmp_path: Path) -> None:
    plan = Plan(
        nodes=2, gpus_per_node=2, tp=2, version="2.27.7", layers=1, steps=400, fault=Fault(FaultKind.KILLED, (1,))
    )
    replay = Replay(tmp_path, plan)
    replay.start()
    replay.train(399)
    replay.write()
    replay.write()
    replay.wait(1)
    replay.write()  # the others lose their connections
    stopped = replay.wait(HOUR)

    assert replay.ending is not None
    assert replay.ending.is_hang
    assert replay.verdict == ("rank-died", [1])
    assert stopped < 60


def test_a_job_that_ends_in_order_ends_the_watch(tmp_path: Path) -> None:
    replay = Replay(tmp_path, Plan(nodes=1, gpus_per_node=2, tp=2, version="2.27.7", layers=1, steps=100))
    replay.start()
    replay.train(99)
    replay.write()
    replay.write()
    replay.wait(HOUR)

    assert replay.verdict == ("no-hang", [])


def test_a_job_that_stands_still_without_a_culprit_ends_the_watch_without_naming_one(replay: Replay) -> None:
    replay.start()
    replay.train(300)
    waited = replay.wait(HOUR)

    assert replay.verdict == ("no-hang", [])
    assert waited > 1190


def test_logs_of_a_job_that_hung_before_the_watch_began_are_looked_at_twice(replay: Replay) -> None:
    replay.write()
    replay.write()
    replay.begin_step({0, 1, 3})
    for path in replay.folder.iterdir():
        os.utime(path, (replay.now - HOUR, replay.now - HOUR))
    waited = replay.wait(HOUR)

    assert replay.verdict == ("lagging-ranks", [2])
    assert waited < 90


@pytest.mark.nightly
def test_a_day_of_a_healthy_job_raises_no_alarm(tmp_path: Path) -> None:
    replay = Replay(tmp_path, PLAN, interval=20)
    replay.start()
    for hour in range(24):
        replay.train(HOUR / 2 - 120, step=20)
        replay.begin_step({1, 2, 3})  # rank 0 writes a checkpoint
        replay.wait(150 + hour)
        replay.write()
        replay.train(HOUR / 2 - 420, step=20)
        replay.wait(400)  # evaluation
    assert replay.ending is None
    assert not any("straggler" in text for text in replay.told)


def test_until_calls_are_seen_often_enough_no_rhythm_is_known() -> None:
    rhythm = Rhythm(0)
    for second in range(9):
        rhythm.note_calls(second)

    assert rhythm.allowed == TIMEOUT
    rhythm.note_calls(9)
    assert rhythm.allowed == 9
    assert Rhythm(0, longest_known=30).allowed == 30


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def added(files: FollowedFiles, clock: Iterator[float]) -> dict[str, tuple[int, int]]:
    return {Path(name).name: (one.calls, one.warnings) for name, one in files.read_new(next(clock)).items()}


@pytest.fixture
def clock() -> Iterator[float]:
    return iter(range(0, 1000, 10))


def test_only_new_whole_lines_are_counted(tmp_path: Path, clock: Iterator[float]) -> None:
    log, files = tmp_path / "rank0.log", FollowedFiles([str(tmp_path)])
    log.write_text(CALL * 5)
    assert added(files, clock) == {}
    assert files.shows_calls

    append(log, CALL + WARNING + CALL[:100])
    assert added(files, clock) == {"rank0.log": (1, 1)}
    assert added(files, clock) == {}
    append(log, CALL[100:])
    assert added(files, clock) == {"rank0.log": (1, 0)}
    append(log, CALL * 20_000)
    assert added(files, clock) == {"rank0.log": (20_000, 0)}


def test_new_files_rotated_files_and_truncated_files_are_followed(tmp_path: Path, clock: Iterator[float]) -> None:
    files = FollowedFiles([str(tmp_path / "*" / "*.log*")])
    assert added(files, clock) == {}
    log = tmp_path / "host0" / "rank0.log"
    log.parent.mkdir()
    log.write_text(CALL)
    assert added(files, clock) == {"rank0.log": (1, 0)}

    append(log, CALL * 2)
    log.rename(tmp_path / "host0" / "rank0.log.1")
    log.write_text(CALL)
    assert added(files, clock) == {"rank0.log": (3, 0)}
    log.write_text("")
    assert added(files, clock) == {}
    append(log, CALL * 2)
    assert added(files, clock) == {"rank0.log": (2, 0)}
    log.unlink()
    assert added(files, clock) == {}


def test_a_flood_of_warnings_is_told_once(replay: Replay) -> None:
    replay.start()
    for _ in range(3):
        replay.train(5)
        append(replay.folder / "rank1.log", WARNING * 500)
        replay.write()
        replay.wait(1)

    assert replay.told == [f"{replay.folder / 'rank1.log'}: 500 warnings of NCCL at once"]


WRITER = """
import pathlib, sys, time
source, target = map(pathlib.Path, sys.argv[1:])
logs = {path.name: path.read_text().splitlines(True) for path in source.glob("*.log")}
for share in range(1, 41):
    for name, lines in logs.items():
        with (target / name).open("a") as log:
            log.writelines(lines[len(lines) * (share - 1) // 40 : len(lines) * share // 40])
    time.sleep(0.05)
"""


def test_the_command_follows_a_job_and_tells_its_hang(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logs, sent = tmp_path / "logs", tmp_path / "sent.json"
    logs.mkdir()
    with subprocess.Popen([sys.executable, "-c", WRITER, INCIDENTS / "one-rank-stops-before-an-allreduce", logs]):
        code = main([
            "watch", str(logs), "--interval", "0.05", "--longest-pause", "1", "--format", "json",
            "--on-hang", f"cat > {sent}; exit 3",
        ])  # fmt: skip
    printed = capsys.readouterr()

    assert code == 1
    assert json.loads(printed.out)["hang"]["culprits"] == [11]
    assert json.loads(sent.read_text()) == json.loads(printed.out)
    assert any(text in printed.err for text in ("following ", "no file is there yet"))
    assert "ended with exit code 3" in printed.err


def test_wrong_usage_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    assert main(["watch", "-"]) == 2
    assert main(["watch", str(tmp_path), "--collect", str(tmp_path)]) == 2


def test_metrics_without_their_library_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)

    assert main(["watch", str(tmp_path), "--metrics", "9464"]) == 2
    assert "is not installed; `--metrics` needs it: pip install" in capsys.readouterr().err


def test_prometheus_reads_the_metrics(replay: Replay) -> None:
    pytest.importorskip("prometheus_client")
    from prometheus_client.parser import text_string_to_metric_families

    from ncclforensics.watch import metrics

    replay.start()
    replay.train(200)
    replay.begin_step({0, 1, 3})
    replay.wait(HOUR)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    stop = metrics.serve(replay.watch, port, "127.0.0.1")
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            text = answer.read().decode()
    finally:
        stop()
    values = {sample.name: sample.value for one in text_string_to_metric_families(text) for sample in one.samples}

    assert values["ncclforensics_watch_files"] == 4
    assert values["ncclforensics_watch_last_call_timestamp_seconds"] == pytest.approx(replay.watch.rhythm.last)  # type: ignore[union-attr]
    assert 'verdict{certainty="likely",verdict="lagging-ranks"} 1.0' in text


@pytest.mark.parametrize("late", [(2,), ()], ids=["one rank is late in every step", "a healthy job"])
def test_a_rank_that_the_others_wait_for_in_every_step_is_named(replay: Replay, late: tuple[int, ...]) -> None:
    punctual = [rank for rank in replay.ranks if rank not in late]
    replay.wait(3)
    for step in range(40):
        replay.write(punctual)
        replay.wait(3)
        replay.write(late)
        replay.wait(12 if step % 10 == 9 else 2)  # an evaluation now and then

    assert replay.ending is None
    assert list(replay.watch.stragglers) == [str(replay.folder / f"rank{rank}.log") for rank in late]
    assert len(replay.told) == len(late)
    assert all("rank 2 " in text and "(possible)" in text for text in replay.told)

    for _ in range(40):  # it is no longer late
        replay.write()
        replay.wait(5)
    assert not replay.watch.stragglers
    assert len(replay.told) == 2 * len(late)


def test_a_rank_that_writes_checkpoints_is_no_straggler(replay: Replay) -> None:
    replay.wait(3)
    for step in range(60):
        is_late = step % 5 == 4
        replay.write([rank for rank in replay.ranks if rank or not is_late])
        replay.wait(20 * is_late)
        replay.write([0] * is_late)
        replay.wait(4)

    assert replay.told == []


def test_the_others_of_a_group_are_no_stragglers_while_they_wait_for_one(replay: Replay) -> None:
    """Ranks 2 and 3 share a group: rank 2 makes a part of its calls, and waits for rank 3; ranks 0 and 1 go further."""
    replay.wait(3)
    for _ in range(30):
        replay.write([0, 1])
        replay.begin_step([2])
        replay.wait(4)
        replay.begin_step([3])
        replay.write([2, 3])
        replay.wait(4)

    assert list(replay.watch.stragglers) == [str(replay.folder / "rank3.log")]


def test_steps_that_become_slower_are_told_and_so_is_their_end(replay: Replay) -> None:
    replay.watch.step_times = StepTimes()
    log = replay.folder / "train.log"
    step = 0

    def train(steps: int, seconds: float) -> None:
        nonlocal step
        for _ in range(steps):
            step += 1
            append(
                log, f" iteration {step:8}/    9000 | elapsed time per iteration (ms): {1000 * seconds}.{step % 7} |\n"
            )
            replay.write()
            replay.wait(seconds)

    train(200, 1)
    assert replay.told == []
    train(40, 2)
    (told,) = replay.told
    assert told.startswith("since step 201 steps take 2 times as long: 1 s a step before, 2 s a step since")
    assert list(replay.watch.step_times.slower) == [201]
    train(200, 1)
    assert replay.told == [told, "steps are no longer slower than before step 201"]
    assert not replay.watch.step_times.slower
    assert replay.ending is None


def test_steps_with_a_larger_batch_are_not_told_as_slower(replay: Replay) -> None:
    replay.watch.step_times = StepTimes()
    replay.wait(1)
    for step in range(1, 300):
        batch = 256 if step < 200 else 512
        work = f"global batch size: {batch:5} | elapsed time per iteration (ms): {batch * 4}.{step % 7}"
        append(replay.folder / "train.log", f" iteration {step:8}/ 9000 | {work} |\n")
        replay.wait(1)

    assert replay.told == []


def test_logs_that_were_not_followed_from_their_first_line_name_no_straggler(tmp_path: Path) -> None:
    """How many calls such a log shows does not tell whether it is behind."""
    for rank in range(4):
        (tmp_path / f"rank{rank}.log").write_text(CALL * (2000 + rank))
    replay = Replay(tmp_path)
    replay.wait(1)
    for _ in range(30):
        for ranks in ((0, 1, 3), (2,)):
            for rank in ranks:
                append(tmp_path / f"rank{rank}.log", CALL * 8)
            replay.wait(4)

    assert replay.told == []


def test_stages_of_a_pipeline_are_no_stragglers(tmp_path: Path) -> None:
    replay = Replay(tmp_path, replace(PLAN, nodes=2, tp=1, pp=8))
    replay.wait(3)
    for _ in range(30):
        for rank in replay.ranks:
            replay.write([rank])
            replay.wait(2)

    assert replay.told == []


def ras_report(identity: str, behind: int) -> str:
    """A report of RAS on a job of four ranks, of which one has made fewer calls."""
    return (
        "NCCL version 2.27.7 compiled with CUDA 12.9\nCUDA runtime version 12090, driver version 12090\n\nJob summary\n"
        "===========\n\n  Nodes  Processes         GPUs  Processes     GPUs\n(total)   per node  per process    (total)"
        "  (total)\n      1          4            1          4        4\n\nCommunicators... (0.004s)\n=============\n\n"
        "Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors\n"
        "    #  in group  per comm  per node  per comm  in group\n"
        "    0         1         1         4         4         4   RUNNING  MISMATCH\n\nErrors\n======\n\nWarnings\n"
        f"========\n\n#0-0 ({identity}) MISMATCH\n  Communicator ranks have different AllReduce operation counts\n"
        f"  3 ranks have launched up to operation 12\n  Rank {behind} has launched up to operation 11 -- GPU {behind} "
        "managed by process 60513 on node 10.0.4.13\n"
    )


@pytest.mark.parametrize(("is_of_this_job", "behind"), [(True, 2), (False, 1)])
def test_the_monitor_of_nccl_is_asked_at_each_look(
    replay: Replay, tmp_path_factory: pytest.TempPathFactory, *, is_of_this_job: bool, behind: int
) -> None:
    folder = tmp_path_factory.mktemp("ras")
    asked: list[str] = []

    def ask() -> str:
        (own,) = set(re.findall(r"nranks 4 .* commId 0x([0-9a-f]+) ", (replay.folder / "rank0.log").read_text()))
        report = folder / f"ncclras.{len(asked)}.txt"
        report.write_text(ras_report(own if is_of_this_job else "1f3bd2a4c1e07755", behind))
        asked.append(str(report))
        return str(report)

    replay.watch.ask_ras = ask
    replay.start()
    replay.train(400)
    replay.begin_step({0, 1, 3})
    replay.wait(HOUR)

    assert len(asked) == 2
    assert replay.verdict == ("lagging-ranks", [2])
    assert ("ras" in replay.row.stall_evidence) == is_of_this_job
