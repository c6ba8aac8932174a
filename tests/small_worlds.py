"""All small worlds: every program, fault and loss of a few ranks and calls, grouped by what can be observed of them.

A rank's log is its calls, as letters, or None where its log is missing. A world has a truth and a loss; worlds that
leave the same logs cannot be told apart, whoever judges them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from itertools import permutations, product
from pathlib import Path

from ncclforensics import analyze

LETTERS = "ab"
OPEN = ("undecidable", "no-hang")
NAMES = {"a": ("AllReduce", 1024, 7), "b": ("AllGather", 4096, 9)}
Log = str | None
Logs = tuple[Log, ...]


class Loss(IntEnum):
    """What happened to the logs, the most frequent first."""

    NOTHING = 0
    END = 1  # the last lines of a log are lost
    LOG = 2  # a log is missing
    LINE = 3  # a line is lost


@dataclass(frozen=True, slots=True)
class World:
    """What is true: the verdicts and ranks that may be named, and what happened to the logs."""

    verdicts: frozenset[str]
    culprits: tuple[frozenset[int], ...]  # any of these sets
    loss: Loss
    ranks: int

    def holds(self, verdict: str, culprits: frozenset[int]) -> bool:
        """Whether an answer is true in this world.

        One that names no rank, or all (calls differ without a majority), says only what kind of fault it is.
        """
        return verdict in self.verdicts and (len(culprits) in (0, self.ranks) or culprits in self.culprits)


@dataclass(frozen=True, slots=True)
class Answer:
    """What the program says of some logs, and what may be true of them."""

    logs: Logs
    verdict: str
    certainty: str
    culprits: frozenset[int]
    worlds: frozenset[World]

    @property
    def false_in(self) -> set[Loss]:
        """What was lost in the worlds in which it is false."""
        return {world.loss for world in self.worlds if not world.holds(self.verdict, self.culprits)}

    @property
    def true_in(self) -> set[Loss]:
        return {world.loss for world in self.worlds if world.holds(self.verdict, self.culprits)}


def worlds(ranks: int, calls: int) -> dict[Logs, set[World]]:
    """Return the worlds behind every set of logs; logs that differ in the order of ranks alone stand once."""
    behind: dict[Logs, set[World]] = defaultdict(set)
    for length in range(1, calls + 1):
        for program in map("".join, product(LETTERS, repeat=length)):
            for logs, verdicts, culprits in _faults(program, ranks):
                for loss, left in _losses(logs):
                    placed, order = _canonical(left)
                    named = tuple(frozenset(order[rank] for rank in some) for some in culprits)
                    behind[placed].add(World(frozenset(verdicts), named, loss, ranks))
    return behind


def _canonical(logs: Logs) -> tuple[Logs, dict[int, int]]:
    """The logs in the order of their calls, and the new number of each rank."""
    order = sorted(range(len(logs)), key=lambda rank: (logs[rank] is None, logs[rank] or "", rank))
    return tuple(logs[rank] for rank in order), {rank: number for number, rank in enumerate(order)}


def _faults(program: str, ranks: int) -> Iterator[tuple[Logs, set[str], tuple[frozenset[int], ...]]]:
    """Yield the logs of each fault at each place, the verdicts that name it, and its culprits."""
    no_rank = (frozenset[int](),)
    # All stand in one call, or the job goes on.
    yield (program,) * ranks, {"no-hang", "stuck-together", "undecidable"}, no_rank
    one = (frozenset({0}),)
    others = (program,) * (ranks - 1)
    for place, letter in enumerate(program):
        for ahead in {place + 1, len(program)}:
            yield (program[:place], *(program[:ahead],) * (ranks - 1)), {"lagging-ranks", "rank-died"}, one
        changed = {
            program[:place] + program[place + 1 :],
            *(program[:place] + extra + program[place:] for extra in LETTERS),
            *(program[:place] + other + program[place + 1 :] for other in LETTERS if other != letter),
        }
        if program[place : place + 2] in ("ab", "ba"):
            changed.add(program[:place] + program[place : place + 2][::-1] + program[place + 2 :])
        for own in changed:
            # A rank that leaves out its last call, or one of equal ones, looks like one that stopped before it.
            kinds = {"lagging-ranks", "rank-died"} if program.startswith(own) else set()
            yield (own, *others), {"collective-mismatch", *kinds}, one


def _losses(logs: Logs) -> Iterator[tuple[Loss, Logs]]:
    """Yield what is left of the logs after each loss."""
    yield Loss.NOTHING, logs
    for rank, log in enumerate(logs):
        before, behind = logs[:rank], logs[rank + 1 :]
        yield Loss.LOG, (*before, None, *behind)
        for place in range(len(log or "")):
            yield Loss.END, (*before, (log or "")[:place], *behind)
            yield Loss.LINE, (*before, (log or "")[:place] + (log or "")[place + 1 :], *behind)


def renamings(logs: Logs) -> Iterator[Logs]:
    """Yield the same logs of ranks with other numbers."""
    yield from sorted(set(permutations(logs)), key=str)


def write(groups: list[Logs], folder: Path) -> None:
    """Write all groups as jobs of one run: job n on host `wn`; a file for each rank of all jobs."""
    for rank in range(max(map(len, groups))):
        lines = [line for number, logs in enumerate(groups) for line in _lines(number, logs, rank)]
        (folder / f"rank{rank}.log").write_text("".join(lines), encoding="utf-8")


def ask(groups: Mapping[Logs, set[World]], folder: Path) -> list[Answer]:
    """Write all groups to a folder and return the answers that name a fault."""
    every = sorted(groups, key=str)
    write(every, folder)
    report = analyze(str(folder), full=True)
    hosts = dict(report.run["rank"].select("job", "host").iter_rows())
    found = []
    for answer in report.verdicts:
        logs = every[int(str(hosts[answer.job])[1:])]
        named = frozenset([*report.numbers(answer.culprits), *answer.missing])
        if answer.verdict not in OPEN:
            found.append(Answer(logs, answer.verdict, answer.certainty, named, frozenset(groups[logs])))
    return found


def _lines(number: int, logs: Logs, rank: int) -> Iterator[str]:
    log = logs[rank] if rank < len(logs) else None
    if log is None:
        return
    prefix = f"w{number}:{1000 + rank}:{1000 + rank} [{rank}] NCCL INFO "
    comm = f"0x55d0{number:06x}{rank:02x}"
    identity = (
        f"ncclCommInitRank comm {comm} rank {rank} nranks {len(logs)} cudaDev {rank} nvmlDev {rank} "
        f"busId {rank + 1}b000 commId 0x{0xABC0000000000000 + number:x}"
    )
    yield f"{prefix}NCCL version 2.27.7+cuda12.4\n"
    yield f"{prefix}[Rank {rank}] {identity} - Init START\n"
    yield f"{prefix}{identity} - Init COMPLETE\n"
    for letter in log:
        name, count, datatype = NAMES[letter]
        yield (
            f"{prefix}{name}: opCount 0 sendbuff 0x7f0000400000 recvbuff 0x7f0000600000 count {count} "
            f"datatype {datatype} op 0 root 0 comm {comm} [nranks={len(logs)}] stream 0x55d0000090{rank:02x}\n"
        )
