"""Classify failure lines as causes or consequences.

Order of causes (knowledge: cascade-order): a refusal or a hard fault of this rank; a network error other than a flush;
a lost peer; the consequences of an abort. An event is a cause only if there is none of a stronger class.

What NCCL survived is no failure: a probe of something optional, whose warning NCCL turns into an INFO line, and a line
after which its thread went on with init. What the program survived is none, either: a refusal behind which the process
completed another communicator.
"""

from __future__ import annotations

from typing import NamedTuple

import polars as pl

from ncclforensics.analyses.job.ends.program_ends import add_program_end
from ncclforensics.analyses.job.identity.restarts import since_restart
from ncclforensics.data.nccl_sources import is_top_file
from ncclforensics.data.verbs import DOWN
from ncclforensics.frames.columns import OWNER, Category, Large, begins_with, text_of
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
ABORTING = "aborting"
# Where the program reported success, its processes close their local connections as each one ends, and errors return.
CLOSE = "Close"  # the operation with which a rank closes its connection to a proxy thread
AFTER_SUCCESS = ("local_closed", "local_lost", "proxy_failed", "unwinding", ABORTING)
CONNECTION_FORMS = ("peer_closed", "transfer_failed")  # a connection was closed, or moved no data
# Errors of connecting where another process failed first.
OF_ENDED_PEERS = ("Connection refused", "Software caused connection abort", "Connection reset by peer")
REMOTE_ERROR = 6  # ncclRemoteError: another process exited, or the network failed
FLUSHED = 5  # IBV_WC_WR_FLUSH_ERR: the queue pair had failed before
THREAD = [*OWNER, "tid"]
SHUTTING_DOWN = "driver shutting down"  # the process was already exiting
# Forms of arguments that NCCL checks in calls on a communicator alone (src/misc/argcheck.cc, ArgsCheck).
OF_CALLS = ("root", "type", "operator", "unknown_operator", "device")
RETURNING = 16  # lines of a thread at most from a refused argument to the last caller that returns its error
ACCEPTING = 8  # lines of a thread at most from a closed connection to the accept that fails with it


class FailureEvent(NamedTuple):
    """A line in which a process reports a failure: a row of `failure_event`."""

    job: int
    rank_id: int | None  # null where one process drives several ranks
    host: Category
    pid: int
    form: Category
    kind: str  # one of the classes above
    named_rank_id: int | None  # id of the rank that the line names, if any
    rank: int | None
    other: Large | None
    nranks: int | None
    nroots: Large | None
    otherroots: Large | None
    status: Large | None
    peer: Category | None
    error: str | None
    busid: Large | None
    result: Large | None  # ncclResult_t that a caller returned
    unwound: Category | None  # place of a caller that returned an error
    calling_thread: Category | None  # behind the code of such a caller: its thread, or its call
    is_of_call: bool  # returned because NCCL refused an argument of a call on a communicator
    at_exit: bool  # after this process began to destroy or abort its communicators
    source: int
    line: int
    pos: Large


@analysis(FailureEvent, of=("failure", "libfabric_error", "journal_failure"))
def failure_event(
    failure: pl.DataFrame,
    libfabric_error: pl.DataFrame,
    journal_failure: pl.DataFrame,
    completion_error: pl.DataFrame,
    milestone: pl.DataFrame,
    communicator: pl.DataFrame,
    rank: pl.DataFrame,
    member: pl.DataFrame,
    job_member: pl.DataFrame,
    restart: pl.DataFrame,
    collnet: pl.DataFrame,
    ending: pl.DataFrame,
    not_registered: pl.DataFrame,
    program_end: pl.DataFrame,
    proxy_error: pl.DataFrame,
    argument: pl.DataFrame,
) -> pl.DataFrame:
    """Every failure line that has a class, with the rank that printed it and the rank that it names."""
    ids = pl.col("rank_id")
    owners = (
        job_member.filter(ids.is_not_null())
        .group_by(OWNER)
        .agg(pl.col("job").first(), rank_id=pl.when(ids.n_unique() == 1).then(ids.first()))
    )
    is_last_end = pl.col("end_pos") > pl.col("created_pos").max()  # a communicator created later shows that it went on
    exit_times = member.group_by(OWNER).agg(exit_pos=pl.col("end_pos").filter(is_last_end).min())
    # Where no line shows a communicator of the process, its errors leave NCCL through an end as well as through init.
    unseen_ends = ending.join(member, on=OWNER, how="anti").group_by(OWNER).agg(end_pos=pl.col("pos").min())
    classes = load("warning").form_classes("failure")
    own_failures = since_restart(failure, restart).with_columns(
        kind=text_of("form").replace_strict(classes, return_dtype=pl.String)
    )
    is_probe = (pl.col("kind") == HARD) & _is_info()
    # NCCL continues in spite of an error of RAS (src/bootstrap.cc).
    is_of_ras = begins_with("site", "ras/") | text_of("site").str.contains("/ras/", literal=True)
    own_failures = own_failures.filter((is_probe | is_of_ras).fill_null(False).not_())
    own_failures = without_survived(own_failures, milestone, communicator)
    own_failures = without_aborted(without_strangers(own_failures, proxy_error))
    own_failures = without_registration(without_collnet_setup(own_failures, collnet), not_registered)
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
    is_harmless = (pl.col("form") == "ib_event") & begins_with("error", *DOWN).not_()
    survived = completion_error.filter("is_survived").select("source", "line")
    ended = member.group_by("job").agg(is_completed=(pl.col("end") == "Destroy").fill_null(False).all())
    # A process that still prints has not died: it closed its own connection, to abort or destroy its communicator.
    is_own_end = ((text_of("form") == "local_closed") & (pl.col("named_rank_id") == pl.col("rank_id"))).fill_null(False)
    events = (
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
        .join(_last_completed(member), on=OWNER, how="left")
        .filter(((pl.col("kind") == REFUSED) & (pl.col("completed_pos") > pl.col("pos"))).fill_null(False).not_())
        .join(exit_times, on=OWNER, how="left")
        .join(_named_ranks(own_failures, member), on=["source", "line"], how="left")
        .join(unseen_ends, on=OWNER, how="left")
        .with_columns(end_pos=pl.when(form="unwinding").then("end_pos"))
        .pipe(add_program_end, program_end)
        .with_columns(success_pos=pl.when(text_of("form").is_in(AFTER_SUCCESS)).then("success_pos"))
        .with_columns(exit_pos=pl.coalesce(pl.min_horizontal("exit_pos", "own_end_pos", "success_pos"), "end_pos"))
        .with_columns(at_exit=(pl.col("pos") > pl.col("exit_pos")).fill_null(False) | is_own_end)
        .sort("pos")
    )
    return _with_orderly_ends(_with_refused_calls(events, argument), rank)


