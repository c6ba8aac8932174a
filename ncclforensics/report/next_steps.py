"""What to do next about a verdict: commands to run now, and what else would help."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from pathlib import PurePath
from typing import NamedTuple

import polars as pl

from ncclforensics.analyses.job.ends.exit_rows import EXCEPTION, EXIT, GPU_MEMORY, HOST_MEMORY
from ncclforensics.analyses.verdict.answer import Answer
from ncclforensics.analyses.verdict.doubts import Doubt
from ncclforensics.analyses.verdict.vocabulary import Basis, Detail, How
from ncclforensics.data.names import count_of, ranks_text
from ncclforensics.data.processes import ABORT, REQUESTED_ENDS, SHELL, THREADS_LEFT
from ncclforensics.data.variables import COLLECT_STUCK_HOSTS, LOOK_AT_HOST, STACKS_OF_HOST
from ncclforensics.frames.columns import Row, printed_hosts, printed_pid, short_name
from ncclforensics.frames.protocol import Frames
from ncclforensics.report.failed_ranks import failed_ranks
from ncclforensics.report.live_files import LOOK_AGAIN, may_grow, was_ended

MOST_PLACES = 4
LONGEST_TRACEBACK = 30  # lines of a file that are printed
_OF_CULPRITS = ("culprit", "minority", "failure")  # labels of evidence
MOST_PROCESSES = 16  # in one command
LAST_LINES, MOST_FILES = 5, 3  # of the output of a process that ended
_EXPLAINED = (EXCEPTION, GPU_MEMORY, HOST_MEMORY)  # ends of a process of which the kernel has no more to say


class Command(NamedTuple):
    """A command line, and where to run it: a host's name, or words such as `the host of rank 0`."""

    where: str
    line: str

    def __str__(self) -> str:
        return f"on {self.where}: `{self.line}`"


TCP = "Socket"
# Network or provider of libfabric, as its name begins -> its driver's name in the kernel's log; its ports and errors.
_PORTS = {
    "IB": ("mlx5|", "ibstat; perfquery -x"),
    "cxi": ("cxi|", "fi_info -p cxi"),
    "efa": ("efa|", "fi_info -p efa"),
    TCP: ("", "ip -s link; nstat -az | grep -i retrans"),
}
_OF_ONE_PROCESS, _DEBUGGER = "py-spy", "gdb"
# Verdicts on a rank that stands somewhere: its stack says where.
_OF_STANDING_RANKS = ("lagging-ranks", "p2p-unmatched", "cross-communicator-deadlock", "init-incomplete")
_OF_ORDER = "cross-communicator-deadlock"  # a fault of the program, on a machine that works
SAME_ORDER = "let all ranks call the collectives of their process groups in the same order, where the stacks stand"

READ_CODE = "read the code at the line where it stands"
PRINT_PLACEMENT = (
    "print the host of these ranks, and what the launcher sets for them: "
    "`hostname; env | grep -E '^(RANK|WORLD_SIZE|LOCAL_RANK|CUDA_VISIBLE_DEVICES)='`"
)
GPU_OF_EACH_THREAD = (
    "one process drives these ranks: let each thread choose a GPU of its own (cudaSetDevice), and start no more ranks "
    "than there are GPUs: `nvidia-smi -L`"
)
GPU_ADDRESSES = "nvidia-smi --query-gpu=index,pci.bus_id,uuid --format=csv"
PRINT_VERSION = (
    "compare the versions of NCCL of all hosts; print, on each host and in the container of the job: "
    "`python -c 'import torch; print(torch.cuda.nccl.version())'; ldconfig -p | grep libnccl`"
)


def split_step(step: str) -> tuple[str, str]:
    """Return what a step says, and the command at its end, if there is one.

    >>> split_step("list the dead processes: `ncclras -v`"), split_step("collect the log of rank 3")
    (('list the dead processes', 'ncclras -v'), ('collect the log of rank 3', ''))
    """
    text, mark, command = step.partition(": `")
    return (text, command.removesuffix("`")) if mark and command.endswith("`") else (step, "")


