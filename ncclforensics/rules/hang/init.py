"""Communicators that were not created."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.analyses.job.ends.failure_events import LOST, OF_ENDED_PEERS, REMOTE_ERROR
from ncclforensics.analyses.verdict.vocabulary import Detail
from ncclforensics.data.names import ranks_text, some_of
from ncclforensics.data.nccl_sources import is_top_file, set_up_at
from ncclforensics.frames.columns import OWNER, printed_hosts
from ncclforensics.rules.finding import Category, Finding, Line, Role, Severity, places_of
from ncclforensics.rules.registry import RETURNED, rule
from ncclforensics.rules.shared.verdict_finding import answers_on, verdict_finding

AFTER_FAULT = (
    "Read the first warning of each of these ranks, and search for its sentence in NCCL's issues; where none is "
    "printed, run again with NCCL_DEBUG=WARN on all ranks."
)
# NCCL chooses a transport of P2P, SHM and NET between every two ranks (src/transport.cc, selectTransport).
WITHOUT_TRANSPORT = (
    "unset NCCL_P2P_DISABLE, NCCL_SHM_DISABLE, NCCL_NET_DISABLE_INTRA, NCCL_TOPO_FILE and NCCL_ALGO, and run again: "
    "together they may leave no way between two ranks; a changed build of NCCL may not know one"
)
AT_PEERS = (
    "Read the output of the processes at {peers} from before that time; dmesg -T and the exit codes there; where they "
    "report nothing, look at the network between."
)
REFUSED_AT = {Detail.UNCONNECTED_LATE: "init completed, and the first call of NCCL failed: "}
ECHO = "after"  # the class of a line that follows from another failure, in warning.lark
CALLS = ("init.cc", "group.cc")  # of NCCL's own API, above the place of an error
MOST_WARNINGS = 4  # that one finding cites
MOST_PEERS = 3  # that one finding names
UNEXPLAINED = {True: "a failure before it may be the reason", False: "no warning of these ranks before it was read"}


@rule(Category.INIT_FAILURE, Severity.ERROR, of=("verdict",), hang=True, verdict="init-failed")
def boot_init_refused(
    job_diagnosis: pl.DataFrame,
    rank: pl.DataFrame,
    failure_event: pl.DataFrame,
    nccl_warning: pl.DataFrame,
) -> Iterator[Finding]:
    """NCCL refused to create a communicator and states the reason.

    Means: the arguments or the environment of the ranks contradict each other: one rank number used twice, different
    numbers of ranks, different versions of NCCL, one GPU used by two ranks, no usable network interface.
    Not when: the communicator was created later; the warning concerns an unexpected connection from another job.
    Do: correct what the cited warning names; compare RANK, WORLD_SIZE, CUDA_VISIBLE_DEVICES, NCCL versions of ranks.
    Sources: nccl: src/bootstrap.cc, src/init.cc; nccl#418, nccl#1176, nccl#1273.
    """
    for answer in answers_on(job_diagnosis, "init-failed"):
        finding = verdict_finding(answer, rank, REFUSED_AT.get(answer.detail, "init was refused: "))
        finding.title += answer.reason
        if answer.detail in (Detail.UNCONNECTED, Detail.UNCONNECTED_LATE):
            finding.remedy = WITHOUT_TRANSPORT
        if answer.detail in (Detail.FAULT_IN_INIT, Detail.UNNAMED_FAULT):  # the fault has its own finding
            failed = rank.filter(pl.col("rank_id").is_in(answer.culprits or answer.victims))
            failed, others = _with_own_error(failed, failure_event)
            hosts = printed_hosts(failed["host"].cast(pl.String).drop_nulls().unique().sort())
            where = ranks_text(failed["rank"].drop_nulls().sort().to_list()) or ", ".join(hosts) or "a process"
            finding.title = f"init failed on {where}: {answer.fault}"
            warned = _returned_warnings(nccl_warning, failed)
            if others:
                finding.title += f"; {others} then lost the connection to another rank"
            quoted = [] if warned else _quoted_warnings(nccl_warning, finding)
            warned = warned or quoted
            cited = places_of(finding.evidence)
            finding.evidence = [line for line in warned if (line.source, line.line) not in cited] + finding.evidence
            has_reason = bool(warned) or answer.detail != Detail.UNNAMED_FAULT
            has_failures = (
                failure_event.filter(pl.col("form") != "unwinding").join(failed, on="rank_id", how="semi").height
            )
            finding.detail = "the cited warning gives the reason" if has_reason else UNEXPLAINED[has_failures > 0]
            if not has_reason:
                finding.detail += _origin(failure_event, failed)
            if warned and not quoted and _are_echoes(warned, failure_event):
                finding.detail = "the cited warning follows from a failure that was not read"
            if quoted:
                warned_texts = nccl_warning.filter(
                    pl.col("source") == quoted[0].source, pl.col("line") == quoted[0].line
                )["text"]
                finding.detail = (
                    f"NCCL's last warning, which the application quotes, may be the reason: {warned_texts[0]}"
                )
            if answer.certainty == "possible":
                finding.detail += "; or the log ends among the lines about an error that NCCL survived"
            finding.remedy = AFTER_FAULT
            if peers := some_of(_lost_peers(warned, failed, failure_event), MOST_PEERS):
                finding.detail = f"the process at {peers} closed the connection first, or the network to it failed"
                finding.remedy = AT_PEERS.format(peers=peers)
            finding.role = Role.CONSEQUENCE
        if answer.detail is Detail.SAME_GPU:
            finding.category = Category.DUPLICATE_GPU
        yield finding


def _origin(failure_event: pl.DataFrame, failed: pl.DataFrame) -> str:
    """Name the places in NCCL that first handed the error on, one of each file, and the system's word for it."""
    handed = failure_event.filter(pl.col("form") == "unwinding").join(failed, on="rank_id", how="semi").sort("pos")
    places = [place for place in handed["unwound"].cast(pl.String).drop_nulls() if not is_top_file(place, CALLS)]
    of_files = list({place.rpartition(":")[0]: place for place in reversed(places)}.values())[::-1]
    if not of_files:
        return ""
    word = next(iter(handed["calling_thread"].cast(pl.String).head(1).drop_nulls()), "")
    system = f" {word}" if word.startswith("(") else ""
    called = "".join(f", called in {place}" for place in of_files[1:2])
    set_up = next(filter(None, map(set_up_at, of_files)), "")
    return f"; it comes from {of_files[0]}{system}{called}{f', where NCCL sets up {set_up}' if set_up else ''}"