def _last_completed(member: pl.DataFrame) -> pl.DataFrame:
    """Where each process began the last of its communicators of several ranks whose init it completed."""
    completed = member.filter(pl.col("is_complete") & (pl.col("nranks") > 1))
    return completed.group_by(OWNER).agg(completed_pos=pl.col("created_pos").max())


def _with_refused_calls(events: pl.DataFrame, argument: pl.DataFrame) -> pl.DataFrame:
    """Mark errors that a thread returned because NCCL refused an argument of its call: they are none of an init."""
    refused = argument.filter(text_of("form").is_in(OF_CALLS)).select(*THREAD, "pos", refused_pos="pos").sort("pos")
    placed = events.join_asof(
        refused, on="pos", by=THREAD, strategy="backward", tolerance=RETURNING, check_sortedness=False
    )
    is_of_call = (text_of("form") == "unwinding") & pl.col("refused_pos").is_not_null()
    return placed.with_columns(is_of_call=is_of_call.fill_null(value=False)).drop("refused_pos")


def _with_orderly_ends(events: pl.DataFrame, rank: pl.DataFrame) -> pl.DataFrame:
    """Mark as `at_exit` lost local connections of an orderly end, where nothing else fails.

    Most ranks of a host close theirs, or the proxy threads of the job carry out requests to close connections: the
    operation that they name is the last that a local rank sent (src/proxy.cc, ncclProxyService).
    """
    is_closed = text_of("form") == "local_closed"
    is_request = text_of("form") == "proxy_failed"
    is_close = (text_of("operation") == CLOSE).fill_null(value=False)
    of_job = is_request.any().over("job") & (~is_request | is_close).all().over("job")
    is_teardown = (is_request | (text_of("form") == "local_lost")) & of_job
    events = events.with_columns(is_closed=is_closed, is_teardown=is_teardown)
    is_other = ~(pl.col("is_closed") | pl.col("is_teardown") | pl.col("at_exit"))
    failed_jobs = events.filter(is_other)["job"].unique()
    ranks_of_host = rank.group_by("job", "host").agg(ranks=pl.len())
    ending = (
        events.filter("is_closed")
        .group_by("job", "host")
        .agg(closed=pl.col("localrank").n_unique())
        .join(ranks_of_host, on=["job", "host"])
        .filter(2 * pl.col("closed") > pl.col("ranks"))
    )
    is_orderly = pl.col("is_teardown") | (pl.col("is_closed") & pl.col("job").is_in(ending["job"].unique().implode()))
    is_orderly &= pl.col("job").is_in(failed_jobs.implode()).not_()
    return events.with_columns(at_exit=pl.col("at_exit") | is_orderly).drop("is_closed", "is_teardown")


def _is_info() -> pl.Expr:
    """Whether a line of `failure` is an INFO line: NCCL prints one instead of a warning where it can do without."""
    return pl.col("site").is_null() & pl.col("tid").is_not_null()


