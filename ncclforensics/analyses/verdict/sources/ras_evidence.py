"""Judge a job by RAS reports: processes that do not answer, errors, ranks that have launched fewer calls.

One report is a snapshot, in which the ranks of a running job differ; two reports show which ranks make no progress.
A host launches calls ahead of its GPU: that it launched one fewer than others does not show that these wait for it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise
from typing import Any

from ncclforensics.analyses.hang.ras_reports import Place, communicator_sizes, process_place
from ncclforensics.analyses.hang.ras_tallies import Tally, shares, tallies_of
from ncclforensics.analyses.verdict.answer import Operation
from ncclforensics.analyses.verdict.doubts import Doubt
from ncclforensics.analyses.verdict.explanation import Explanation
from ncclforensics.analyses.verdict.job import Job
from ncclforensics.analyses.verdict.vocabulary import How, Kind
from ncclforensics.data.variables import STACKS_OF_HOST
from ncclforensics.frames.columns import Row

MAJORITY = 0.5
UNREACHABLE = ("missing", "dead")
REMOTE_ERROR = "Remote process error"  # the error of a rank whose peer failed
COLLECT_PLACES = [f"take the stacks on each host: `{STACKS_OF_HOST}`", "collect every rank's NCCL log"]
COLLECT_SECOND_REPORT = "take a second RAS report on a host of the job, some minutes after the first: `ncclras -v`"


class Reports:
    """The RAS reports on one job, in the order of time."""

    def __init__(self, job: Job) -> None:
        self.job = job
        timed = all(report["time"] for report in job.snapshots)
        order = sorted(job.snapshots, key=lambda report: (report["time"] if timed else "", report["report"]))
        of_report: dict[int | None, list[Row]] = defaultdict(list)
        for row in job.states:
            of_report[row["report"]].append(row)
        self.by_report = [of_report[report["report"]] for report in order]
        self.last_snapshot = order[-1] if order else None
        self.events = of_report[None]
        self.latest = self.by_report[-1] if self.by_report else []
        self.tallies = [tallies_of(states) for states in self.by_report]
        self.communicator_sizes = communicator_sizes(job.states)
        self.world_communicators = {name for name, size in self.communicator_sizes.items() if size == job.ras_nranks}
        self.by_place: dict[Place, int] = {
            (row.host, row.pid, row.cudadev): rank_id for rank_id, row in job.rank_ids.items() if row.pid is not None
        }

    def number(self, row: Row) -> int | None:
        """Return the rank's number in the job, or None if the reports do not show it."""
        is_shown = row["rank"] is not None and row["communicator"] in self.world_communicators
        return int(row["rank"]) if is_shown else None

    def rank_id(self, row: Row) -> int | None:
        """Return the id of the rank in a row, or None if the logs do not know it."""
        number = self.number(row)
        return self.job.rank_id_of.get(number) if number is not None else self.by_place.get(process_place(row))

    def diagnose(self, verdict: Kind, reason: str, doubts: list[Doubt], rows: list[Row]) -> Explanation:
        """Return a diagnosis with the ranks of these rows as culprits, citing the rows."""
        known = (rank_id for row in rows if (rank_id := self.rank_id(row)) is not None)
        diagnosis = self.job.explanation_of(verdict, reason, known, *doubts)
        unknown = {self.number(row) for row in rows if self.rank_id(row) is None}
        diagnosis.missing = sorted(number for number in unknown if number is not None)
        diagnosis.key = next((row["communicator"] for row in rows if row["communicator"]), None)
        self.cite(diagnosis, culprit=rows[:4])
        return diagnosis

    def cite(self, diagnosis: Explanation, **rows: list[Row]) -> None:
        """Cite the line that names a rank and the line that gives its state."""
        for what, row in ((what, row) for what, of_this in rows.items() for row in of_this):
            lines = [row["rank_line"], row["line"]]
            diagnosis.add_evidence(**{what: [{**row, "rank_id": self.rank_id(row), "line": line} for line in lines]})


