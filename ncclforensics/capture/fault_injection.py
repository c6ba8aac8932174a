"""Drills: faults made on purpose, whose truth is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from ncclforensics.data.thresholds import LATE_SECONDS
from ncclforensics.errors import UsageError


class Kind(StrEnum):
    """What a drill does."""

    HANG = "hang"  # a rank stops outside of any call
    MISMATCH = "mismatch"  # a rank calls Broadcast where the others call AllReduce
    SLOW = "slow"  # a rank comes late to every step
    CRASH = "crash"  # a rank is killed
    ABSENT = "absent"  # a rank is never started
    SOCKET = "socket"  # no network but sockets, and nothing but the network
    NO_GDR = "no-gdr"  # the network may not reach the GPU's memory
    CHANNELS = "channels"  # no more than so many channels


# How each is written, and which verdict or category must name the rank.
WRITTEN = {
    Kind.HANG: "hang:RANK@STEP",
    Kind.MISMATCH: "mismatch:RANK@STEP",
    Kind.SLOW: "slow:RANK:MS",
    Kind.CRASH: "crash:RANK@STEP",
    Kind.ABSENT: "absent:RANK",
    Kind.SOCKET: "socket",
    Kind.NO_GDR: "no-gdr",
    Kind.CHANNELS: "channels:N",
}
TRUTHS = {
    Kind.HANG: "lagging-ranks",
    Kind.MISMATCH: "collective-mismatch",
    Kind.SLOW: "straggler",
    Kind.CRASH: "rank-died",
    Kind.ABSENT: "rank-missing",
}
OF_NCCL = {
    # On one host traffic would never touch a network.
    Kind.SOCKET: {"NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1", "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"},
    Kind.NO_GDR: {"NCCL_NET_GDR_LEVEL": "LOC"},
    Kind.CHANNELS: {"NCCL_MIN_NCHANNELS": "1", "NCCL_MAX_NCHANNELS": "{amount}"},
}


@dataclass(frozen=True, slots=True)
class Drill:
    """One fault: whose, at which step, and how much of it."""

    kind: Kind
    rank: int | None = None
    step: int | None = None
    amount: int | None = None  # milliseconds, or channels

    @property
    def truth(self) -> dict[str, Any] | None:
        """What an analysis must find; None where all may go well in spite of it."""
        is_told = self.kind in TRUTHS and (self.kind is not Kind.SLOW or (self.amount or 0) > LATE_SECONDS * 1000)
        return {"finding": TRUTHS[self.kind], "ranks": [self.rank]} if is_told else None

    @property
    def text(self) -> str:
        """As it is written on the command line."""
        values = {"RANK": self.rank, "STEP": self.step, "MS": self.amount, "N": self.amount}
        text = WRITTEN[self.kind]
        for name, value in values.items():
            text = text.replace(name, str(value))
        return text

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which NCCL is made to do it."""
        return {name: value.format(amount=self.amount) for name, value in OF_NCCL.get(self.kind, {}).items()}

    @property
    def is_in_steps(self) -> bool:
        """Whether it strikes in the steps: after them nothing can be measured, or nothing that would mean anything."""
        return self.kind in TRUTHS

    def record(self) -> dict[str, Any]:
        """As it is written down."""
        return {**asdict(self), "truth": self.truth}


def drill(text: str, nranks: int, steps: int) -> Drill:
    """A drill as it is written on the command line. Raises UsageError if it makes no sense.

    >>> drill("hang:3@20", 4, 30)
    Drill(kind=<Kind.HANG: 'hang'>, rank=3, step=20, amount=None)
    >>> drill("slow:1:1500", 4, 30).amount, drill("channels:2", 4, 30).environment["NCCL_MAX_NCHANNELS"]
    (1500, '2')
    """
    name, _, rest = text.partition(":")
    if name not in list(Kind):
        raise UsageError(f"--inject {text}: no such drill; there are {', '.join(WRITTEN.values())}")
    kind = Kind(name)
    separator = "@" if "@" in WRITTEN[kind] else ":"
    parts = rest.split(separator) if rest else []
    wanted = WRITTEN[kind].replace("@", ":").split(":")[1:]
    if len(parts) != len(wanted) or not all(part.isascii() and part.isdigit() for part in parts):
        raise UsageError(f"--inject {text}: it is written {WRITTEN[kind]}")
    values = dict(zip(wanted, map(int, parts), strict=True))
    made = Drill(kind, values.get("RANK"), values.get("STEP"), values.get("MS", values.get("N")))
    if made.rank is not None and made.rank >= nranks:
        raise UsageError(f"--inject {text}: there are ranks 0 to {nranks - 1}")
    if made.step is not None and made.step >= steps:
        raise UsageError(f"--inject {text}: there are steps 0 to {steps - 1}; --steps makes more")
    return made


def environment(drills: Sequence[Drill]) -> dict[str, str]:
    """The variables of all drills."""
    return {name: value for each in drills for name, value in each.environment.items()}
