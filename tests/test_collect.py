"""`collect`: which processes are ranks, what is copied, and what is said of the rest. Programs are stand-ins."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from ncclforensics.capture import collect as collecting
from ncclforensics.capture.collect_processes import find_ranks
from ncclforensics.capture.collect_recipes import RECIPES, recipe
from ncclforensics.errors import UsageError
from tests.incidents import INCIDENTS

LOADER = INCIDENTS / "a-rank-waits-for-its-data-loader"


def process(proc: Path, pid: int, parent: int, log: Path, program: str = "python3.11", **variables: str) -> None:
    """A folder of /proc."""
    folder = proc / str(pid)
    (folder / "fd").mkdir(parents=True)
    (folder / "cmdline").write_text("python\0train.py\0")
    (folder / "environ").write_text("".join(f"{name}={value}\0" for name, value in variables.items()))
    (folder / "stat").write_text(f"{pid} (python (a b)) S {parent} 1 1")
    (folder / "fd" / "1").symlink_to(log)
    (folder / "exe").symlink_to(f"/usr/bin/{program}")


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """Two ranks with a worker and a launcher, which has no rank."""
    proc, log = tmp_path / "proc", tmp_path / "train.log"
    log.write_text("step 1\n")
    home = {"HOME": str(tmp_path), "WORLD_SIZE": "2", "API_TOKEN": "hf_secret"}
    process(proc, 10, 1, log, **home)
    process(proc, 11, 10, log, **home, RANK="0")
    process(proc, 12, 10, log, **home, RANK="1", NCCL_DEBUG="INFO")
    process(proc, 13, 12, log, **home, RANK="1")
    return proc


def test_ranks_are_processes_with_a_rank_and_not_their_children(proc: Path) -> None:
    ranks = find_ranks(proc)

    assert [(rank.pid, rank.rank) for rank in ranks] == [(11, 0), (12, 1)]
    assert not any("secret" in str(rank) for rank in ranks)


@pytest.mark.parametrize(
    ("of_launcher", "of_ranks"),
    [
        ({"SLURM_PROCID": "0"}, [{"RANK": "0", "LOCAL_RANK": "0"}, {"RANK": "1", "LOCAL_RANK": "1"}]),
        ({"RANK": "0"}, [{"RANK": "0", "LOCAL_RANK": "0"}, {"RANK": "1", "LOCAL_RANK": "1"}]),
        ({"RANK": "0"}, [{"RANK": "0", "LOCAL_RANK": "0"}]),  # torchrun in a pod with one GPU
        ({"SLURM_PROCID": "0"}, [{"OMPI_COMM_WORLD_RANK": "0"}, {"OMPI_COMM_WORLD_RANK": "1"}]),
    ],
)
def test_a_launcher_that_has_a_rank_itself_is_none_of_its_ranks(
    of_launcher: dict[str, str], of_ranks: list[dict[str, str]], tmp_path: Path
) -> None:
    process(tmp_path, 9, 1, tmp_path, "bash", **of_launcher)
    process(tmp_path, 10, 9, tmp_path, **of_launcher)
    for number, variables in enumerate(of_ranks, 11):
        process(tmp_path, number, 10, tmp_path, **of_launcher | variables)
        process(tmp_path, number + 10, number, tmp_path, **of_launcher | variables)

    assert [(rank.pid, rank.rank) for rank in find_ranks(tmp_path)] == [(11 + n, n) for n in range(len(of_ranks))]


def test_below_a_shell_or_a_wrapper_the_program_is_the_rank(tmp_path: Path) -> None:
    for pid, parent, program in ((10, 1, "bash"), (11, 10, "timeout"), (12, 11, "python3.11"), (13, 12, "python3.11")):
        process(tmp_path, pid, parent, tmp_path, program, RANK="3")
    for pid, parent, program in ((20, 1, "bash"), (21, 20, "all_reduce_perf")):
        process(tmp_path, pid, parent, tmp_path, program, RANK="4")

    assert [(rank.pid, rank.rank) for rank in find_ranks(tmp_path)] == [(12, 3), (20, 4)]


def test_a_child_without_some_variables_of_its_rank_makes_that_no_launcher(tmp_path: Path) -> None:
    process(tmp_path, 10, 1, tmp_path, SLURM_PROCID="2", RANK="2", LOCAL_RANK="0")
    process(tmp_path, 11, 10, tmp_path, SLURM_PROCID="2")

    assert [(rank.pid, rank.rank) for rank in find_ranks(tmp_path)] == [(10, 2)]


def test_a_folder_has_what_was_found_and_names_the_rest(
    proc: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "py-spy").write_text(f"#!/bin/sh\n[ $1 = --version ] || cat {LOADER}/pyspy.rank$((${{3}} - 11)).log\n")
    (programs / "py-spy").chmod(0o755)
    dump = tmp_path / ".cache" / "torch" / "comm_lib_trace_rank_1"
    dump.parent.mkdir(parents=True)
    dump.write_bytes(b"\x80\x02}.")
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setattr(collecting, "find_ranks", lambda: find_ranks(proc))
    monkeypatch.setattr(collecting, "BETWEEN_LOOKS", 0.0)
    folder = tmp_path / "collected"

    collection = collecting.collect(folder, [], 60)

    record = json.loads((folder / "collect.json").read_text())
    assert {"stacks-1/pyspy.rank0.11.txt", "stacks-2/pyspy.rank1.12.txt", "logs/rank1.12.train.log",
            "fr/comm_lib_trace_rank_1"} <= set(collection.collected)  # fmt: skip
    assert (folder / "stacks-1/pyspy.rank1.12.txt").read_text().startswith("=== rank 1 on ")
    assert "Flight Recorder dump of rank0.11" in record["missing"]
    assert [rank["rank"] for rank in record["ranks"]] == [0, 1]


def test_a_folder_with_files_is_not_filled(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")

    with pytest.raises(UsageError, match="not an empty folder"):
        collecting.collect(tmp_path, [], 10)


def test_of_a_long_log_both_ends_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "BEGIN_BYTES", 100)
    monkeypatch.setattr(collecting, "END_BYTES", 100)
    (tmp_path / "log").write_text("".join(f"line {number}\n" for number in range(1000)))

    kept = collecting._ends_of(tmp_path / "log").splitlines()

    assert (kept[0], kept[-1], len(kept) < 30) == (b"line 0", b"line 999", True)


@pytest.mark.parametrize("launcher", RECIPES)
def test_recipes_collect_on_all_hosts_and_then_judge(launcher: str) -> None:
    text = recipe(launcher, "incident", 90)

    assert "ncclforensics collect -o" in text
    assert "--limit 90" in text
    assert text.endswith("ncclforensics hang incident\n")
