"""Classify failure lines as causes or consequences.

Order of causes (knowledge: cascade-order): a refusal or a hard fault of this rank; a network error other than a flush;
a lost peer; the consequences of an abort. An event is a cause only if there is none of a stronger class.
"""

from __future__ import annotations

import polars as pl

from ncclforensics.data.verbs import DOWN
from ncclforensics.frames.columns import OWNER, begins_with, text_of
from ncclforensics.frames.registry import analysis
from ncclforensics.grammar.grammar_file import load

# Classes of failure lines. Each alternative of `failure` in warning.lark names its class in a comment beside it.
REFUSED = "refused"  # NCCL refused to continue init
HARD = "hard"  # this rank's GPU, memory, driver or device failed
NETWORK = "network"  # a transfer failed; either end or the link may be at fault
LOST = "lost"  # the connection to another process was lost
AFTER = "after"  # always a consequence of another failure
CONTEXT = "context"  # neither: retries, warnings that NCCL continues after, and lines that no verdict rests on
CLASSES = (REFUSED, HARD, NETWORK, LOST, AFTER, CONTEXT)
FLUSHED = 5  # IBV_WC_WR_FLUSH_ERR: the queue pair had failed before
SHUTTING_DOWN = "driver shutting down"  # the process was already exiting

FAILURE_EVENT = {
    "job": pl.Int32(),
    "rank_id": pl.Int32(),  # null where one process drives several ranks
    "host": pl.Categorical(),
    "pid": pl.Int32(),
    "form": pl.Categorical(),
    "kind": pl.String(),  # one of the classes above
    "named_rank_id": pl.Int32(),  # id of the rank that the line names, if any
    "rank": pl.Int32(),
    "other": pl.Int64(),
    "nranks": pl.Int32(),
    "nroots": pl.Int64(),
    "otherroots": pl.Int64(),
    "status": pl.Int64(),
    "peer": pl.Categorical(),
    "error": pl.String(),
    "busid": pl.Int64(),
    "unwound": pl.Categorical(),  # place of a caller that returned an error
    "at_exit": pl.Boolean(),  # after this process began to destroy or abort its communicators
    "source": pl.Int32(),
    "line": pl.Int32(),
    "pos": pl.Int64(),
}


@analysis(FAILURE_EVENT, of=("failure", "libfabric_error", "journal_failure"))
def failure_event(
    failure: pl.DataFrame,
    libfabric_error: pl.DataFrame,
    journal_failure: pl.DataFrame,
    completion_error: pl.DataFrame,
    rank: pl.DataFrame,
    member: pl.DataFrame,
) -> pl.DataFrame:
    """Every failure line that has a class, with the rank that printed it and the rank that it names."""
    owners = rank.group_by(OWNER).agg(
        pl.col("job").first(), rank_id=pl.when(pl.len() == 1).then(pl.col("rank_id").first())
    )
    exit_times = member.group_by(OWNER).agg(exit_pos=pl.col("end_pos").min())
    classes = load("warning").form_classes("failure")
    own_failures = failure.with_columns(kind=text_of("form").replace_strict(classes, return_dtype=pl.String))
    ranks_by_localrank = (
        rank.sort("rank")
        .with_columns(localrank=pl.int_range(pl.len(), dtype=pl.Int32).over("job", "host"))
        .select("job", "host", "localrank", named_rank_id="rank_id")
    )
    requests = libfabric_error.filter(pl.col("form").is_in(["request", "remote_write"]))
    of_plugin = requests.select(
        *OWNER,
        "error",
        "source",
        "line",
        "pos",
        form=pl.lit("libfabric_request").cast(pl.Categorical()),
        kind=pl.lit(NETWORK),
    )
    of_journal = journal_failure.select(
        *OWNER,
        "source",
        "line",
        "pos",
        error="message",
        form=pl.lit("journal").cast(pl.Categorical()),
        kind=pl.lit(NETWORK),
    )
    is_harmless = (pl.col("form") == "ib_event") & begins_with("error", DOWN).not_()
    survived = completion_error.filter("is_survived").select("source", "line")
    ended = member.group_by("job").agg(is_completed=(pl.col("end") == "Destroy").fill_null(False).all())
    return (
        pl.concat([own_failures, of_plugin, of_journal], how="diagonal_relaxed")
        .filter((pl.col("kind") != CONTEXT) & is_harmless.fill_null(False).not_())
        .join(survived, on=["source", "line"], how="anti")
        .with_columns(kind=pl.when(pl.col("status") == FLUSHED).then(pl.lit(AFTER)).otherwise("kind"))
        .filter(pl.col("error").fill_null("").str.contains(SHUTTING_DOWN, literal=True).not_())
        .join(owners, on=OWNER, how="inner")
        .join(ended, on="job", how="left")
        .filter(
            ((pl.col("kind") == NETWORK) & pl.col("is_completed")).fill_null(False).not_()
        )  # the run completed in spite of it
        .join(exit_times, on=OWNER, how="left")
        .join(ranks_by_localrank, on=["job", "host", "localrank"], how="left")
        .with_columns(at_exit=(pl.col("pos") > pl.col("exit_pos")).fill_null(False))
        .sort("pos")
    )
