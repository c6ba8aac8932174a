"""What reports say of inputs that show no rank to judge: what they hold, what it can show, and what to collect."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import polars as pl

from ncclforensics.analyses.verdict.vocabulary import Kind
from ncclforensics.data.names import bytes_text, count_of, some_of
from ncclforensics.data.variables import (
    ANSWERED,
    ASCEND_LOGS,
    COLLECT_CALLS,
    COLLECT_OUTPUT,
    COLLECT_RANKS_OF_DUMPS,
    COLLECT_STUCK_HOSTS,
    ENDED_WELL,
    NO_CALLS_IN_TEXT,
    NO_LINES,
    NO_NCCL_LINES,
    NO_PROCESSES,
    NO_RANKS_OF_DUMPS,
    NOT_JUDGED,
    READY,
    RECORDED,
    REPORT_DEFECT,
    STANDING_STACKS,
    STOPPED,
)
from ncclforensics.frames.protocol import Frames
from ncclforensics.grammar.meanings import Kind as Meaning
from ncclforensics.report.failed_ranks import ended_by_themselves
from ncclforensics.rules.finding import Finding, Role, Severity

BENCHMARKS, TRACES = "nccl-tests", "profiler-trace"  # kinds of files
# Frames of what launchers, schedulers and Python say when a job or a program ends.
ENDS_OF_JOBS = ("elastic_failure", "job_end", "abandoned_object")
VERDICTS = "job_diagnosis"  # the frame that holds what is known of each job
MOST_PATHS = 4  # in a command
AGENTS_WAIT = "in a rendezvous, where it stands until those of enough nodes have come"
RENDEZVOUS = "torch/distributed/elastic/rendezvous/"
COMPARE_AGENTS = (
    "see that torchrun runs on every node, with the same --nnodes, --rdzv-id and --rdzv-endpoint, and reaches that one"
)
ONLY_TRACES = "these files hold traces of profilers, which show how long steps take, not in which call a rank stands"
MOST_BENCHMARKS = 3  # in a sentence


class _Kind(NamedTuple):
    """Evidence that is no log of ranks."""

    frames: tuple[str, ...]  # a row in one of them shows it
    name: str
    limit: str  # what it cannot show


PORTS = _Kind(
    ("fabric_map", "port_state", "counter"),
    "states or counters of ports",
    "a port belongs to a host, not to a rank",
)
_KINDS = (
    _Kind(
        ("ended_operation",),
        "records of NCCL's Inspector",
        "the Inspector records calls that completed, so it shows no call that stands still",
    ),
    _Kind(
        ("profiler_event",),
        "traces of NCCL's profiler",
        "a trace shows what each rank had begun, not why it stands still",
    ),
    _Kind(
        ("use_gpu", "use_columns", "use_query"),
        "the output of nvidia-smi",
        "nvidia-smi shows GPUs and their load, not which call a rank is in",
    ),
    _Kind(
        ("hardware_event", "kernel_kill", "kernel_report", "storage_report", "kernel_line"),
        "the kernel's log",
        "the kernel names GPUs, links and processes, not ranks",
    ),
    PORTS,
)


def reason_without_job(run: Frames, findings: Sequence[Finding]) -> str:
    """Why there is nothing to judge: no line of NCCL, none that names a process, or evidence of another kind alone."""
    if _has_failed(run):
        return NOT_JUDGED
    if well := health(run, findings):
        return well
    logs = {source for source, kind in run.kinds.items() if kind == "nccl-log"}
    recognised = run["source"].filter(pl.col("source").is_in(list(logs)))["recognised"].sum()
    if not recognised and _has_only_dumps(run):
        return NO_RANKS_OF_DUMPS
    if recognised:
        return NO_PROCESSES
    if _has_only(run, BENCHMARKS):
        return f"the output of nccl-tests shows no calls: {_reached(run)}"
    if _has_only(run, TRACES):
        return ONLY_TRACES
    if kinds := _kinds(run):
        limits = "; ".join(kind.limit for kind in kinds)
        return f"these files hold {_names(run, kinds)}, and no NCCL log: {limits}"
    if run["source"]["recognised"].sum():
        return _waiting_agents(run) or NO_CALLS_IN_TEXT
    return NO_NCCL_LINES if run["source"]["lines"].sum() else NO_LINES


def _waiting_agents(run: Frames) -> str:
    """Say that the stacks are those of agents of torchrun which wait for other nodes; empty where none was read."""
    in_rendezvous = pl.col("file").str.contains(RENDEZVOUS, literal=True)
    waiting = run["stack_process"].filter("is_helper", in_rendezvous)
    if waiting.is_empty():
        return ""
    pids = [str(pid) for pid in waiting["pid"].drop_nulls().unique().sort()]
    if len(pids) > 1:
        return f"by their stacks, processes {some_of(pids, MOST_PATHS)} are agents of torchrun, {AGENTS_WAIT}"
    return f"by its stack, {f'process {pids[0]}' if pids else 'a process'} is an agent of torchrun, {AGENTS_WAIT}"


def verdict_without_job(run: Frames) -> Kind:
    """Whether the program came to its end, by its own words, so that nothing hangs; else that is not known."""
    return Kind.NO_HANG if ends_well(run) else Kind.UNDECIDABLE


def ends_well(run: Frames) -> bool:
    """Whether a program without lines of ranks says that it came to its end."""
    return bool(_end(run)) and not _has_failed(run)


def _has_failed(run: Frames) -> bool:
    """Whether nothing was judged because a part of the program failed."""
    return VERDICTS in run.broken or any(defect.is_of_input for defect in run.defects)


def holds_machines(run: Frames, findings: Sequence[Finding]) -> bool:
    """Whether inputs without a job hold what hosts, GPUs or ports report."""
    return bool(_kinds(run)) and not health(run, findings) and not _has_failed(run)


def steps_without_job(run: Frames, findings: Sequence[Finding]) -> list[str]:
    """What to collect where there is nothing to judge; nothing where the program ended well.

    Where the first finding, worst first, says itself what to do, no more is asked for than what shows the hosts.
    """
    if _has_failed(run):
        return REPORT_DEFECT
    if health(run, findings):
        return []
    found = next((f for f in findings if f.severity is not Severity.INFO and not f.is_elsewhere), None)
    if found is not None and found.remedy and found.role is not Role.CONSEQUENCE:
        return COLLECT_STUCK_HOSTS if _kinds(run) else []
    if _has_only(run, BENCHMARKS):
        return [f"read what was measured: `{_command(run, 'check')}`", *COLLECT_CALLS]
    if _has_only(run, TRACES):
        return [f"find out what makes the job slow: `{_command(run, 'slow')}`", *COLLECT_STUCK_HOSTS]
    if kinds := _kinds(run):
        read = [f"read what the ports show: `{_command(run, 'check')}`"] if PORTS in kinds else []
        return [*read, *COLLECT_STUCK_HOSTS, *COLLECT_OUTPUT, *COLLECT_CALLS]
    if run.has("ascend_error"):  # its variables are none of NCCL's
        return [*COLLECT_OUTPUT, ASCEND_LOGS]
    # No line shows that something failed or ended: the job may still stand there.
    is_over = run["process_exit"].height or any(map(run.has, ENDS_OF_JOBS))
    stacks = [STANDING_STACKS] * (found is None and not is_over)
    text_alone = [*stacks, *COLLECT_OUTPUT, *COLLECT_CALLS]
    if _waiting_agents(run):
        return [COMPARE_AGENTS, *COLLECT_OUTPUT]
    steps = {
        NO_RANKS_OF_DUMPS: COLLECT_RANKS_OF_DUMPS,
        NO_NCCL_LINES: [*stacks, *COLLECT_CALLS],
        NO_CALLS_IN_TEXT: text_alone,
    }
    return steps.get(reason_without_job(run, findings), COLLECT_CALLS)


def _command(run: Frames, name: str) -> str:
    paths = [reading.source.path for reading in run.inputs if run.kinds.get(reading.number)]
    return shlex.join(["ncclforensics", name, *(paths if len(paths) <= MOST_PATHS else [])])


def health(run: Frames, findings: Sequence[Finding]) -> str:
    """What a program without lines of ranks says of its health; empty where it says nothing, or a process ended.

    An engine that is ready, or answers a request, may fail later: a line that states a failure, or that a finding rests
    on, stands behind its last such line. That it was asked to end is no failure, nor is what stands behind that;
    whether it answered until then, or was ended because it did not, its output does not show.
    """
    is_asked = (pl.col("frame") == "exception") & (pl.col("form") == "terminated")
    stated = run["stated_line"].with_columns(is_asked=is_asked)
    ready, stopped, asked = map(_last_lines, (run["engine_ready"], run["server_stopped"], stated.filter("is_asked")))
    failures = stated.filter(pl.col("kind").is_in([Meaning.FAILURE, Meaning.CONSEQUENCE]) & ~pl.col("is_asked"))
    faults = (finding for finding in findings if finding.severity is not Severity.INFO)
    lines = [(line.source, line.line) for finding in faults for line in (*finding.evidence, *finding.about)]
    lines += failures.select("source", "line").rows()
    is_behind = (ready.get(source, line) < line < asked.get(source, line + 1) for source, line in lines)
    ends = ended_by_themselves(run).select("source", "line").rows()
    has_ended = any(line > ready.get(source, 0) for source, line in ends)
    if (end := _end(run)) or has_ended or any(is_behind):
        return end
    if not ready:
        return RECORDED if run.has("tracker_end") and not lines else ""
    is_over = all(line < max(stopped.get(source, 0), asked.get(source, 0)) for source, line in ready.items())
    if is_over:
        return STOPPED
    return ANSWERED if (run["engine_ready"]["form"] == "answered").any() else READY


def _last_lines(rows: pl.DataFrame) -> dict[int, int]:
    return dict(rows.group_by("source").agg(pl.col("line").max()).iter_rows())


def _end(run: Frames) -> str:
    """How a program without lines of ranks says that it came to its end; empty where it does not."""
    if ended_by_themselves(run).height:
        return ""
    if run["stated_end"].height:
        return ENDED_WELL
    benchmarks = run["benchmark"] if _has_only(run, BENCHMARKS) else run["benchmark"].clear()
    if benchmarks.is_empty() or not benchmarks.select((pl.col("is_complete") & ~pl.col("has_failed")).all()).item():
        return ""
    return f"the output of nccl-tests is complete: {_reached(run)}"


def _reached(run: Frames) -> str:
    """How far the benchmarks came, those that did not end first."""
    rows = run["benchmark_sweep"].sort("is_complete", maintain_order=True)
    from ncclforensics.rules.shared.benchmark_text import called  # few runs hold benchmarks alone

    texts = [f"{called(row)} {_reached_by(row)}" for row in rows.head(MOST_BENCHMARKS).to_dicts()]
    more = [f"{rows.height - MOST_BENCHMARKS} more"] if rows.height > MOST_BENCHMARKS else []
    return ", ".join([*texts, *more]) or "no test has begun"


def _reached_by(row: Mapping[str, Any]) -> str:
    last = f" behind the row of {bytes_text(row['last_size'])}" if row["last_size"] is not None else ""
    if row["has_failed"]:
        return f"failed{last}"
    return "ran to its end" if row["is_complete"] else f"has no footer, and ends{last or ' before its first row'}"


def _has_only(run: Frames, kind: str) -> bool:
    return set(run.kinds.values()) == {kind}


def _kinds(run: Frames) -> list[_Kind]:
    """The kinds of evidence in inputs that hold nothing else."""
    if {"nccl-log", "pytorch-log", BENCHMARKS} & set(run.kinds.values()) or run.has("training_step"):
        return []
    return [kind for kind in _KINDS if any(run.has(frame) for frame in kind.frames)]


def _names(run: Frames, kinds: list[_Kind]) -> str:
    names = [kind.name + _ranks(run) * (kind.frames == ("ended_operation",)) for kind in kinds]
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _ranks(run: Frames) -> str:
    """Of how many ranks of how many communicators the Inspector has records."""
    ranks = run["ended_operation"].select("commhash", "rank", "nranks").unique().drop_nulls("rank")
    sizes = ranks["nranks"].drop_nulls()
    if ranks.is_empty() or sizes.is_empty():
        return ""
    largest = ranks.filter(pl.col("nranks") == sizes.max())
    return f" ({largest['rank'].n_unique()} of {count_of(int(str(sizes.max())), 'rank')})"


def _has_only_dumps(run: Frames) -> bool:
    """Whether Flight Recorder dumps are there, and no rank of any is known."""
    return bool(run["recorded_rank"].height) and not run["recorded_rank"]["is_used"].any()