def _with_own_error(failed: pl.DataFrame, failure_event: pl.DataFrame) -> tuple[pl.DataFrame, str]:
    """Return the ranks to which NCCL returned an error of their own, and name the others in words.

    A remote error only tells that another process ended or that the network failed. If all got one, all are returned.
    """
    returned = failure_event.filter(pl.col("form") == "unwinding").join(failed, on="rank_id", how="semi")
    own = failed.join(returned.filter(pl.col("result") != REMOTE_ERROR), on="rank_id", how="semi")
    of_others = failed.join(own, on="rank_id", how="anti")
    if own.is_empty() or of_others.join(returned, on="rank_id", how="anti").height:
        return failed, ""
    hosts = printed_hosts(of_others["host"].cast(pl.String).drop_nulls().unique().sort())
    return own, ranks_text(of_others["rank"].drop_nulls().sort().to_list()) or ", ".join(hosts)


def _returned_warnings(nccl_warning: pl.DataFrame, failed: pl.DataFrame) -> list[Line]:
    """Return the warnings, one of each process, whose error these ranks returned to the application.

    Where the log ends within the chain of callers, these are the warnings that began it.
    """
    of_ranks = nccl_warning.join(failed.select(OWNER), on=OWNER, how="semi", nulls_equal=True)
    returned = of_ranks.filter("is_returned")
    if returned.is_empty():
        returned = of_ranks.filter((pl.col("chain").list.len() > 0) & ~pl.col("went_on"))
    firsts = returned.unique(OWNER, keep="first", maintain_order=True).select("source", "line")
    return [Line(source, line, RETURNED) for source, line in firsts.head(MOST_WARNINGS).iter_rows()]


