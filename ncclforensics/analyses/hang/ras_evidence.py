"""Add RAS reports to the verdict: processes that do not answer, errors, ranks that have launched fewer calls.

One report is a snapshot, in which the ranks of a running job differ; two reports show which ranks make no progress.
A culprit that the logs name takes precedence, because logs show every call in its order.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

from ncclforensics.analyses.hang.job import Job, Row
from ncclforensics.analyses.hang.ras_reports import Place, communicator_sizes, process_place
from ncclforensics.analyses.hang.ras_tallies import Counts, Tally, tallies_of
from ncclforensics.analyses.hang.stall import FROM_ENDS
from ncclforensics.analyses.verdict.doubts import Doubt
from ncclforensics.analyses.verdict.explanation import Explanation
from ncclforensics.analyses.verdict.vocabulary import OF_ABSENCE, Certainty, How, Kind
from ncclforensics.data.names import ranks_text
from ncclforensics.data.variables import STACKS_OF_HOST

MAJORITY = 0.5
UNREACHABLE = ("missing", "dead")
# A rank that skips a call or calls in another order launches more calls on some communicator than those that wait.
OF_ORDER = (How.SKIPPED, How.EXTRA, How.SWAPPED)
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
        self.events = of_report[None]
        self.latest = self.by_report[-1] if self.by_report else []
        self.tallies = [tallies_of(states) for states in self.by_report]
        self.communicator_sizes = communicator_sizes(job.states)
        self.world_communicators = {name for name, size in self.communicator_sizes.items() if size == job.ras_nranks}
        self.numbers = {
            process_place(row): row["rank"]
            for row in job.states
            if row["rank"] is not None
            and row["process"] is not None
            and row["communicator"] in self.world_communicators
        }
        self.by_number = {row["rank"]: rank_id for rank_id, row in job.rank_ids.items() if row["rank"] is not None}
        self.by_place = {
            (row["host"], row["pid"], row["cudadev"]): rank_id
            for rank_id, row in job.rank_ids.items()
            if row["pid"] is not None
        }

    def number(self, row: Row) -> int | None:
        """Return the rank's number in the job, or None if the reports do not show it."""
        if row["rank"] is not None and row["communicator"] in self.world_communicators:
            return int(row["rank"])
        return self.numbers.get(process_place(row)) if row["process"] is not None else None

    def rank_id(self, row: Row) -> int | None:
        """Return the id of the rank in a row, or None if the logs do not know it."""
        number = self.number(row)
        return self.by_number.get(number) if number is not None else self.by_place.get(process_place(row))

    def diagnose(self, verdict: Kind, reason: str, doubts: list[Doubt], rows: list[Row]) -> Explanation:
        """Return a diagnosis with the ranks of these rows as culprits, citing the rows."""
        diagnosis = Explanation(verdict, reason, doubts)
        diagnosis.culprits = sorted({rank_id for row in rows if (rank_id := self.rank_id(row)) is not None})
        unknown = {self.number(row) for row in rows if self.rank_id(row) is None}
        diagnosis.missing = sorted(number for number in unknown if number is not None)
        diagnosis.victims = sorted(set(self.job.rank_ids) - set(diagnosis.culprits))
        diagnosis.key = next((row["communicator"] for row in rows if row["communicator"]), None)
        self.cite(diagnosis, "culprit", rows[:4])
        return diagnosis

    def cite(self, diagnosis: Explanation, what: str, rows: list[Row]) -> None:
        """Cite the line that names a rank and the line that gives its state."""
        for row in rows:
            rank_id = self.rank_id(row)
            diagnosis.add_evidence(
                what, [{**row, "rank_id": rank_id, "line": row["rank_line"]}, {**row, "rank_id": rank_id}]
            )


