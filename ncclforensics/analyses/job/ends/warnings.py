"""Warnings of NCCL and its plugins: one row per line, with what followed it in the same process.

NCCL returns an error through its callers, each of which prints `file:line -> code` after the warning that began it. A
warning behind which the process went on (init completed, calls were made) stopped nothing.
"""

from __future__ import annotations

import polars as pl

from ncclforensics.analyses.job.ends.failure_events import AFTER, CONTEXT, LOST, without_strangers
from ncclforensics.analyses.job.ends.program_ends import add_program_end
from ncclforensics.data.nccl_sources import INVALID_ARGUMENT, RESULTS, is_top_file
from ncclforensics.frames.columns import ORIGIN, OWNER, PROCESS, no_rows, text_of
from ncclforensics.frames.registry import analysis
from ncclforensics.grammar.grammar_file import load

# Frames of warning lines that NCCL also prints in runs without a fault: they count where an error follows.
OFTEN_HARMLESS = frozenset(
    {
        *("shared_library", "plugin", "gin", "sharp", "collnet", "mnnvl", "graph", "gpu_direct", "limit"),
        *("topology_file", "topology_detection", "setting_refused", "setting_status", "registration", "teardown"),
        *("channel_setting", "not_registered", "system_advice", "unexpected_peer", "port_change", "library"),
        *("counter_monitor",),
    }
)  # fmt: skip
UNSHAPED = ("warning", "plugin_warning")
# Frames and forms of warnings that NCCL prints only after another failure: of the socket, or of what asked for an abort
# (persistentSocketThread of src/transport/net_socket.cc, ncclProxyCallAsync of src/proxy.cc).
FOLLOWING = {"socket_error": "progress", "proxy_error": "aborted"}
FRAMES = (
    *("failure", "shared_memory", "verbs", "ib_unusable", "ib_incompatible", "failover", "socket_error"),
    *("unix_socket", "proxy_error", "p2p_failure", "nvlink_fabric", "argument", "usage", "no_algorithm", "xml_error"),
    *("affinity", "stated_warning"),
    *UNSHAPED,
    *sorted(OFTEN_HARMLESS),
)  # fmt: skip
TEXTS = ("message", "error", "reason", "cuda_error")  # columns that hold the text of a warning, or its end

NCCL_WARNING = {
    "job": pl.Int32(),
    **PROCESS,
    "frame": pl.String(),
    "form": pl.String(),
    "site": pl.String(),
    "text": pl.String(),
    "moment": pl.String(),
    "is_attention": pl.Boolean(),  # NCCL says itself that it can go on
    "went_on": pl.Boolean(),  # this process completed init, or made calls, afterwards
    "at_end": pl.Boolean(),  # after this process began to end its communicators, or its program came to its end
    "is_first": pl.Boolean(),  # it began the chain of returned errors that follows
    "is_consequence": pl.Boolean(),  # it reports what followed from another failure
    "chain": pl.List(pl.String()),  # `file:line -> code` lines up to the next warning
    "result": pl.Int32(),  # the last code of the chain
    "kind": pl.String(),  # what its grammar says of such lines: failure, condition or consequence; null for facts
    "category": pl.String(),  # of findings
    "meaning": pl.String(),  # what happened
    "remedy": pl.String(),  # empty where a rule of its own judges such lines
    "is_returned": pl.Boolean(),  # the chain reaches a caller near the application's call
    **ORIGIN,
}


