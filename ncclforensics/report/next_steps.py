"""What to do next about a verdict: commands to run now, and what else would help."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import polars as pl

from ncclforensics.analyses.hang.init import FAILED
from ncclforensics.analyses.job.exit_reports import EXCEPTION
from ncclforensics.data.variables import LOOK_AGAIN
from ncclforensics.frames.protocol import Frames

Row = dict[str, Any]
MOST_PROCESSES = 4


@dataclass(frozen=True, slots=True)
class Command:
    """A command line, and where to run it: a host's name, or words such as `the host of rank 0`."""

    where: str
    line: str

    def __str__(self) -> str:
        return f"on {self.where}: {self.line}"


_OF_MISSING_RANKS = [
    Command("the hosts of these ranks", "ps aux | grep python"),
    Command("the host of rank 0", "ss -ltnp | grep python"),
]
_OF_ONE_PROCESS, _DEBUGGER = "py-spy", "gdb"
# Verdicts on a rank that stands somewhere: its stack says where.
_OF_STANDING_RANKS = ("lagging-ranks", "p2p-unmatched", "cross-communicator-deadlock", "init-incomplete")


def commands(run: Frames, row: Row) -> list[Command]:
    """Return the commands to run now; none for processes that have ended."""
    if row["verdict"] == "rank-missing":
        return _OF_MISSING_RANKS
    if _has_fault_in_init(row):
        return []
    if row["verdict"] == "stuck-together":
        return _of_hosts(run, row)
    ranks = run["rank"].filter(pl.col("rank_id").is_in(row["culprits"])).sort("rank")
    # A rank without a known process is one of its own.
    ranks = ranks.with_columns(unplaced=pl.when(pl.col("host").is_null()).then("rank"))
    processes = ranks.unique(["host", "pid", "unplaced"], maintain_order=True).to_dicts()
    unseen = {"rank_id": None, "host": None, "pid": None}
    processes += [{**unseen, "rank": number} for number in row["missing"]]
    dumped, ended = set(run["rank_stack"]["rank_id"]), _ended_ranks(run, row)
    hosts = _hosts_of_exits(run)
    steps: list[Command] = []
    for process in processes[:MOST_PROCESSES]:
        located = {**process, "host": process["host"] or hosts.get(process["rank"])}
        if process["rank"] in ended:
            steps += _of_ended(located, row, run)
        else:
            steps += _of_process(located, row, has_stack=process["rank_id"] in dumped)
    ordered = sorted(dict.fromkeys(steps), key=lambda step: _OF_ONE_PROCESS not in step.line)
    return [step for step in ordered if len(processes) == 1 or _DEBUGGER not in step.line]


def other_steps(run: Frames, row: Row) -> list[str]:
    """Return what else would help beside what the verdict itself asks for (`collect`)."""
    steps: list[str] = []
    culprits = run["rank"].filter(pl.col("rank_id").is_in(row["culprits"]))
    if culprits.select("host", "pid", "rank").n_unique() > MOST_PROCESSES:
        steps.append(f"the same for the other {culprits.height - MOST_PROCESSES} ranks")
    if row["verdict"] == "rank-missing":
        steps.append("the output of the launcher, which may say why these ranks did not start")
    elif row["verdict"] == "rank-died" and run["process_exit"].filter("is_first").is_empty():
        steps.append("the exit code of the process that ended, and its stderr")
    elif row["verdict"] == "init-failed" and row["culprits"] and not _has_fault_in_init(row):
        steps.append("RANK, WORLD_SIZE, LOCAL_RANK and CUDA_VISIBLE_DEVICES as the launcher sets them for these ranks")
    elif row["verdict"] in _OF_STANDING_RANKS and row["culprits"] and not commands(run, row):
        steps.append("on the next run, while it stands still: py-spy dump --native of these ranks")
    if row["rests_on_stall"]:
        steps.append(LOOK_AGAIN)
    return steps


def _has_fault_in_init(row: Row) -> bool:
    """Whether a process failed in init, and NCCL did not refuse its arguments: what helps depends on the fault."""
    return bool(row["verdict"] == "init-failed" and row["reason"].startswith(FAILED))


def _ended_ranks(run: Frames, row: Row) -> set[int | None]:
    """Numbers of ranks whose process has certainly ended: all of them where a launcher says that the job has."""
    if run["job_end"].height or row["verdict"] == "rank-died":
        culprits = run["rank"].filter(pl.col("rank_id").is_in(row["culprits"]))
        return {*culprits["rank"], *row["missing"]}
    return set(run["process_exit"].filter("is_final")["rank"].drop_nulls())


def _of_hosts(run: Frames, row: Row) -> list[Command]:
    """Look at the hosts whose lines show the failure; at all where none does."""
    cited = run["verdict_evidence"].filter(pl.col("job") == row["job"]).select("rank_id").drop_nulls()
    hosts = run["rank"].join(cited, on="rank_id", how="semi")["host"].drop_nulls().cast(pl.String).unique().sort()
    where = ", ".join(hosts[:MOST_PROCESSES]) or "each host"
    network = run["milestone"]["network"].cast(pl.String).drop_nulls()
    links = "; ibstat; perfquery -x" if network.str.starts_with("IB").any() else ""
    return [Command(where, f"dmesg -T | grep -iE 'xid|mlx5|link'; nvidia-smi{links}")]


def _hosts_of_exits(run: Frames) -> dict[int, str]:
    """Rank -> the host that a report of its end names."""
    exits = run["process_exit"].select("rank", host=pl.coalesce(pl.col("host").cast(pl.String), "node"))
    return dict(exits.drop_nulls().iter_rows())


def _of_ended(process: Row, row: Row, run: Frames) -> list[Command]:
    """Search the kernel's log for why a process ended, unless it says itself why, or a launcher ended it."""
    exits = run["process_exit"].filter(pl.col("is_first") & (pl.col("rank") == pl.lit(process["rank"], pl.Int32)))
    if row["verdict"] != "rank-died" or EXCEPTION in exits["how"]:
        return []
    pids = [process["pid"], *exits["pid"].drop_nulls()]
    names = "|".join(["oom", "xid", "segfault", *(str(pid) for pid in pids[:1] if pid)])
    return [Command(_where(process), f"dmesg -T | grep -iE '{names}'")]


def _where(process: Row) -> str:
    owner = f"process {process['pid']}" if process["rank"] is None else f"rank {process['rank']}"
    return str(process["host"] or f"the host of {owner}")


def _of_process(process: Row, row: Row, *, has_stack: bool) -> list[Command]:
    where, pid = _where(process), process["pid"]
    if has_stack and row["verdict"] == "lagging-ranks":
        return [Command(where, "nvidia-smi; dmesg -T | tail -50")]
    if row["verdict"] == "init-failed":
        return [Command(where, "nvidia-smi -L")]  # these processes mostly ended with the error
    if pid is None:
        return [
            Command(where, "for p in $(pgrep python); do py-spy dump --native --pid $p; done"),
            Command(where, "nvidia-smi; dmesg -T | tail -50"),
        ]
    return [
        Command(where, f"py-spy dump --native --pid {pid}"),
        Command(where, f"gdb -p {pid} -batch -ex 'thread apply all bt'"),
        Command(where, "nvidia-smi; dmesg -T | tail -50"),
    ]
