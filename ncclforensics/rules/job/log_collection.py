"""Log lines that are missing because of how they were collected."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.analyses.job.text.program_failures import STATED, stated_mildly
from ncclforensics.data.names import count_of, some_of
from ncclforensics.data.variables import COLLECT_CALLS, NO_LINES, NO_NCCL_LINES
from ncclforensics.frames.columns import OWNER, text_of
from ncclforensics.rules.finding import Category, Finding, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.grouping import error_finding, evidence_lines

# Results of NCCL that alone show nothing.
UNCLEAR_RESULTS = ["unhandled system error", "internal error"]
MOST_CITED = 2
WITHOUT_ADVICE = [
    "operation",
    "call",
    "raft",
    "example",
    "tensorflow",
    "program",
]  # forms that have none in the grammar
# Where the result alone says nothing.
FIRST_WARNING = (
    "read the first warning that NCCL printed on each rank; where there is none, run again with NCCL_DEBUG=WARN"
)
MOST_UNKNOWN = 4  # files of which the first line is cited
IS_UNKNOWN = pl.col("is_whole") & (pl.col("recognised") == 0) & (pl.col("lines") > 0) & (pl.col("problem") == "")


@rule(Category.INCOMPLETE_EVIDENCE, Severity.INFO, of=("speaker",), hang=True, role=Role.CONTEXT)
def read_launcher_decoration(speaker: pl.DataFrame) -> Iterator[Finding]:
    """Ray omitted lines of other ranks that differ only in numbers.

    Means: of such lines only one is printed, with a count; which ranks printed the others is lost. A line missing for a
    rank proves nothing.
    Not when: each rank wrote its own file (NCCL_DEBUG_FILE), which Ray does not change.
    Do: set RAY_DEDUP_LOGS=0, or NCCL_DEBUG_FILE=/path/%h.%p.log, and run again.
    Sources: Ray documentation, configure logging; nccl#719.
    """
    dropped = speaker.filter(pl.col("dropped") > 0)
    if dropped.height:
        title = f"Ray omitted {dropped['dropped'].sum()} lines of other ranks"
        detail = "lines that differ only in numbers are printed once"
        yield Finding(title, detail, "certain", evidence=evidence_lines(dropped.with_columns(line="dropped_line")))


@rule(Category.INCOMPLETE_EVIDENCE, Severity.INFO, of=("journal_init",), hang=True, role=Role.CONTEXT)
def read_journal_alone(journal_init: pl.DataFrame, speaker: pl.DataFrame) -> Iterator[Finding]:
    """Ranks of a capture wrote a journal of their calls, and there are no NCCL lines for them.

    Means: calls and ended processes are known from the journal only. The backend gloo does not use NCCL: GPUs, links
    and network were not tested, and the measurements do not describe them.
    Not when: NCCL's log of every rank is in the folder with its journal.
    Do: capture with --backend nccl on a machine with GPUs; then give the whole folder to hang and check.
    Sources: docs/capture.md.
    """
    journal_only = journal_init.join(speaker.select(OWNER).unique(), on=OWNER, how="anti", maintain_order="left")
    created = journal_only.filter(pl.col("phase") == "START")
    if created.is_empty():
        return
    backend = str(created["backend"][0])
    detail = "there are no NCCL logs" if backend == "nccl" else f"the ranks communicated over {backend}, without NCCL"
    title = "no NCCL lines: the verdict rests on the journal of a capture"
    yield Finding(title, detail, "certain", evidence=evidence_lines(created)[:1])


@rule(Category.INCOMPLETE_EVIDENCE, Severity.INFO, hang=True)
def read_nothing_of_nccl(
    source: pl.DataFrame,
    process: pl.DataFrame,
    returned_error: pl.DataFrame,
    failure: pl.DataFrame,
    work: pl.DataFrame,
    verdict: pl.DataFrame,
    rank: pl.DataFrame,
) -> Iterator[Finding]:
    """The files contain no NCCL lines, and at most an error of PyTorch or the application.

    Means: this says nothing about the run: NCCL printed nothing, wrote elsewhere, or these are other files. If the
    application reports an NCCL error, NCCL's first warning is missing; if PyTorch's watchdogs timed out, NCCL's earlier
    lines on networks and connections are missing.
    Not when: a report of RAS, a launcher or the Inspector describes the job; PyTorch's counters show the rank.
    Do: set NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,COLL NCCL_DEBUG_FILE=/path/%h.%p.log on every rank and run again.
    Sources: NCCL user guide, troubleshooting/logging.
    """
    timed_out = work.filter(pl.col("sequence").is_not_null())
    has_no_nccl_lines = process.is_empty() and failure.is_empty()
    cited, severity, role, remedy = returned_error, Severity.INFO, Role.CONTEXT, COLLECT_CALLS[0]
    if has_no_nccl_lines and not returned_error.is_empty():
        title = "the application reports an NCCL error, and these logs have no NCCL lines"
        detail = "the first warning that NCCL prints on each rank shows what failed"
        unclear = returned_error.filter(pl.col("result").str.contains_any(UNCLEAR_RESULTS) & pl.col("call").is_null())
        stated = returned_error.filter(pl.col("form").is_in(WITHOUT_ADVICE)) if unclear.is_empty() else unclear
        if not stated.is_empty():
            call = stated["call"][0] or "NCCL"
            finding = error_finding(
                stated, rank,
                f"{{processes}}: {call} returned an error, and these logs have no NCCL lines: {stated['result'][0]}",
                f"{detail}{_raised_in(stated)}", "certain",
            )  # fmt: skip
            finding.severity, finding.role, finding.remedy = severity, role, remedy
            if not unclear.is_empty():
                finding.severity, finding.role, finding.remedy = Severity.WARNING, Role.CONSEQUENCE, FIRST_WARNING
            yield finding
            return
    elif has_no_nccl_lines and not timed_out.is_empty() and not (verdict["culprits"].list.len() > 0).any():
        title = "PyTorch's watchdogs timed out, and these logs have no NCCL lines"
        detail, cited = "only NCCL's lines show networks, connections and warnings", timed_out
    elif source["recognised"].sum() == 0 and source.filter(IS_UNKNOWN).is_empty():
        title, detail = NO_NCCL_LINES if source["lines"].sum() else NO_LINES, "this says nothing about the run"
        cited = source.filter(pl.col("lines") > 0).with_columns(line=1)  # how each begins
    else:
        return
    yield Finding(
        title, detail, "certain", severity=severity, role=role,
        evidence=evidence_lines(cited.select("source", "line"))[:MOST_CITED], remedy=remedy,
    )  # fmt: skip


@rule(Category.INCOMPLETE_EVIDENCE, Severity.INFO, of=("source",), hang=True, role=Role.CONTEXT)
def read_unknown_formats(
    source: pl.DataFrame, kernel_line: pl.DataFrame, unread_error: pl.DataFrame
) -> Iterator[Finding]:
    """Files hold no line of a known format.

    Means: nothing in these files took part in the answer. The cited lines are their first ones: they show which files
    these are, such as the output of the training program, or of a tool that no grammar knows. Where no line has a word
    of a failure either, the title says so: the program printed none that is known.
    Not when: every file holds a line of a known format, or is the kernel's log; a file was read in part.
    Do: see that these are the files you meant; for the output of a tool add a line shape, or report it as missing.
    Sources: docs/adding-a-shape.md, docs/own-rules.md.
    """
    unknown = source.filter(IS_UNKNOWN).join(kernel_line.select("source"), on="source", how="anti")
    if unknown.height:
        of_all = f" of {source.height}" if source.height > unknown.height else ""
        stated = unread_error.filter(text_of("form").is_in(STATED)).select("source")
        worded = pl.concat([stated, stated_mildly(unread_error).select("source")])
        without_words = ", and without a word of a failure" * unknown.join(worded, on="source", how="semi").is_empty()
        yield Finding(
            f"format not known: {count_of(unknown.height, 'file')}{of_all} without a known line{without_words}",
            "each begins with the line that is cited",
            "certain",
            evidence=evidence_lines(unknown.select("source", line=1))[:MOST_UNKNOWN],
        )


def _raised_in(errors: pl.DataFrame) -> str:
    """Say which calls of the program raised these errors, by their tracebacks."""
    places = errors["place"].drop_nulls().unique(maintain_order=True).to_list()
    return f"; raised in {some_of(places, MOST_CITED)}" if places else ""
