"""The command `capture`: run collectives on this machine and analyze their logs."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from time import monotonic, sleep, strftime
from typing import TYPE_CHECKING, Annotated

import typer

from ncclforensics.capture.scripts import Scheduler
from ncclforensics.cli.analysis import ProgressBar, load_report
from ncclforensics.cli.configuration import configure
from ncclforensics.cli.option_groups import Printing
from ncclforensics.cli.options import Config, FailOn, FailOnOption, Format, FormatOption, NoColor, Quiet, Verbose
from ncclforensics.cli.output import Exit, exit_code_of, write_report
from ncclforensics.data.names import printable
from ncclforensics.errors import UsageError

if TYPE_CHECKING:
    from ncclforensics.capture.fault_injection import InjectedFault
    from ncclforensics.capture.plan import Plan
    from ncclforensics.capture.result import CaptureResult
    from ncclforensics.report.build import Report


LINE_EVERY = 30.0  # seconds between two lines of progress


class Backend(StrEnum):
    """Communication backends of a capture."""

    NCCL = "nccl"
    GLOO = "gloo"


def capture(
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="DIR", help="New or empty folder; default capture-TIME."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would run, and exit.")] = False,
    backend: Annotated[
        Backend, typer.Option("--backend", help="gloo rehearses on CPUs, without NCCL or a GPU.")
    ] = Backend.NCCL,
    nproc: Annotated[
        int | None, typer.Option("--nproc", min=1, help="Ranks to start here; default one per GPU, 4 with gloo.")
    ] = None,
    gpus: Annotated[str | None, typer.Option("--gpus", metavar="0,1", help="Use only these GPUs (CUDA index).")] = None,
    ranks_per_gpu: Annotated[
        int, typer.Option("--ranks-per-gpu", min=1, help="Put several ranks on each GPU: a rehearsal over sockets.")
    ] = 1,
    share: Annotated[bool, typer.Option("--share", help="Also use GPUs on which other processes run.")] = False,
    inject: Annotated[
        list[str] | None,
        typer.Option(
            "--inject",
            metavar="FAULT",
            help="Inject a fault (repeatable): hang:RANK@STEP, mismatch:RANK@STEP, slow:RANK:MS, crash:RANK@STEP, "
            "absent:RANK; with NCCL also socket, no-gdr, channels:N.",
        ),
    ] = None,
    steps: Annotated[int, typer.Option("--steps", min=1, help="AllReduce calls before the measurements.")] = 30,
    profile: Annotated[
        bool,
        typer.Option(
            "--profile", help="Record the last 26 of these calls with PyTorch's profiler: whom do the others wait for?"
        ),
    ] = False,
    collectives: Annotated[
        str | None,
        typer.Option("--collectives", metavar="LIST", help="Measure only these: all_reduce,all_gather,…"),
    ] = None,
    algorithms: Annotated[
        str | None,
        typer.Option(
            "--algorithms", metavar="LIST", help="Also measure all_reduce with each of these algorithms: Ring,Tree"
        ),
    ] = None,
    max_bytes: Annotated[
        str | None,
        typer.Option("--max-bytes", metavar="SIZE", help="Largest message; default as --memory allows."),
    ] = None,
    memory: Annotated[
        str, typer.Option("--memory", metavar="SIZE", help="GPU memory for the buffers of each rank.")
    ] = "4G",
    stall: Annotated[
        float, typer.Option("--stall", metavar="SECONDS", min=1, help="Treat a call that takes longer as hung.")
    ] = 30,
    limit: Annotated[
        float,
        typer.Option(
            "--limit", metavar="SECONDS", min=5, help="End each capture after this time, --algorithms included."
        ),
    ] = 600,
    subsystems: Annotated[
        str, typer.Option("--subsys", metavar="LIST", help="NCCL_DEBUG_SUBSYS of the ranks.")
    ] = "INIT,ENV,NET,GRAPH,COLL,TUNING",
    nccl_tests: Annotated[
        str | None, typer.Option("--nccl-tests", metavar="PROGRAM", help="Run this all_reduce_perf instead of PyTorch.")
    ] = None,
    script: Annotated[
        Scheduler | None, typer.Option("--print", help="Print a job script for several hosts, and exit.")
    ] = None,
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="Number of hosts, with --print.")] = 2,
    gpus_per_node: Annotated[int, typer.Option("--gpus-per-node", min=1, help="GPUs per host, with --print.")] = 8,
    repeat: Annotated[int, typer.Option("--repeat", min=1, help="Number of captures; each gets a subfolder.")] = 1,
    every: Annotated[
        float, typer.Option("--every", metavar="SECONDS", min=0, help="Time between starts, with --repeat.")
    ] = 0,
    min_busbw: Annotated[
        float | None,
        typer.Option("--min-busbw", metavar="GB/S", help="Exit with 1 once all_reduce stays below this at every size."),
    ] = None,
    report_format: FormatOption = Format.TEXT,
    fail_on: FailOnOption = FailOn.WARNING,
    config: Config = None,
    quiet: Quiet = False,
    verbose: Verbose = False,
    no_color: NoColor = False,
) -> None:
    """Run instrumented collectives on this machine and analyse their logs as `check` does."""
    from ncclforensics.capture import measurements, request, result, scripts
    from ncclforensics.capture.previous import comparison, find_previous

    capture_request = request.CaptureRequest(
        folder=output,
        backend=backend,
        nproc=nproc,
        gpus=gpus,
        ranks_per_gpu=ranks_per_gpu,
        share=share,
        steps=steps,
        profile=profile,
        inject=inject or (),
        collectives=collectives,
        algorithms=algorithms,
        largest=max_bytes,
        memory=memory,
        stall=stall,
        limit=limit,
        subsystems=subsystems,
        program=nccl_tests,
    )
    if script is not None:
        passed = [*capture_request.arguments(), "--repeat", str(repeat), "--every", f"{every:g}"]
        passed += ["--min-busbw", f"{min_busbw:g}"] if min_busbw is not None else []
        passed += ["--format", report_format, "--fail-on", fail_on, *["-v"] * verbose, *["-q"] * quiet]
        passed += [f"--config={config}"] if config is not None else []
        seconds = max(limit, every) * repeat
        typer.echo(scripts.job_script(script, nodes, gpus_per_node, seconds, passed), nl=False)
        return
    if nccl_tests and min_busbw is not None:
        raise UsageError("--min-busbw needs the measurements of capture; it cannot be combined with --nccl-tests")
    plan = request.build_plan(capture_request, os.environ, strftime("capture-%Y%m%d-%H%M%S"))
    compared_algorithms = request.algorithms(capture_request)
    if dry_run:
        typer.echo("\n".join(map(printable, plan.describe())))
        return
    plan = replace(plan, limit_s=plan.limit_s / (1 + len(compared_algorithms)))
    settings = configure(config, quiet=quiet)  # before anything runs: an error in the configuration shows at once
    turns = _repeat_capture(plan, repeat, every, min_busbw, quiet=quiet)
    captured = turns[-1]
    measured = {}
    if not captured.problem:
        measured = {name: _run_capture(plan.with_algorithm(name), quiet=quiet).measured for name in compared_algorithms}
    if not plan.is_leader:
        return  # rank 0 reports
    for name, smallest, largest in measurements.fastest(measured):
        typer.echo(f"fastest all_reduce from {smallest} to {largest} bytes: {name}", err=True)
    report = load_report([str(captured.folder)], full=True, everything=True, quiet=quiet, settings=settings)
    printing = Printing(report_format, fail_on=fail_on, verbose=verbose, no_color=no_color)
    write_report(report, printing, everything=True)
    for line in _judged_hosts(plan.folder, turns, report):
        if not quiet:
            typer.echo(printable(line), err=True)
    if not quiet:
        if (previous := find_previous(captured.folder, result.RECORD)) is not None:
            for line in comparison(captured.folder, previous, result.RECORD):
                typer.echo(printable(line), err=True)
        for fault in plan.faults:
            typer.echo(_fault_result(fault, report), err=True)
    if too_slow := captured.busbw_problem(min_busbw):
        typer.echo(f"{printable(str(captured.folder))}: {too_slow}", err=True)
    code = exit_code_of(report, fail_on, has_benchmark=report.run["benchmark"].height > 0)
    if code == Exit.OK and (captured.problem or (plan.sweep and not plan.program and not captured.measured)):
        code = Exit.UNDECIDABLE
    raise typer.Exit(Exit.FINDINGS if too_slow and captured.busbw is not None else code)


def _repeat_capture(
    plan: Plan, repeat: int, every: float, min_busbw: float | None, *, quiet: bool
) -> list[CaptureResult]:
    """Run captures until one fails or is too slow; return them.

    All processes of a launcher take the result that rank 0 writes, so that they stop at the same turn.
    """
    from ncclforensics.capture import result

    turns: list[CaptureResult] = []
    for turn in range(1, repeat + 1):
        began = monotonic()
        turn_plan = plan if repeat == 1 else replace(plan, folder=plan.folder / f"turn-{turn:03}")
        captured = _run_capture(turn_plan, quiet=quiet)
        if not plan.is_leader:
            captured = result.wait_for_result(turn_plan)
        turns.append(captured)
        if captured.problem or captured.busbw_problem(min_busbw):
            break
        if turn < repeat:
            sleep(max(0.0, began + every - monotonic()))
    return turns


def _run_capture(plan: Plan, *, quiet: bool) -> CaptureResult:
    """Run one capture, and print its plan and results to stderr."""
    from ncclforensics.capture import request, result

    if not plan.program:
        request.check_torch()
    result.prepare(plan)
    if not quiet:
        typer.echo("\n".join(map(printable, plan.describe())), err=True)
    if quiet:
        captured = result.capture(plan, lambda done, total, current: None)
    elif sys.stderr.isatty():
        with ProgressBar("capturing", of_bytes=False) as bar:
            captured = result.capture(plan, bar.update)
    else:
        captured = result.capture(plan, ProgressLines().update)
    if not quiet:
        for line in captured.summary():
            typer.echo(printable(line), err=True)
    return captured


class ProgressLines:
    """Lines on stderr that show every half a minute what runs, for the output of a job."""

    def __init__(self) -> None:
        self._printed = monotonic()

    def update(self, done: int, total: int, current: str) -> None:
        """Print a line if the last one is old enough."""
        if monotonic() - self._printed >= LINE_EVERY:
            self._printed = monotonic()
            typer.echo(f"{strftime('%H:%M:%S')} {current} ({done} of {total})", err=True)


def _judged_hosts(folder: Path, turns: list[CaptureResult], report: Report) -> list[str]:
    """Write the table of hosts that passed or failed to `hosts.txt`, and return its lines."""
    from ncclforensics.archive.atomic_write import write_file
    from ncclforensics.capture.host_results import host_results, host_table

    lines = list(host_table(host_results(turns, _named_ranks(report)), len(turns)))
    write_file(folder / "hosts.txt", "\n".join([*lines, ""]).encode())
    return lines


def _named_ranks(report: Report) -> dict[int, str]:
    """Return the ranks that the analysis names, with what it reports: culprits, and those of findings on a part."""
    from ncclforensics.rules.finding import Role, Severity

    named = {
        rank: str(answer.verdict)
        for answer in report.verdicts
        for rank in {*report.numbers(answer.culprits), *answer.missing}
    }
    size = report.run["rank"]["rank"].n_unique()
    for finding in report.findings:
        is_cause = finding.role is not Role.CONSEQUENCE and finding.severity is not Severity.INFO
        if is_cause and finding.certainty != "possible" and len(finding.ranks) < size:
            named = {**dict.fromkeys(finding.ranks, str(finding.category)), **named}
    return named


def _fault_result(fault: InjectedFault, report: Report) -> str:
    """Say whether the analysis reports the injected fault."""
    if (expected := fault.expected) is None:
        return f"Injected fault {fault.text}: the report shows whether it had an effect."
    found = [answer for answer in report.verdicts if answer.verdict == expected["finding"]]
    reported = [sorted({*report.numbers(answer.culprits), *answer.missing}) for answer in found]
    reported += [finding.ranks for finding in report.findings if finding.category == expected["finding"]]
    is_reported = any(set(expected["ranks"]) <= set(ranks) for ranks in reported)  # several faults of a kind are one
    result = "the analysis reports it" if is_reported else "the analysis does not report it"
    return f"Injected fault {fault.text}: expected {expected['finding']} of rank {expected['ranks'][0]}; {result}."
