"""What RAS reports add to the verdict: processes that do not answer, errors, ranks that have launched less.

One report is a snapshot, in which the ranks of a running job differ; two tell what stands still. Where the logs name a
culprit, they are believed, for they show every call in its order.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from ncclforensics.analyses.hang.job import Case, Diagnosis, Row
from ncclforensics.analyses.hang.ras_reports import place, sizes
from ncclforensics.data.names import ranks_text

MANY = 0.5
NO_COUNT = ("missing", "dead")
FOLLOWS = "Remote process error"  # the error of a rank whose peer failed
AGAIN = "a second RAS report, some minutes after the first: ncclras -v (or -f json) on a host of the job"

Counts = dict[str, int]  # operation -> calls launched


@dataclass(slots=True)
class _Tally:
    """What the ranks of one communicator had launched, in one report. The key None stands for all ranks not named."""

    counts: dict[int | None, Counts] = field(default_factory=lambda: defaultdict(dict))
    weights: dict[tuple[str, int], int] = field(default_factory=lambda: defaultdict(int))
    rows: dict[int | None, list[Row]] = field(default_factory=lambda: defaultdict(list))

    def of(self, rank: int | None) -> Counts:
        """By operation; one that the text does not name for a rank is that of the ranks it merely counts."""
        return {**self.counts.get(None, {}), **self.counts[rank]}

    def total(self, rank: int | None) -> int:
        """Calls of all kinds that the report tells of."""
        return sum(self.of(rank).values())

    def usual(self) -> Counts:
        """What most ranks had launched, by operation; of even numbers the higher."""
        most: dict[str, tuple[int, int]] = {}
        for (operation, launched), ranks in self.weights.items():
            most[operation] = max(most.get(operation, (0, 0)), (ranks, launched))
        return {operation: launched for operation, (_, launched) in most.items()}


def _tallies(states: list[Row]) -> dict[str, _Tally]:
    """By communicator."""
    found: dict[str, _Tally] = defaultdict(_Tally)
    for row in states:
        if row["said"] != "launched" or row["communicator"] is None:
            continue
        tally, operation, launched = found[row["communicator"]], row["operation"], row["launched"]
        before = tally.counts[row["rank"]].get(operation, launched)
        # Several sets of ranks that are not named: none of those that are is said to be behind all of them.
        tally.counts[row["rank"]][operation] = min(before, launched)
        tally.weights[operation, launched] += row["ranks"]
        tally.rows[row["rank"]].append(row)
    return found


class Reports:
    """The reports on one job, the latest last."""

    def __init__(self, case: Case) -> None:
        self.case = case
        timed = all(report["time"] for report in case.snapshots)
        order = sorted(case.snapshots, key=lambda report: (report["time"] if timed else "", report["report"]))
        of_report: dict[int | None, list[Row]] = defaultdict(list)
        for row in case.states:
            of_report[row["report"]].append(row)
        self.each = [of_report[report["report"]] for report in order]
        self.events = of_report[None]
        self.latest = self.each[-1] if self.each else []
        self.tallies = [_tallies(states) for states in self.each]
        self.sizes = sizes(case.states)
        self.worlds = {name for name, size in self.sizes.items() if size == case.shown}
        self.numbers = {
            place(row): row["rank"]
            for row in case.states
            if row["rank"] is not None and row["process"] is not None and row["communicator"] in self.worlds
        }
        self.by_number = {
            rank_id["rank"]: number for number, rank_id in case.rank_ids.items() if rank_id["rank"] is not None
        }
        self.by_place = {
            (a["host"], a["pid"], a["cudadev"]): number for number, a in case.rank_ids.items() if a["pid"] is not None
        }

    def number(self, row: Row) -> int | None:
        """The rank's number in the job."""
        if row["rank"] is not None and row["communicator"] in self.worlds:
            return int(row["rank"])
        return self.numbers.get(place(row)) if row["process"] is not None else None

    def rank_id(self, row: Row) -> int | None:
        """Whom a row speaks of."""
        number = self.number(row)
        return self.by_number.get(number) if number is not None else self.by_place.get(place(row))

    def judged(self, verdict: str, reason: str, certainty: str, rows: list[Row]) -> Diagnosis:
        """Accuse the ranks that these rows speak of; cite them."""
        diagnosis = Diagnosis(verdict, reason, certainty)
        diagnosis.culprits = sorted({rank_id for row in rows if (rank_id := self.rank_id(row)) is not None})
        unknown = {self.number(row) for row in rows if self.rank_id(row) is None}
        diagnosis.missing = sorted(number for number in unknown if number is not None)
        diagnosis.victims = sorted(set(self.case.rank_ids) - set(diagnosis.culprits))
        diagnosis.key = next((row["communicator"] for row in rows if row["communicator"]), None)
        self.cite(diagnosis, "culprit", rows[:4])
        return diagnosis

    def cite(self, diagnosis: Diagnosis, what: str, rows: list[Row]) -> None:
        """The line that names a rank, and that which says what it is said of it."""
        for row in rows:
            rank_id = self.rank_id(row)
            diagnosis.show(what, [{**row, "rank_id": rank_id, "line": row["rank_line"]}, {**row, "rank_id": rank_id}])


