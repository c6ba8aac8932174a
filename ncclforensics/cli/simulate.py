"""The command `simulate`: logs of a job that never ran, with a chosen fault."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ncclforensics.data.names import count_of, ranks_text
from ncclforensics.errors import UsageError
from ncclforensics.simulate.fabric import FabricFault, simulated_fabric
from ncclforensics.simulate.fabric_text import write_fabric
from ncclforensics.simulate.handling import Handling
from ncclforensics.simulate.plan import RELEASES, Fault, FaultKind, Finish, Layout, Plan
from ncclforensics.simulate.slow import SlowFault


class TruthFormat(StrEnum):
    """Output formats of what is true of a simulated job."""

    TEXT = "text"
    JSON = "json"


def simulate(
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FOLDER", help="The folder to write, new or empty.")
    ],
    fault: Annotated[
        FaultKind | None,
        # A metavar of all names would be longer than a row, and help does not wrap it.
        typer.Option(
            "--fault", metavar="FAULT", help=f"What goes wrong; without it the job ends well: {', '.join(FaultKind)}."
        ),
    ] = None,
    ranks: Annotated[str, typer.Option("--ranks", metavar="0-7,12", help="The ranks at fault.")] = "1",
    communicator: Annotated[
        str, typer.Option("--comm", metavar="world|tp|pp|dp", help="The kind of communicator on which it happens.")
    ] = "world",
    nodes: Annotated[int, typer.Option("--nodes", min=1, max=4096, help="Hosts.")] = 2,
    gpus: Annotated[int, typer.Option("--gpus", min=1, max=16, help="Ranks on each host.")] = 8,
    tp: Annotated[int, typer.Option("--tp", min=1, help="Ranks that share a layer (tensor parallel).")] = 4,
    pp: Annotated[int, typer.Option("--pp", min=1, help="Stages of the pipeline.")] = 1,
    steps: Annotated[int, typer.Option("--steps", min=0, help="Training steps before the fault.")] = 4,
    nccl: Annotated[str, typer.Option("--nccl", metavar="|".join(RELEASES), help="Version of NCCL.")] = "2.27.7",
    network: Annotated[str, typer.Option("--network", metavar="IB|Socket", help="Network between hosts.")] = "IB",
    layout: Annotated[Layout, typer.Option("--layout", help="A file for each rank, or one.")] = Layout.FILE_PER_RANK,
    finish: Annotated[Finish, typer.Option("--finish", help="How the logs end.")] = Finish.CLEAN,
    handling: Annotated[
        list[Handling] | None,
        typer.Option(
            "--handling",
            metavar="HANDLING",
            help="What a launcher, a container or rotation does to the logs (repeatable); log-lost: the log of the "
            f"first rank at fault is missing. One of {', '.join(Handling)}.",
        ),
    ] = None,
    slow: Annotated[
        SlowFault | None,
        typer.Option(
            "--slow",
            metavar="|".join(SlowFault),
            help="Write profiler traces, step lines and metrics of a job that runs, and why it is slow.",
        ),
    ] = None,
    slow_by: Annotated[
        float, typer.Option("--slow-by", min=0.0, max=10.0, help="How much longer the slow part takes: 0.2 is a fifth.")
    ] = 0.2,
    blocking: Annotated[bool, typer.Option("--blocking", help="Every call is waited for.")] = False,
    fabric: Annotated[
        FabricFault | None,
        typer.Option(
            "--fabric",
            metavar="FAULT",
            help="Write the map of a fabric with this fault in place of a job, and the counters or forwarding tables "
            f"that show it; it has --nodes hosts with --gpus adapters each: {', '.join(FabricFault)}.",
        ),
    ] = None,
    truth_format: Annotated[
        TruthFormat, typer.Option("--format", help="How what is true of the job is printed.")
    ] = TruthFormat.TEXT,
    seed: Annotated[int, typer.Option("--seed", help="The same seed and options write the same bytes.")] = 0,
) -> None:
    """Write the logs of a job that never ran, with a chosen fault, and print what is true of it.

    To rehearse an incident, to test a pipeline that runs this program, or to show a wrong verdict in a report of a bug.
    """
    from ncclforensics.report.selection import parse_ranks
    from ncclforensics.simulate.generate import generate

    if network not in ("IB", "Socket"):
        raise UsageError(f"--network {network}: not IB or Socket")
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UsageError(f"{output}: not an empty folder")
    if sum(choice is not None for choice in (slow, fault, fabric)) > 1:
        raise UsageError("--fault, --slow, --fabric: a job that hangs, one that is slow, or a fabric: choose one")
    if fabric is not None:
        try:
            built = simulated_fabric(nodes, gpus, fabric, seed)
        except ValueError as error:
            raise UsageError(str(error)) from error
        write_fabric(built, fabric, output)
        _print_truth(built.truth, output, "check", truth_format)
        return
    if slow is not None:
        of_traces = _write_slow(slow, slow_by, output, ranks, nodes=nodes, gpus=gpus, tp=tp, steps=steps, seed=seed)
        _print_truth(of_traces, output, "slow", truth_format)
        return
    chosen = Fault(fault, tuple(sorted(parse_ranks(ranks))), communicator) if fault is not None else None
    try:
        plan = Plan(
            nodes=nodes, gpus_per_node=gpus, tp=tp, pp=pp, version=nccl, steps=steps, seed=seed, layout=layout,
            blocking=blocking, finish=finish, fault=chosen, network=network, handling=tuple(handling or ()),
        )  # fmt: skip
        truth = generate(plan, output)
    except ValueError as error:
        raise UsageError(str(error)) from error
    known = ("verdict", "culprits", "victims", "communicator", "operation", "visibility", "world_size", "version")
    shown = {name: value for name, value in truth.as_json().items() if name in known}
    _print_truth(shown, output, "hang", truth_format)


def _print_truth(truth: Mapping[str, object], output: Path, command: str, truth_format: TruthFormat) -> None:
    """Print what is true of a simulated job as JSON, or in a line for each fact, and the command that finds it."""
    if truth_format is TruthFormat.JSON:
        typer.echo(json.dumps(truth, indent=1))
        return
    written = sum(path.is_file() for path in output.rglob("*"))
    typer.echo(f"wrote {count_of(written, 'file')} to {output}, of which is true:")
    width = max(map(len, truth), default=0)
    for name, value in truth.items():
        typer.echo(f"  {name.replace('_', ' '):<{width}}  {_fact_text(value)}")
    typer.echo(f"find it: ncclforensics {command} {shlex.quote(str(output))}")


def _fact_text(value: object) -> str:
    """Format a value of JSON in a few words; a list of numbers is one of ranks."""
    match value:
        case None | [] | ():
            return "none"
        case [int(), *_] | (int(), *_):
            return ranks_text([rank for rank in value if isinstance(rank, int)])
        case dict():
            return ", ".join(f"{name} {part}" for name, part in value.items() if part is not None)
        case list() | tuple():
            return ", ".join(map(str, value))
        case bool():
            return "yes" if value else "no"
    return str(value)


def _write_slow(
    slow: SlowFault, by: float, output: Path, ranks: str, *, nodes: int, gpus: int, tp: int, steps: int, seed: int
) -> Mapping[str, object]:
    """Write the traces of a slow job, and return what is true of it; of the ranks at fault, the first counts."""
    from ncclforensics.report.selection import parse_ranks
    from ncclforensics.simulate.slow import SlowPlan, generate_slow, write_metrics

    try:
        plan = SlowPlan(slow, nodes, gpus, tp, steps, min(parse_ranks(ranks)), by, seed=seed)
        truth = generate_slow(plan, output)
        write_metrics(plan, output)
    except ValueError as error:
        raise UsageError(str(error)) from error
    return truth
