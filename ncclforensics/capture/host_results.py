"""Judge each host of one or more captures: a table of hosts that passed, failed, or were not tested to the end."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from ncclforensics.capture.result import CaptureResult
from ncclforensics.data.busbw import SLOW_PAIR
from ncclforensics.data.names import ranks_text

Row = dict[str, Any]
OWN_ENDS = ("signal", "exit")  # how a rank ends by its own fault; others end because of it
FEWEST_HOSTS = 3  # of two hosts none shows which one is slow


@dataclass(slots=True)
class HostResult:
    """What the captures show of one host."""

    ranks: list[int]
    completed: int = 0  # captures in which all ranks of the host finished
    within: list[float] = field(default_factory=list)  # GB/s of each pair of its ranks
    between: list[float] = field(default_factory=list)  # GB/s of each pair with a rank of another host
    faults: list[str] = field(default_factory=list)

    def outcome(self, captures: int) -> str:
        """Return PASS, FAIL, or that the captures ended before they showed either."""
        return "FAIL" if self.faults else "PASS" if self.completed == captures else "not completed"


def host_results(captures: Sequence[CaptureResult], named: Mapping[int, str]) -> dict[str, HostResult]:
    """Return the result of each host; `named` are the ranks that the analysis names, with what it reports."""
    hosts: dict[str, HostResult] = {}
    for captured in captures:
        for rank, host in sorted(captured.hosts.items()):
            result = hosts.setdefault(host, HostResult([]))
            result.ranks = sorted({*result.ranks, rank})
        for host, result in hosts.items():
            _add_ends(result, captured, host)
            _add_wrong(result, captured, host)
        for row in captured.pairs:
            a, b = (captured.hosts[rank] for rank in row["ranks"])
            for end in dict.fromkeys((a, b)):
                (hosts[end].within if a == b else hosts[end].between).append(row["busbw_GBps"])
    if captures and not captures[-1].is_rehearsal:
        _add_slow(hosts)
    for rank, reported in named.items():
        if (name := captures[-1].hosts.get(rank)) is not None:
            hosts[name].faults.append(f"{reported} names rank {rank}")
    return hosts


def _add_ends(result: HostResult, captured: CaptureResult, host: str) -> None:
    rows = [row for row in captured.ranks if captured.hosts.get(row["rank"]) == host]
    own = [row for row in rows if row["ended"] in OWN_ENDS]
    result.faults += [f"rank {row['rank']} ended by {row['ended']}, code {row['code']}" for row in own]
    result.completed += bool(rows) and all(row["ended"] == "finished" for row in rows)


def _add_wrong(result: HostResult, captured: CaptureResult, host: str) -> None:
    ranks = {str(rank) for rank, name in captured.hosts.items() if name == host}
    for row in captured.measured:
        if wrong := sum(of_rank.get("wrong", 0) for rank, of_rank in row["ranks"].items() if rank in ranks):
            result.faults.append(f"{wrong} wrong elements in {row['collective']} of {row['size']} bytes")


def _add_slow(hosts: Mapping[str, HostResult]) -> None:
    """Add a fault to hosts whose pairs are slow compared with those of the other hosts."""
    for kind, name in (("within", "within the host"), ("between", "with other hosts")):
        typical = {host: median(values) for host, result in hosts.items() if (values := getattr(result, kind))}
        usual = median(typical.values()) if len(typical) >= FEWEST_HOSTS else 0.0
        for host, value in typical.items():
            if value < SLOW_PAIR * usual:
                hosts[host].faults.append(f"pairs {name} reach {value:.1f} GB/s, those of most hosts {usual:.1f}")


def host_table(results: Mapping[str, HostResult], captures: int) -> Iterator[str]:
    """Yield the lines of a table with a row per host."""
    width = max((len(host) for host in results), default=0)
    yield f"{'host':{width}}  {'completed':>9}  {'within':>12}  {'between':>12}  result"
    for host, result in results.items():
        figures = "  ".join(f"{_typical(values):>12}" for values in (result.within, result.between))
        reasons = "; ".join(dict.fromkeys(result.faults))
        completed = f"{result.completed}/{captures}"
        outcome = f"{result.outcome(captures)}  {reasons}".rstrip()
        yield f"{host:{width}}  {completed:>9}  {figures}  {outcome} ({ranks_text(result.ranks)})"


def _typical(values: Collection[float]) -> str:
    return f"{median(values):.2f} GB/s" if values else "-"