def accused(reports: Reports) -> Diagnosis | None:
    """Whom the reports accuse, the strongest ground first."""
    answers = (question(reports) for question in (_gone, _failed, _behind))
    return next((answer for answer in answers if answer is not None), None)


def _gone(reports: Reports) -> Diagnosis | None:
    """Processes that RAS does not reach: stopped, crashed, or cut off."""
    dead = [row for row in [*reports.latest, *reports.events] if row["said"] == "dead"]
    silent = [row for row in reports.latest if row["said"] == "missing"]
    if not dead and not silent:
        return None
    if dead:
        # The text names the processes that are dead; which ranks they were stands with the communicators.
        places = {place(row) for row in dead if row["process"] is not None}
        rows = dead + [row for row in silent if place(row) in places]
        reason = "could not be reached by RAS for a minute and is considered dead: crashed, killed, stopped or cut off"
        answer = reports.judged("rank-died", reason, "likely", rows)
        if not answer.culprits and not answer.missing:
            answer.collect = ["ncclras -v, which lists all processes that are dead"]
        return answer
    before = [place(row) for states in reports.each[:-1] for row in states if row["said"] in NO_COUNT]
    again = any(place(row) in before for row in silent)
    reason = "did not answer the RAS query, which a process does even while it hangs: stopped, crashed or cut off"
    answer = reports.judged("rank-died", reason, "likely" if again else "possible", silent)
    if not again:
        answer.collect = ["a second RAS report, a minute later: a process that is gone is DEAD by then"]
    return answer


def _failed(reports: Reports) -> Diagnosis | None:
    """Errors that ranks reported themselves."""
    errors = [row for row in reports.latest if row["said"] in ("initialization", "asynchronous")]
    if not errors:
        return None
    own = [row for row in errors if row["error"] != FOLLOWS] or errors
    in_init = [row for row in own if row["said"] == "initialization"]
    first = in_init or own
    told = ", ".join(sorted({str(row["error"]) for row in first if row["error"]})) or "an error"
    when = "in the init of a communicator" if in_init else "while it ran"
    answer = reports.judged(
        "init-failed" if in_init else "stuck-together", f"reported {told} {when}, as RAS tells", "likely", first
    )
    if answer.culprits and len(answer.culprits) >= MANY * len(reports.case.rank_ids):
        answer.culprits, answer.victims = [], sorted(reports.case.rank_ids)
    if in_init or not answer.culprits:
        answer.reason = f"ranks {answer.reason}" if not answer.culprits else answer.reason
    else:
        numbers = ranks_text(reports.case.numbers(answer.culprits)) or "a rank"
        answer.reason = f"{numbers} {answer.reason}"
    for e in answer.evidence_lines:
        e["what"] = "failure"
    return answer