def diagnose_reports(job: Job) -> Explanation | None:
    """Return the diagnosis of the RAS reports alone: dead processes, else errors, else ranks that are behind."""
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
        reason = "could not be reached by RAS for a minute and is considered dead: crashed, killed, stopped or cut off"
        diagnosis = reports.diagnose(Kind.RANK_DIED, reason, [Doubt.NO_TRACE_OF_END], rows)
        if not diagnosis.culprits and not diagnosis.missing:
            diagnosis.collect = ["list all dead processes, on a host of the job: `ncclras -v`"]
        return diagnosis
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
    if in_init or not diagnosis.culprits:
        diagnosis.claim = f"ranks {diagnosis.claim}" if not diagnosis.culprits else diagnosis.claim
    else:
        numbers = ranks_text(reports.job.rank_numbers(diagnosis.culprits)) or "a rank"
        diagnosis.claim = f"{numbers} {diagnosis.claim}"
    for cited in diagnosis.evidence_lines:
        cited["what"] = "failure"
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
    diagnosis = reports.diagnose(verdict, "", [Doubt.RUNS_ON if progress == {False} else Doubt.ONE_MOMENT], reported)
    diagnosis.culprits = sorted(only_behind)
    diagnosis.victims = sorted(set(reports.job.rank_ids) - set(only_behind))
    diagnosis.claim = _describe_counts(name, lacking, launched, usual_counts, is_odd=bool(other_callers))
    diagnosis.call = {"name": None if lacking == "collective" else lacking}
    if verdict == Kind.MISMATCH:
        diagnosis.how, diagnosis.fields = How.ANOTHER, ["name"]
    if len(only_behind) > 1:
        diagnosis.doubt(
            Doubt.UNSEEN_MESSAGE, "one of these may wait for another in a message, which RAS does not count"
        )
    if progress == {False}:
        diagnosis.remark("neither count changed between the reports")
        earlier = _earlier_tallies(reports, name, rank)[-1]
        reports.cite(diagnosis, "culprit", [row for row in earlier.rows[rank] if row["operation"] == lacking])
    else:
        diagnosis.remark("this is one report, and the ranks of a running job differ, too")
        diagnosis.collect = [COLLECT_SECOND_REPORT]
    behind_in_communicator = {rank for communicator, rank in only_behind.values() if communicator == name}
    others = [row for rank, rows in tally.rows.items() if rank not in behind_in_communicator for row in rows]
    waiting = [row for row in others if row["operation"] == lacking and row["launched"] == usual_counts[lacking]]
    reports.cite(diagnosis, "waiting", waiting[:2])
    return diagnosis


def _ranks_only_behind(reports: Reports) -> dict[int, tuple[str, int]]:
    """Return the ranks that are behind and on no communicator ahead, with a communicator and the rank in it.

    Text names the few ranks behind and only counts the others: a rank behind on one communicator may wait on another
    for the ranks that are behind there. Only those behind on all of these communicators wait for none of them.
    """
    ahead: set[int | Place] = set()
    lower: list[dict[int | Place, tuple[str, int]]] = []  # the ranks behind, of each communicator
    for name, tally in reports.tallies[-1].items():
        totals = {rank: tally.total_of_rank(rank) for rank in tally.counts}
        least, most = min(totals.values()), max(totals.values())
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
        lower.append(of_communicator)
    left = [{owner: place for owner, place in ranks.items() if owner not in ahead} for ranks in lower]
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


def _describe_counts(name: str, lacking: str, launched: Counts, usual_counts: Counts, *, is_odd: bool) -> str:
    what = "calls" if lacking == "collective" else lacking
    reason = f"had launched {launched.get(lacking, 0)} {what} on {name}, the others {usual_counts[lacking]}"
    more = [operation for operation in launched if launched[operation] > usual_counts.get(operation, 0)]
    return reason + (
        f", but {launched[more[0]]} {more[0]} where the others had {usual_counts[more[0]]}" if is_odd and more else ""
    )


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
    """Return the tallies of a communicator in the reports before the last one that name this rank, in their order."""
    return [tallies[name] for tallies in reports.tallies[:-1] if name in tallies and rank in tallies[name].counts]