def diagnose_reports(job: Job) -> Explanation | None:
    """Return the diagnosis of the RAS reports alone: dead processes, else errors, else ranks that are behind."""
    if not job.snapshots and not job.states:
        return None
    reports = Reports(job)
    answers = (question(reports) for question in (_find_unreachable, _find_reported_errors, _find_ranks_behind))
    return next((diagnosis for diagnosis in answers if diagnosis is not None), None)


def _find_unreachable(reports: Reports) -> Explanation | None:
    """Find processes that RAS does not reach: stopped, crashed or cut off."""
    dead = [row for row in [*reports.latest, *reports.events] if row["state_kind"] == "dead"]
    unreachable = [row for row in reports.latest if row["state_kind"] == "missing"]
    if not dead and not unreachable:
        return None
    if dead:
        # The list of dead processes names no ranks; the communicators do.
        places = {process_place(row) for row in dead if row["process"] is not None}
        rows = dead + [row for row in unreachable if process_place(row) in places]
        reason = "did not answer RAS for a minute, which counts as dead: crashed, killed, stopped or cut off"
        return reports.diagnose(Kind.RANK_DIED, reason, [Doubt.NO_TRACE_OF_END], rows)
    earlier_places = [
        process_place(row) for states in reports.by_report[:-1] for row in states if row["state_kind"] in UNREACHABLE
    ]
    is_confirmed = any(process_place(row) in earlier_places for row in unreachable)
    reason = "did not answer the RAS query, although even a hanging process answers: stopped, crashed or cut off"
    diagnosis = reports.diagnose(
        Kind.RANK_DIED, reason, [Doubt.NO_TRACE_OF_END if is_confirmed else Doubt.ONE_MOMENT], unreachable
    )
    if not is_confirmed:
        diagnosis.collect = [
            "take a second RAS report a minute later, which shows a process that is gone as DEAD: `ncclras -v`"
        ]
    return diagnosis


def _find_reported_errors(reports: Reports) -> Explanation | None:
    """Find ranks that reported errors."""
    errors = [row for row in reports.latest if row["state_kind"] in ("initialization", "asynchronous")]
    if not errors:
        return None
    own = [row for row in errors if row["error"] != REMOTE_ERROR] or errors
    in_init = [row for row in own if row["state_kind"] == "initialization"]
    reported = in_init or own
    error_names = ", ".join(sorted({str(row["error"]) for row in reported if row["error"]})) or "an error"
    when = "in the init of a communicator" if in_init else "while it ran"
    diagnosis = reports.diagnose(
        Kind.INIT_FAILED if in_init else Kind.STUCK_TOGETHER,
        f"reported {error_names} {when}, according to RAS",
        [Doubt.FAULT_FOLLOWED],
        reported,
    )
    if diagnosis.culprits and len(diagnosis.culprits) >= MAJORITY * len(reports.job.rank_ids):
        diagnosis.culprits, diagnosis.victims = [], sorted(reports.job.rank_ids)
    if not diagnosis.culprits:
        diagnosis.claim = f"ranks {diagnosis.claim}"
    elif not in_init:
        diagnosis.claim = f"{reports.job.names(diagnosis.culprits)} {diagnosis.claim}"
    diagnosis.evidence_lines = [cited._replace(what="failure") for cited in diagnosis.evidence_lines]
    return diagnosis