def by_place(steps: Iterable[Command]) -> dict[str, list[str]]:
    """Return the command lines of each place, so that a line holds a command and nothing else."""
    lines: dict[str, list[str]] = defaultdict(list)
    for step in steps:
        lines[step.where].append(step.line)
    return dict(lines)


def commands(run: Frames, answer: Answer, failed_parts: Mapping[str, str] | None = None) -> list[Command]:
    """Return the commands to run now, first those on hosts whose conditions explain the failure of the job.

    `failed_parts`: host without its domain -> kind of its condition. Processes that have ended need no command.
    """
    parts = failed_parts or {}
    looks = {host: look for host in printed_hosts(parts) for look in _of_part(run, host, parts[host])}
    steps = _commands(run, answer, looks)
    seen = {short_name(step.where) for step in steps}
    if answer.verdict != "rank-died":
        steps = [*(look for host, look in looks.items() if host not in seen), *steps]
    order = {host: place for place, host in enumerate(looks)}
    return sorted(steps, key=lambda step: order.get(short_name(step.where), len(order)))


def _of_part(run: Frames, host: str, kind: str) -> list[Command]:
    """Look at a failed part of a host; nothing is left to see of memory that ran out."""
    from ncclforensics.analyses.verdict.sources.machines import SHARED_MEMORY, Part

    if kind == Part.VOLUME:
        return [Command(host, f"df -h {SHARED_MEMORY}")]
    return [] if kind in (Part.HOST_MEMORY, Part.MEMORY_LIMIT) else [_of_machine(run, host)]


def _commands(run: Frames, answer: Answer, failed_hosts: Collection[str]) -> list[Command]:
    if answer.verdict == "rank-missing":
        return _of_missing_ranks(answer)
    # Comparisons raise an exception, which ends the process; of one that came to its end the host has nothing to say.
    if _has_fault_in_init(answer) or answer.how in (How.COMPARED, How.LEFT):
        return []
    if answer.verdict == "stuck-together":
        return _of_hosts(run, answer, failed_hosts)
    places = _culprits_by_place(run, answer)
    if answer.detail == Detail.SAME_GPU:
        return [Command(where, GPU_ADDRESSES) for where in list(places)[:MOST_PLACES]]
    ended = _ended_ranks(run, answer) if places else set()
    steps: list[Command] = []
    for where, processes in list(places.items())[:MOST_PLACES]:
        steps += _of_ended([process for process in processes if process["rank"] in ended], where, answer, run)
        steps += _of_running([process for process in processes if process["rank"] not in ended], where, answer, run)
    ordered = sorted(dict.fromkeys(steps), key=lambda step: _OF_ONE_PROCESS not in step.line)
    return [step for step in ordered if len(places) == 1 or _DEBUGGER not in step.line]


def _of_missing_ranks(answer: Answer) -> list[Command]:
    """Look for the processes of ranks that did not come, and for the one that they should have come to."""
    missing = answer.missing
    hosts = f"the host{'s' * (len(missing) > 1)} of {ranks_text(missing)}" if missing else "the hosts of these ranks"
    return [Command(hosts, "ps aux | grep python"), Command("the host of rank 0", "ss -ltnp | grep python")]