def judge_ras_reports_alone(job: Job) -> Explanation | None:
    """Judge a job that is known only from RAS reports, where these name no culprit."""
    if job.memberships or job.processes or not job.snapshots:
        return None
    reports = Reports(job)
    latest_tallies = reports.tallies[-1] if reports.tallies else {}
    in_several_reports = [name for name in latest_tallies if any(name in earlier for earlier in reports.tallies[:-1])]
    with_progress = [name for name in in_several_reports if _launched_more(reports, name)]
    differs = (
        bool(ranks_differing_in_counts(reports.latest))
        or bool(ranks_differing_in_status(reports.latest))
        or any(report["is_fine"] is False for report in job.snapshots)
    )
    report_starts = [
        {"rank_id": None, "source": report["source"], "line": report["line"]} for report in job.snapshots[:2]
    ]
    if with_progress:
        diagnosis = Explanation(
            Kind.NO_HANG, "ranks had launched more calls in the later RAS report: the job was running", [Doubt.RUNS_ON]
        )
    elif differs and in_several_reports:
        reason = (
            "no rank launched a call between the RAS reports; the ranks differ, and none is behind all others: on"
            " several communicators they wait for each other, or for a message, which RAS does not count"
        )
        diagnosis = Explanation(Kind.UNDECIDABLE, reason, [Doubt.OPEN], collect=COLLECT_PLACES)
    elif in_several_reports and any(
        latest_tallies[name].total_of_rank(rank) for name in in_several_reports for rank in latest_tallies[name].counts
    ):
        reason = (
            "no rank launched a call between the RAS reports: all ranks are in one call, or busy outside NCCL; "
            "RAS counts launched calls, not completed ones"
        )
        diagnosis = Explanation(Kind.UNDECIDABLE, reason, [Doubt.OPEN], collect=COLLECT_PLACES)
    elif differs:
        reason = "the ranks differ in the RAS report, as those of a running job do, and no rank is behind all others"
        diagnosis = Explanation(Kind.UNDECIDABLE, reason, [Doubt.OPEN], collect=[COLLECT_SECOND_REPORT])
    else:
        reason = (
            "all ranks answered RAS and agree; ranks that hang in a call that all have launched look the same, "
            "and one report cannot show the difference"
        )
        diagnosis = Explanation(Kind.NO_HANG, reason, [Doubt.HANGS_TOGETHER], collect=[COLLECT_SECOND_REPORT])
    diagnosis.add_evidence("context", report_starts)
    return diagnosis


def ranks_differing_in_status(states: list[Row]) -> dict[str, list[Row]]:
    """Return communicator -> one row of each status, where the ranks differ in status."""
    by_name: dict[str, dict[str, Row]] = defaultdict(dict)
    for row in states:
        if row["state_kind"] == "status" and row["communicator"] is not None:
            by_name[row["communicator"]].setdefault(row["status"], row)
    return {name: list(rows.values()) for name, rows in by_name.items() if len(rows) > 1}


def ranks_differing_in_counts(states: list[Row]) -> dict[str, list[Row]]:
    """Return communicator -> one row of each number of calls, where the ranks have launched different numbers."""
    by_name: dict[str, dict[str, dict[int, Row]]] = defaultdict(lambda: defaultdict(dict))
    for row in states:
        if row["state_kind"] == "launched" and row["communicator"] is not None:
            by_name[row["communicator"]][row["operation"]].setdefault(row["launched"], row)
    counts = {name: [rows for rows in operations.values() if len(rows) > 1] for name, operations in by_name.items()}
    return {
        name: [row for rows in differing for row in rows.values()] for name, differing in counts.items() if differing
    }


def _launched_more(reports: Reports, name: str) -> bool:
    latest = reports.tallies[-1][name]
    first = next(tallies[name] for tallies in reports.tallies if name in tallies)
    return any(latest.total_of_rank(rank) > first.total_of_rank(rank) for rank in latest.counts if rank in first.counts)


