"""What the user asked for, made into a plan that this machine can carry out; or one sentence on why it cannot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ncclforensics.capture import inventory, plan
from ncclforensics.capture.fault_injection import OF_NCCL, drill
from ncclforensics.capture.inventory import Gpu
from ncclforensics.capture.launcher_rank import Place, place
from ncclforensics.capture.plan import Plan
from ncclforensics.errors import UsageError

OLDEST_TORCH = (2, 4)
INSTALL = "pip install 'ncclforensics[capture]'"
REHEARSED_RANKS = 4


@dataclass(frozen=True, slots=True)
class Order:
    """The options of the command, as they were given."""

    folder: Path | None
    backend: str
    nproc: int | None
    gpus: str | None
    ranks_per_gpu: int
    share: bool
    steps: int
    inject: Sequence[str]
    collectives: str | None
    algorithms: str | None
    largest: str | None
    memory: str
    stall: float
    limit: float
    subsystems: str
    program: str | None

    def arguments(self) -> list[str]:
        """What a job script has to pass on."""
        options = {
            "--steps": self.steps, "--collectives": self.collectives, "--algorithms": self.algorithms,
            "--max-bytes": self.largest,
            "--memory": self.memory, "--stall": self.stall, "--limit": self.limit, "--subsys": self.subsystems,
            "--nccl-tests": self.program, "--backend": self.backend,
        }  # fmt: skip
        given = [(name, str(value)) for name, value in options.items() if value is not None]
        given += [("--inject", text) for text in self.inject]
        return [word for pair in given for word in pair]


def planned(order: Order, environment: Mapping[str, str], named: str) -> Plan:
    """The plan. `named`: the folder where none was given. Raises UsageError."""
    where = place(environment)
    if where is not None and order.folder is None:
        raise UsageError(f"started by {where.launcher}: -o must name one folder that all hosts see")
    found = _gpus(order, environment) if order.backend == "nccl" else []
    nranks = _nranks(order, where, found)
    drills = [drill(text, nranks, order.steps) for text in order.inject]
    if order.backend != "nccl" and (only := [each.kind for each in drills if each.kind in OF_NCCL]):
        raise UsageError(f"--inject {only[0]} needs NCCL, not --backend {order.backend}")
    if order.program and any(each.is_in_steps for each in drills):
        raise UsageError("--nccl-tests runs a program of others: of the drills only socket, no-gdr and channels:N")
    memory = plan.size(order.memory)
    return Plan(
        folder=(order.folder or Path(named)).absolute(),
        backend=order.backend,
        nranks=nranks,
        gpus=found,
        ranks_per_gpu=order.ranks_per_gpu,
        steps=order.steps,
        drills=drills,
        collectives=_collectives(order.collectives),
        sizes=plan.sizes(plan.SMALLEST, _largest(order, memory)),
        memory_bytes=memory,
        stall_s=order.stall,
        limit_s=order.limit,
        subsystems=order.subsystems,
        program=order.program,
        place=where,
    )


def algorithms(order: Order) -> list[str]:
    """The algorithms to compare. Raises UsageError if NCCL has no such one, or no say."""
    names = order.algorithms.split(",") if order.algorithms else []
    if names and (order.backend != "nccl" or order.program):
        raise UsageError("--algorithms compares what NCCL chooses from, with our own ranks: --backend nccl alone")
    if unknown := [name for name in names if name not in plan.ALGORITHMS]:
        raise UsageError(f"--algorithms {unknown[0]}: there are {', '.join(plan.ALGORITHMS)}")
    return names


def _gpus(order: Order, environment: Mapping[str, str]) -> list[Gpu]:
    found, why = inventory.gpus(environment)
    if not found:
        raise UsageError(f"no GPU here ({why}); --backend gloo rehearses a capture without one")
    return inventory.chosen(found, order.gpus, share=order.share)


def _nranks(order: Order, where: Place | None, found: Sequence[Gpu]) -> int:
    if where is not None:
        return where.nranks
    most = len(found) * order.ranks_per_gpu
    nranks = order.nproc or (most if found else REHEARSED_RANKS)
    if found and nranks > most:
        each = -(-nranks // len(found))
        raise UsageError(f"{nranks} ranks on {len(found)} GPUs: --ranks-per-gpu {each} puts them there")
    if nranks < 2 and not order.program:
        raise UsageError("one GPU, one rank: nothing to talk to; --ranks-per-gpu 2 rehearses with two ranks on it")
    return nranks


def _collectives(wanted: str | None) -> list[str]:
    names = wanted.split(",") if wanted else list(plan.COLLECTIVES)
    if unknown := [name for name in names if name not in plan.COLLECTIVES]:
        raise UsageError(f"--collectives {unknown[0]}: there are {', '.join(plan.COLLECTIVES)}")
    return names


def _largest(order: Order, memory: int) -> int:
    """The largest size whose buffers fit."""
    fits = memory // plan.COPIES
    usual = fits if order.backend == "nccl" and order.ranks_per_gpu == 1 else min(fits, plan.REHEARSED)
    wanted = plan.size(order.largest) if order.largest else usual
    if wanted > fits:
        raise UsageError(f"--max-bytes {order.largest}: a check takes {plan.COPIES} times as much; raise --memory")
    return max(wanted, plan.SMALLEST)


def need_torch() -> None:
    """Raise UsageError if PyTorch is missing or too old; it is not loaded."""
    try:
        found = version("torch")
    except PackageNotFoundError:
        raise UsageError(f"capture runs its ranks with PyTorch, which is not installed: {INSTALL}") from None
    numbers = tuple(int(part) for part in found.split(".")[:2] if part.isdigit())
    if numbers < OLDEST_TORCH:
        raise UsageError(f"PyTorch {found} is too old for capture, which wants 2.4 or later: {INSTALL}")
