"""`slow` on sums of profilers: the rank that is least in calls is possible, and the one that is most is never named."""

from __future__ import annotations

import gzip
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from ncclforensics import analyze
from ncclforensics.analyses.slow.answer import SlowAnswer
from ncclforensics.cli import main
from ncclforensics.simulate.slow import SlowFault, SlowPlan, generate_slow

LATE = (0.738, 0.782, 0.254, 0.739)  # seconds in calls, as measured: rank 2 sleeps 15 ms in each of 40 steps
REDUCES = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SENDS = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
CSV = "Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name"
Writer = Callable[[Path, int, float], None]


def answer_of(*paths: Path) -> SlowAnswer:
    answer = SlowAnswer.of(analyze(list(paths), full=True).run["slow_answer"])
    assert answer is not None
    return answer


def _of_torch_on_cpu(folder: Path, rank: int, seconds: float) -> None:
    row = "{:>20}  {:>12}  {:>12}  {:>12}  {:>12}  {:>12}  {:>12}  "
    rows = [
        ("Name", "Self CPU %", "Self CPU", "CPU total %", "CPU total", "CPU time avg", "# of Calls"),
        ("ProfilerStep*", "0.33%", "5.226ms", "100.00%", "1.590s", "39.757ms", "40"),
        ("c10d::allreduce_", "0.25%", "4.024ms", "0.25%", "4.024ms", "100.593us", "40"),
        ("gloo:all_reduce", "0.00%", "0.000us", "0", f"{seconds * 1000:.3f}ms", "18.444ms", "40"),
    ]
    text = "\n".join(row.format(*cells) for cells in rows) + "\nSelf CPU time total: 1.590s\n"
    (folder / f"rank{rank}.txt").write_text(text)


def _of_torch_on_gpu(folder: Path, rank: int, seconds: float) -> None:
    row = "{:>55}  {:>12}  {:>12}  {:>12}  {:>12}  {:>12}  {:>12}  {:>12}  {:>12}  {:>12}  {:>12}  "
    kernel, total = f"{REDUCES[:52]}...", f"{seconds * 1000:.3f}ms"
    zero = ("0.00%", "0.000us", "0.00%", "0.000us", "0.000us")
    rows = [
        ("Name", "Self CPU %", "Self CPU", "CPU total %", "CPU total", "CPU time avg",
         "Self CUDA", "Self CUDA %", "CUDA total", "CUDA time avg", "# of Calls"),
        ("aten::mm", "1.00%", "5.0ms", "2.00%", "9.0ms", "1.0ms", "700.000ms", "50.00%", "700.000ms", "1.0ms", "700"),
        ("nccl:all_reduce", *zero, total, "41.00%", total, "1.904ms", "40"),
        (kernel, *zero, total, "41.00%", total, "1.904ms", "40"),
        ("ampere_bf16_s16816gemm_bf16_128x128", *zero, "700.000ms", "50.00%", "700.000ms", "1.0ms", "700"),
    ]  # fmt: skip
    text = "\n".join(row.format(*cells) for cells in rows)
    (folder / f"rank{rank}.txt").write_text(
        f"{text}\nSelf CPU time total: 1.6s\nSelf CUDA time total: {0.7 + seconds}s\n"
    )


def _of_nsys_text(folder: Path, rank: int, seconds: float) -> None:
    """All ranks print into one file."""
    head = "  ".join(("Time (%)", "Total Time (ns)", "Instances", "Avg (ns)", "StdDev (ns)", "Name"))
    with (folder / "stats.txt").open("a") as file:
        file.write(
            f"Processing [/data/rank{rank}.sqlite] with [/opt/nsight-systems/reports/cuda_gpu_kern_sum.py]... \n\n"
            f" ** CUDA GPU Kernel Summary (cuda_gpu_kern_sum):\n\n {head}\n {'  '.join(['--------'] * 6)}\n"
            f"     60.0  {int(7e8):,}  700  1,000,000.0  12.0  ampere_bf16_s16816gemm_bf16_128x128\n"
            f"     40.0  {int(seconds * 1e9):,}  40  1,000.0  12.0  {REDUCES}\n\n"
        )


def _of_nsys_csv(folder: Path, rank: int, seconds: float) -> None:
    rows = (
        f"60.0,{int(7e8)},700,1000000.0,1.0,1,1,0.0,gemm",
        f'40.0,{int(seconds * 1e9)},40,1.0,1.0,1,1,0.0,"{REDUCES}"',
    )
    (folder / f"rank{rank}.csv").write_text("\n".join((CSV, *rows)) + "\n")


def _of_nsys_database(folder: Path, rank: int, seconds: float) -> None:
    database(folder / f"rank{rank}.sqlite", [(0, REDUCES, seconds), (0, "gemm", 0.7)])


def database(path: Path, kernels: Sequence[tuple[int, str, float]]) -> None:
    """A database with 40 kernels of each name, which take so many seconds together on a GPU."""
    with closing(sqlite3.connect(path)) as made, made:
        made.execute("CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL)")
        made.execute(
            "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER "
            "NOT NULL, streamId INTEGER, globalPid INTEGER, demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL)"
        )
        made.execute(
            "CREATE TABLE TARGET_INFO_SYSTEM_ENV (globalVid INTEGER, devStateName TEXT, name TEXT, value TEXT)"
        )
        made.execute("INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES (0, '', 'Hostname', 'gpu-a012')")
        for number, (gpu, name, seconds) in enumerate(kernels):
            made.execute("INSERT INTO StringIds VALUES (?, ?)", (number, name))
            for call in range(40):
                begun = call * 40_000_000 + number
                row = (begun, begun + int(seconds * 1e9 / 40), gpu, 7, 1, number, number)
                made.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, ?, ?, ?, ?)", row)