def _find_ranks_behind(reports: Reports) -> Explanation | None:
    """Find ranks that launched fewer calls than others on one communicator, and on none more than others."""
    if not reports.tallies:
        return None
    only_behind = _ranks_only_behind(reports)
    if not only_behind or len(only_behind) > MAJORITY * len(reports.job.rank_ids):
        return None
    progress = {_made_progress(reports, *membership) for membership in only_behind.values()}
    if True in progress:
        return None  # the job makes progress
    name, rank = next(iter(only_behind.values()))
    tally = reports.tallies[-1][name]
    other_callers = [
        membership
        for membership in only_behind.values()
        if _made_other_call(reports.tallies[-1][membership[0]], membership[1])
    ]
    usual_counts, launched = tally.usual_counts(), tally.counts_of_rank(rank)
    lacking = max(usual_counts, key=lambda operation: usual_counts[operation] - launched.get(operation, 0))
    rows = [row for name, rank in only_behind.values() for row in reports.tallies[-1][name].rows[rank]]
    reported = [row for row in rows if row["operation"] == lacking] or rows
    verdict = Kind.MISMATCH if len(other_callers) == len(only_behind) else Kind.LAGGING
    laggards = {rank for communicator, rank in only_behind.values() if communicator == name}
    claim = _describe_counts(tally, name, lacking, laggards)
    diagnosis = reports.diagnose(verdict, claim, [Doubt.RUNS_ON if progress == {False} else Doubt.ONE_MOMENT], reported)
    diagnosis.culprits = sorted(only_behind)
    diagnosis.victims = sorted(set(reports.job.rank_ids) - set(only_behind))
    diagnosis.call = Operation(name=None if lacking == "collective" else lacking)
    if verdict == Kind.MISMATCH:
        diagnosis.how, diagnosis.fields = How.ANOTHER, ["name"]
    elif sum(usual_counts.values()) - tally.total_of_rank(rank) <= 1:
        diagnosis.doubt(Doubt.ONE_LAUNCH, "a host that launches one call fewer may wait for the same as the others")
        diagnosis.collect = COLLECT_PLACES[:1]
    if len(only_behind) > 1:
        diagnosis.doubt(
            Doubt.UNSEEN_MESSAGE, "one of these may wait for another in a message, which RAS does not count"
        )
    if progress == {False}:
        diagnosis.remarks.append("neither count changed between the reports")
        earlier = _earlier_tallies(reports, name, rank)[-1]
        reports.cite(diagnosis, culprit=[row for row in earlier.rows[rank] if row["operation"] == lacking])
    else:
        diagnosis.remarks.append("this is one report, and the ranks of a running job differ, too")
        diagnosis.collect = [COLLECT_SECOND_REPORT]
    others = [row for rank, rows in tally.rows.items() if rank not in laggards for row in rows]
    waiting = [row for row in others if row["operation"] == lacking and row["launched"] == usual_counts[lacking]]
    reports.cite(diagnosis, waiting=waiting[:2])
    return diagnosis


def _ranks_only_behind(reports: Reports) -> dict[int, tuple[str, int]]:
    """Return the ranks that are behind and on no communicator ahead, with a communicator and the rank in it.

    Text names the few ranks behind and only counts the others: a rank behind on one communicator may wait on another
    for the ranks that are behind there. Only those behind on all of these communicators wait for none of them; none is
    known where ranks that text only counts are behind, or wait for ranks that wait elsewhere.
    """
    ahead: set[int | Place] = set()
    lower: list[tuple[dict[int | Place, tuple[str, int]], bool]] = []  # ranks behind, and whether others are not named
    for name, tally in reports.tallies[-1].items():
        totals = {rank: tally.total_of_rank(rank) for rank in tally.counts}
        least, most = min(totals.values()), max(*totals.values(), tally.most_of_counted())
        if totals.get(None) == least < most:
            return {}
        of_communicator: dict[int | Place, tuple[str, int]] = {}
        for rank, total in totals.items():
            if rank is None:
                continue
            row = tally.rows[rank][0]
            rank_id = reports.rank_id(row)
            owner = process_place(row) if rank_id is None else rank_id
            if total > least:
                ahead.add(owner)
            elif total < most or _made_other_call(tally, rank):
                of_communicator[owner] = (name, rank)
        lower.append((of_communicator, None in totals))
    left = [{owner: place for owner, place in ranks.items() if owner not in ahead} for ranks, _ in lower]
    if any(ranks and not remaining and is_counted for remaining, (ranks, is_counted) in zip(left, lower, strict=True)):
        return {}
    nested = sorted((ranks for ranks in left if ranks), key=len)
    if not nested or any(not smaller.keys() <= larger.keys() for smaller, larger in pairwise(nested)):
        return {}
    first = next(ranks for ranks in left if ranks and ranks.keys() == nested[0].keys())
    return {owner: place for owner, place in first.items() if isinstance(owner, int)}


