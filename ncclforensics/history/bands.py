"""The bus bandwidth of equal tests over time: the band that this cluster's own runs show, and the runs outside it."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

import polars as pl

from ncclforensics.history.store import History
from ncclforensics.history.tables import HOST, TABLES

# Measured on 4000 series of normally distributed figures: with ten figures one healthy series in 48 has any of them
# below the band, with thirty one in 250. A narrower band of 3.5 deviations, usual for outliers (Iglewicz and Hoaglin,
# How to detect and handle outliers, 1993; NIST handbook, 1.3.5.17), would give one in 14.
FEWEST = 10
WIDTH = 5.0  # standard deviations
# The median absolute deviation of normally distributed figures, as a share of their standard deviation.
NORMAL = 0.6745
BELOW = "busbw below its band"  # in place of a rule, where a test names its hosts
LEAST_SHARE = 0.02  # of the median: where figures agree to the last digit, a smaller difference is no fault


@dataclass(frozen=True, slots=True)
class Measured:
    """One figure: the run, its time, its hosts, and GB/s."""

    run: int
    moment: str
    hosts: str
    busbw: float


@dataclass(frozen=True, slots=True)
class Series:
    """The figures of one test in the order of time, and what this cluster reaches in it."""

    test: str
    figures: list[Measured]
    median: float
    band: tuple[float, float] | None  # None: too few figures

    @property
    def missing(self) -> int:
        """Further figures until there is a band."""
        return max(FEWEST - len(self.figures), 0)

    @property
    def below(self) -> list[Measured]:
        """The figures below the band."""
        return [figure for figure in self.figures if self.band and figure.busbw < self.band[0]]

    @property
    def above(self) -> list[Measured]:
        """The figures above the band: rare, and worth a look at the test itself."""
        return [figure for figure in self.figures if self.band and figure.busbw > self.band[1]]


def series(history: History) -> list[Series]:
    """Return the series of all tests, those with most figures first."""
    moments = history["run"].select("run", "moment")
    rows = history["measurement"].join(moments, on="run").sort("moment", "run", maintain_order=True)
    found = []
    for (test,), of_test in rows.group_by("series", maintain_order=True):
        figures = [Measured(*row) for row in of_test.select("run", "moment", "hosts", "busbw").iter_rows()]
        values = [figure.busbw for figure in figures]
        found.append(Series(str(test), figures, median(values), _band(values)))
    return sorted(found, key=lambda one_test: (-len(one_test.figures), one_test.test))


def _band(values: list[float]) -> tuple[float, float] | None:
    """Return the band: WIDTH standard deviations around the median, estimated so that outliers do not widen it."""
    if len(values) < FEWEST:
        return None
    middle = median(values)
    deviation = median(abs(value - middle) for value in values) / NORMAL
    half = max(WIDTH * deviation, LEAST_SHARE * middle)
    return max(middle - half, 0.0), middle + half


def namings(history: History, tests: list[Series]) -> pl.DataFrame:
    """Return rows of `naming` for the hosts of tests below the band.

    Where all hosts of a run are in such a test, none of them is named.
    """
    taking_part = history["part"].filter(pl.col("kind") == HOST).group_by("run").agg(pl.col("host"))
    hosts_of: dict[int, set[str]] = {run: set(hosts) for run, hosts in taking_part.iter_rows()}
    slow: dict[int, set[str]] = {}
    for figure in (figure for test in tests for figure in test.below):
        slow.setdefault(figure.run, set()).update(filter(None, figure.hosts.split(", ")))
    rows = [
        {"run": run, "kind": HOST, "host": host, "name": "", "rule": BELOW, "certainty": "likely", "ranks": ""}
        for run, hosts in slow.items()
        for host in sorted(hosts & hosts_of.get(run, set()))
        if len(hosts_of[run]) == 1 or not hosts_of[run] <= hosts
    ]
    return pl.DataFrame(rows, schema=dict(TABLES["naming"]))
