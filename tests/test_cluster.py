"""Logs that a cluster reads give the verdict of the files: Dask's scheduler and workers are processes on loopback."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ncclforensics import analyze, cli
from ncclforensics.archive.cluster import read_apart
from ncclforensics.frames.open_run import open_run
from ncclforensics.inputs.sources import find
from ncclforensics.report.build import build_report
from ncclforensics.views import json_report
from tests.incidents import INCIDENTS, ROOT

FOLDER = INCIDENTS / "one-rank-stops-before-an-allreduce"
LOGS = sorted(str(path) for path in FOLDER.glob("*.log"))


def test_logs_read_by_an_executor_give_the_report_of_the_files() -> None:
    with ThreadPoolExecutor(2) as executor:
        sources = read_apart(find(LOGS), executor, threads=1)

    report = json_report.as_object(build_report(open_run(sources)))

    assert len(sources) > 1
    assert report == json_report.as_object(analyze(LOGS, full=True))


def test_a_path_that_names_no_cluster_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["hang", *LOGS, "--on", "spark://head"]) == 2
    assert "--on spark://head: names no cluster" in capsys.readouterr().err


def test_without_the_extra_the_command_that_installs_it_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)

    assert cli.main(["hang", *LOGS, "--on", "dask://head:8786"]) == 2
    assert "pip install 'ncclforensics[cluster]'" in capsys.readouterr().err


# Run in a worker before it starts.
KILLED_BY_ITS_FIRST_TASK = """
import os, signal
from ncclforensics.archive import cluster
cluster._read_part = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
"""
WITHOUT_THE_FILE = """
import os
exists = os.path.lexists
os.path.lexists = lambda path: path != {path!r} and exists(path)
import glob
glob.glob = lambda *_, **__: []
"""


@dataclass
class Cluster:
    """A scheduler and workers as processes of their own."""

    folder: Path
    address: str = ""
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, *arguments: str, code: str = "") -> subprocess.Popen[bytes]:
        """A process of Dask's command line; `code` runs in it first."""
        program = f"{code}\nimport sys\nfrom distributed.cli.{arguments[0]} import main\nmain(sys.argv[1:])"
        environment = os.environ | {"PYTHONPATH": str(ROOT), "POLARS_MAX_THREADS": "1"}
        options = ["--no-dashboard", *arguments[1:]]
        command = [sys.executable, "-c", program, *options]
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(command, env=environment, cwd=self.folder, stdout=log, stderr=log)

    def add_worker(self, code: str = "") -> subprocess.Popen[bytes]:
        """A worker that the scheduler knows."""
        from distributed import Client

        options = ("--nthreads", "1", "--no-nanny", "--local-directory", str(self.folder))
        self.workers.append(self.start("dask_worker", self.address, *options, code=code))
        with Client(self.address, set_as_default=False) as client:
            client.wait_for_workers(sum(worker.poll() is None for worker in self.workers), timeout=60)
        return self.workers[-1]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One scheduler for all tests, with a worker that lives as long as it."""
    pytest.importorskip("distributed", reason="the extra `cluster` is not installed")
    folder = tmp_path_factory.mktemp("cluster")
    running = Cluster(folder)
    file = folder / "scheduler.json"
    scheduler = running.start("dask_scheduler", "--host", "127.0.0.1", "--port", "0", "--scheduler-file", str(file))
    for _ in range(600):
        if file.exists() and file.stat().st_size:
            break
        time.sleep(0.1)
    running.address = json.loads(file.read_text())["address"]
    try:
        running.add_worker()
        yield running
    finally:
        for process in (*running.workers, scheduler):
            process.kill()
            process.wait()


def hang(cluster: Cluster, *paths: str) -> dict[str, Any]:
    return json_report.as_object(analyze(paths, on=cluster.address.replace("tcp://", "dask://")))


def test_a_cluster_gives_the_verdict_of_the_files(cluster: Cluster) -> None:
    assert hang(cluster, *LOGS) == json_report.as_object(analyze(LOGS, full=True))


def test_the_work_of_a_worker_that_is_killed_is_done_by_another_one(cluster: Cluster) -> None:
    killed = cluster.add_worker(KILLED_BY_ITS_FIRST_TASK)

    assert hang(cluster, *LOGS) == json_report.as_object(analyze(LOGS, full=True))
    assert killed.wait(60) == -signal.SIGKILL


def test_a_worker_without_the_file_is_named_with_the_file(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "only-here.log"
    shutil.copy(LOGS[0], log)
    for worker in cluster.workers:
        worker.kill()
        worker.wait()
    cluster.add_worker(WITHOUT_THE_FILE.format(path=str(log)))

    assert cli.main(["hang", str(log), *LOGS[1:], "--on", cluster.address.replace("tcp://", "dask://")]) in (1, 3)

    assert f"{log} on host " in capsys.readouterr().err


def test_a_scheduler_that_does_not_answer_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("distributed", reason="the extra `cluster` is not installed")
    monkeypatch.setattr("ncclforensics.archive.cluster.CONNECT", 1)

    assert cli.main(["hang", *LOGS, "--on", "dask://127.0.0.1:1"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "ncclforensics: --on dask://127.0.0.1:1: no scheduler of a Dask cluster answers there"
    ]