def _made_other_call(tally: Tally, rank: int) -> bool:
    """Whether a rank launched fewer of one operation than most and more of another: it made a different call."""
    usual_counts, launched = tally.usual_counts(), tally.counts_of_rank(rank)
    return any(launched[name] < usual_counts[name] for name in launched) and any(
        launched[name] > usual_counts[name] for name in launched
    )


def _describe_counts(tally: Tally, name: str, lacking: str, laggards: set[int]) -> str:
    """Say what ranks have launched of an operation, and of what they launched more, with what the others have."""
    launched, usual_counts = tally.counts_of_rank(next(iter(laggards))), tally.usual_counts()
    what = "calls" if lacking == "collective" else lacking
    others = sum(row["ranks"] for rank, rows in tally.rows.items() if rank not in laggards for row in rows[:1])
    rest = "its only other rank" if others == 1 else "the others"
    text = f"had launched {launched.get(lacking, 0)} {what} on {name}, {rest} {_others_text(tally, lacking, laggards)}"
    more = [operation for operation in launched if launched[operation] > usual_counts.get(operation, 0)]
    if not more or launched.get(lacking, 0) >= usual_counts[lacking]:
        return text
    return f"{text}, but {launched[more[0]]} {more[0]} where the others had {_others_text(tally, more[0], laggards)}"


def _others_text(tally: Tally, operation: str, laggards: set[int]) -> str:
    """Give the counts of an operation on all ranks but these: one number, or the least and the most."""
    counts: Counter[int] = Counter()
    for rank, rows in tally.rows.items():
        for row in rows:
            if rank not in laggards and row["operation"] == operation:
                counts[row["launched"]] += row["ranks"]
    (usual, ranks), *further = counts.most_common() or [(tally.usual_counts()[operation], 1)]
    if not further:
        return str(usual)
    most = f", most of them ({ranks} of {counts.total()}) {usual}" if ranks * 2 > counts.total() else ""
    return f"{min(counts)} to {max(counts)}{most}"


def _made_progress(reports: Reports, name: str, rank: int) -> bool | None:
    """Whether a rank or its communicator launched calls between two reports; None if only one report shows it."""
    latest = reports.tallies[-1][name]
    known = _earlier_tallies(reports, name, rank)
    if not known:
        return None
    previous = known[-1]
    return (
        previous.counts_of_rank(rank) != latest.counts_of_rank(rank) or previous.usual_counts() != latest.usual_counts()
    )


def _earlier_tallies(reports: Reports, name: str, rank: int) -> list[Tally]:
    """Return the tallies of a communicator in the reports before the last one that count this rank, in their order."""
    earlier = [tallies[name] for tallies in reports.tallies[:-1] if name in tallies]
    return [tally for tally in earlier if rank in tally.counts or None in tally.counts]


def judge_ras_reports_alone(job: Job) -> Explanation | None:
    """Judge a job that is known only from RAS reports."""
    if job.processes or not job.snapshots:
        return None
    return diagnose_reports(job) or _judge_without_culprits(job)


