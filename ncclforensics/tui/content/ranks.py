"""The content of the ranks screen: every rank of the run and its state."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

import polars as pl

from ncclforensics.analyses.hang.rank_stacks import stacks_in
from ncclforensics.analyses.job.calls.shown_calls import LAST
from ncclforensics.analyses.verdict.sources.stacks import place_text
from ncclforensics.data.names import printable
from ncclforensics.frames.columns import Row
from ncclforensics.frames.protocol import Frames
from ncclforensics.report.build import Report
from ncclforensics.tui.content.evidence import CitedLine, Citer


class State(StrEnum):
    """States of a rank, worst first; if several apply, the first one is shown."""

    CULPRIT_DIED = "died (culprit): its process has ended, and the verdict names it"
    CULPRIT = "culprit: the verdict names it"
    MISSING = "missing: there is no log of it"
    DEAD = "dead: its process has ended"
    WAITING = "waiting: for another rank"
    UNAFFECTED = "unaffected: neither waiting nor a culprit"
    DONE = "done: it destroyed all its communicators"


SYMBOLS = {
    State.CULPRIT_DIED: "D",
    State.CULPRIT: "X",
    State.MISSING: "?",
    State.DEAD: "d",
    State.WAITING: "·",
    State.UNAFFECTED: "-",
    State.DONE: "+",
}


@dataclass(frozen=True, slots=True)
class RankRow:
    """One rank with its state and last call."""

    job: int
    rank: int | None
    host: str
    gpu: int | None
    pid: int | None
    state: State
    rank_id: int | None = None  # None: there is no log of it
    last_call: str = ""  # and where its stack stands
    cited: CitedLine | None = None  # the last call, its stack, or where it joins its first communicator
    exit_text: str = ""  # how its process ended
    missing_calls: int | None = None  # collectives fewer than the furthest rank of a communicator, where that is most
    lag: float | None = None  # seconds after the median of the ranks of a call; median over its calls
    warnings: int = 0  # lines with a warning that its process printed
    last_time: datetime | None = None  # of its last call, by the clock of its host, where calls have times

    @property
    def key(self) -> tuple[int, int | None, int | None]:
        """Return what identifies the rank, with or without a log."""
        return self.job, self.rank, self.rank_id

    @property
    def name(self) -> str:
        """Return a name such as `rank 3`."""
        return f"rank {'?' if self.rank is None else self.rank}"


NO_HOST = "no log"
STYLES = {
    "D": "bold red", "X": "bold red", "?": "bold magenta", "d": "red", "·": "yellow", "-": "", "+": "green",
}  # fmt: skip


def list_ranks(report: Report, citer: Citer) -> list[RankRow]:
    """List all ranks by job and number, including those without a log."""
    run = report.run
    verdicts = {answer.job: answer for answer in report.verdicts}
    last = {call.rank_id: call for job in verdicts for call in report.job(job).last_calls}
    waiters = {*run["wait"]["waiter"], *run["recorded_wait"]["waiter"]}
    ended = run["member"].group_by("rank_id").agg(is_done=(pl.col("end") == "Destroy").fill_null(False).all())
    done = set(ended.filter("is_done")["rank_id"].to_list())
    final = run["process_exit"].filter(pl.col("is_final") & pl.col("rank_id").is_not_null()).sort("pos")
    process_exits = {row["rank_id"]: row for row in final.reverse().to_dicts()}
    first = run["member"].filter(pl.col("line").is_not_null()).unique("rank_id", keep="first", maintain_order=True)
    begins = {row["rank_id"]: citer.cite(row["source"], row["line"]) for row in first.to_dicts()}
    stacks = {stack.rank_id: stack for stack in stacks_in(run["rank_stack"])}
    missing_calls, lags, warnings = _missing_calls(run), _lags(run), _warnings(run)
    last_times = _last_times(run)
    rank_rows = []
    for row in run["rank"].sort("job", "rank", nulls_last=True).to_dicts():
        rank_id, call, stack = row["rank_id"], last.get(row["rank_id"]), stacks.get(row["rank_id"])
        answer = verdicts.get(row["job"])
        culprits, victims = (answer.culprits, answer.victims) if answer else ((), ())
        is_culprit = rank_id in culprits
        is_dead = rank_id in process_exits or (answer is not None and is_culprit and answer.verdict == "rank-died")
        is_victim = rank_id in victims and rank_id not in done
        has_waiting_stack = bool(culprits and stack and stack.is_waiting)
        is_waiting = rank_id in waiters or is_victim or has_waiting_stack
        state = _state(is_culprit, is_dead, is_waiting, rank_id in done)
        texts = [f"{call.operation.text} on {report.groups.text(call.key)}"] if call else []
        texts += [f"stands in {place_text(stack)}"] if stack else []
        place = (call.source, call.line) if call else (stack.source, stack.line) if stack else None
        rank_rows.append(
            RankRow(
                row["job"], row["rank"], printable(row["host"] or "?"), row["cudadev"], row["pid"], state, rank_id,
                printable("; ".join(texts)),
                citer.cite(*place) if place else begins.get(rank_id),
                _exit_text(process_exits[rank_id]) if rank_id in process_exits else "",
                missing_calls.get(rank_id), lags.get(rank_id), warnings.get((row["host"], row["pid"]), 0),
                last_times.get(rank_id),
            )
        )  # fmt: skip
    absent = [
        RankRow(job, number, NO_HOST, None, None, State.MISSING)
        for job, answer in verdicts.items()
        for number in sorted({*answer.absent, *answer.missing})
    ]
    return rank_rows + absent


def first_culprit_line(rank_rows: list[RankRow]) -> tuple[int, int] | None:
    """Return the source and the line of the last call of the first culprit with a log."""
    culprits = (row.cited for row in rank_rows if row.state in (State.CULPRIT_DIED, State.CULPRIT))
    cited = next(filter(None, culprits), None)
    return (cited.source, cited.line) if cited else None


def _missing_calls(run: Frames) -> dict[int, int]:
    """Rank id -> by how many collectives it is behind, on the communicator where it is furthest behind."""
    fewer = pl.col("calls").max().over("key") - pl.col("calls")
    last = run["last_call"].select("rank_id", fewer=fewer).drop_nulls()
    return dict(last.group_by("rank_id").agg(pl.col("fewer").max()).iter_rows())


def _lags(run: Frames) -> dict[int, float]:
    """Rank id -> the median of its lags in seconds, where calls have times."""
    return dict(run["lag"].group_by("rank_id").agg(pl.col("lag").median()).iter_rows())


def _last_times(run: Frames) -> dict[int, datetime]:
    """Rank id -> the time of its last call."""
    last = run["timeline"].filter(pl.col("what") == LAST)
    return dict(last.select("rank_id", "time").iter_rows())


def _warnings(run: Frames) -> dict[tuple[str, int], int]:
    """Process -> the lines with a warning that it printed."""
    counted = run["nccl_warning"].group_by("host", "pid").len()
    return {(host, pid): count for host, pid, count in counted.iter_rows()}


def _state(is_culprit: bool, is_dead: bool, is_waiting: bool, is_done: bool) -> State:
    if is_culprit:
        return State.CULPRIT_DIED if is_dead else State.CULPRIT
    if is_dead:
        return State.DEAD
    if is_waiting:
        return State.WAITING
    return State.DONE if is_done else State.UNAFFECTED


def _exit_text(row: Row) -> str:
    details = [
        f"signal {row['signal']}" if row["signal"] is not None else "",
        f"exit code {row['exit_code']}" if row["exit_code"] is not None else "",
        row["name"] or "",
        row["message"] or "",
    ]
    detail_text = ", ".join(filter(None, details))
    return printable(f"{row['reporter']}: {row['how']}" + (f" ({detail_text})" if detail_text else ""))