def _behind(reports: Reports) -> Diagnosis | None:
    """Ranks that have launched less than the others, on none of their communicators more than anybody."""
    if not reports.tallies:
        return None
    ahead: set[int] = set()
    low: dict[int, tuple[str, int]] = {}  # actor -> communicator and rank in it
    for name, tally in reports.tallies[-1].items():
        totals = {rank: tally.total(rank) for rank in tally.counts}
        least, most = min(totals.values()), max(totals.values())
        for rank, total in totals.items():
            rank_id = reports.rank_id(tally.rows[rank][0]) if rank is not None else None
            if rank_id is None or rank is None:
                continue
            if total > least:
                ahead.add(rank_id)
            elif total < most or _is_odd(tally, rank):
                low.setdefault(rank_id, (name, rank))
    behind = {rank_id: membership for rank_id, membership in low.items() if rank_id not in ahead}
    if not behind or len(behind) > MANY * len(reports.case.rank_ids):
        return None
    standing = {_moved(reports, *membership) for membership in behind.values()}
    if True in standing:
        return None  # the job runs
    name, rank = next(iter(behind.values()))
    tally = reports.tallies[-1][name]
    odd = [membership for membership in behind.values() if _is_odd(reports.tallies[-1][membership[0]], membership[1])]
    usual, mine = tally.usual(), tally.of(rank)
    lacking = max(usual, key=lambda operation: usual[operation] - mine.get(operation, 0))
    rows = [row for name, rank in behind.values() for row in reports.tallies[-1][name].rows[rank]]
    first = [row for row in rows if row["operation"] == lacking] or rows
    verdict = "collective-mismatch" if len(odd) == len(behind) else "lagging-ranks"
    answer = reports.judged(verdict, "", "likely" if standing == {False} else "possible", first)
    answer.culprits = sorted(behind)
    answer.victims = sorted(set(reports.case.rank_ids) - set(behind))
    answer.reason = _told(name, lacking, mine, usual, is_odd=bool(odd))
    answer.call = {"name": None if lacking == "collective" else lacking}
    if verdict == "collective-mismatch":
        answer.how, answer.fields = "another", ["name"]
    if standing == {False}:
        answer.reason += "; neither count moved between the reports"
        earlier = next(tallies[name] for tallies in reports.tallies[-2::-1] if rank in tallies[name].counts)
        reports.cite(answer, "culprit", [row for row in earlier.rows[rank] if row["operation"] == lacking])
    else:
        answer.reason += "; in one report, and ranks of a running job differ, too"
        answer.collect = [AGAIN]
    seated = {rank for communicator, rank in behind.values() if communicator == name}
    others = [row for rank, rows in tally.rows.items() if rank not in seated for row in rows]
    waiting = [row for row in others if row["operation"] == lacking and row["launched"] == usual[lacking]]
    reports.cite(answer, "waiting", waiting[:2])
    return answer


def _is_odd(tally: _Tally, rank: int) -> bool:
    """Less of one operation than most, more of another: it called something else."""
    usual, mine = tally.usual(), tally.of(rank)
    return any(mine[each] < usual[each] for each in mine) and any(mine[each] > usual[each] for each in mine)


def _told(name: str, lacking: str, mine: Counts, usual: Counts, *, is_odd: bool) -> str:
    what = "calls" if lacking == "collective" else lacking
    reason = f"had launched {mine.get(lacking, 0)} {what} on {name}, the others {usual[lacking]}"
    more = [each for each in mine if mine[each] > usual.get(each, 0)]
    return reason + (
        f", but {mine[more[0]]} {more[0]} where the others had {usual[more[0]]}" if is_odd and more else ""
    )


def _moved(reports: Reports, name: str, rank: int) -> bool | None:
    """Whether a rank, or those before it, had launched more between two reports; null where only one tells."""
    last = reports.tallies[-1][name]
    known = [tallies[name] for tallies in reports.tallies[:-1] if name in tallies and rank in tallies[name].counts]
    if not known:
        return None
    return known[-1].of(rank) != last.of(rank) or known[-1].usual() != last.usual()


