"""Findings on processes that ended first: one row for each process, and the finding on those that ended alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import polars as pl

from ncclforensics.analyses.job.ends.exit_reports import EVICTED
from ncclforensics.analyses.job.ends.exit_rows import (
    EXCEPTION,
    HOST_MEMORY,
    KERNEL,
    NODE,
    PYTHON_ERROR,
    SIGNAL,
    UNSHOWN,
    strongest_of,
)
from ncclforensics.analyses.job.text.program_failures import is_strong, topic_of
from ncclforensics.data.failure_topics import OF_EXCEPTIONS, TOPICS
from ncclforensics.data.names import ranks_text, some_of, without_folders
from ncclforensics.data.processes import (
    CRASHES,
    LIBRARIES_OF_RANKS,
    PROGRAMS_OF_RANKS,
    REQUESTED_ENDS,
    TESTS,
    signal_name,
)
from ncclforensics.frames.columns import OWNER, begins_with, printed_hosts, printed_pid, text_of
from ncclforensics.rules.finding import Finding, Line, Role, Severity
from ncclforensics.rules.shared.grouping import (
    SHOWN,
    UNNAMED,
    evidence_lines,
    local_processes,
    printed_process,
    processes_text,
    titled,
)

BUILD = "build"  # the topic of what compilers print
COMMAND_FAILED = "returned non-zero exit status"  # in messages of subprocess.CalledProcessError, and what repeats them
LAST_LINES = 20  # before the report of an end
STACK_LINES = 60  # of the stack that a crash handler prints
CREATING = ("ncclCommInit", "ncclCommSplit", "ncclCommGrow", "ncclCommShrink")  # how functions begin that create one
MPI_ABORT = "MPI aborted it"
CALLED_ABORT = "MPI_Abort was called"
UNREACHED = ("UNDELIVERABLE", "PTLTE_NOT_FOUND")  # what a NIC of Slingshot returns where nothing takes a message
READ_CALLER = (
    "read what this process printed before it: the program, or a library of it, called MPI_Abort for an error there"
)
READ_MPI = (
    "read the error stack below the line: its last call says what failed; for an error of PMI or of MPI_Init see that "
    "mpirun (or srun --mpi) and the program are of the same MPI"
)
READ_PEER = (
    "a message did not reach the process it was for: look for one that ended first, on another node (lines of srun, "
    "dmesg -T there); where all lived, look at the NICs of both ends"
)
READ_TRACEBACK = (
    "exit code 1 is mostly that of a Python exception: read the traceback of this process, above the line or in a file "
    "of its own (torchrun --log-dir, log/workerlog.N)"
)
OF_A_SHELL = (126, 127)
NO_COMMAND = (
    "exit codes 126 and 127 are mostly those of a shell that could not run its command, or found none of that name: "
    "see its path, rights and mounts on that host or in that container"
)
READ_OWN_OUTPUT = "read what this worker printed last, above the line or in a file of its own (torchrun --log-dir)"
READ_NODE = (
    "see what filled the node (kubectl describe node NODE: Conditions, Non-terminated Pods), and let the pod request "
    "what it uses, so that it is not the first to go"
)
# Of processes that did not start.
PROLOG = "prolog"  # Slurm's script before a job, in its reasons in lower case
AFTER_PROLOG = (
    "look at slurmd's log on that host for what the prolog printed; scontrol update NodeName=HOST State=RESUME when it "
    "is mended"
)
ON_HOST = (
    "look at the log of the launcher's daemon on that host, and at what an earlier job left there (processes, ports), "
    "or start without it"
)
MAX_MESSAGE = 160  # characters of a message in a title
LONGEST_LIST = 80  # characters of a list of tasks in a title
MOST_NAMED = 3  # programs in a title


def first_exits(process_exit: pl.DataFrame, *kinds: str) -> pl.DataFrame:
    """Return the processes that ended by themselves, one row each: the strongest report, if it is of these kinds."""
    if set(kinds).isdisjoint(process_exit["how"]):  # as for most of the rules that ask
        return process_exit.clear()
    return (
        strongest_of(process_exit.filter(pl.col("is_first") & pl.col("is_final")))
        .filter(pl.col("how").is_in(kinds))
        .sort("rank", "child", "reporter", "line", "message", nulls_last=True)
    )


def is_behind_kill(rows: pl.DataFrame, process_exit: pl.DataFrame) -> bool:
    """Whether these ends, of no known rank, stand behind the report that want of memory ended a process."""
    killed = first_exits(process_exit, HOST_MEMORY).group_by("source").agg(killed=pl.col("line").min())
    later = rows.join(killed, on="source").filter(pl.col("rank").is_null(), pl.col("line") > pl.col("killed"))
    return later.height == rows.height


def crashes_in_init(
    process_exit: pl.DataFrame,
    milestone: pl.DataFrame,
    communicator_progress: pl.DataFrame,
    native_frame: pl.DataFrame,
) -> pl.DataFrame:
    """Return the crashes of processes that had begun an init and completed none, or whose stack shows its function.

    `frame_line` is the line of that function.
    """
    crashes = first_exits(process_exit, SIGNAL).filter(pl.col("signal").is_in(CRASHES))
    if crashes.is_empty():
        return crashes.with_columns(frame_line=pl.lit(None, pl.Int64))
    completed = communicator_progress.filter(pl.col("last_pos").is_not_null()).select(OWNER).unique()
    began = milestone.select(OWNER).unique().join(completed, on=OWNER, how="anti", nulls_equal=True)
    of_init = crashes.join(began, on=OWNER, how="semi", nulls_equal=True)
    creating = native_frame.filter(begins_with("function", *CREATING)).select("source", frame_line="line")
    traced = crashes.sort("line").join_asof(
        creating.sort("frame_line"), left_on="line", right_on="frame_line", by="source", strategy="forward",
        allow_exact_matches=False, check_sortedness=False,
    ).filter((pl.col("frame_line") - pl.col("line")).is_between(1, STACK_LINES))  # fmt: skip
    return pl.concat([traced, of_init], how="diagonal").unique(["source", "line"], keep="first", maintain_order=True)


def unsettled_exits(process_exit: pl.DataFrame, verdict: pl.DataFrame, kind: str) -> pl.DataFrame:
    """Return errors of one kind that may have been caught, as no line shows an end; none of a job that ended well.

    One from a place whose errors the program had survived before does not count as near the end: the text goes on
    behind them, or the same process raised another one there.
    """
    if kind not in set(process_exit["how"]) or "no-hang" in set(verdict["verdict"]):
        return process_exit.clear()
    rows = process_exit.filter((pl.col("how") == kind) & pl.col("is_first") & ~pl.col("is_final"))
    alike = ["source", "name", "place"]
    is_again = (pl.len().over(*alike, "pid") > 1) | (pl.col("printed") > 1)
    is_of_one = pl.col("pid").is_not_null() & is_again
    is_survived = is_of_one | (~pl.col("is_near_end") & (pl.col("place") != ""))
    survived = rows.filter(is_survived).select(*alike, was_survived=True).unique()
    rows = rows.join(survived, on=alike, how="left", maintain_order="left")
    is_near_end = pl.col("is_near_end") & pl.col("was_survived").is_null()
    return rows.with_columns(is_near_end=is_near_end).drop("was_survived").sort("source", "line")


def signals_before_steps(process_exit: pl.DataFrame, rank: pl.DataFrame, verdict: pl.DataFrame) -> Iterator[Finding]:
    """Report ends of no named process by a signal, behind which steps were made: they need not be of this job."""
    for (signal,), rows in unsettled_exits(process_exit, verdict, SIGNAL).group_by("signal", maintain_order=True):
        by = signal_name(signal) if isinstance(signal, int) else "a signal"
        detail = f"reported by {rows['reporter'][0]}; work goes on behind it, of another process or a later run"
        finding = exit_finding(rows, rank, f"{{processes}} ended by {by}", detail, "possible")
        finding.severity, finding.role = Severity.INFO, Role.CONTEXT
        yield finding


def not_behind_a_request(process_exit: pl.DataFrame) -> pl.DataFrame:
    """Leave out exceptions that pass on the end of another process, behind a request to end, which brings them."""
    asked = process_exit.filter((pl.col("how") == SIGNAL) & pl.col("signal").is_in(REQUESTED_ENDS))
    if asked.is_empty():
        return process_exit
    first = asked.group_by("source").agg(asked_pos=pl.col("pos").min())
    is_passed_on = (pl.col("how") == EXCEPTION) & ~pl.col("is_first")
    rows = process_exit.join(first, on="source", how="left", maintain_order="left")
    is_behind = is_passed_on & (pl.col("pos") > pl.col("asked_pos"))
    return rows.filter(is_behind.fill_null(value=False).not_()).drop("asked_pos")


def short_message(message: str) -> str:
    """Shorten a message to one line of a report; a message of several lines is shown to go on."""
    message = message.rstrip() if len(message) <= MAX_MESSAGE else without_folders(message)
    return message if len(message) <= MAX_MESSAGE and not message.endswith(":") else message[:MAX_MESSAGE] + "…"


def statements_before(exits: pl.DataFrame, program_failure: pl.DataFrame) -> pl.DataFrame:
    """Return the failures that programs state in the last lines before any of these ends, the first one first."""
    is_failure = is_strong() & ~pl.col("is_warning") & ~pl.col("is_of_end")
    distance = pl.col("end_line") - pl.col("line")
    ends = exits.select("source", end_line="line").unique()
    near = program_failure.filter(is_failure).join(ends, on="source").filter(distance.is_between(1, LAST_LINES))
    return near.sort("pos")


def advised(finding: Finding, exits: pl.DataFrame, program_failure: pl.DataFrame) -> Finding:
    """Return a finding on exceptions with the advice on what the system refused, if their message is about that.

    Where a command failed, the first error that a compiler printed above it is what failed.
    """
    rows = exits.with_columns(topic=topic_of(pl.concat_str("name", "message", separator=": "), OF_EXCEPTIONS))
    topic, message = rows["topic"][0], str(rows["message"][0])
    if COMMAND_FAILED in message:
        built = program_failure.filter(topic=BUILD).join(rows.select("source", end="line"), on="source")
        for row in built.filter(pl.col("line") < pl.col("end")).sort("pos").head(1).to_dicts():
            topic = BUILD
            finding.detail += f"; printed before it: {short_message(row['statement'])}"
            finding.evidence.append(Line(row["source"], row["line"]))
    if topic:
        finding.remedy = TOPICS[topic].remedy
    return finding


def restarted(rows: pl.DataFrame, elastic_failure: pl.DataFrame) -> str:
    """Say that torchrun started all workers anew behind these ends, and how often it would still do so."""
    restarts = elastic_failure.filter(text_of("form") == "restart").join(
        rows.group_by("source").agg(end=pl.col("line").min()), on="source"
    )
    left = restarts.filter(pl.col("line") > pl.col("end")).sort("source", "line")["attempts"].drop_nulls()
    return f", which then starts all workers anew ({left[0]} such attempts were left)" if len(left) else ""


def advice_of_launch(message: str) -> str:
    """Return where to look for why a launcher could not start a process, by its message."""
    return AFTER_PROLOG if PROLOG in message.lower() else ON_HOST


def advice_of_exit(message: str, code: object, *, is_explained: bool) -> str:
    """Return what to read about a process that ended by itself, or nothing.

    `is_explained`: it printed a failure before.
    """
    if message.startswith(EVICTED):
        return READ_NODE
    if message.startswith(MPI_ABORT):
        return READ_PEER if any(word in message for word in UNREACHED) else READ_MPI
    if message == CALLED_ABORT and not is_explained:
        return READ_CALLER
    if message.endswith(UNSHOWN):
        return READ_OWN_OUTPUT
    return READ_TRACEBACK if code == PYTHON_ERROR else NO_COMMAND if code in OF_A_SHELL else ""


def is_kernel_log_alone(rank: pl.DataFrame, process_exit: pl.DataFrame) -> bool:
    """Whether nothing but the kernel speaks of processes: its log was given by itself."""
    return rank.is_empty() and set(process_exit["reporter"]) <= {KERNEL}


def kernel_log_finding(rows: pl.DataFrame, title: str) -> Finding:
    """Return the possible finding on processes that only a kernel log names, which was given by itself."""
    pids = [str(pid) for pid in rows["pid"].drop_nulls().unique(maintain_order=True)]
    hosts = rows["node"].drop_nulls().unique(maintain_order=True).to_list()
    where = f" on {some_of(hosts, SHOWN)}" * bool(hosts)
    detail = f"reported by the kernel for pid {some_of(pids, SHOWN)}{where}; no line of a job was read"
    evidence = evidence_lines(rows.select("source", "line"))
    return Finding(title, detail, "possible", severity=Severity.WARNING, hosts=hosts, evidence=evidence)


def kernel_log_ends(rows: pl.DataFrame, ended: Callable[[pl.DataFrame], str]) -> Iterator[Finding]:
    """Yield such a finding on each program that may be a rank, and a note on all others, by what is said of an end."""
    is_rank = [pl.col("message").str.starts_with(name) for name in PROGRAMS_OF_RANKS]
    is_in_library = pl.col("where").str.contains_any(list(LIBRARIES_OF_RANKS))
    is_of_job = pl.any_horizontal(*is_rank, pl.col("message").str.ends_with(TESTS), is_in_library)
    of_jobs = rows.filter(is_of_job).sort("source", "line")
    for (program, _), alike in of_jobs.group_by("message", "where", maintain_order=True):
        yield kernel_log_finding(alike, f"{program} {ended(alike)}")
    others = rows.join(of_jobs, on=["source", "line"], how="anti").filter(pl.col("message") != "")
    if others.height:
        names = some_of(others["message"].unique(maintain_order=True).to_list(), MOST_NAMED)
        finding = kernel_log_finding(others, f"{names} {ended(others)}")
        finding.severity, finding.role = Severity.INFO, Role.CONTEXT  # of the machine, or of other jobs
        yield finding


def kernel_log_crashes(crashes: pl.DataFrame) -> Iterator[Finding]:
    """Yield such findings on programs that crashed, and where."""
    yield from kernel_log_ends(crashes, _crashed_text)


def _crashed_text(crashes: pl.DataFrame) -> str:
    places = crashes["where"].unique()
    return f"crashed inside {places[0]}" if len(places) == 1 and places[0] else "crashed"


def _unranked(rows: pl.DataFrame, hosts: list[str], rank: pl.DataFrame) -> str:
    """Name processes whose ranks are not known: by pid and worker, if it is one, by number and hosts otherwise."""
    processes = processes_text([], hosts, rank)
    named = printed_process(rows, processes)
    pids = rows["pid"].drop_nulls().n_unique()
    several = f"{pids} processes" if pids > 1 else "processes" if len(hosts) > 1 else UNNAMED
    of_hosts = f"{several} on {processes}" if hosts else several if pids > 1 else processes
    return of_hosts if named == processes else named


def exit_finding(rows: pl.DataFrame, rank: pl.DataFrame, title: str, detail: str, certainty: str) -> Finding:
    """Return one finding on processes that ended alike; `{processes}` becomes ranks or the launcher's names."""
    ranks = sorted(rows["rank"].drop_nulls().unique().to_list())
    of_lines = printed_hosts(rows["host"].cast(pl.String).drop_nulls())
    hosts = sorted({*of_lines, *rows["node"].drop_nulls().to_list()})
    tasks = sorted(rows.filter(pl.col("rank").is_null())["child"].drop_nulls().unique().to_list())
    if len(hosts) > 1 and rows.filter(pl.all_horizontal(pl.col("rank", "child").is_null())).height:
        tasks = []  # a crash on another host, of which no number is known
    processes = processes_text(ranks, hosts, rank)
    placed = rows.filter(pl.coalesce(text_of("host"), "node").is_not_null())["rank"].drop_nulls().unique().sort()
    if len(hosts) == 1 and 0 < placed.len() < len(ranks):  # torchrun names the first failure of a node
        processes = f"{ranks_text(ranks)} ({processes_text(placed.to_list(), hosts, rank)})"
    others = rows.filter(pl.col("rank").is_null() & (pl.col("worker") != ""), pl.col("pid", "node").is_not_null())
    if ranks and others.height:  # such as workers of Ray beside the rank that PyTorch names
        of_ranks = rows.filter(pl.col("rank").is_not_null())["node"].drop_nulls().unique().sort().to_list()
        where = others["node"].drop_nulls().unique().sort().to_list()
        processes = f"{processes_text(ranks, of_ranks, rank)} and {_unranked(others, where, rank)}"
    if not ranks and tasks:
        tasks_text = ranks_text(tasks, "task")
        if len(tasks_text) > LONGEST_LIST:
            tasks_text = f"at least {len(tasks):,} tasks ({', '.join(map(str, tasks[:SHOWN]))}, …)"
        processes = f"{tasks_text} of {rows['reporter'][0]}, {processes}".removesuffix(f", {UNNAMED}")
    if ranks and (copies := rows.filter(pl.col("printed") > 1)["printed"]).len():  # by whom is not said
        detail += f"; printed {copies[0]} times"
    if not ranks and (local := local_processes(rows, processes)):
        processes = local
    elif not ranks and not tasks and NODE not in set(rows["how"]):
        processes = _unranked(rows, hosts, rank)
        printed = rows.filter(pl.col("how") == EXCEPTION)["printed"].sum()
        if processes == UNNAMED and printed > 1:
            is_of_all = printed == rank["rank"].drop_nulls().n_unique()
            processes = f"{printed} processes" if is_of_all else processes
            detail += "" if is_of_all else f"; printed {printed} times"
    elif len(ranks) == 1 and rank.filter(pl.col("rank") == ranks[0])["pid"].is_null().all():
        # Beside NCCL's lines, no table of ranks shows the pid.
        known = [pid for pid in rows["pid"].drop_nulls().unique() if printed_pid(pid) is not None]
        processes += f" (pid {known[0]})" if len(known) == 1 else ""
    if certainty == "certain" and not rows["is_placed"].all():
        certainty = "likely"  # other hosts and days have the same process id
    is_of_another = not rows["is_placed"].any() and KERNEL not in set(rows["reporter"])
    return Finding(
        title=titled(title, processes),
        detail=detail,
        certainty=certainty,
        ranks=ranks,
        hosts=hosts,
        place=next(iter(rows["place"].drop_nulls()), ""),
        role=Role.CONTEXT if is_of_another else Role.CAUSE,
        evidence=evidence_lines(
            rows.sort("source", "line").unique(["source", "line"], maintain_order=True).drop("host")
        ),
    )