def _are_echoes(warned: list[Line], failure_event: pl.DataFrame) -> bool:
    """Whether these warnings only say that a call returned an error: what failed was printed elsewhere, if at all."""
    echoes = set(failure_event.filter(kind=ECHO).select("source", "line").iter_rows())
    return all((line.source, line.line) in echoes for line in warned)


def _lost_peers(warned: list[Line], failed: pl.DataFrame, failure_event: pl.DataFrame) -> list[str]:
    """Return the other ends of the connections that these ranks lost, if the cited warnings report nothing else."""
    events = failure_event.join(failed, on="rank_id", how="semi").drop_nulls("peer")
    is_refused = pl.any_horizontal(pl.col("error").str.starts_with(words) for words in OF_ENDED_PEERS)
    lost = events.filter((pl.col("kind") == LOST) | is_refused)
    lines = set(lost.select("source", "line").iter_rows())
    is_other = any((line.source, line.line) not in lines for line in warned)
    if not warned or is_other or not (lost["kind"] == LOST).any():
        return []
    return lost["peer"].cast(pl.String).unique(maintain_order=True).to_list()


def _quoted_warnings(nccl_warning: pl.DataFrame, finding: Finding) -> list[Line]:
    """Return a warning that an application quotes, without its place in NCCL, in the files that a finding cites."""
    sources = {line.source for line in finding.evidence}
    quotes = nccl_warning.filter(pl.col("site").is_null() & pl.col("source").is_in(sources))
    return [Line(source, line, RETURNED) for source, line in quotes.select("source", "line").head(1).iter_rows()]


@rule(Category.MISSING_RANK, Severity.ERROR, of=("verdict",), hang=True, verdict="rank-missing")
def boot_rank_missing(job_diagnosis: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """Ranks that the others wait for in init have no log: they never joined.

    Means: their processes were not started, ended before NCCL's init, or cannot reach the others.
    Not when: their logs were not collected; another rank completed this init, so all ranks joined it.
    Do: check on their hosts whether the processes exist and what they print before NCCL; check the launcher's output.
    Sources: nccl#857, nccl#429, nccl#719.
    """
    for answer in answers_on(job_diagnosis, "rank-missing"):
        has_culprits = bool(answer.culprits or answer.missing)
        title = "{ranks} never joined init" if has_culprits else "ranks never joined init"
        yield verdict_finding(answer, rank, title)


@rule(Category.HANG, Severity.ERROR, of=("verdict",), hang=True, verdict="init-incomplete")
def boot_init_incomplete(job_diagnosis: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """Some ranks began to create a communicator and did not complete it.

    Means: creating a communicator is a collective call; a rank has not made it, or the network set-up does not
    complete.
    Not when: the log was copied while init was still running.
    Do: take the stack of the ranks that did not begin it; if all began it, check interface, firewall and plugin.
    Sources: nccl#857, nccl#429, nccl#634; NCCL user guide, usage/communicators.
    """
    for answer in answers_on(job_diagnosis, "init-incomplete"):
        culprits = "{ranks} did not join a communicator's init that the others are in"
        yield verdict_finding(
            answer,
            rank,
            culprits if answer.culprits else "init of a communicator does not complete",
        )


@rule(Category.MISSING_RANK, Severity.INFO, of=("verdict",), hang=True)
def read_missing_log_is_evidence(verdict: pl.DataFrame) -> Iterator[Finding]:
    """The logs name ranks that have no log.

    Means: the analysis cannot judge ranks without a log; "all ranks agree" holds only for the ranks in these logs.
    Not when: these ranks never joined init, which is a separate finding.
    Do: collect the missing logs, too.
    Sources: pytorch fr_trace --allow-incomplete-ranks; nccl#719.
    """
    for row in verdict.to_dicts():
        without_log = sorted(set(row["absent"]) - set(row["missing"]))
        if without_log:
            absent = ranks_text(without_log)
            detail = "the largest communicator has more ranks than there are logs"
            yield Finding(f"no log of {absent} was read", detail, "certain", ranks=without_log, role=Role.CONTEXT)