@analysis(NCCL_WARNING, of=FRAMES)
def nccl_warning(
    failure: pl.DataFrame, shared_memory: pl.DataFrame, verbs: pl.DataFrame, ib_unusable: pl.DataFrame,
    ib_incompatible: pl.DataFrame, failover: pl.DataFrame, socket_error: pl.DataFrame, unix_socket: pl.DataFrame,
    proxy_error: pl.DataFrame, p2p_failure: pl.DataFrame, nvlink_fabric: pl.DataFrame, argument: pl.DataFrame,
    usage: pl.DataFrame, no_algorithm: pl.DataFrame, xml_error: pl.DataFrame, stated_warning: pl.DataFrame,
    warning: pl.DataFrame, plugin_warning: pl.DataFrame, shared_library: pl.DataFrame, plugin: pl.DataFrame,
    gin: pl.DataFrame, sharp: pl.DataFrame, collnet: pl.DataFrame, mnnvl: pl.DataFrame, affinity: pl.DataFrame,
    graph: pl.DataFrame, gpu_direct: pl.DataFrame, limit: pl.DataFrame, topology_file: pl.DataFrame,
    topology_detection: pl.DataFrame, setting_refused: pl.DataFrame, setting_status: pl.DataFrame,
    registration: pl.DataFrame, teardown: pl.DataFrame, channel_setting: pl.DataFrame, not_registered: pl.DataFrame,
    unexpected_peer: pl.DataFrame, port_change: pl.DataFrame, counter_monitor: pl.DataFrame, library: pl.DataFrame,
    system_advice: pl.DataFrame, communicator_progress: pl.DataFrame, call_error: pl.DataFrame, rank: pl.DataFrame,
    program_end: pl.DataFrame, stated_line: pl.DataFrame,
) -> pl.DataFrame:  # fmt: skip
    """Every line that NCCL or a plugin printed as a warning."""
    frames = locals() | {"failure": without_strangers(failure, proxy_error)}
    # XLA quotes NCCL's last warning in the same line, PyTorch in the next one.
    quotes_below = call_error.filter(form="last_error").select("source", line=pl.col("line") + 1).unique()
    quotes = pl.concat([quotes_below, call_error.select("source", "line")]).unique()
    found = [_warnings(frames[name], name, quotes) for name in FRAMES if _may_warn(frames[name], name, quotes)]
    if not any(rows.height for rows in found):
        return no_rows(NCCL_WARNING)
    rows = pl.concat(found, how="vertical_relaxed")
    is_unshaped = pl.col("frame").is_in(UNSHAPED)
    unshaped = rows.filter(is_unshaped)  # shortened lines of a shape stand in its frame, too
    shaped = rows.filter(~is_unshaped).join(unshaped, on=["source", "line"], how="anti", maintain_order="left")
    rows = pl.concat([shaped, unshaped])
    texts = rows.filter(pl.col("site").is_not_null()).select("text").drop_nulls().unique()
    copies = rows.filter(pl.col("site").is_null()).join(texts, on="text", how="semi")  # the warning itself is here, too
    rows = rows.join(copies.select("source", "line"), on=["source", "line"], how="anti", maintain_order="left")
    chains = failure.filter(form="unwinding").select(
        *OWNER,
        "pos",
        "result",
        "unwound",
        step=pl.format("{} -> {}", text_of("unwound"), pl.col("result").cast(pl.String).fill_null("?")),
    )
    jobs = rank.group_by(OWNER).agg(pl.col("job").first())
    progress = communicator_progress.group_by(OWNER).agg(pl.col("last_pos").max(), pl.col("end_pos").min())
    classes = load("warning").form_classes("failure")
    place = ["source", "line", "frame"]
    meanings = stated_line.select(*place, "kind", "category", "meaning", "remedy").unique(place)
    kind = pl.col("form").replace_strict(classes, default=None, return_dtype=pl.String)
    is_consequence = (pl.col("frame") == "failure") & kind.is_in([AFTER, LOST])
    is_consequence |= pl.col("form") == pl.col("frame").replace_strict(FOLLOWING, default=None, return_dtype=pl.String)
    # A communicator that keeps an earlier error returns that; only an operation in progress is a wrong argument. A
    # number that is no result stands in memory that is no communicator any more.
    kept = [result for result in RESULTS if result != INVALID_ARGUMENT]
    is_kept = (pl.col("frame") == "usage") & (pl.col("form") == "busy") & pl.col("result").is_in(kept)
    is_consequence |= is_kept.fill_null(False)
    # What the classes of `failure` say of a line that was survived, of one at the end of a run, or of one that is only
    # quoted, is said already.
    is_told = pl.col("went_on") | pl.col("at_end") | pl.col("site").is_null()
    is_weighed = (pl.col("frame") == "failure") & (kind != CONTEXT) & is_told
    # NCCL looks for libraries of optional features in this way (libibverbs), and prints it where they are absent.
    is_probe = (
        pl.concat_str("frame", pl.lit(" "), "form").is_in(["library not_loaded", "shared_library not_opened"])
        & pl.col("is_returned").not_()
    )
    return (
        _with_chains(rows, chains)
        .join(jobs, on=OWNER, how="left", nulls_equal=True)
        .join(progress, on=OWNER, how="left", nulls_equal=True)
        .pipe(add_program_end, program_end)
        .join(meanings, on=place, how="left")
        .with_columns(
            went_on=(pl.col("pos") < pl.col("last_pos")).fill_null(False),
            at_end=(pl.col("pos") > pl.min_horizontal("end_pos", "own_end_pos", "success_pos")).fill_null(False),
        )
        .join(quotes_below.with_columns(is_quoted=True), on=["source", "line"], how="left")
        .with_columns(
            is_consequence=is_consequence.fill_null(False),
            is_returned=pl.col("is_returned") | pl.col("is_quoted").fill_null(False),
        )
        .filter((is_weighed | is_probe).fill_null(False).not_())
        .sort("pos")
    )


