"""Pairs of hosts that fail or are slow, and the part of the fabric that they share."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.data.counters import LINK_LIMITS
from ncclforensics.data.names import some_of
from ncclforensics.frames.columns import Row
from ncclforensics.rules.finding import Category, Finding, Line, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.deviations import SHOWN
from ncclforensics.rules.shared.port_text import increase_text, port_name

UNSEEN_PATH = "path"  # the kind of what lies between two leaves


@rule(Category.LINK_DEGRADED, Severity.WARNING, of=("shared_part",), hang=True)
def fabric_pairs_share_part(shared_part: pl.DataFrame, counter_increase: pl.DataFrame) -> Iterator[Finding]:
    """Pairs of hosts that fail or are slow go through one host, cable, leaf, link or spine, and good pairs avoid it.

    Means: the part is at fault, or its other end. Parts that no test tells apart are named together. Without forwarding
    tables only the ends of a pair are known, not the way between their leaves.
    It is the cause of a job's failure only where transfers of the job failed through it, and tests confirm it.
    Not when: fewer than three pairs are bad; good pairs go through the part, too; all pairs are bad; the pairs that are
    slow cross a level at which the fabric has less bandwidth by design; a process died, and the others lost it.
    Do: look at the error counters of the ports named (perfquery -x, mlxlink -m), then move the cable, or take the host
    or the switch out, and repeat one of the bad tests.
    Sources: infiniband-diags ibtracert; NVIDIA ibdiagnet user manual. The greedy cover names the fewest parts.
    """
    for row in shared_part.to_dicts():
        counted = _counted(row, counter_increase)
        is_path = UNSEEN_PATH in row["kinds"]
        yield Finding(
            title=f"{row['failed'] + row['slow']} of {row['failed'] + row['slow'] + row['good']} pairs of hosts "
            f"through {_names(row)} {_outcome(row)}; {row['good_elsewhere']} pairs that avoid it are good",
            detail=_detail(row) + "".join(f"; {port_name(port)}: {increase_text(port)}" for port in counted),
            certainty="likely" if row["is_measured"] and not is_path else "possible",
            severity=Severity.ERROR if row["failed"] else Severity.WARNING,
            hosts=row["hosts"] if len(row["hosts"]) == 1 else [],
            evidence=[
                *(Line(at[0], at[1], _outcome(row)) for at in row["evidence"][:-1]),
                *(Line(at[0], at[1], "good") for at in row["good_evidence"]),
                Line(row["evidence"][-1][0], row["evidence"][-1][1], "in the map"),
                *(Line(port["source"], port["line"], "counter") for port in counted),
            ],
        )


def _names(row: Row) -> str:
    """`leaf-3`, or the parts that no test tells apart."""
    parts = row["parts"]
    return " or ".join(parts) if len(parts) <= SHOWN else some_of(parts, SHOWN)


def _outcome(row: Row) -> str:
    outcomes = (("failed", row["failed"]), ("are slow", row["slow"]))
    return " or ".join(outcome for outcome, count in outcomes if count)


def _detail(row: Row) -> str:
    words = []
    if len(row["parts"]) > 1:
        words.append("no test tells these parts apart: test one pair that uses only one of them")
    if UNSEEN_PATH in row["kinds"]:
        words.append("a link, a spine or a route: the forwarding tables (dump_lfts) tell which links a pair uses")
    if row["bad_elsewhere"]:
        words.append(f"{row['bad_elsewhere']} further bad pairs do not use it")
    return "; ".join(words) or "no other part is common to the bad pairs"


def _counted(row: Row, counter_increase: pl.DataFrame) -> list[Row]:
    """The errors that the ports of the part counted between two dumps."""
    ports = pl.DataFrame({"guid": row["guids"], "port": row["ports"]}, schema={"guid": pl.String(), "port": pl.Int32()})
    errors = counter_increase.filter((pl.col("increase") > 0) & pl.col("name").is_in(list(LINK_LIMITS)))
    return errors.join(ports, on=["guid", "port"], how="semi").head(SHOWN).to_dicts()
