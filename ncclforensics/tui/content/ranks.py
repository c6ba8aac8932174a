"""Every rank of the run, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import polars as pl

from ncclforensics.data.names import operation_text, printable
from ncclforensics.report.build import Report, Row
from ncclforensics.tui.content.evidence import Cited, Citer


class State(StrEnum):
    """What became of a rank, the worst first; several may be true, and the first counts."""

    DIED_FIRST = "died, and the verdict names it"
    CULPRIT = "lagging or to blame: the verdict names it"
    MISSING = "missing: no log shows it"
    DEAD = "dead"
    WAITING = "waiting"
    NEITHER = "neither waits nor is to blame"
    DONE = "done: it destroyed all its communicators"


MARKS = {
    State.DIED_FIRST: "D",
    State.CULPRIT: "X",
    State.MISSING: "?",
    State.DEAD: "d",
    State.WAITING: "·",
    State.NEITHER: "-",
    State.DONE: "+",
}


@dataclass(frozen=True, slots=True)
class Seat:
    """One rank."""

    job: int
    rank: int | None
    host: str
    gpu: int | None
    pid: int | None
    state: State
    actor: int | None = None  # None: no log shows it
    last: str = ""  # its last call
    at: Cited | None = None  # of that call; where there is none, where it joins its first communicator
    said: str = ""  # how it died

    @property
    def name(self) -> str:
        """`rank 3`."""
        return f"rank {'?' if self.rank is None else self.rank}"


NOWHERE = "no log"


def ranks(report: Report, citer: Citer) -> list[Seat]:
    """All ranks by job and number, those that no log shows included."""
    run = report.run
    verdicts = {row["job"]: row for row in report.verdicts}
    last = {call["actor"]: call for job in verdicts for call in report.last_calls(job)}
    waiters = set(run["wait"]["waiter"].to_list())
    ended = run["member"].group_by("actor").agg(is_done=(pl.col("end") == "Destroy").fill_null(False).all())
    done = set(ended.filter("is_done")["actor"].to_list())
    final = run["death"].filter(pl.col("is_final") & pl.col("actor").is_not_null()).sort("pos")
    deaths = {row["actor"]: row for row in final.reverse().to_dicts()}
    first = run["member"].filter(pl.col("line").is_not_null()).unique("actor", keep="first", maintain_order=True)
    begins = {row["actor"]: citer.cite(row["source"], row["line"]) for row in first.to_dicts()}
    seats = []
    for row in run["rank"].sort("job", "rank", nulls_last=True).to_dicts():
        actor, call = row["actor"], last.get(row["actor"])
        verdict = verdicts.get(row["job"], {})
        is_named = actor in verdict.get("culprits", ())
        is_dead = actor in deaths or (is_named and verdict["verdict"] == "rank-died")
        state = _state(is_named, is_dead, actor in waiters, actor in done)
        seats.append(
            Seat(
                row["job"], row["rank"], printable(row["host"] or "?"), row["cudadev"], row["pid"], state, actor,
                printable(f"{operation_text(call)} of {call['key']}") if call else "",
                citer.cite(call["source"], call["line"]) if call else begins.get(actor),
                _died(deaths[actor]) if actor in deaths else "",
            )
        )  # fmt: skip
    absent = [
        Seat(job, number, NOWHERE, None, None, State.MISSING)
        for job, row in verdicts.items()
        for number in sorted({*row["absent"], *row["missing"]})
    ]
    return seats + absent


def _state(is_named: bool, is_dead: bool, waits: bool, is_done: bool) -> State:
    if is_named:
        return State.DIED_FIRST if is_dead else State.CULPRIT
    if is_dead:
        return State.DEAD
    if waits:
        return State.WAITING
    return State.DONE if is_done else State.NEITHER


def _died(row: Row) -> str:
    details = [
        f"signal {row['signal']}" if row["signal"] is not None else "",
        f"exit code {row['exit_code']}" if row["exit_code"] is not None else "",
        row["name"] or "",
        row["says"] or "",
    ]
    told = ", ".join(each for each in details if each)
    return printable(f"{row['teller']}: {row['how']}" + (f" ({told})" if told else ""))