def _judge_without_culprits(job: Job) -> Explanation:
    reports = Reports(job)
    latest_tallies = reports.tallies[-1] if reports.tallies else {}
    earlier_names = {name for tallies in reports.tallies[:-1] for name in tallies}
    in_several_reports = [name for name in latest_tallies if name in earlier_names]
    is_fine = show_no_mismatch(job)
    # Text shows no counts of ranks that agree: those that differed before have launched calls.
    with_progress = is_fine and not earlier_names <= latest_tallies.keys()
    with_progress |= any(_launched_more(reports, name) for name in in_several_reports)
    differing = ranks_differing(reports.latest, "launched") or ranks_differing(reports.latest, "status")
    differs = bool(differing) or any(report["is_fine"] is False for report in job.snapshots)
    shown = next(iter(differing.values()), []) or job.snapshots[:2]
    verdict, doubt, collect = Kind.UNDECIDABLE, Doubt.OPEN, COLLECT_PLACES
    if with_progress:
        verdict, doubt, collect = Kind.NO_HANG, Doubt.RUNS_ON, []
        reason = "ranks had launched more calls in the later RAS report: the job was running"
    elif differs and in_several_reports:
        reason = (
            "no rank launched a call between the RAS reports; the ranks differ, and none is behind all others: on"
            " several communicators they wait for each other, or for a message, which RAS does not count"
        )
    elif in_several_reports and any(
        latest_tallies[name].total_of_rank(rank) for name in in_several_reports for rank in latest_tallies[name].counts
    ):
        reason = (
            "no rank launched a call between the RAS reports: all ranks are in one call, or busy outside NCCL; "
            "RAS counts launched calls, not completed ones"
        )
    elif is_fine and len(job.snapshots) > 1:
        reason = (
            "all ranks answered RAS and agree in each report, which shows no counts of ranks that agree: whether they"
            " launched calls between the reports is not known"
        )
    elif differs:
        collect = [COLLECT_SECOND_REPORT]
        reason = "the ranks differ in the RAS report, as those of a running job do, and no rank is behind all others"
        if differing:
            reason += f": of communicator {shown[0]['communicator']} {shares(reports.latest, shown)}"
    else:
        verdict, doubt, collect = Kind.NO_HANG, Doubt.HANGS_TOGETHER, [COLLECT_SECOND_REPORT]
        reason = (
            "all ranks answered RAS and agree; ranks that hang in a call that all have launched look the same, "
            "and one report cannot show the difference"
        )
    diagnosis = Explanation(verdict, reason, [doubt], collect=[*collect])
    return diagnosis.add_evidence(context=[{**row, "rank_id": None} for row in shown])


def ranks_differing(states: list[Row], kind: str) -> dict[str, list[Row]]:
    """Return communicator -> one row of each value, where ranks differ in it: in `status`, or in calls `launched`."""
    by_name: dict[str, dict[str | None, dict[Any, Row]]] = defaultdict(lambda: defaultdict(dict))
    for row in states:
        if row["state_kind"] == kind and row["communicator"] is not None:
            by_name[row["communicator"]][row["operation"]].setdefault(row[kind], row)
    differing = {
        name: [row for rows in of_name.values() if len(rows) > 1 for row in rows.values()]
        for name, of_name in by_name.items()
    }
    return {name: rows for name, rows in differing.items() if rows}


def _launched_more(reports: Reports, name: str) -> bool:
    latest = reports.tallies[-1][name]
    first = next(tallies[name] for tallies in reports.tallies if name in tallies)
    return any(latest.total_of_rank(rank) > first.total_of_rank(rank) for rank in latest.counts if rank in first.counts)


def show_no_mismatch(job: Job) -> bool:
    """Whether the last report shows that all ranks answered, and had launched as many calls as each other.

    Text states it in its table. JSON gives the state of each rank.
    """
    reports = Reports(job)
    states, is_fine = reports.latest, reports.last_snapshot["is_fine"] if reports.last_snapshot else False
    if is_fine is not None:
        return bool(is_fine)
    named: dict[str, set[int]] = defaultdict(set)
    for row in states:
        named[row["communicator"]].add(row["rank"])
    is_whole = all(len(named[name]) == size for name, size in communicator_sizes(states).items())
    are_alike = not ranks_differing(states, "launched") and not ranks_differing(states, "status")
    kinds = {row["state_kind"] for row in states}
    return bool(kinds) and kinds <= {"launched", "status"} and is_whole and are_alike
