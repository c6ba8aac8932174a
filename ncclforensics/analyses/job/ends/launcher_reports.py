"""Read what launchers print of the ends of the processes that they started: srun, mpirun, Hydra, PALS and others."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice

import polars as pl

from ncclforensics.analyses.job.ends.exit_reports import ExitReport, exit_report, is_next_line
from ncclforensics.analyses.job.ends.exit_rows import EXIT, HOST_MEMORY, NOT_STARTED, RAY, UNSHOWN
from ncclforensics.data.processes import CRASHES, KILL, OUT_OF_MEMORY, REASONS
from ncclforensics.frames.columns import Row, text_of
from ncclforensics.grammar.values import ranges_by_text

NOT_FINALIZED = "it left without MPI_Finalize"
_EXIT_STRINGS = ("hydra_signal", "hydra_asked")
BOX = 6  # most lines from Hydra's exit code to its exit string
STACK = 30  # most lines of an error stack of MPICH
# Damaged lines may name any number of tasks: those that name many take nothing from the share of the others.
MANY_TASKS = 1 << 10  # of one line
MOST_TASKS = 1 << 16  # of all lines that name many, and of all others
_LSF_FORMS = [
    "lsf_killed",
    "lsf_memory",
    "lsf_limit",
    "lsf_ended",
    "time_limit",
]  # what stands above the exit code if LSF ended the job
_CANCEL_FORMS = ["interrupted", "step_aborted", "terminated", "cancelled", "mpirun"]


# Forms of `process_end` of a line that says all -> who reports, and the columns of what is known of the process.
_LAUNCHERS = {
    "lightning": ("Lightning", {"rank": "rank", "pid": "pid"}),
    "composer": ("Composer's launcher", {"rank": "rank", "pid": "pid"}),
    "sglang_watched": ("SGLang", {"pid": "pid", "worker": "ended_name"}),
    "vllm_core": ("vLLM", {"worker": "ended_name"}),
    "vllm": ("vLLM", {"pid": "pid"}),
    "kubectl": ("kubectl exec", dict[str, str]()),
    # The command that it prints is that of the process it started last, whichever ended: it names none.
    "deepspeed": ("DeepSpeed's launcher", dict[str, str]()),
    "ray_job": (RAY, dict[str, str]()),
    "pdsh": ("pdsh", {"node": "node"}),
    "clush": ("clush", {"node": "node"}),
}


def _is_cancelled(end: Row, cancels: list[Row]) -> bool:
    """Whether a process ended behind a line by which its step was ended; such a line of another step may come next."""
    earlier = [row for row in cancels if row["source"] == end["source"] and row["pos"] < end["pos"]]
    names = (_step(row) for row in cancels if row["source"] == end["source"] and row["pos"] > end["pos"])
    following = next(filter(None, names), None)
    known = [*filter(None, map(_step, earlier))]
    is_of_another = following and known and not any(f"{following}.".startswith(f"{name}.") for name in known)
    return bool(earlier) and not is_of_another


def _step(row: Row) -> str:
    """Return the step, or the whole job, that a line of Slurm names; empty if none."""
    return str(row["step_id"] or row["step"] or "").rpartition(" ")[2]


def launcher_reports(process_end: pl.DataFrame, job_end: pl.DataFrame) -> Iterator[ExitReport]:
    """Yield the reports of srun, mpirun and similar launchers; those after `Job step aborted` follow from it."""
    cancels = job_end.filter(text_of("form").is_in(_CANCEL_FORMS)).sort("pos").to_dicts()
    ends_by_lsf = job_end.filter(text_of("form").is_in(_LSF_FORMS)).to_dicts()
    tasks = ranges_by_text(process_end["tasks"])
    left = {True: MOST_TASKS, False: MOST_TASKS}  # whether a line names many tasks -> how many more are taken
    with_process = set(process_end.filter(form="hydra")["source"])
    previous: Row = {}
    has_exit_code: dict[int, bool] = {}
    aborted: set[tuple[int, int]] = set()  # source and task of processes that MPI ended
    stack_lines = process_end.filter(text_of("form").is_in(["mpich_network", "mpich_call"])).sort("pos").to_dicts()
    rows: list[Row] = process_end.sort("pos").to_dicts()
    none: Row = {}
    for row, following in zip(rows, [*rows, none][1:], strict=True):
        node, code = row["node"], row["exit_code"]
        match row["form"]:
            case "" | None | "signal":
                if row["form"] == "signal" and row["reason"] in OUT_OF_MEMORY:
                    report = ExitReport(HOST_MEMORY, row, "Slurm", signal=KILL)
                elif row["form"] == "signal" and row["reason"] not in REASONS:
                    continue
                else:
                    report = exit_report(row, "srun", code, REASONS.get(row["reason"]))
                report.node, report.follows = node, _is_cancelled(row, cancels)
                named = tasks.get(row["tasks"], [])
                has_many = sum(map(len, named)) > MANY_TASKS
                children = [*islice(chain.from_iterable(named), left[has_many])]
                left[has_many] -= len(children)
                for child in children:
                    yield ExitReport(
                        report.how, row, report.reporter, child=child, node=_single_node(node), signal=report.signal,
                        code=report.code, follows=report.follows or (row["source"], child) in aborted,
                    )  # fmt: skip
            case "mpirun":
                yield exit_report(
                    row, "mpirun", None, row["signal"], child=row["rank"], node=node, pid=row["pid"] or None
                )
            case "mpirun_code" if previous.get("form") == "mpirun_process" and is_next_line(previous, row):
                yield exit_report(row, "mpirun", code, child=previous["rank"])
            case "sglang":
                # Its numbers are those of Python's multiprocessing; an earlier release printed them without the sign.
                signal = row["exit_code"] if row["exit_code"] in CRASHES else None
                yield exit_report(row, "SGLang", row["exit_code"], signal, pid=row["pid"])
            case "sglang_dead":
                if following.get("form") == "sglang_code" and is_next_line(row, following):
                    yield exit_report(row, "SGLang", following["exit_code"], child=row["rank"])
                else:
                    yield exit_report(row, "SGLang", None, child=row["rank"], message=UNSHOWN)
            case "container":
                yield exit_report(row, "Kubernetes", int(row["error_code"]), worker=row["described"] or "")
            case "container_state":
                yield exit_report(row, "the state of its container", int(row["error_code"]))
            case "pals_launch":
                yield ExitReport(NOT_STARTED, row, "the launcher (PALS)", node=node, message=row["not_launched"])
            case "srun_launch":
                yield ExitReport(NOT_STARTED, row, "srun", node=node, message=row["not_launched"])
            case "srun_task":
                for child in islice(chain.from_iterable(tasks.get(row["tasks"], [])), MANY_TASKS):
                    yield ExitReport(NOT_STARTED, row, "srun", child=child, message=row["not_launched"])
            case "paddle":
                output = f"exit code {code}; its output is in {row['child_log']}"
                yield exit_report(row, "Paddle's launcher", code, child=row["rank"], message=output)
            case "mpi_abort":
                yield ExitReport(EXIT, row, "MPI", child=row["rank"], message="MPI_Abort was called")
            case "flux":
                yield ExitReport(EXIT, row, "Flux", message=f"MPI aborted it ({row['mpi_error'].rstrip(':')})")
            case "mpich":
                aborted.add((row["source"], row["rank"]))
                reasons = [row["mpi_error"], *_reason_below(row, stack_lines)]
                yield ExitReport(
                    EXIT, row, "MPI", child=row["rank"], node=node, message=f"MPI aborted it ({'; '.join(reasons)})"
                )
            case "pals_signal" | "pals":
                ended_pids = exit_report(row, "the launcher (PALS)", code, row["signal"], child=row["rank"], node=node)
                # PALS reports one process per node, in the order of their ends.
                ended_pids.follows = has_exit_code.setdefault(row["source"], False)
                has_exit_code[row["source"]] = True
                yield ended_pids
            case "mpirun_early":
                is_named = following.get("form") == "mpirun_early_node" and is_next_line(row, following)
                name = following["node"] if is_named else None
                yield ExitReport(
                    EXIT, row, "mpirun", child=row["rank"], node=name, pid=row["pid"] or None, message=NOT_FINALIZED
                )
            case "hydra_code" if previous.get("form") == "hydra" and is_next_line(previous, row):
                # The code is the status that Hydra got from the system; the exit string below says what it stands for.
                has_signal = following.get("form") in _EXIT_STRINGS and is_next_line(row, following, BOX)
                shown = following if has_signal else row
                ended = exit_report(shown, "mpirun", code, shown["signal"], node=previous["node"], pid=previous["pid"])
                ended.follows = _is_cancelled(row, cancels)
                yield ended
            case "hydra_code" if row["source"] not in with_process:
                yield exit_report(row, "mpirun", code)
            case "lsf":
                report = exit_report(row, "LSF", code, row["signal"])
                report.follows = _is_cancelled(row, ends_by_lsf)
                yield report
            case form if form in _LAUNCHERS:
                reporter, columns = _LAUNCHERS[form]
                yield exit_report(row, reporter, code, **{name: row[column] for name, column in columns.items()})
        previous = row


def _reason_below(abort: Row, stack_lines: list[Row]) -> list[str]:
    """Return what Libfabric, or else the innermost call, reported in the stack that MPICH prints below an abort."""
    below = [
        row for row in stack_lines if row["source"] == abort["source"] and 0 < row["line"] - abort["line"] <= STACK
    ]
    of_network = [f"Libfabric reports: {row['ofi_error']}" for row in below if row["ofi_error"]]
    return of_network[:1] or [row["mpi_detail"] for row in below[-1:]]


def _single_node(node: str) -> str | None:
    """Return the name of a single node; None for a list of nodes."""
    return None if "[" in node else node
