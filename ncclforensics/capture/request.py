"""Turn the options of `capture` into a plan for this machine, or raise UsageError if it is impossible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ncclforensics.capture import inventory, plan
from ncclforensics.capture.fault_injection import NCCL_VARIABLES, parse_fault
from ncclforensics.capture.inventory import Gpu
from ncclforensics.capture.launcher_rank import LauncherRank, detect_launcher_rank
from ncclforensics.capture.plan import Plan
from ncclforensics.data.installation import install_command
from ncclforensics.errors import UsageError

OLDEST_TORCH = (2, 4)
REHEARSAL_RANKS = 4


@dataclass(frozen=True, slots=True)
class CaptureRequest:
    """The options of the command, as the user gave them."""

    folder: Path | None
    backend: str
    nproc: int | None
    gpus: str | None
    ranks_per_gpu: int
    share: bool
    steps: int
    profile: bool
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
        """Return the options that a job script must pass on. Raises UsageError for those that it cannot pass on."""
        options = {
            "--steps": self.steps, "--collectives": self.collectives, "--algorithms": self.algorithms,
            "--max-bytes": self.largest,
            "--memory": self.memory, "--stall": self.stall, "--limit": self.limit, "--subsys": self.subsystems,
            "--nccl-tests": self.program, "--backend": self.backend, "--gpus": self.gpus,
        }  # fmt: skip
        if self.nproc is not None or self.ranks_per_gpu > 1 or self.folder is not None:
            raise UsageError(
                "--nproc, --ranks-per-gpu and -o do not apply to a job script, which starts one rank per GPU and names "
                "the folder; edit the script, or use --nodes and --gpus-per-node"
            )
        given = [(name, str(value)) for name, value in options.items() if value is not None]
        given += [("--inject", text) for text in self.inject]
        flags = ["--share"] * self.share + ["--profile"] * self.profile
        return [argument for pair in given for argument in pair] + flags


def build_plan(request: CaptureRequest, environment: Mapping[str, str], default_folder: str) -> Plan:
    """Build the plan. Raises UsageError if this machine cannot carry it out."""
    launcher_rank = detect_launcher_rank(environment)
    if launcher_rank is not None and request.folder is None:
        raise UsageError(f"started by {launcher_rank.launcher}: -o must name a folder that all hosts share")
    found = _gpus(request, environment) if request.backend == "nccl" else []
    nranks = _nranks(request, launcher_rank, found)
    faults = [parse_fault(text, nranks, request.steps) for text in request.inject]
    if request.backend != "nccl" and (nccl_only := [fault.kind for fault in faults if fault.kind in NCCL_VARIABLES]):
        raise UsageError(f"--inject {nccl_only[0]} needs NCCL, not --backend {request.backend}")
    if request.program and launcher_rank is not None and _is_without_mpi(Path(request.program)):
        raise UsageError(
            f"{request.program} is built without MPI, so each process of {launcher_rank.launcher} would test its own "
            "GPU only; build nccl-tests with MPI=1, or run capture once on one host"
        )
    if request.program and request.profile:
        raise UsageError("--profile records steps of PyTorch; it cannot be combined with --nccl-tests")
    if request.program and any(fault.is_in_steps for fault in faults):
        raise UsageError("--nccl-tests supports only the faults socket, no-gdr and channels:N")
    memory = plan.parse_size(request.memory)
    planned = Plan(
        folder=(request.folder or Path(default_folder)).absolute(),
        backend=request.backend,
        nranks=nranks,
        gpus=found,
        ranks_per_gpu=request.ranks_per_gpu,
        steps=request.steps,
        profiled=min(plan.PROFILED_STEPS, request.steps) if request.profile else 0,
        faults=faults,
        collectives=_collectives(request.collectives),
        sizes=plan.sizes(plan.SMALLEST, _largest(request, memory)),
        memory_bytes=memory,
        stall_s=request.stall,
        limit_s=request.limit,
        subsystems=request.subsystems,
        program=request.program,
        launcher_rank=launcher_rank,
    )
    if not request.share:
        # Another process of the launcher may be on its own GPU already.
        inventory.check_unused([gpu for _, local in planned.local_ranks if (gpu := planned.gpu_of(local)) is not None])
    return planned


def algorithms(request: CaptureRequest) -> list[str]:
    """Return the algorithms to compare. Raises UsageError for unknown ones, and without NCCL."""
    names = request.algorithms.split(",") if request.algorithms else []
    if names and (request.backend != "nccl" or request.program):
        raise UsageError("--algorithms needs --backend nccl, and cannot be combined with --nccl-tests")
    if unknown := [name for name in names if name not in plan.ALGORITHMS]:
        raise UsageError(f"--algorithms {unknown[0]}: unknown algorithm; use {', '.join(plan.ALGORITHMS)}")
    return names


def _gpus(request: CaptureRequest, environment: Mapping[str, str]) -> list[Gpu]:
    found, problem = inventory.gpus(environment)
    if not found:
        raise UsageError(f"no GPU found ({problem}); use --backend gloo for a rehearsal on CPUs")
    return inventory.choose_gpus(found, request.gpus)


def _nranks(request: CaptureRequest, launcher_rank: LauncherRank | None, found: Sequence[Gpu]) -> int:
    if launcher_rank is not None:
        return launcher_rank.nranks
    most = len(found) * request.ranks_per_gpu
    nranks = request.nproc or (most if found else REHEARSAL_RANKS)
    if found and nranks > most:
        per_gpu = -(-nranks // len(found))
        raise UsageError(
            f"{nranks} ranks need more than {len(found)} GPUs; set --ranks-per-gpu {per_gpu} for a rehearsal"
        )
    if nranks < 2 and not request.program:
        raise UsageError("one GPU gives only one rank; set --ranks-per-gpu 2 for a rehearsal with two ranks")
    return nranks


def _is_without_mpi(program: Path) -> bool:
    """Whether a compiled program does not name MPI; a script may start anything."""
    try:
        content = program.read_bytes()
    except OSError:
        return False  # it is looked up in PATH
    return content.startswith(b"\x7fELF") and b"MPI_Init" not in content


def _collectives(wanted: str | None) -> list[str]:
    names = wanted.split(",") if wanted else list(plan.COLLECTIVES)
    if unknown := [name for name in names if name not in plan.COLLECTIVES]:
        raise UsageError(f"--collectives {unknown[0]}: unknown collective; use {', '.join(plan.COLLECTIVES)}")
    return names


def _largest(request: CaptureRequest, memory: int) -> int:
    """Return the largest message size whose buffers fit into the memory."""
    fits = memory // plan.BUFFERS_PER_RANK
    default = fits if request.backend == "nccl" and request.ranks_per_gpu == 1 else min(fits, plan.REHEARSAL_MAX_BYTES)
    wanted = plan.parse_size(request.largest) if request.largest else default
    if wanted > fits:
        raise UsageError(
            f"--max-bytes {request.largest} needs {plan.BUFFERS_PER_RANK} times as much memory; raise --memory"
        )
    return max(wanted, plan.SMALLEST)


def check_torch() -> None:
    """Raise UsageError if PyTorch is missing or too old, without importing it."""
    release = plan.torch_release()
    if not release:
        raise UsageError(f"capture needs PyTorch, which is not installed: {install_command('capture')}")
    if release < OLDEST_TORCH:
        raise UsageError(
            f"PyTorch {'.'.join(map(str, release))} is too old; capture needs 2.4 or later: "
            f"{install_command('capture')}"
        )