def at_work(case: Case) -> Diagnosis | None:
    """There are RAS reports alone, and they accuse nobody."""
    if case.memberships or case.processes or not case.snapshots:
        return None
    reports = Reports(case)
    last = reports.tallies[-1] if reports.tallies else {}
    shared = [name for name in last if any(name in earlier for earlier in reports.tallies[:-1])]
    moved = [name for name in shared if _grew(reports, name)]
    differs = (
        bool(uneven(reports.latest))
        or bool(divided(reports.latest))
        or any(report["is_fine"] is False for report in case.snapshots)
    )
    begin = [{"rank_id": None, "source": each["source"], "line": each["line"]} for each in case.snapshots[:2]]
    if moved:
        answer = Diagnosis(
            "no-hang", "ranks had launched more calls in the later RAS report: the job was running", "likely"
        )
    elif shared and any(last[name].total(rank) for name in shared for rank in last[name].counts):
        reason = (
            "no rank launched anything between the RAS reports: all are in one call, or busy outside of NCCL; "
            "RAS counts calls that were launched, not those that ended"
        )
        answer = Diagnosis("undecidable", reason, "likely")
        answer.collect = ["py-spy dump --native of one process on each host", "every rank's NCCL log"]
    elif differs:
        reason = "ranks differ in the RAS report, as those of a running job do, and none of them is behind all others"
        answer = Diagnosis("undecidable", reason, "likely", collect=[AGAIN])
    else:
        reason = (
            "all ranks answered RAS and agreed; but ranks that hang in one call that all have launched look the same, "
            "and one report does not tell"
        )
        answer = Diagnosis("no-hang", reason, "possible", collect=[AGAIN])
    answer.show("context", begin)
    return answer


def divided(states: list[Row]) -> dict[str, list[Row]]:
    """The communicators whose ranks differ in status: a row of each status."""
    found: dict[str, dict[str, Row]] = defaultdict(dict)
    for row in states:
        if row["said"] == "status" and row["communicator"] is not None:
            found[row["communicator"]].setdefault(row["status"], row)
    return {name: list(rows.values()) for name, rows in found.items() if len(rows) > 1}


def uneven(states: list[Row]) -> dict[str, list[Row]]:
    """The communicators whose ranks have launched different numbers of calls: a row of each number."""
    found: dict[str, dict[str, dict[int, Row]]] = defaultdict(lambda: defaultdict(dict))
    for row in states:
        if row["said"] == "launched" and row["communicator"] is not None:
            found[row["communicator"]][row["operation"]].setdefault(row["launched"], row)
    counts = {name: [c for c in operations.values() if len(c) > 1] for name, operations in found.items()}
    return {name: [row for each in many for row in each.values()] for name, many in counts.items() if many}


def _grew(reports: Reports, name: str) -> bool:
    last = reports.tallies[-1][name]
    first = next(tallies[name] for tallies in reports.tallies if name in tallies)
    return any(last.total(rank) > first.total(rank) for rank in last.counts if rank in first.counts)


def weighed(case: Case, answer: Diagnosis) -> Diagnosis:
    """The logs' answer, with what RAS reports add: another answer where the logs have none, and doubt or support."""
    if not case.states:
        return answer
    theirs = accused(Reports(case))
    if theirs is None:
        return answer
    is_open = answer.verdict == "undecidable" or (
        answer.verdict == "no-hang" and not (case.memberships or case.processes)
    )
    is_late = theirs.verdict == "rank-died" and not answer.culprits and not case.is_finished
    if is_open or is_late:
        return theirs
    if answer.verdict == "no-hang":
        return answer  # the logs show that the calls were made after all
    named = set(theirs.culprits)
    if named and named <= set(answer.culprits):
        if answer.certainty == "possible":
            answer.certainty = "likely"
        answer.evidence_lines += [{**e, "what": "context"} for e in theirs.evidence_lines[:2]]
    elif theirs.certainty == "likely" and named and answer.culprits and not named & set(answer.culprits):
        numbers = ranks_text(case.numbers(named)) or "another rank"
        answer.doubt("likely")
        answer.reason += f"; RAS speaks of {numbers}, which {theirs.reason}"
        answer.evidence_lines += [{**e, "what": "context"} for e in theirs.evidence_lines[:2]]
    return answer