def _may_warn(rows: pl.DataFrame, name: str, quotes: pl.DataFrame) -> bool:
    """Whether there may be warnings among these rows: in most runs, no line has a place in the sources."""
    return rows.height > 0 and (name in UNSHAPED or quotes.height > 0 or rows[_site(rows)].null_count() < rows.height)


def _site(rows: pl.DataFrame) -> str:
    return "signature" if "signature" in rows.columns else "site"


def _warnings(rows: pl.DataFrame, name: str, quotes: pl.DataFrame) -> pl.DataFrame:
    """Return the warnings of a frame: lines with a place in the sources, which INFO lines have not, and quoted ones."""
    site = _site(rows)
    texts = [text_of(column) for column in TEXTS if column in rows.columns]
    is_warning = pl.col(site).is_not_null() | pl.lit(name in UNSHAPED)
    found = [rows.filter(is_warning)]
    if quotes.height:
        quoted = rows.join(quotes, on=["source", "line"], how="semi", maintain_order="left")
        found.append(quoted.filter(~is_warning))
    return pl.concat(found).select(
        *OWNER, "source", "line", "pos",
        frame=pl.lit(name),
        form=text_of("form"),
        site=text_of(site),
        text=pl.coalesce(*texts) if texts else pl.lit(None, pl.String),
        moment=text_of("stamp"),
        is_attention=text_of("form") == "attention",
    )  # fmt: skip


def _with_chains(rows: pl.DataFrame, chains: pl.DataFrame) -> pl.DataFrame:
    """Give the warning that began it each chain of returned errors: the first one since the chain before.

    Warnings of frames that are often harmless begin a chain only where the chain begins in the same file.
    """
    events = pl.concat([rows.with_columns(is_warning=True), chains.with_columns(is_warning=False)], how="diagonal")
    follows_chain = pl.col("is_warning") & pl.col("is_warning").shift(1).over(OWNER).not_().fill_null(True)
    events = events.sort("pos").with_columns(burst=follows_chain.cum_sum().over(OWNER))
    burst = [*OWNER, "burst"]
    steps = (
        events.filter(~pl.col("is_warning"))
        .group_by(burst, maintain_order=True)
        .agg(chain="step", last=pl.col("result").last(), file=_file("unwound").first(), is_top=_is_top().any())
    )
    warnings = events.filter("is_warning").drop("result", "step", "unwound")
    warnings = warnings.join(steps, on=burst, how="left", nulls_equal=True, maintain_order="left")
    is_candidate = pl.col("frame").is_in(list(OFTEN_HARMLESS)).not_() | (_file("site") == pl.col("file")).fill_null(
        False
    )
    order = pl.when(is_candidate).then(pl.int_range(pl.len())).over(burst)
    is_first = (order == order.min().over(burst)).fill_null(False)
    none = pl.lit([], dtype=pl.List(pl.String()))
    return warnings.with_columns(is_first=is_first).with_columns(
        chain=pl.when(pl.col("is_first")).then(pl.col("chain").fill_null(none)).otherwise(none),
        result=pl.when(pl.col("is_first")).then("last"),
        is_returned=(pl.col("is_first") & pl.col("is_top")).fill_null(False),
    )


def _file(place: str) -> pl.Expr:
    """Return the name of the file of a place: `net_ib.cc` of transport/net_ib.cc:774."""
    return text_of(place).str.split("/").list.last().str.split(":").list.first()


def _is_top() -> pl.Expr:
    return text_of("unwound").map_elements(is_top_file, return_dtype=pl.Boolean)


COMMUNICATOR_PROGRESS = {
    **PROCESS,
    "last_pos": pl.Int64(),  # of its last completed init or call
    "end_pos": pl.Int64(),  # where it began to end its communicators
}


@analysis(COMMUNICATOR_PROGRESS, of=("communicator", "call"))
def communicator_progress(communicator: pl.DataFrame, last_call: pl.DataFrame, member: pl.DataFrame) -> pl.DataFrame:
    """How far every process is known to have come: its last completed init or call, and its first end."""
    completed = communicator.filter(text_of("phase") == "COMPLETE").select(*OWNER, last_pos="pos")
    destroyed = member.filter(text_of("end") == "Destroy").select(*OWNER, last_pos="end_pos")
    ranks = member.select("rank_id", *OWNER).unique("rank_id")
    calls = last_call.join(ranks, on="rank_id").select(*OWNER, last_pos="pos")
    ends = member.select(*OWNER, "end_pos").drop_nulls("end_pos")
    return pl.concat([completed, destroyed, calls, ends], how="diagonal_relaxed")
