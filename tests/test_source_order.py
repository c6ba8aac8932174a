"""Copies are left out, and the parts of a rotated log follow one another."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from ncclforensics.formats import dialect
from ncclforensics.frames.source_order import arrange
from ncclforensics.inputs import copies
from ncclforensics.inputs.rotation import age, stem
from ncclforensics.inputs.sources import find

HOST = "gpu-a012"


def start(pid: int, rank: int) -> str:
    return (
        f"{HOST}:{pid}:{pid} [{rank}] NCCL INFO ncclCommInitRank comm 0x55{pid} rank {rank} nranks 8 cudaDev {rank} "
        f"nvmlDev {rank} busId {rank}b000 commId 0x8f3bd2a4c1e07755 - Init START\n"
    )


def call(pid: int, rank: int, number: int) -> str:
    return (
        f"{HOST}:{pid}:{pid} [{rank}] NCCL INFO AllReduce: opCount {number:x} sendbuff 0x7f00 recvbuff 0x7f01 count 4 "
        f"datatype 7 op 0 root 0 comm 0x55{pid} [nranks=8] stream 0x55ff\n"
    )


def parts(pid: int = 41, rank: int = 0, calls: int = 30) -> tuple[str, str, str]:
    """A log in three parts, the oldest first."""
    lines = [start(pid, rank), *(call(pid, rank, number) for number in range(calls))]
    return "".join(lines[:10]), "".join(lines[10:20]), "".join(lines[20:])


def names_in_order(folder: Path, files: Mapping[str, str | bytes]) -> list[str]:
    """The names of the files that are read, in the order in which they are numbered."""
    found = arranged(folder, files)
    return [name for name, problem in found if not problem]


def arranged(folder: Path, files: Mapping[str, str | bytes]) -> list[tuple[str, str]]:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data if isinstance(data, bytes) else data.encode())
    found = arrange(find([str(folder)]), dialect())
    return [(Path(one.path).relative_to(folder).as_posix(), one.problem.replace(f"{folder}/", "")) for one in found]


@pytest.mark.parametrize(
    "names",
    [
        ("rank0.log.2", "rank0.log.1", "rank0.log"),
        ("rank0.log.2.gz", "rank0.log.1", "rank0.log"),
        ("rank0.log-20261119", "rank0.log-20261120.gz", "rank0.log"),
        ("0.log.20261121-031415.gz", "0.log.20261121-041415.gz", "0.log"),
        ("t-2026-11-21T03-14-15.000.log", "t-2026-11-21T04-14-15.000.log", "t.log"),
        ("job.log.2026-11-20", "job.log.2026-11-21", "job.log"),
        ("job.out.old.1", "job.out.old", "job.out"),
    ],
)
def test_names_of_rotated_logs_tell_their_age(names: tuple[str, ...]) -> None:
    assert sorted(sorted(names), key=age) == list(names)
    assert len({stem(f"logs/{name}") for name in names}) == 1


@pytest.mark.parametrize("name", ["logs/nccl_rank0.log", "logs/rank10.txt", "logs/job", "logs/12345.out", "logs/0.log"])
def test_names_without_marks_are_their_own_stem(name: str) -> None:
    assert stem(name) == name


@pytest.mark.parametrize(
    ("oldest", "middle", "newest"),
    [
        ("rank0.log.2", "rank0.log.1", "rank0.log"),
        ("rank0.log.1", "rank0.log.2", "rank0.log.3"),  # some tools count upwards
        ("rank0.log", "rank0.log.1", "rank0.log.2"),
        ("rank0.log.2.gz", "rank0.log.1.gz", "rank0.log"),
        ("rank0.log-20261119", "rank0.log-20261120", "rank0.log"),
    ],
)
def test_parts_are_ordered_by_what_they_hold(tmp_path: Path, oldest: str, middle: str, newest: str) -> None:
    names = oldest, middle, newest
    files = {
        name: gzip.compress(part.encode()) if name.endswith(".gz") else part
        for name, part in zip(names, parts(), strict=True)
    }

    assert names_in_order(tmp_path, files) == list(names)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda line: json.dumps({"log": f"{line}\n", "stream": "stdout", "time": "2026-11-21T03:14:15Z"}),
        lambda line: f"2026-11-21T03:14:15.000000001Z stdout F {line}",
        lambda line: f"[1,0]<stdout>:{line}",
    ],
    ids=["docker", "cri", "mpirun"],
)
def test_parts_are_ordered_whatever_stands_around_their_lines(tmp_path: Path, wrap: Callable[[str], str]) -> None:
    wrapped = ["".join(f"{wrap(line)}\n" for line in part.splitlines()) for part in parts()]

    assert names_in_order(tmp_path, dict(zip(["a.log", "a.log.1", "a.log.2"], wrapped, strict=True))) == [
        "a.log",
        "a.log.1",
        "a.log.2",
    ]


def test_parts_without_counters_are_ordered_by_time(tmp_path: Path) -> None:
    lines = [f"[2026-11-21 03:{n:02d}:00] {HOST}:41:41 [0] NCCL INFO Connected all rings\n" for n in range(30)]
    stamped = ["".join(lines[:10]), "".join(lines[10:20]), "".join(lines[20:])]
    files = dict(zip(["a.log.1", "a.log.2", "a.log.3"], stamped, strict=True))

    assert names_in_order(tmp_path, files) == ["a.log.1", "a.log.2", "a.log.3"]


def test_parts_that_show_neither_are_ordered_by_name(tmp_path: Path) -> None:
    line = f"{HOST}:41:41 [0] NCCL INFO Connected all rings\n"
    files = {"a.log": f"newest\n{line}", "a.log.1": f"middle\n{line}", "a.log.2": f"oldest\n{line}"}

    assert names_in_order(tmp_path, files) == ["a.log.2", "a.log.1", "a.log"]


def test_numbered_ranks_are_no_parts_of_one_log(tmp_path: Path) -> None:
    files = {f"rank.{rank}.log": "".join(parts(pid=40 + rank, rank=rank)) for rank in range(12)}
    found = arranged(tmp_path, files)

    assert [name for name, _ in found] == sorted(files)
    assert not any(source.is_part for source in arrange(find([str(tmp_path)]), dialect()))


def test_attempts_in_folders_of_their_own_are_no_parts_of_one_log(tmp_path: Path) -> None:
    files = {f"attempt_{number}/0/stdout.log": parts()[number] for number in range(2)}

    assert names_in_order(tmp_path, files) == list(files)
    assert not any(source.is_part for source in arrange(find([str(tmp_path)]), dialect()))


def test_rotated_logs_of_many_ranks_stay_apart(tmp_path: Path) -> None:
    files = {
        f"rank.{rank}.log{suffix}": part
        for rank in range(3)
        for suffix, part in zip((".2", ".1", ""), parts(pid=40 + rank, rank=rank), strict=True)
    }
    ordered = names_in_order(tmp_path, files)

    for rank in range(3):
        own = [name for name in ordered if name.startswith(f"rank.{rank}.")]
        assert own == [f"rank.{rank}.log.2", f"rank.{rank}.log.1", f"rank.{rank}.log"]


def test_an_older_copy_is_left_out(tmp_path: Path) -> None:
    whole = "".join(parts())
    found = arranged(tmp_path, {"a.log": whole, "a.log.gz": gzip.compress(whole[:900].encode()), "bak/a.log": whole})

    assert found == [
        ("a.log", "is a copy of bak/a.log; left out"),
        ("a.log.gz", "is an older copy of bak/a.log; left out"),
        ("bak/a.log", ""),
    ]


def test_long_copies_are_compared_to_their_ends(tmp_path: Path) -> None:
    whole = "".join(parts(calls=2000))
    assert len(whole) > 4 * copies.COMPARED
    files = {"a.log": whole, "b.log": whole[: len(whole) // 2], "c.log": whole[:-300] + call(41, 0, 5), "d.log": whole}

    assert arranged(tmp_path, files) == [
        ("a.log", ""),
        ("b.log", "is an older copy of a.log; left out"),
        ("c.log", ""),
        ("d.log", "is a copy of a.log; left out"),
    ]


def test_a_compressed_copy_that_was_cut_is_left_out(tmp_path: Path) -> None:
    whole = "".join(parts(calls=200))
    cut = gzip.compress(whole.encode())[:-20]

    assert arranged(tmp_path, {"a.log": whole, "old/a.gz": cut})[1][1] == "is an older copy of a.log; left out"


def test_a_copy_with_other_line_ends_is_a_copy(tmp_path: Path) -> None:
    whole = "".join(parts(calls=2000))
    files = {"a.log": whole, "windows/a.log": whole[: len(whole) // 2].replace("\n", "\r\n")}

    assert arranged(tmp_path, files)[1] == ("windows/a.log", "is an older copy of a.log; left out")


def test_what_names_no_process_is_no_copy(tmp_path: Path) -> None:
    banner = "Starting training\n" * 100
    files = {"rank0.log": banner + "".join(parts()), "rank1.log": banner, "rank2.log": banner}

    assert names_in_order(tmp_path, files) == list(files)
