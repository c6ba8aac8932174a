"""The examples for Slurm and GitHub do what they say: their shell runs as it stands, beside stubs for the rest."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.incidents import INCIDENTS, ROOT

EPILOG = ROOT / "examples" / "slurm-epilog.sh"
ACTION = ROOT / "examples" / "github-action.yml"
HANG, HEALTHY = "one-rank-stops-before-an-allreduce", "a-healthy-run"
WORKFLOW = yaml.safe_load(ACTION.read_text(encoding="utf-8"))
JOB = "4711"
# What slurmctld gives to EpilogSlurmctld, and no PATH.
SLURM = {
    "SLURM_JOB_ID": JOB, "SLURM_JOB_NAME": "train", "SLURM_JOB_USER": "u", "SLURM_JOB_UID": "1000",
    "SLURM_JOB_NODELIST": "gpu-node-[00-01]", "SLURM_JOB_PARTITION": "gpu", "SLURM_JOB_EXIT_CODE": "0",
    "SLURM_JOB_EXIT_CODE2": "0:0", "SLURM_JOB_DERIVED_EC": "0", "SLURM_SCRIPT_CONTEXT": "epilog_slurmctld",
}  # fmt: skip


def script(path: Path, *lines: str) -> Path:
    """Write a program of some lines of shell."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["#!/bin/bash", *lines, ""]), encoding="utf-8")
    path.chmod(0o755)
    return path


def program(folder: Path) -> Path:
    """The program under test, for environments without Python's variables."""
    return script(folder / "ncclforensics", f'PYTHONPATH="{ROOT}" exec "{sys.executable}" -m ncclforensics "$@"')


def epilog(folder: Path, command: Path) -> subprocess.CompletedProcess[str]:
    environment = SLURM | {"NCCL_LOGS": str(folder / "shared"), "NCCLFORENSICS": str(command)}
    return subprocess.run([EPILOG], env=environment, cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    folder = tmp_path / "shared"
    folder.mkdir()
    return folder


def test_the_epilog_keeps_a_page_of_a_job_that_hung_and_remembers_it(tmp_path: Path, shared: Path) -> None:
    shutil.copytree(INCIDENTS / HANG, shared / JOB)
    done = epilog(tmp_path, program(tmp_path))
    assert done.returncode == 0, done.stderr
    assert json.loads((shared / f"{JOB}.verdict.json").read_text())["hang"]["culprits"] == [11]
    assert "rank 11" in (shared / f"{JOB}.html").read_text()
    assert (shared / f"{JOB}.html").stat().st_mode & 0o077 == 0, "logs of users are not for everybody"
    assert (shared / "history.db").exists()


@pytest.mark.nightly
def test_the_epilog_leaves_no_page_of_a_healthy_job_but_remembers_it(tmp_path: Path, shared: Path) -> None:
    shutil.copytree(INCIDENTS / HEALTHY, shared / JOB)
    done = epilog(tmp_path, program(tmp_path))
    assert done.returncode == 0, done.stderr
    assert not (shared / f"{JOB}.html").exists()
    assert (shared / "history.db").exists()


@pytest.mark.parametrize("with_logs", [True, False])
def test_the_epilog_never_fails(tmp_path: Path, shared: Path, *, with_logs: bool) -> None:
    if with_logs:
        shutil.copytree(INCIDENTS / HANG, shared / JOB)
    done = epilog(tmp_path, script(tmp_path / "broken", "exit 4"))
    assert done.returncode == 0
    assert not (shared / f"{JOB}.html").exists()


def run_step(step: dict[str, Any], folder: Path, environment: dict[str, str]) -> int:
    """Run the shell of a step as GitHub's runner does, with its PATH of earlier steps."""
    shell = ["-eo", "pipefail"] if step.get("shell") == "bash" else ["-e"]
    added = (folder / "added-path").read_text(encoding="utf-8").split()
    path = os.pathsep.join([*reversed(added), environment["PATH"]])
    command = ["bash", *shell, "-c", step["run"]]
    done = subprocess.run(command, cwd=folder, env=environment | {"PATH": path}, capture_output=True, text=True)
    sys.stderr.write(done.stdout + done.stderr)
    return done.returncode


@pytest.fixture
def workplace(tmp_path: Path, distributions: Path) -> Path:
    """A checkout with the wheel where the workflow expects it."""
    wheel = tmp_path / WORKFLOW["env"]["WHEEL"]
    wheel.parent.mkdir()
    shutil.copy(distributions / wheel.name, wheel)  # the file is named as `make wheel` names it
    return tmp_path


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("logged", "benchmark", "verdict"), [("a-healthy-benchmark", 0, ""), (HANG, 124, "lagging-ranks")]
)
def test_the_steps_of_the_action_judge_a_benchmark(workplace: Path, logged: str, benchmark: int, verdict: str) -> None:
    (job,) = WORKFLOW["jobs"].values()
    install, run, judge, tell = [step for step in job["steps"] if "run" in step]
    lines = "".join(path.read_text(encoding="utf-8") for path in sorted((INCIDENTS / logged).glob("*.log")))
    (workplace / "lines").write_text(lines, encoding="utf-8")
    written = "cat lines" if benchmark == 0 else "cat lines > nccl.gpu.1.log; echo a line"
    script(workplace / "bin" / "all_reduce_perf", "touch nccl.gpu.0.log", written, f"exit {benchmark}")
    summary, added = workplace / "summary.md", workplace / "added-path"
    added.touch()
    environment = {
        "PATH": os.pathsep.join([str(workplace / "bin"), os.environ["PATH"]]),
        "RUNNER_TEMP": str(workplace),
        "GITHUB_PATH": str(added),
        "GITHUB_STEP_SUMMARY": str(summary),
        "PYTHONPATH": sysconfig.get_path("purelib"),  # the libraries that are here, in place of the network
        "PIP_NO_INDEX": "1",
        "PIP_NO_DEPS": "1",
        "PIP_COMPILE": "0",  # a command needs few of the modules
        **WORKFLOW["env"],
    }
    assert run_step(install, workplace, environment) == 0
    assert run_step(run, workplace, environment) == benchmark, "tee must not hide how the benchmark ended"
    assert run_step(judge, workplace, environment) == (1 if verdict else 0), "a rank that lags is an error"
    assert json.loads((workplace / "findings.sarif").read_text())["version"] == "2.1.0"
    if verdict:
        assert tell["if"] == "failure()"
        assert run_step(tell, workplace, environment) == 1
        assert verdict in summary.read_text(encoding="utf-8").lower()