def other_steps(run: Frames, answer: Answer) -> list[str]:
    """Return what else would help beside what the verdict itself asks for (`collect`)."""
    steps: list[str] = []
    places = list(_culprits_by_place(run, answer).values())
    left = [*places[MOST_PLACES:], *(processes[MOST_PROCESSES:] for processes in places[:MOST_PLACES])]
    if number := sum(map(len, left)):
        steps.append(f"run the same for the other {count_of(number, 'rank')}")
    if answer.verdict == "rank-missing":
        steps.append("read the output of the launcher, which may say why these ranks did not start")
    elif answer.how is How.LEFT:
        pass
    elif answer.verdict == "rank-died" and run["process_exit"].filter("is_first").is_empty():
        steps.append("collect the exit code of the process that ended, and its stderr")
    elif answer.verdict == "rank-died":
        steps += _output_of_ended(run, answer)
    elif answer.detail in (Detail.SAME_GPU, Detail.SAME_NUMBER, Detail.OTHER_SIZE):
        steps.append(GPU_OF_EACH_THREAD if _is_one_process(run) else PRINT_PLACEMENT)
    elif answer.detail == Detail.OTHER_VERSION:
        steps.append(PRINT_VERSION)
    elif answer.verdict == _OF_ORDER and not run["rank_stack"].is_empty():
        steps.append(SAME_ORDER)
    elif (
        answer.verdict in _OF_STANDING_RANKS
        and answer.culprits
        and not commands(run, answer)
        and answer.basis != Basis.STACKS
    ):
        steps.append(
            f"on the next run, while it stands still, take the stacks on the hosts of these ranks: `{STACKS_OF_HOST}`"
        )
    elif answer.verdict == "init-incomplete" and answer.rests_on_stall and not answer.missing:
        steps += COLLECT_STUCK_HOSTS
    steps += [*_traceback(run, answer), *_second_stack(run, answer)]
    if _is_open(answer) and may_grow(run, answer.job):
        steps.append(LOOK_AGAIN)
    return steps


def _output_of_ended(run: Frames, answer: Answer) -> list[str]:
    """Read what the culprits printed last, where their end has a reason that only they know."""
    culprits = run["rank"].filter(pl.col("rank_id").is_in(answer.culprits))["rank"].drop_nulls().implode()
    exits = run["process_exit"].filter("is_first", pl.col("rank").is_null() | pl.col("rank").is_in(culprits))
    if not set(exits["how"]).isdisjoint(_EXPLAINED):
        return []
    of_torchrun = run["torch_source"].filter(pl.col("rank").is_in(culprits), pl.col("attempt").is_not_null())
    paths = dict(run["source"].select("source", "path").iter_rows())
    folders = {PurePath(paths[source]).parent for source in of_torchrun["source"]}  # a file each for both its streams
    files = sorted(path for path in paths.values() if PurePath(path).parent in folders)
    tail = f": `tail -n {LAST_LINES} {shlex.join(files)}`" if 0 < len(files) <= MOST_FILES else ""
    if THREADS_LEFT in exits["message"]:
        return [f"read the end of its output, for mostly the program ended there, and aborted on its way out{tail}"]
    if ABORT in exits["signal"]:
        return ["read the end of its stderr, and take a core dump on the next run: a process that aborts says why"]
    if not exits.filter((pl.col("how") == EXIT) & (pl.col("exit_code") < SHELL)).is_empty():
        return [f"read the end of its output, for the program itself chose this exit code{tail}"]
    return []


def _is_open(answer: Answer) -> bool:
    """Whether the logs do not show if the job stands still, and a second look at them may."""
    if answer.basis == Basis.STACKS or answer.stall_evidence:
        return False
    is_undecided = answer.verdict == "undecidable" or (answer.verdict, answer.certainty) == ("no-hang", "possible")
    return answer.rests_on_stall or is_undecided


def _is_one_process(run: Frames) -> bool:
    """Whether one process reported for several ranks that they share a GPU."""
    shared = run["failure_event"].filter(pl.col("other").is_not_null())
    return bool((shared.group_by("host", "pid").agg(pl.col("rank").n_unique())["rank"] > 1).any())


def _second_stack(run: Frames, answer: Answer) -> list[str]:
    """Read the code where the only culprit stands, and take its stack again, where the verdict rests on stacks."""
    pids = run["rank"].filter(pl.col("rank_id").is_in(answer.culprits))["pid"].drop_nulls()
    if answer.basis != Basis.STACKS or len(answer.culprits) != 1:
        return []
    if was_ended(run) or pids.is_empty():
        return [READ_CODE]
    return [f"{READ_CODE}, and take its stack again to see whether it moved: `py-spy dump --native --pid {pids[0]}`"]


