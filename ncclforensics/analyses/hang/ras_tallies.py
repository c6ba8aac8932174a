"""Count the calls that the ranks of each communicator had launched in one RAS report."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from ncclforensics.analyses.hang.ras_assembly import Row
from ncclforensics.data.names import count_of, short_ranks

MOST_STATES = 4  # named of a communicator whose ranks differ
Counts = dict[str, int]  # operation -> calls launched


@dataclass(slots=True)
class Tally:
    """Launched calls of the ranks of one communicator in one report; the key None holds all ranks not named."""

    counts: dict[int | None, Counts] = field(default_factory=lambda: defaultdict(dict))
    weights: dict[tuple[str, int], int] = field(default_factory=lambda: defaultdict(int))
    rows: dict[int | None, list[Row]] = field(default_factory=lambda: defaultdict(list))

    def counts_of_rank(self, rank: int | None) -> Counts:
        """Return the rank's calls by operation; where the text does not name the rank, those of the counted ranks."""
        return {**self.counts.get(None, {}), **self.counts.get(rank, {})}

    def total_of_rank(self, rank: int | None) -> int:
        """Return the number of calls of all operations in the report."""
        return sum(self.counts_of_rank(rank).values())

    def most_of_counted(self) -> int:
        """Return the most calls that ranks may have launched which the text only counts; 0 where it names all."""
        most: Counts = {}
        for row in self.rows.get(None, []):
            most[row["operation"]] = max(row["launched"], most.get(row["operation"], 0))
        return sum(most.values())

    def leave_out_cut_ranks(self) -> None:
        """Leave out ranks of which JSON that was cut lacks operations; text names only what differs."""
        operations = {operation for counts in self.counts.values() for operation in counts}
        if None not in self.counts:
            for rank in [rank for rank, counts in self.counts.items() if counts.keys() != operations]:
                for operation, launched in self.counts.pop(rank).items():
                    self.weights[operation, launched] -= 1
                del self.rows[rank]

    def usual_counts(self) -> Counts:
        """Return what most ranks had launched, by operation; in a tie the higher number."""
        most: dict[str, tuple[int, int]] = {}
        for (operation, launched), ranks in self.weights.items():
            most[operation] = max(most.get(operation, (0, 0)), (ranks, launched))
        return {operation: launched for operation, (_, launched) in most.items()}


def tallies_of(states: list[Row]) -> dict[str, Tally]:
    """Count launched calls by communicator."""
    by_name: dict[str, Tally] = defaultdict(Tally)
    for row in states:
        if row["state_kind"] != "launched" or None in (row["communicator"], row["launched"]):
            continue
        tally, operation, launched = by_name[row["communicator"]], row["operation"], row["launched"]
        lowest = tally.counts[row["rank"]].get(operation, launched)
        # Several sets of counted ranks: keep the lowest count, so that a named rank is not behind all of them.
        tally.counts[row["rank"]][operation] = min(lowest, launched)
        tally.weights[operation, launched] += row["ranks"]
        tally.rows[row["rank"]].append(row)
    for tally in by_name.values():
        tally.leave_out_cut_ranks()
    return {name: tally for name, tally in by_name.items() if tally.counts}


def shares(states: list[Row], differing: list[Row]) -> str:
    """Say which ranks of the communicator, or how many, are in the state of each of these rows.

    >>> of = {"communicator": "0x1", "state_kind": "launched", "operation": "AllGather", "status": None}
    >>> rows = [of | {"launched": 640, "ranks": 30, "rank": None}, of | {"launched": 641, "ranks": None, "rank": 12}]
    >>> shares(rows, rows)
    '30 ranks launched 640 AllGather, rank 12 launched 641 AllGather'
    """
    alike = ("communicator", "state_kind", "operation", "launched", "status")
    parts: list[str] = []
    for row in differing[:MOST_STATES]:
        equal = [other for other in states if all(other[name] == row[name] for name in alike)]
        count, named = sum(other["ranks"] or 1 for other in equal), {other["rank"] for other in equal} - {None}
        state = row["status"] or f"launched {row['launched']} {row['operation']}"
        parts.append(f"{short_ranks(sorted(named)) if len(named) == count else count_of(count, 'rank')} {state}")
    return ", ".join(parts)