def add_ras_evidence(job: Job, diagnosis: Explanation) -> Explanation:
    """Return the logs' diagnosis, replaced, supported or weakened by the RAS reports."""
    if not job.snapshots and not job.states:
        return diagnosis
    ras_diagnosis = diagnose_reports(job)
    if ras_diagnosis is None:
        return _weigh_agreement(job, diagnosis)
    is_undecided = diagnosis.verdict == Kind.UNDECIDABLE or (
        diagnosis.verdict == Kind.NO_HANG and not (job.memberships or job.processes)
    )
    has_no_culprit = ras_diagnosis.verdict == Kind.RANK_DIED and not diagnosis.culprits and not job.is_finished
    if is_undecided or has_no_culprit:
        return ras_diagnosis
    if diagnosis.verdict == Kind.NO_HANG:
        return diagnosis  # the logs show that the calls were made
    ras_culprits = set(ras_diagnosis.culprits)
    if _explains_absence(diagnosis, ras_diagnosis):
        ras_diagnosis.remark(f"{diagnosis.reason}")
        ras_diagnosis.call, ras_diagnosis.key = diagnosis.call, diagnosis.key
        ras_diagnosis.evidence_lines += diagnosis.evidence_lines
        return ras_diagnosis
    if ras_culprits and ras_culprits <= set(diagnosis.culprits):
        # One report is as little proof as the end of a log: the ranks of a running job differ, too.
        is_proof = ras_diagnosis.certainty is not Certainty.POSSIBLE and ras_culprits == set(diagnosis.culprits)
        if diagnosis.certainty is Certainty.POSSIBLE and is_proof:
            diagnosis.confirm()
        diagnosis.evidence_lines += [{**cited, "what": "context"} for cited in ras_diagnosis.evidence_lines[:2]]
    elif (
        diagnosis.verdict not in OF_ABSENCE
        and ras_diagnosis.certainty is Certainty.LIKELY
        and ras_culprits
        and diagnosis.culprits
        and not ras_culprits & set(diagnosis.culprits)
        and not (_differs_in_order(diagnosis) and ras_culprits <= set(diagnosis.victims))
    ):
        numbers = ranks_text(job.rank_numbers(ras_culprits)) or "another rank"
        diagnosis.doubt(Doubt.SOURCES_CONTRADICT if diagnosis.verdict in FROM_ENDS else Doubt.SOURCES_DISAGREE)
        diagnosis.remark(f"but RAS names {numbers}, which {ras_diagnosis.reason}")
        diagnosis.evidence_lines += [{**cited, "what": "context"} for cited in ras_diagnosis.evidence_lines[:2]]
    return diagnosis


def _differs_in_order(diagnosis: Explanation) -> bool:
    return diagnosis.verdict == Kind.DEADLOCK or diagnosis.how in OF_ORDER


def _explains_absence(diagnosis: Explanation, ras_diagnosis: Explanation) -> bool:
    """Whether the ranks that the others wait for are those whose process no longer answers RAS."""
    is_dead = ras_diagnosis.verdict == Kind.RANK_DIED and ras_diagnosis.certainty is not Certainty.POSSIBLE
    same = ras_diagnosis.culprits and ras_diagnosis.culprits == diagnosis.culprits
    return bool(is_dead and same and diagnosis.verdict == Kind.LAGGING)


def _weigh_agreement(job: Job, diagnosis: Explanation) -> Explanation:
    """Lower a verdict on ranks that lack a call if the last table of RAS shows all communicators without a mismatch."""
    latest = job.snapshots[-1] if job.snapshots else None
    if diagnosis.verdict == Kind.LAGGING and latest and latest["is_fine"]:
        diagnosis.doubt(
            Doubt.NO_MISMATCH_IN_RAS,
            "the RAS report shows no mismatch: when it was taken, all ranks had launched as many calls; that was"
            " before, or the last lines of a log are lost",
        )
        diagnosis.add_evidence("context", [{**latest, "rank_id": None}])
    return diagnosis