def _traceback(run: Frames, answer: Answer) -> list[str]:
    """Print the lines above the one that reports an exception: its traceback names the line of the training code."""
    cited = run["verdict_evidence"].filter((pl.col("job") == answer.job) & pl.col("what").is_in(_OF_CULPRITS))
    raised = run["process_exit"].filter(pl.col("how") == EXCEPTION).select("source", "line")
    if answer.how != How.COMPARED:
        cited = cited.join(raised, on=["source", "line"], how="semi")
    for source, line_of_text in cited.select("source", "line").iter_rows():
        file = run.inputs[source].source
        line = run.inputs[source].numbers.in_file([line_of_text])[line_of_text]  # lines that were wrapped are several
        if file.seekable and file.archive is None and file.remote is None:
            lines = f"{max(line - LONGEST_TRACEBACK, 1)},{line}"
            return [f"read the traceback, which names the line of code: `sed -n {lines}p {shlex.quote(file.path)}`"]
        return [f"read the traceback that ends at line {line} of {file.path}: it names the line of code"]
    return []


def _has_fault_in_init(answer: Answer) -> bool:
    """Whether a process failed in init, and NCCL did not refuse its arguments: what helps depends on the fault."""
    return answer.detail in (Detail.FAULT_IN_INIT, Detail.UNNAMED_FAULT)


def _ended_ranks(run: Frames, answer: Answer) -> set[int | None]:
    """Numbers of ranks whose process has ended: all of them where a launcher says that the job has."""
    culprits = run["rank"].filter(pl.col("rank_id").is_in(answer.culprits))
    if was_ended(run) or answer.verdict == "rank-died":
        return {*culprits["rank"], *answer.missing}
    failed = culprits.filter(pl.col("rank_id").is_in(failed_ranks(run, answer)))
    ends = run["process_exit"].filter("is_final")
    may_have_ended = answer.missing if ends["rank"].has_nulls() else ()  # a process of unknown rank did
    return {*ends["rank"].drop_nulls(), *failed["rank"], *may_have_ended}


def _of_hosts(run: Frames, answer: Answer, failed_hosts: Collection[str]) -> list[Command]:
    """Look at the hosts whose lines show the failure; at all where none does."""
    cited = run["verdict_evidence"].filter(pl.col("job") == answer.job).select("rank_id").drop_nulls()
    failed = run["failure_event"].filter(~pl.col("at_exit") & pl.col("rank_id").is_in(answer.victims))
    cited = pl.concat([cited, failed.select("rank_id")]).unique()
    hosts = run["rank"].join(cited, on="rank_id", how="semi")["host"].drop_nulls().cast(pl.String).unique().sort()
    others = [host for host in hosts if short_name(host) not in failed_hosts]
    if failed_hosts and not others:
        return []
    return [_of_machine(run, ", ".join(others[:MOST_PROCESSES]) or "each host")]


def _of_machine(run: Frames, where: str) -> Command:
    """Look at what the kernel, the GPUs and the ports of the job's network report."""
    networks = {*run["milestone"]["network"].drop_nulls(), *run["libfabric"]["provider"].drop_nulls()}
    if not networks and run["gloo_error"].height:
        return Command(where, f"dmesg -T | grep -i link; {_PORTS[TCP][1]}")  # gloo moves no data of GPUs
    kinds = (kind for kind in _PORTS if any(str(name).startswith(kind) for name in networks))
    driver, ports = _PORTS.get(next(kinds, ""), ("mlx5|", ""))
    return Command(where, "; ".join(filter(None, (f"dmesg -T | grep -iE 'xid|{driver}link'; nvidia-smi", ports))))


def _hosts_of_exits(run: Frames) -> dict[int, str]:
    """Rank -> the host that a report of its end names."""
    if run["process_exit"].is_empty():
        return {}
    exits = run["process_exit"].select("rank", host=pl.coalesce(pl.col("host").cast(pl.String), "node"))
    return dict(exits.drop_nulls().iter_rows())


