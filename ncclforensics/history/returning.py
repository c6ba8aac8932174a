"""Hosts, GPUs and ports that several runs name, and whether chance explains it.

Each part is compared with the others of the same runs: if a run names 1 of its 16 hosts, chance would name any of them
with a probability of 1 in 16. So a part is no suspect because it takes part often, because many runs fail, or because
runs of one week or of one release fail. Runs with a single part are compared with one another instead. Both give an
exact distribution of the number of runs that chance alone would name a part in; the part is a suspect if its own number
is improbable, after correction for the number of parts and of kinds that are compared (Bonferroni).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import polars as pl

from ncclforensics.history.probability import CHANCE, at_least, hypergeometric, interval, mean, sum_of
from ncclforensics.history.store import History
from ncclforensics.history.tables import KINDS

FEWEST = 2  # runs that name a part, before it returns
MOST_FURTHER_RUNS = 50
SURE = ("certain", "likely")
PART = ["host", "name"]
Part = tuple[str, str]


@dataclass(frozen=True, slots=True)
class ReturningPart:
    """A part that at least FEWEST runs name, and the counts that it is judged by."""

    kind: str
    host: str
    name: str
    named: int  # runs that name it
    runs: int  # in which it took part
    others_named: int  # the same counts, summed over all other parts of its kind
    others_runs: int
    expected: float  # runs that would name it by chance
    probability: float  # that chance names any of the parts compared so often
    certainty: str | None  # that it is a suspect: likely, possible; None: chance may explain it
    further_runs: int | None  # that would have to name it alone, to decide; None: decided, or not more than expected
    rank: int | None  # the only rank that is named there, which may be the cause as well as the part
    rules: dict[str, int]  # rule -> runs; the most frequent first
    last_run: int

    @property
    def share(self) -> tuple[float, float]:
        """The interval of the share of its runs that name it."""
        return interval(self.named, self.runs)

    @property
    def is_open(self) -> bool:
        """Whether it is named more often than chance would, but not often enough to tell."""
        return self.certainty is None and self.further_runs is not None


def returning_parts(history: History) -> list[ReturningPart]:
    """Return the parts that several runs name, suspects first, then the least probable."""
    found = [part for kind in KINDS for part in _Comparison(history, kind).returning_parts()]
    return sorted(found, key=lambda part: (part.certainty is None, part.probability, -part.named))


class _Comparison:
    """All parts of one kind: in which runs each took part, and which runs name it."""

    def __init__(self, history: History, kind: str) -> None:
        is_kind = pl.col("kind") == kind
        self.kind = kind
        self.kinds = history["naming"]["kind"].n_unique()
        self.parts = history["part"].filter(is_kind).unique(["run", *PART], maintain_order=True)
        self.namings = history["naming"].filter(is_kind).join(self.parts, on=["run", *PART], how="semi")
        self.order = {run: at for at, run in enumerate(history["run"].sort("moment", "run")["run"])}

    def returning_parts(self) -> Iterator[ReturningPart]:
        """Yield the parts that at least FEWEST runs name."""
        everything = _Counts(self.parts, self.namings, self.kinds)
        sure = _Counts(self.parts, self.namings.filter(pl.col("certainty").is_in(SURE)), self.kinds)
        all_named = sum(map(len, everything.named_in.values()))
        for part, named_in in everything.named_in.items():
            if len(named_in) < FEWEST:
                continue
            distribution = everything.distribution(part)
            probability = everything.probability(part)
            own_namings = self.namings.filter(pl.col("host") == part[0], pl.col("name") == part[1])
            rank = self._only_rank(part, own_namings)
            certainty = None
            if probability <= CHANCE:
                certainty = "likely" if rank is None and sure.probability(part) <= CHANCE else "possible"
            is_open = certainty is None and len(named_in) > mean(distribution)
            rules = own_namings.group_by("rule").agg(runs=pl.col("run").n_unique())
            yield ReturningPart(
                self.kind,
                *part,
                named=len(named_in),
                runs=len(everything.runs_of[part]),
                others_named=all_named - len(named_in),
                others_runs=self.parts.height - len(everything.runs_of[part]),
                expected=mean(distribution),
                probability=probability,
                certainty=certainty,
                further_runs=everything.further_runs(part) if is_open else None,
                rank=rank,
                rules=dict(rules.sort("runs", "rule", descending=[True, False]).iter_rows()),
                last_run=max(named_in, key=self.order.__getitem__),
            )

    def _only_rank(self, part: Part, own_namings: pl.DataFrame) -> int | None:
        """Return the rank that is named at a part in all runs, unless it was named less often elsewhere.

        The program of that rank may then be the cause as well as the part: rank 0 has more to do than others.
        """
        ranks = {*own_namings["ranks"]} - {""}
        if len(ranks) != 1 or not (rank := ranks.pop()).isdecimal():
            return None
        has_rank = pl.col("ranks").str.split(",").list.contains(rank)
        ranked = self.parts.filter(has_rank)
        everywhere = {*ranked["run"]}
        here = {*ranked.filter(pl.col("host") == part[0], pl.col("name") == part[1])["run"]}
        named = {*self.namings.filter(has_rank)["run"]}
        by_chance = hypergeometric(len(everywhere), len(named & everywhere), len(here))
        is_due_to_part = at_least(len(named & here), by_chance) <= CHANCE
        return None if is_due_to_part else int(rank)


@dataclass
class _Counts:
    """How often chance would name each part, given how many parts each run names."""

    parts: pl.DataFrame
    namings: pl.DataFrame
    kinds: int  # of which any part is named

    @cached_property
    def named_in(self) -> dict[Part, set[int]]:
        """The runs that name each part."""
        return _runs_by_part(self.namings)

    @cached_property
    def runs_of(self) -> dict[Part, set[int]]:
        """The runs in which each part took part that any run names."""
        return _runs_by_part(self.parts.join(self.namings.select(PART).unique(), on=PART, how="semi"))

    @cached_property
    def parts_in(self) -> dict[int, int]:
        """How many parts took part in each run."""
        return dict(self.parts.group_by("run").len().iter_rows())

    @cached_property
    def names(self) -> Counter[int]:
        """How many parts each run names."""
        return Counter(run for runs in self.named_in.values() for run in runs)

    @cached_property
    def compared(self) -> int:
        """How many parts took part in runs that name any."""
        return self.parts.filter(pl.col("run").is_in(list(self.names))).select(PART).n_unique()

    def probability(self, part: Part, further: int = 0) -> float:
        """Return how probable it is that chance names any of the compared parts in as many runs as this one."""
        count = len(self.named_in.get(part, ())) + further
        of_this_part = at_least(count, self.distribution(part, further))
        return min(of_this_part * max(self.compared, 1) * self.kinds, 1.0)

    def distribution(self, part: Part, further: int = 0) -> list[float]:
        """Return how probable it is that chance names a part in 0, 1, 2, … runs.

        `further` adds as many runs like the last that named it, each of which names it alone.
        """
        runs = self.runs_of.get(part, set())
        shares = [self.names[run] / self.parts_in[run] for run in runs if self.parts_in[run] > 1 and self.names[run]]
        single = [run for run, parts in self.parts_in.items() if parts == 1]
        population, marked = len(single), sum(bool(self.names[run]) for run in single)
        drawn = sum(self.parts_in[run] == 1 for run in runs)
        if further and self.parts_in[last := max(self.named_in[part])] > 1:
            shares += [1 / self.parts_in[last]] * further
        elif further:
            population, marked, drawn = population + further, marked + further, drawn + further
        chances = [[1 - share, share] for share in shares]
        return sum_of([*chances, hypergeometric(population, marked, drawn)])

    def further_runs(self, part: Part) -> int:
        """Return the fewest further runs, each naming this part alone, after which chance would not explain it."""
        steps = range(1, MOST_FURTHER_RUNS)
        return next((further for further in steps if self.probability(part, further) <= CHANCE), MOST_FURTHER_RUNS)


def _runs_by_part(rows: pl.DataFrame) -> dict[Part, set[int]]:
    """Return the runs of each part, in the order of rows."""
    runs: dict[Part, set[int]] = {}
    for host, name, run in rows.select(*PART, "run").iter_rows():
        runs.setdefault((host, name), set()).add(run)
    return runs