WRITERS = [_of_torch_on_cpu, _of_torch_on_gpu, _of_nsys_text, _of_nsys_csv, _of_nsys_database]


@pytest.mark.parametrize("write", WRITERS)
def test_the_rank_that_is_least_in_calls_is_possible(tmp_path: Path, write: Writer) -> None:
    for rank, seconds in enumerate(LATE):
        write(tmp_path, rank, seconds)
    answer = answer_of(tmp_path)

    assert (answer.verdict, answer.certainty, answer.ranks) == ("slow-rank", "possible", (2,))
    assert "least in calls, 0.254 s in all: the other 3 wait for it" in answer.claim
    assert any("outside of calls it works" in fact for fact in answer.details)


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize(
    ("seconds", "reason"),
    [
        ((0.30, 0.31, 0.29, 0.30), "name no rank"),
        ((0.30, 0.31, 0.95, 0.30), "name no rank"),  # rank 2 waits: for which rank, sums do not show
        ((0.70, 0.30, 0.31, 0.72), "name no rank"),  # two ranks, as of a group
    ],
)
def test_neither_balanced_ranks_nor_the_one_that_waits_most_are_named(
    tmp_path: Path, write: Writer, seconds: Sequence[float], reason: str
) -> None:
    for rank, own in enumerate(seconds):
        write(tmp_path, rank, own)
    answer = answer_of(tmp_path)

    assert (answer.verdict, answer.ranks) == ("undecidable", ())
    assert reason in answer.claim


def test_one_rank_alone_says_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _of_torch_on_cpu(tmp_path, 0, 0.738)

    main(["check", str(tmp_path)])
    shown = capsys.readouterr().out
    assert "1 table of a profiler" in shown
    assert "UNDECIDABLE" not in shown


def test_a_rank_without_a_table_may_be_the_culprit(tmp_path: Path) -> None:
    for rank in (0, 1, 3):
        _of_nsys_csv(tmp_path, rank, LATE[rank])
    answer = answer_of(tmp_path)

    assert (answer.verdict, answer.ranks) == ("undecidable", ())
    assert "no table of rank 2" in answer.claim


def test_stages_that_send_messages_or_make_other_calls_are_not_compared(tmp_path: Path) -> None:
    for rank, seconds in enumerate(LATE):
        database(tmp_path / f"rank{rank}.sqlite", [(0, REDUCES, seconds), (0, SENDS, 0.3)])
    assert "send messages" in answer_of(tmp_path).claim
    database_with_more = tmp_path / "rank2.sqlite"
    database_with_more.unlink()
    database(database_with_more, [(0, REDUCES, 0.2), (0, REDUCES.replace("AllReduce", "AllGather"), 0.05)])
    assert "different calls" in answer_of(tmp_path).claim


def test_the_gpus_of_one_database_are_ranks_and_those_of_two_are_not(tmp_path: Path) -> None:
    kernels = [(gpu, f"{REDUCES}{gpu}", seconds) for gpu, seconds in enumerate(LATE)]
    database(tmp_path / "node.sqlite", kernels)
    answer = answer_of(tmp_path)
    assert (answer.ranks, answer.hosts) == ((2,), ("gpu-a012",))
    database(tmp_path / "other.sqlite", kernels)
    assert answer_of(tmp_path).ranks == ()


def test_tables_of_ranks_with_a_trace_are_not_needed(tmp_path: Path) -> None:
    generate_slow(SlowPlan(SlowFault.RANK, gpus_per_node=4, tp=2), tmp_path)
    for rank in range(8):
        _of_torch_on_cpu(tmp_path, rank, LATE[rank % 4] / (1 + rank))

    run = analyze([tmp_path], full=True).run
    assert run["sum_columns"].height == 8
    assert run["rank_sum"].is_empty()


def test_a_compressed_database_is_read(tmp_path: Path) -> None:
    for rank, seconds in enumerate(LATE):
        plain = tmp_path / f"rank{rank}.sqlite"
        database(plain, [(0, REDUCES, seconds)])
        (tmp_path / f"rank{rank}.sqlite.gz").write_bytes(gzip.compress(plain.read_bytes()))
        plain.unlink()

    assert answer_of(tmp_path).ranks == (2,)


def test_a_database_runs_nothing_of_its_own_and_is_not_changed(tmp_path: Path) -> None:
    """A view in place of the table would count without end; other types in its columns are no sums."""
    endless = (
        "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x AS start, x AS end, 0 AS deviceId, "
    )
    view, types, foreign, broken = (tmp_path / f"{name}.sqlite" for name in ("view", "types", "foreign", "broken"))
    with closing(sqlite3.connect(view)) as made, made:
        made.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
        made.execute(f"CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS {endless} 1 AS shortName FROM n")
    database(types, [(0, REDUCES, 0.1)])
    with closing(sqlite3.connect(types)) as made, made:
        made.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ('x', 'y', 'z', 0, 0, 0, 0)")
        made.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1, 9e300, 0, 0, 0, 0, 0)")
        made.execute("UPDATE StringIds SET value = x'ff00'")
    with closing(sqlite3.connect(foreign)) as made, made:
        made.execute("CREATE TABLE notes (text)")
    database(broken, [(0, REDUCES, 0.1)])
    broken.write_bytes(broken.read_bytes()[:5000])
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}

    run = analyze([tmp_path], full=True).run
    problems = {Path(reading.source.path).stem: " ".join(reading.problems) for reading in run.inputs}
    assert "without kernels of Nsight Systems" in problems["view"]
    assert "without kernels of Nsight Systems" in problems["foreign"]
    assert "database" in problems["types"]
    assert "cannot be read" in problems["broken"]
    assert run["summed_process"].is_empty()
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