def _culprits_by_place(run: Frames, answer: Answer) -> dict[str, list[Row]]:
    """Return the culprits' processes by the place where to look at them: a host, or the host of a rank."""
    processes = _processes_of(run, answer.culprits) if answer.culprits else []
    unseen = {"rank_id": None, "host": None, "pid": None}
    processes += [{**unseen, "rank": number} for number in answer.missing]
    hosts = _hosts_of_exits(run) if any(process["host"] is None for process in processes) else {}
    places: dict[str, list[Row]] = defaultdict(list)
    for process in processes:
        places[process["host"] or hosts.get(process["rank"]) or _host_of(process)].append(process)
    numbered = [process for process in processes if process["rank"] is not None]
    unknown = [process for process in numbered if process["pid"] is None and _host_of(process) in places]
    if len(unknown) > 1:  # what to run is the same on the host of each
        for process in unknown:
            places.pop(_host_of(process), None)  # two processes may take themselves for one rank
        places[f"the hosts of {ranks_text(process['rank'] for process in unknown)}"] = unknown
    return dict(places)


def _processes_of(run: Frames, rank_ids: Collection[int]) -> list[Row]:
    """Return a row of `rank` for each process of these ranks; a rank without a known process is one of its own."""
    ranks = run["rank"].filter(pl.col("rank_id").is_in(rank_ids)).sort("rank")
    ranks = ranks.with_columns(unplaced=pl.when(pl.col("host").is_null()).then("rank"))
    return ranks.unique(["host", "pid", "unplaced"], maintain_order=True).to_dicts()


def _host_of(process: Row) -> str:
    if process["rank"] is not None:
        return f"the host of rank {process['rank']}"
    return "its host" if process["pid"] is None else f"the host of process {process['pid']}"


def _of_ended(processes: list[Row], where: str, answer: Answer, run: Frames) -> list[Command]:
    """Search the kernel's log for why processes ended, unless they say why, or were asked to end by a signal."""
    exits = run["process_exit"].filter(pl.col("is_first") & pl.col("rank").is_in([p["rank"] for p in processes]))
    is_explained = not set(exits["how"]).isdisjoint(_EXPLAINED)
    is_explained |= not {ABORT, *REQUESTED_ENDS}.isdisjoint(exits["signal"])
    if not processes or answer.verdict != "rank-died" or is_explained:
        return []
    known = [process["pid"] for process in processes if printed_pid(process["pid"])]
    pids = known or exits["pid"].drop_nulls().unique(maintain_order=True).to_list()
    names = "|".join(["oom", "xid", "segfault", *map(str, pids[:MOST_PROCESSES])])
    return [Command(where, f"dmesg -T | grep -iE '{names}'")]


def _of_running(processes: list[Row], where: str, answer: Answer, run: Frames) -> list[Command]:
    """Look at processes that may still run: their stacks, unless these were taken already, then GPUs and kernel."""
    if not processes:
        return []
    if answer.verdict == "init-failed":
        return []  # these processes mostly ended with the error
    has_stacks = not run["unranked_stack"].is_empty()  # those of which nothing says the rank
    dumped = set() if Doubt.WAITS_FOR_WORK in answer.doubts else set(run["rank_stack"]["rank_id"])  # native frames lack
    unseen = [process for process in processes if not has_stacks and process["rank_id"] not in dumped]
    pids = [process["pid"] for process in unseen if printed_pid(process["pid"]) is not None][:MOST_PROCESSES]
    of_machine = Command(where, LOOK_AT_HOST)
    if answer.verdict == "undecidable" and "failure" in answer.stall_evidence:  # they ended with an error
        return [of_machine]
    if not unseen:
        return [of_machine] if answer.verdict in _OF_STANDING_RANKS and answer.verdict != _OF_ORDER else []
    if len(pids) == len(unseen) == 1:
        return [
            Command(where, f"py-spy dump --native --pid {pids[0]}"),
            Command(where, f"gdb -p {pids[0]} -batch -ex 'thread apply all bt'"),
            of_machine,
        ]
    listed = " ".join(map(str, pids)) if len(pids) == min(len(unseen), MOST_PROCESSES) else "$(pgrep python)"
    return [Command(where, f"for p in {listed}; do py-spy dump --native --pid $p; done"), of_machine]
