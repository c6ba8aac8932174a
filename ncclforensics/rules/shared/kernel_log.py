"""Findings on what kernel logs show by themselves: where, how often, and whether a job is in these files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

import polars as pl

from ncclforensics.data.names import pci_address, sentence, some_of
from ncclforensics.frames.columns import printed_hosts, text_of
from ncclforensics.frames.time_range import NO_YEAR, as_time
from ncclforensics.rules.finding import Finding, Line, Role, Severity
from ncclforensics.rules.shared.grouping import SHOWN, evidence_lines

NO_JOB = "no line of a job was read"
WITH_JOB = "these lines do not show whether a rank noticed it"
LOGGED = pl.coalesce("logged", "launcher_time")  # syslog prints it in front of the line
OF_HOST = ["source", "node"]
OF_LINES = ["source", "line"]
TRACE_LINES = 60  # between a report and the end of its call trace
PAGE_FAULTS_OF_AMD = ("amd_fault", "amd_fault_status")
RESET_FOLLOWS = "the driver then resets the GPU, and all programs on it fail"
MANY = 10  # corrected errors, from which on a link or a memory module is worth a look


@dataclass(frozen=True, slots=True)
class JobBeside:
    """Whether a job is in the same files, and whether it ended well."""

    is_there: bool
    has_ended_well: bool

    @classmethod
    def of(cls, rank: pl.DataFrame, verdict: pl.DataFrame) -> JobBeside:
        """Return it from the frames `rank` and `verdict`."""
        has_ended_well = not verdict.is_empty() and bool((verdict["verdict"] == "no-hang").all())
        return cls(not rank.is_empty(), has_ended_well)


def kernel_log_findings(
    rows: pl.DataFrame, title: str, details: Iterable[str], severity: Severity, remedy: str, job: JobBeside
) -> Iterator[Finding]:
    """Yield the finding on what the kernel logged (columns `node`, `source`, `line`).

    It is context: what a line of the kernel has to do with a job beside it, the line does not say. So it is a note
    there, and what is harmless, or was no error for a job that ended well, is left out. `{where}` in the title becomes
    the hosts.
    """
    if job.is_there and (severity is Severity.INFO or (job.has_ended_well and severity is not Severity.ERROR)):
        return
    hosts = printed_hosts(sorted(rows["node"].cast(pl.String).drop_nulls().unique().to_list()))
    where = (
        f" on {hosts[0]}" if len(hosts) == 1 else f" on {len(hosts)} hosts ({some_of(hosts, SHOWN)})" if hosts else ""
    )
    yield Finding(
        title.replace("{where}", where),
        "; ".join([*filter(None, details), WITH_JOB if job.is_there else NO_JOB]),
        "certain",
        hosts=hosts,
        severity=Severity.INFO if job.is_there else severity,
        role=Role.CONTEXT,
        remedy=sentence(remedy),
        evidence=evidence_lines(rows),
        about=[Line(source, line) for source, line in rows.select("source", "line").iter_rows()],
    )


def devices_text(rows: pl.DataFrame) -> str:
    """Format the PCI addresses in a column `busid`, the first few of many; empty if no line names one."""
    return some_of(sorted({pci_address(busid) for busid in rows["busid"].cast(pl.String).drop_nulls()}), SHOWN)


def with_addresses_of_amd(messages: pl.DataFrame, kernel_message: pl.DataFrame) -> pl.DataFrame:
    """Give lines of amdgpu without an address that of the one GPU whose address stands in the same log."""
    addresses = kernel_message.filter(text_of("form").str.starts_with("amd_")).drop_nulls("busid")
    only = addresses.group_by("source").agg(only=pl.col("busid").first(), count=pl.col("busid").n_unique())
    with_only = messages.join(only.filter(pl.col("count") == 1), on="source", how="left", maintain_order="left")
    is_amd = text_of("form").str.starts_with("amd_")
    return with_only.with_columns(busid=pl.coalesce("busid", pl.when(is_amd).then("only"))).drop("only", "count")


def named_devices(rows: pl.DataFrame) -> str:
    """Format the same, or that the lines were given without the addresses."""
    return devices_text(rows) or "(address left out)"


def times_text(rows: pl.DataFrame) -> str:
    """Format when the lines were logged, as printed: `at TIME`, or `from TIME to TIME`; empty without times."""
    times = rows.sort("source", "line").select(LOGGED).to_series().drop_nulls()
    if times.is_empty():
        return ""
    return f"at {times[0]}" if times[0] == times[-1] else f"from {times[0]} to {times[-1]}"


def rate_text(rows: pl.DataFrame, number: int) -> str:
    """Format how many a minute `number` errors are, by the times of their lines; empty where these show no span."""
    times = rows.select(as_time(LOGGED, NO_YEAR)).to_series().drop_nulls()
    ordered: list[datetime] = times.sort().to_list()
    span = (ordered[-1] - ordered[0]).total_seconds() if ordered else 0
    return f"{number * 60 / span:,.3g} a minute" if span else ""


def listed_stacks(kernel_frame: pl.DataFrame) -> pl.DataFrame:
    """Return the innermost frame of each stack of /proc/PID/stack that goes through modules, and these modules."""
    listed = kernel_frame.filter(text_of("form") == "listed").sort(OF_LINES)
    begins = (pl.col("line").diff() != 1).fill_null(value=True).cum_sum().over("source")
    stacks = listed.group_by("source", begins.alias("stack"), maintain_order=True).agg(
        pl.col("form", "node", "line").first(),
        text_of("traced_function").first(),
        modules=text_of("module").drop_nulls().unique(maintain_order=True),
    )
    return stacks.filter(pl.col("modules").list.len() > 0).with_columns(pl.col("modules").list.join(", ")).drop("stack")


def call_trace(reports: pl.DataFrame, kernel_frame: pl.DataFrame) -> list[str]:
    """Return where the kernel stopped, in which process, and through which modules the traces below these lines go."""
    above = reports.select("source", report="line").sort("report")
    frames = kernel_frame.sort("line").join_asof(
        above, left_on="line", right_on="report", by="source", check_sortedness=False
    )
    near = frames.filter(pl.col("line") - pl.col("report") <= TRACE_LINES)
    stopped = near.filter(form="stopped").select(text_of("traced_function"), text_of("module"))
    places = [
        f"{function} of {module}" if module else function
        for function, module in stopped.unique(maintain_order=True).iter_rows()
    ]
    tasks = near.filter(form="process").select(pl.format("{}(pid {})", text_of("task"), "pid"))
    processes = tasks.to_series().unique(maintain_order=True).to_list()
    called = near.filter(form="called").select(text_of("module"))
    modules = called.to_series().unique(maintain_order=True).to_list()
    return [
        *[f"in {some_of(places, SHOWN)}"] * bool(places),
        *[f"of {some_of(processes, SHOWN)}"] * bool(processes),
        *[f"the call trace goes through {some_of(modules, SHOWN)}"] * bool(modules),
    ]


def _programs_text(rows: pl.DataFrame) -> list[str]:
    """Return whose work it was, of lines that name processes."""
    programs = rows.filter(pl.col("pid") > 0).select(text_of("worker"), "pid").unique(maintain_order=True).rows()
    named = ", ".join(f"{name} (pid {pid})" for name, pid in programs[:3])
    return [f"it was work of {named}"] * bool(named)


def lines_beside(form: str, reports: pl.DataFrame, kernel_message: pl.DataFrame) -> list[str]:
    """Return what other lines of the same hosts add: whose work it was, how a reset ended, that a crash was wanted."""
    beside = kernel_message.join(reports.select(OF_HOST).unique(), on=OF_HOST, how="semi", nulls_equal=True)
    kinds = {str(kind): rows for (kind,), rows in beside.sort(OF_LINES).group_by(text_of("form"), maintain_order=True)}
    then = "the driver does not reset the GPU: recovery is disabled" if "amd_unrecovered" in kinds else RESET_FOLLOWS
    reset = ["the reset succeeded"] * ("amd_reset_end" in kinds and "amd_not_reset" not in kinds)
    of_programs = _programs_text(kinds["amd_process"]) if "amd_process" in kinds else []
    if form in PAGE_FAULTS_OF_AMD:
        return of_programs
    if form == "amd_timeout" and of_programs:
        return of_programs + (reset or [then])
    if form == "amd_timeout":
        return reset or [then]
    if form == "amd_reset":
        return ["a ring or the scheduler (MES) of the GPU gave no answer"] * ("amd_ring" in kinds) + reset
    return ["the kernel was made to crash on purpose (SysRq)"] * (form in ("panic", "oops") and "sysrq" in kinds)