def without_survived(failures: pl.DataFrame, *steps_of_init: pl.DataFrame) -> pl.DataFrame:
    """Leave out lines after which their thread went on with init before an error left NCCL."""
    steps = pl.concat([frame.select(*THREAD, "pos") for frame in steps_of_init])
    places = failures["unwound"].cast(pl.String).unique().drop_nulls()
    top_places = pl.Series([place for place in places if is_top_file(place)], dtype=pl.String)
    errors = failures.filter(text_of("unwound").is_in(top_places.implode()))
    return _without_followed(failures, steps, errors)


def _without_followed(failures: pl.DataFrame, steps: pl.DataFrame, others: pl.DataFrame) -> pl.DataFrame:
    """Leave out failures behind which one of these steps of their thread comes before one of the other lines."""
    placed = failures.sort("pos")
    for name, later in (("step_pos", steps), ("other_pos", others)):
        named = later.select(*THREAD, "pos", pl.col("pos").alias(name)).sort("pos")
        placed = placed.join_asof(named, on="pos", by=THREAD, strategy="forward", check_sortedness=False)
    is_followed = pl.col("step_pos") < pl.col("other_pos").fill_null(pl.col("step_pos") + 1)
    return placed.filter(is_followed.fill_null(False).not_()).drop("step_pos", "other_pos")


def without_strangers(failures: pl.DataFrame, proxy_error: pl.DataFrame) -> pl.DataFrame:
    """Leave out connections lost while a thread accepted them: it goes on (src/proxy.cc, ncclProxyService)."""
    accepts = proxy_error.filter(form="unexpected").select(*THREAD, "pos", accept_pos="pos").sort("pos")
    failures = failures.sort("pos")
    if accepts.is_empty():
        return failures
    placed = failures.join_asof(
        accepts, on="pos", by=THREAD, strategy="forward", tolerance=ACCEPTING, check_sortedness=False
    )
    is_unexpected = text_of("form").is_in(CONNECTION_FORMS) & pl.col("accept_pos").is_not_null()
    return placed.filter(is_unexpected.not_()).drop("accept_pos")


def without_aborted(failures: pl.DataFrame) -> pl.DataFrame:
    """Leave out errors that a thread returned because its communicator was being aborted (src/misc/socket.cc)."""
    is_step = (text_of("form") == "unwinding").fill_null(value=False)
    began = pl.when(~is_step).then(text_of("form")).forward_fill().over(THREAD, order_by="pos")
    return failures.filter((is_step & (began == ABORTING)).fill_null(value=False).not_())


def without_registration(failures: pl.DataFrame, not_registered: pl.DataFrame) -> pl.DataFrame:
    """Leave out the CUDA errors of a thread after which it says that it registered no buffer of the program.

    NCCL copies such a buffer instead (src/transport/nvls.cc, nvlsRegisterBuffer).
    """
    is_cuda = (text_of("form") == "cuda").fill_null(False)
    others = failures.filter(~is_cuda)
    return pl.concat([others, _without_followed(failures.filter(is_cuda), not_registered, others)]).sort("pos")


def without_collnet_setup(failures: pl.DataFrame, collnet: pl.DataFrame) -> pl.DataFrame:
    """Leave out the errors of a failed setup of CollNet, which NCCL ignores (src/init.cc, collNetTrySetup).

    They end at one place in init.cc. An error that NCCL returns passes two at least, or group.cc.
    """
    if collnet.filter(form="failed").is_empty():
        return failures
    place = text_of("unwound")
    is_step = text_of("form") == "unwinding"
    in_init = place.str.contains("init.cc:", literal=True)
    is_returned = (in_init & (place != place.filter(in_init).first())).any() | (
        place.str.contains("group.cc:", literal=True).any()
    )
    return failures.filter(~is_step | is_returned.over(THREAD).fill_null(value=False))


def _named_ranks(failures: pl.DataFrame, member: pl.DataFrame) -> pl.DataFrame:
    """The rank that a line names by its number on the host, in the communicator of the line.

    The line names no communicator: the number counts only if all communicators of the process that were open then give
    the same rank, and all members before it are known.
    """
    lines = failures.filter(pl.col("localrank").is_not_null()).select(*OWNER, "pos", "source", "line", "localrank")
    seen = member.filter(pl.col("rank").rank("dense").over("key") == pl.col("rank") + 1)
    local = seen.sort("rank").with_columns(localrank=pl.int_range(pl.len(), dtype=pl.Int64).over("key", "host"))
    open_then = (pl.col("created_pos") <= pl.col("pos")) & (
        pl.col("end_pos").is_null() | (pl.col("end_pos") > pl.col("pos"))
    )
    own = lines.join(member.select(*OWNER, "key", "created_pos", "end_pos"), on=OWNER).filter(open_then)
    named = own.join(
        local.select("key", "host", "localrank", named_rank_id="rank_id"), on=["key", "host", "localrank"], how="left"
    )
    return (
        named.group_by("source", "line")
        .agg(pl.col("named_rank_id").first(), is_one=(pl.col("named_rank_id").n_unique() == 1))
        .filter("is_one")
        .select("source", "line", "named_rank_id")
    )
