"""Injected faults: faults caused on purpose, for which the correct finding is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from ncclforensics.data.thresholds import LATE_CALLS, OWN_SECONDS
from ncclforensics.errors import UsageError


class FaultKind(StrEnum):
    """Kinds of injected faults."""

    HANG = "hang"  # a rank stops outside of any call
    MISMATCH = "mismatch"  # a rank calls Broadcast where the others call AllReduce
    SLOW = "slow"  # a rank enters every step late
    CRASH = "crash"  # a rank is killed
    ABSENT = "absent"  # a rank is never started
    SOCKET = "socket"  # no network but sockets, and nothing but the network
    NO_GDR = "no-gdr"  # the network may not reach the GPU's memory
    CHANNELS = "channels"  # limit the number of channels


# Syntax of --inject.
SYNTAX = {
    FaultKind.HANG: "hang:RANK@STEP",
    FaultKind.MISMATCH: "mismatch:RANK@STEP",
    FaultKind.SLOW: "slow:RANK:MS",
    FaultKind.CRASH: "crash:RANK@STEP",
    FaultKind.ABSENT: "absent:RANK",
    FaultKind.SOCKET: "socket",
    FaultKind.NO_GDR: "no-gdr",
    FaultKind.CHANNELS: "channels:N",
}
# The verdict, or the category of the finding, that must name the rank.
EXPECTED_FINDINGS = {
    FaultKind.HANG: "lagging-ranks",
    FaultKind.MISMATCH: "collective-mismatch",
    FaultKind.SLOW: "straggler",
    FaultKind.CRASH: "rank-died",
    FaultKind.ABSENT: "rank-missing",
}
NCCL_VARIABLES = {
    # P2P and SHM are switched off, because traffic within one host would not use the network.
    FaultKind.SOCKET: {"NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1", "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"},
    FaultKind.NO_GDR: {"NCCL_NET_GDR_LEVEL": "LOC"},
    FaultKind.CHANNELS: {"NCCL_MIN_NCHANNELS": "1", "NCCL_MAX_NCHANNELS": "{amount}"},
}


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """One injected fault: its kind, rank, step and amount."""

    kind: FaultKind
    rank: int | None = None
    step: int | None = None
    amount: int | None = None  # milliseconds, or channels

    @property
    def expected(self) -> dict[str, Any] | None:
        """Return the finding that the analysis must report; None if the run may be healthy in spite of the fault."""
        is_visible = self.kind in EXPECTED_FINDINGS and (
            self.kind is not FaultKind.SLOW or (self.amount or 0) > OWN_SECONDS * 1000
        )
        return {"finding": EXPECTED_FINDINGS[self.kind], "ranks": [self.rank]} if is_visible else None

    @property
    def text(self) -> str:
        """Return the fault in the syntax of --inject."""
        values = {"RANK": self.rank, "STEP": self.step, "MS": self.amount, "N": self.amount}
        text = SYNTAX[self.kind]
        for name, value in values.items():
            text = text.replace(name, str(value))
        return text

    @property
    def environment(self) -> dict[str, str]:
        """Return the NCCL variables that cause the fault."""
        return {name: value.format(amount=self.amount) for name, value in NCCL_VARIABLES.get(self.kind, {}).items()}

    @property
    def is_in_steps(self) -> bool:
        """Whether the fault disturbs the steps, so that measurements after them would be impossible or meaningless."""
        return self.kind in EXPECTED_FINDINGS

    def record(self) -> dict[str, Any]:
        """Return the fault as an entry of `capture.json`."""
        return {**asdict(self), "truth": self.expected}


def parse_fault(text: str, nranks: int, steps: int) -> InjectedFault:
    """Parse a fault in the syntax of --inject. Raises UsageError if it is not valid.

    >>> parse_fault("hang:3@20", 4, 30)
    InjectedFault(kind=<FaultKind.HANG: 'hang'>, rank=3, step=20, amount=None)
    >>> parse_fault("slow:1:1500", 4, 30).amount, parse_fault("channels:2", 4, 30).environment["NCCL_MAX_NCHANNELS"]
    (1500, '2')
    """
    name, _, rest = text.partition(":")
    if name not in list(FaultKind):
        raise UsageError(f"--inject {text}: unknown fault; use one of {', '.join(SYNTAX.values())}")
    kind = FaultKind(name)
    separator = "@" if "@" in SYNTAX[kind] else ":"
    parts = rest.split(separator) if rest else []
    parameters = SYNTAX[kind].replace("@", ":").split(":")[1:]
    if len(parts) != len(parameters) or not all(part.isascii() and part.isdigit() for part in parts):
        raise UsageError(f"--inject {text}: expected {SYNTAX[kind]}")
    values = dict(zip(parameters, map(int, parts), strict=True))
    fault = InjectedFault(kind, values.get("RANK"), values.get("STEP"), values.get("MS", values.get("N")))
    if fault.rank is not None and fault.rank >= nranks:
        raise UsageError(f"--inject {text}: there are ranks 0 to {nranks - 1}")
    if fault.step is not None and fault.step >= steps:
        raise UsageError(f"--inject {text}: there are steps 0 to {steps - 1}; raise --steps")
    if kind is FaultKind.SLOW and steps <= LATE_CALLS:
        raise UsageError(f"--inject {text}: a late rank is named after {LATE_CALLS + 1} steps; raise --steps")
    return fault


def environment(faults: Sequence[InjectedFault]) -> dict[str, str]:
    """Return the NCCL variables of all faults."""
    return {name: value for fault in faults for name, value in fault.environment.items()}
