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
class RankRow:
    """One rank."""

    job: int
    rank: int | None
    host: str
    gpu: int | None
    pid: int | None
    state: State
    rank_id: int | None = None  # None: no log shows it
    last: str = ""  # its last call
    at: Cited | None = None  # of that call; where there is none, where it joins its first communicator
    said: str = ""  # how it died

    @property
    def name(self) -> str:
        """`rank 3`."""
        return f"rank {'?' if self.rank is None else self.rank}"


NOWHERE = "no log"


def ranks(report: Report, citer: Citer) -> list[RankRow]:
    """All ranks by job and number, those that no log shows included."""
    run = report.run
    verdicts = {row["job"]: row for row in report.verdicts}
    last = {call["rank_id"]: call for job in verdicts for call in report.last_calls(job)}
    waiters = set(run["wait"]["waiter"].to_list())
    ended = run["member"].group_by("rank_id").agg(is_done=(pl.col("end") == "Destroy").fill_null(False).all())
    done = set(ended.filter("is_done")["rank_id"].to_list())
    final = run["process_exit"].filter(pl.col("is_final") & pl.col("rank_id").is_not_null()).sort("pos")
    process_exits = {row["rank_id"]: row for row in final.reverse().to_dicts()}
    first = run["member"].filter(pl.col("line").is_not_null()).unique("rank_id", keep="first", maintain_order=True)
    begins = {row["rank_id"]: citer.cite(row["source"], row["line"]) for row in first.to_dicts()}
    rank_rows = []
    for row in run["rank"].sort("job", "rank", nulls_last=True).to_dicts():
        rank_id, call = row["rank_id"], last.get(row["rank_id"])
        verdict = verdicts.get(row["job"], {})
        is_named = rank_id in verdict.get("culprits", ())
        is_dead = rank_id in process_exits or (is_named and verdict["verdict"] == "rank-died")
        state = _state(is_named, is_dead, rank_id in waiters, rank_id in done)
        rank_rows.append(
            RankRow(
                row["job"], row["rank"], printable(row["host"] or "?"), row["cudadev"], row["pid"], state, rank_id,
                printable(f"{operation_text(call)} of {call['key']}") if call else "",
                citer.cite(call["source"], call["line"]) if call else begins.get(rank_id),
                _died(process_exits[rank_id]) if rank_id in process_exits else "",
            )
        )  # fmt: skip
    absent = [
        RankRow(job, number, NOWHERE, None, None, State.MISSING)
        for job, row in verdicts.items()
        for number in sorted({*row["absent"], *row["missing"]})
    ]
    return rank_rows + absent


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
    return printable(f"{row['reporter']}: {row['how']}" + (f" ({told})" if told else ""))
