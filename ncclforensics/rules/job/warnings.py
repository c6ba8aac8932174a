"""Warnings that no other rule explains, errors that NCCL returned without one, and errors returned from init."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import polars as pl

from ncclforensics.analyses.job.ends.failure_events import without_aborted, without_collnet_setup, without_survived
from ncclforensics.analyses.job.ends.warnings import OFTEN_HARMLESS, UNSHAPED
from ncclforensics.data.names import count_of
from ncclforensics.data.nccl_sources import (
    INTERNAL,
    INVALID_ARGUMENT,
    INVALID_USAGE,
    OTHER,
    REMOTE,
    is_of_abort,
    is_top_file,
    result_text,
    set_up_at,
    topic,
)
from ncclforensics.frames.columns import OWNER, text_of
from ncclforensics.frames.step_order import without_steps_behind
from ncclforensics.grammar.meanings import Kind
from ncclforensics.rules.finding import QUOTED_WARNING, Category, Finding, Line, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.grouping import first_value, group_finding

ADVICE = ("system_advice", "setting_refused", "setting_status")  # on variables and on how the host is set up
P2P_FILE = "transport/p2p.cc"
RAS_FILES = "ras/"  # bootstrapInit and the RAS thread go on in spite of any error there
# A shape names the sentence, and its grammar says what it means; all facts mean is that NCCL works.
IS_EXPLAINED = pl.col("frame").is_in(UNSHAPED).not_() & pl.col("meaning").is_not_null()
SHOWN_STEPS = 4  # of a chain of returned errors
OF_RESULTS = {
    1: Category.CUDA_ERROR,
    INVALID_ARGUMENT: Category.APPLICATION_ERROR,
    INVALID_USAGE: Category.APPLICATION_ERROR,
    REMOTE: Category.PEER_LOST,
}


@rule(Category.INIT_FAILURE, Severity.WARNING, of=("nccl_warning",), hang=True, fallback=True)
def warn_unexplained(
    nccl_warning: pl.DataFrame,
    returned_error: pl.DataFrame,
    rank: pl.DataFrame,
    communicator_progress: pl.DataFrame,
    training_step: pl.DataFrame,
) -> Iterator[Finding]:
    """NCCL printed a warning that no other rule explains.

    Means: NCCL met a condition that it reports itself. Where a chain of returned errors (`file:line -> code`) follows,
    the warning is the cause of the error that the application got. The category is that of the source file.
    Not when: the process went on: it completed init or made calls afterwards, or steps of the training stand behind it
    in its file; then the warning is only noted.
    Do: search for the sentence in NCCL's issues and release notes; print the lines before it with NCCL_DEBUG=INFO.
    Sources: nccl: src/debug.cc (ncclDebugLog), src/include/checks.h; NCCL user guide, troubleshooting.
    """
    unexplained = nccl_warning.filter(~IS_EXPLAINED)
    not_survived = {*without_steps_behind(unexplained, training_step).select("source", "line").iter_rows()}
    for finding in _by_place(unexplained, returned_error, rank, communicator_progress):
        if finding.role != Role.CAUSE and not_survived.isdisjoint((at.source, at.line) for at in finding.about):
            finding.severity = Severity.INFO
            finding.detail += "; the training made steps behind it"
        yield finding


@rule(Category.INIT_FAILURE, Severity.WARNING, of=("nccl_warning",), hang=True, fallback=True)
def warn_explained(
    nccl_warning: pl.DataFrame,
    returned_error: pl.DataFrame,
    rank: pl.DataFrame,
    communicator_progress: pl.DataFrame,
) -> Iterator[Finding]:
    """NCCL printed a warning whose meaning is known, and that no rule of its own judges.

    Means: NCCL printed the sentence of the title, and the detail says what it states. Where a chain of returned errors
    (`file:line -> code`) follows, the warning is the cause of the error that the application got.
    Not when: the process went on: it completed init or made calls afterwards; then the warning is only noted.
    Do: look at the lines before it, and at the first warning of the other ranks.
    Sources: the marks in grammars/, from the sources of NCCL; nccl: src/debug.cc (ncclDebugLog), src/include/checks.h.
    """
    yield from _by_place(nccl_warning.filter(IS_EXPLAINED), returned_error, rank, communicator_progress)


def _by_place(
    nccl_warning: pl.DataFrame, returned_error: pl.DataFrame, rank: pl.DataFrame, communicator_progress: pl.DataFrame
) -> Iterator[Finding]:
    """Return a finding for each place in the sources, or text, that warned."""
    has_chain = pl.col("chain").list.len() > 0
    by_place = nccl_warning.with_columns(key=pl.coalesce("site", "text"), has_chain=has_chain).sort("pos")
    alike = ["frame", "form", "key", "went_on", "has_chain", "is_returned"]
    for _, rows in by_place.group_by(alike, maintain_order=True):
        yield _warning_finding(rows, returned_error, rank, communicator_progress)


def _warning_finding(
    rows: pl.DataFrame, returned_error: pl.DataFrame, rank: pl.DataFrame, communicator_progress: pl.DataFrame
) -> Finding:
    row = rows.row(0, named=True)
    has_chain = bool(row["has_chain"])
    is_shaped = row["frame"] not in UNSHAPED
    has_remedy = bool(row["remedy"])  # without one in its grammar, another rule weighs such lines
    is_failure = row["kind"] == Kind.FAILURE and has_remedy and row["frame"] not in OFTEN_HARMLESS
    is_of_ras = str(row["site"] or "").startswith(RAS_FILES)
    is_harmless = row["went_on"] or row["is_attention"] or is_of_ras or not (is_failure or has_chain)
    sentence = QUOTED_WARNING if is_shaped else str(row["text"] or "")
    parts = [*filter(None, [row["meaning"] if is_shaped else None]), _extent(rows, row)]
    if has_chain:
        parts.append(f"NCCL then returned {result_text(row['result'])} from {_chain_text(row['chain'], row['result'])}")
    is_behind = (pl.col("source") == row["source"]) & (pl.col("pos") > row["pos"])
    got = returned_error.filter(is_behind).drop_nulls("result").sort("pos").head(0 if is_harmless or has_chain else 1)
    parts += [f"the program then got an error of NCCL: {result}" for result in got["result"]]
    is_late = is_shaped and row["at_end"] and got.is_empty()
    if row["went_on"]:
        parts.append("the process went on: it completed init or made calls afterwards")
    elif is_late:
        parts.append("the process was ending")
    elif is_of_ras:
        parts.append("NCCL goes on without this report of its ranks (RAS)")
    is_cause = row["is_returned"] and not row["went_on"] and not row["is_consequence"]
    more: dict[str, Any] = {"role": Role.CAUSE if is_cause else Role.CONTEXT}
    if row["is_consequence"]:
        more["role"] = Role.CONSEQUENCE
    if is_harmless or is_late:
        more["severity"] = Severity.INFO
    elif is_cause:
        more["severity"] = Severity.ERROR
    certainty = "likely" if is_cause else "possible"
    finding = group_finding(rows, rank, f"NCCL WARN on {{processes}}: {sentence}", "; ".join(parts), certainty, **more)
    category = Category(row["category"] if is_shaped and has_remedy else topic(row["site"], row["text"]))
    if row["frame"] in ADVICE:
        category = Category.ENVIRONMENT
    elif row["frame"] == "plugin_warning" and row["site"]:
        category = Category.NET_PLUGIN
    if category == Category.BOOTSTRAP and row["result"] == INTERNAL:
        category = Category(OTHER)  # a check inside NCCL failed, not a connection
    if category == OTHER and rows.join(communicator_progress, on=OWNER, how="semi").height:
        category = OF_RESULTS.get(row["result"], category)
    finding.category = category
    finding.evidence += [Line(source, line) for source, line in got.select("source", "line").iter_rows()]
    finding.remedy = str(row["remedy"] or "")
    finding.about = [Line(source, line) for source, line in rows.select("source", "line").iter_rows()]
    return finding


def _extent(rows: pl.DataFrame, row: dict[str, Any]) -> str:
    """Describe where the warning comes from, how often it stands in the logs, and when."""
    last = rows.row(-1, named=True)
    where = f"from {row['site']}" if row["site"] else "without its place in the sources"
    text = f"{where}, {count_of(rows.height, 'line')} of {count_of(rows.select(OWNER).n_unique(), 'process')}"
    if row["moment"] and rows.height > 1 and row["moment"] != last["moment"]:
        return f"{text}, from {row['moment']} to {last['moment']}"
    return f"{text}, at {row['moment']}" if row["moment"] else text


def _chain_text(chain: list[str], result: int | None) -> str:
    """Name the places that returned an error one after the other, with codes other than the last one."""
    places = list(dict.fromkeys(step.removesuffix(f" -> {result}") for step in chain))
    more = f" and {len(places) - SHOWN_STEPS} more" if len(places) > SHOWN_STEPS else ""
    return ", ".join(places[:SHOWN_STEPS]) + more


@rule(Category.INIT_FAILURE, Severity.WARNING, of=("failure",), hang=True, fallback=True)
def error_returned_without_warning(
    failure: pl.DataFrame,
    nccl_warning: pl.DataFrame,
    communicator_progress: pl.DataFrame,
    call_error: pl.DataFrame,
    test_failure: pl.DataFrame,
    collnet: pl.DataFrame,
    milestone: pl.DataFrame,
    communicator: pl.DataFrame,
    connection: pl.DataFrame,
    rank: pl.DataFrame,
) -> Iterator[Finding]:
    """NCCL returned an error through its callers, and no warning stands before it.

    Means: the lines `file:line -> code` name the callers, the deepest first; the first of them is nearest to the cause.
    Sockets return 3 without a warning where the communicator is being aborted, by a watchdog or by the program.
    Not when: the process went on afterwards, or its thread with init: NCCL tries optional features whose failure it
    ignores; its communicator was being aborted (`abort called`).
    Do: look at the lines before these, and at the other ranks, for the first warning; without one run again with
    NCCL_DEBUG=INFO on all ranks.
    Sources: nccl: src/include/checks.h (NCCLCHECK).
    """
    ends = communicator_progress.group_by(OWNER).agg(pl.col("last_pos").max(), pl.col("end_pos").min())
    returned = (
        without_survived(without_aborted(without_collnet_setup(failure, collnet)), milestone, communicator, connection)
        .filter(form="unwinding")
        .join(nccl_warning.select(OWNER).unique(), on=OWNER, how="anti", nulls_equal=True)
        .join(ends, on=OWNER, how="left", nulls_equal=True)
        .filter((pl.col("pos") < pl.col("last_pos")).fill_null(False).not_())
        .filter((pl.col("pos") > pl.col("end_pos")).fill_null(False).not_())
        .sort("pos")
    )
    by_process = returned.group_by(OWNER, maintain_order=True).agg(
        pl.col("source", "line"),
        steps=pl.format("{} -> {}", text_of("unwound"), pl.col("result").cast(pl.String).fill_null("?")),
        result=pl.col("result").last(),
        is_returned=pl.col("unwound").cast(pl.String).map_elements(is_top_file, return_dtype=pl.Boolean).any(),
    )
    for (result, is_returned), rows in by_process.group_by("result", "is_returned", maintain_order=True):
        callers = _chain_text(max(rows["steps"].to_list(), key=len), result)  # that of most callers begins deepest
        began = set_up_at(max(rows["steps"].to_list(), key=len)[0])
        began = f"it began where NCCL sets up {began}, and " if began else "it "
        detail = f"{began}came through {callers}; no warning before these lines was read"
        title = f"NCCL returned an error on {{processes}}: {result_text(result)}"
        is_aborted = all(is_of_abort(steps[0]) for steps in rows["steps"])
        if is_aborted:
            title = "NCCL gave up its connections on {processes}, as where a communicator is aborted"
            detail = f"its sockets returned {result_text(result)} and warned of nothing; {detail}"
        lines = rows.select(*OWNER, "source", "line").explode("source", "line")
        firsts = lines.unique(OWNER, keep="first", maintain_order=True)
        finding = group_finding(firsts, rank, title, detail, "possible", role=Role.CONSEQUENCE)
        finding.category = OF_RESULTS.get(result, Category.INIT_FAILURE)
        if first_value(rows["steps"])[0].startswith(P2P_FILE):
            finding.category = Category.P2P
        if is_aborted:
            finding.remedy = (
                "read what these processes printed before, and when a watchdog timed out or an exception was raised"
            )
        is_reported = (
            is_aborted or is_returned or call_error.height or test_failure.height
        )  # else a deeper caller may ignore it
        finding.severity = Severity.WARNING if is_reported else Severity.INFO
        finding.about = [Line(source, line) for source, line in lines.select("source", "line").iter_rows()]
        yield finding
