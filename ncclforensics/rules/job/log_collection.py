"""What the way in which lines were collected does to them."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.data.variables import COLLECT_CALLS, NOTHING_SAID
from ncclforensics.frames.columns import OWNER
from ncclforensics.rules.finding import Category, Finding, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.grouping import shown


@rule(Category.INCOMPLETE_EVIDENCE, Severity.INFO, of=("speaker",), hang=True)
def read_launcher_decoration(speaker: pl.DataFrame) -> Iterator[Finding]:
    """Ray left out lines that are alike but for their numbers: lines of other ranks.

    Means: of such lines only one is printed, with how often it came; which ranks had printed the others is lost. That a
    rank has no line here proves nothing.
    Not when: each rank wrote a file of its own (NCCL_DEBUG_FILE), for that Ray does not touch.
    Do: set RAY_DEDUP_LOGS=0, or NCCL_DEBUG_FILE=/path/%h.%p.log, and run again.
    Sources: Ray documentation, configure logging; nccl#719.
    """
    dropped = speaker.filter(pl.col("dropped") > 0)
    if dropped.height:
        yield Finding(
            title=f"Ray left out {dropped['dropped'].sum()} lines of other ranks",
            detail="lines that are alike but for their numbers are printed once",
            certainty="certain",
            role=Role.CONTEXT,
            evidence=shown(dropped.with_columns(line="dropped_line")),
        )


@rule(Category.INCOMPLETE_EVIDENCE, Severity.INFO, of=("journal_init",), hang=True)
def read_journal_alone(journal_init: pl.DataFrame, speaker: pl.DataFrame) -> Iterator[Finding]:
    """Ranks of a capture left a journal of their calls, and NCCL printed nothing for them.

    Means: who called what, and who ended, is told by the journal alone. Over gloo there is no NCCL: GPUs, links and
    network were not tried, and the figures say nothing of them.
    Not when: NCCL's log of every rank lies beside its journal.
    Do: on a machine with GPUs capture with --backend nccl; with it, give hang and check the whole folder.
    Sources: docs/capture.md.
    """
    alone = journal_init.join(speaker.select(OWNER).unique(), on=OWNER, how="anti", maintain_order="left")
    births = alone.filter(pl.col("phase") == "START")
    if births.is_empty():
        return
    backend = str(births["backend"][0])
    over_nccl = (
        "NCCL's own logs are not here" if backend == "nccl" else f"the ranks talked over {backend}, without NCCL"
    )
    yield Finding(
        title="no line of NCCL's: the journal of a capture carries the verdict",
        detail=over_nccl,
        certainty="certain",
        role=Role.CONTEXT,
        evidence=shown(births)[:1],
    )


@rule(Category.INCOMPLETE_EVIDENCE, Severity.INFO)
def read_nothing_of_nccl(
    source: pl.DataFrame,
    process: pl.DataFrame,
    call_error: pl.DataFrame,
    failure: pl.DataFrame,
    work: pl.DataFrame,
    verdict: pl.DataFrame,
) -> Iterator[Finding]:
    """The files hold no line of NCCL's, and at most PyTorch or the application tells of an error.

    Means: nothing was examined, and that nothing was found says nothing: NCCL was silent, wrote elsewhere, or these are
    other files. Where the application reports an error of NCCL's, its first warning is what is lacking; where PyTorch's
    watchdogs timed out, what NCCL said of networks and connections before.
    Not when: a report of RAS, a launcher or the Inspector tells of the job; PyTorch's counters name the rank.
    Do: set NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,COLL NCCL_DEBUG_FILE=/path/%h.%p.log on every rank and run again.
    Sources: NCCL user guide, troubleshooting/logging.
    """
    timed_out = work.filter(pl.col("sequence").is_not_null())
    is_silent = process.is_empty() and failure.is_empty()
    cited = call_error
    if is_silent and not call_error.is_empty():
        title = "the application reports an error of NCCL's, and NCCL's own lines are not here"
        detail = "the first warning that NCCL prints on each rank says what failed"
    elif is_silent and not timed_out.is_empty() and not (verdict["culprits"].list.len() > 0).any():
        title = "PyTorch's watchdogs tell of a time-out, and NCCL's own lines are not here"
        detail, cited = "networks, connections and warnings stand in these alone", timed_out
    elif source["recognised"].sum() == 0:
        title, detail = NOTHING_SAID, "nothing was examined, so that nothing was found says nothing"
    else:
        return
    yield Finding(
        title, detail, "certain", role=Role.CONTEXT, evidence=shown(cited.select("source", "line"))[:2],
        remedy="Set " + COLLECT_CALLS[0],
    )  # fmt: skip
