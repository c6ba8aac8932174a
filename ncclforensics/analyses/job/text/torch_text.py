"""Ranks, errors and attempts of a job as PyTorch and its launcher print them, whatever the backend.

An error of gloo, of the store or of a barrier names the rank that suffered it: `Connection closed by peer` is printed
by the ranks that lost another one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import PurePath
from typing import Any, NamedTuple

import polars as pl

from ncclforensics.data.names import parse_short_integer
from ncclforensics.data.stack_classes import is_library
from ncclforensics.data.torch_calls import CALLS_WITHIN, SIGNAL_HANDLERS
from ncclforensics.frames.columns import Large, Row, count_behind, text_of, with_rows
from ncclforensics.frames.registry import analysis

CLOSED, TIMED_OUT, SIZE, CONNECT, BARRIER, STORE, NO_STORE, COMPARED = (
    "closed", "timeout", "size", "connect", "barrier", "store", "no-store", "compared",
)  # fmt: skip
_KINDS = {
    "closed": CLOSED,
    "read": CLOSED,
    "write": CLOSED,
    "timeout": TIMED_OUT,
    "closed_by_timeout": TIMED_OUT,
    "work_timeout": TIMED_OUT,
    "size": SIZE,
    "connect": CONNECT,
    "connect_logged": CONNECT,
}

IN_HANDLER = "a handler of signals"  # `call` of a rank that made none when it was told to end
REFUSED_AT_STORE = (
    "port_taken",
    "no_port",
    "no_name",
    "other_service",
    "no_connection",
)  # forms of `store_error` in which nothing was waited for
RENDEZVOUS = "next_rendezvous"  # the call of torchrun's agents, one on each node, at the store of the rendezvous
FROM_END = 12  # lines of a file, thanks and blank ones among them, behind the last call of a traceback that was cut


class TorchSource(NamedTuple):
    """A file with lines of PyTorch: a row of `torch_source`."""

    source: int
    rank: int | None  # the only rank that its lines name, or that its name suggests
    attempt: int | None  # of torchrun's log folder; null elsewhere
    last_traceback: Large | None  # position of its heading
    cut_rank: int | None  # that raised an exception of which the file, which ends there, shows no more than calls


class TorchError(NamedTuple):
    """A line in which a rank reports that its communication failed: a row of `torch_error`."""

    rank: int | None
    kind: str
    call: str | None  # the function of torch.distributed that it was in, or IN_HANDLER
    call_line: int | None  # that shows it, or the place where a handler came
    place: str | None  # the innermost call of the program's own code: `exchange (train.py:54)`
    peer: str | None  # the address at the other end of a connection of gloo
    source: int
    line: int
    pos: Large


class StoreError(NamedTuple):
    """A line in which the store is not reached or lacks a key: what verdicts ask of a row of `store_error`."""

    form: str
    global_rank: int | None
    joined: int | None  # clients
    expected_clients: int | None
    awaited_rank: int | None
    awaited_group: int | None
    awaited_member: int | None
    program_key: str | None
    server: str | None
    port: int | None
    source: int
    line: int
    pos: Large


_SPOKEN = (
    "gloo_error",
    "monitored_barrier",
    "model_difference",
    "store_error",
    "c10d_note",
    "exception",
    "fingerprint",
    "call_error",
    "watchdog",
    "watchdog_failure",
    "crash",
)


def ranks_named(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the lines of a frame with the global rank in front of them."""
    column = "global_rank" if "global_rank" in frame.columns else "rank"
    return frame.select("source", rank=pl.col(column).cast(pl.Int32))


@analysis(TorchSource, of=_SPOKEN)
def torch_source(
    gloo_error: pl.DataFrame,
    monitored_barrier: pl.DataFrame,
    model_difference: pl.DataFrame,
    store_error: pl.DataFrame,
    c10d_note: pl.DataFrame,
    exception: pl.DataFrame,
    fingerprint: pl.DataFrame,
    call_error: pl.DataFrame,
    watchdog: pl.DataFrame,
    watchdog_failure: pl.DataFrame,
    crash: pl.DataFrame,
    elastic_failure: pl.DataFrame,
    traceback_frame: pl.DataFrame,
    gpu_exception: pl.DataFrame,
    source: pl.DataFrame,
) -> pl.DataFrame:
    """The files with lines of PyTorch: the rank that each belongs to, and the attempt of an elastic launch."""
    spoken = (gloo_error, monitored_barrier, model_difference, store_error, c10d_note, exception, fingerprint)
    lines = pl.concat(map(ranks_named, with_rows((*spoken, call_error, watchdog, watchdog_failure, crash))))
    named = lines.group_by("source").agg(pl.col("rank").drop_nulls().unique())
    paths = source.select(
        "source",
        "hint",
        attempt=pl.col("path").map_elements(attempt_of, pl.Int32),
        local_rank=pl.col("path").map_elements(_local_rank, pl.Int32),
        folder=pl.col("path").map_elements(_attempt_folder, pl.String),
    )
    headings = exception.filter(form="traceback").group_by("source").agg(last_traceback=pl.col("pos").max())
    is_one = pl.col("rank").list.len() == 1
    is_unnamed = pl.col("rank").list.len() == 0
    placed = named.join(paths, on="source")
    printed = placed.filter(is_one).select("folder", "local_rank", rank=pl.col("rank").list.first())
    return (
        placed.join(_first_ranks(printed, paths, elastic_failure), on="folder", how="left")
        .join(headings, on="source", how="left")
        .join(_cut_tracebacks(traceback_frame, (*spoken, call_error, gpu_exception), source), on="source", how="left")
        .with_columns(
            rank=pl.when(is_one)
            .then(pl.col("rank").list.first())
            .when(is_unnamed)
            .then(pl.coalesce(pl.col("first_rank") + pl.col("local_rank"), "hint"))
        )
        .select(*TorchSource._fields)
        .sort("source")
    )


def _cut_tracebacks(calls: pl.DataFrame, errors: Iterable[pl.DataFrame], source: pl.DataFrame) -> pl.DataFrame:
    """Return the files that end in a call of a traceback, behind which no error stands, and the rank that made it."""
    lines = [
        frame.select("source", "line", "pos", rank=rank, is_call=pl.lit(frame is calls))
        for frame, rank in ((calls, pl.col("rank").cast(pl.Int32)), *((frame, None) for frame in with_rows(errors)))
    ]
    last = pl.concat(lines).sort("pos").group_by("source").last().join(source.select("source", "lines"), on="source")
    return last.filter(pl.col("is_call") & (count_behind() <= FROM_END)).select("source", cut_rank="rank")


def attempt_of(path: str) -> int | None:
    """Return the number of torchrun's attempt whose log folder holds this file: `…/attempt_1/3/stderr.log`."""
    for part in PurePath(path).parts:
        name, _, number = part.rpartition("_")
        if name == "attempt":
            return parse_short_integer(number)
    return None


def _local_rank(path: str) -> int | None:
    """Return the local rank whose log this is in torchrun's folder: 3 for `…/attempt_1/3/stderr.log`."""
    folder = PurePath(path).parent
    return parse_short_integer(folder.name) if folder.parent.name.startswith("attempt_") else None


def _attempt_folder(path: str) -> str | None:
    """Return torchrun's folder of the logs of one node and attempt: `…/attempt_1` for `…/attempt_1/3/stderr.log`."""
    return None if _local_rank(path) is None else str(PurePath(path).parent.parent)


def _first_ranks(printed: pl.DataFrame, paths: pl.DataFrame, elastic_failure: pl.DataFrame) -> pl.DataFrame:
    """Return the rank of local rank 0 in each of torchrun's folders that shows it: the ranks of a node follow it.

    A folder shows it by the ranks that its files print. Torchrun's tables do where they are of one node, and the only
    folders are of one, too.
    """
    first = (pl.col("rank") - pl.col("local_rank")).alias("first_rank")
    folders = paths.select("folder").drop_nulls().unique()
    shown = printed.drop_nulls("folder").group_by("folder").agg(first.unique())
    shown = shown.filter(pl.col("first_rank").list.len() == 1).explode("first_rank")
    tables = elastic_failure.filter(pl.col("form").is_in(["rank", "first_entry", "entry"])).drop_nulls("local_rank")
    launched = tables.select(first).drop_nulls().unique()
    if launched.height == 1 and len({PurePath(folder).parent for folder in folders["folder"]}) == 1:
        others = folders.join(shown, on="folder", how="anti")
        return pl.concat([shown, others.join(launched, how="cross")])
    return shown


@analysis(TorchError, of=("gloo_error", "monitored_barrier", "model_difference", "store_error", "fingerprint"))
def torch_error(
    gloo_error: pl.DataFrame,
    monitored_barrier: pl.DataFrame,
    model_difference: pl.DataFrame,
    store_error: pl.DataFrame,
    fingerprint: pl.DataFrame,
    traced_call: pl.DataFrame,
    traceback_frame: pl.DataFrame,
    exception: pl.DataFrame,
    elastic_failure: pl.DataFrame,
    torch_source: pl.DataFrame,
    launched_rank: pl.DataFrame,
) -> pl.DataFrame:
    """One row per line in which a rank reports that communication failed, with the call that it was in.

    A connection that is lost while the ranks are asked to end did not fail.
    """
    form = text_of("form")
    kinds = [
        (gloo_error, form.replace_strict(_KINDS, default=CONNECT)),
        (monitored_barrier, pl.lit(BARRIER)),
        (model_difference, pl.lit(COMPARED)),
        (store_error, pl.when(form.is_in(REFUSED_AT_STORE)).then(pl.lit(NO_STORE)).otherwise(pl.lit(STORE))),
        (fingerprint, pl.lit(COMPARED)),
    ]
    errors = pl.concat(
        [
            frame.select(
                "source", "line", "pos", pid="launcher_pid", rank=pl.col("global_rank").cast(pl.Int32), kind=kind,
                peer=text_of("address") if frame is gloo_error else pl.lit(None, pl.String),
            )
            for frame, kind in kinds
        ]
    )  # fmt: skip
    of_pid = launched_rank.group_by("source", "pid").agg(pl.col("rank").unique()).filter(pl.col("rank").list.len() == 1)
    of_pid = of_pid.select("source", "pid", launched=pl.col("rank").list.first())
    owner = torch_source.select("source", owner="rank")
    printer = pl.coalesce("rank", -1 - pl.col("source"))  # the rank, or the input in which no line names one

    def with_printer(rows: pl.DataFrame) -> pl.DataFrame:
        placed = rows.join(of_pid, on=["source", "pid"], how="left").join(owner, on="source", how="left")
        ranked = placed.with_columns(rank=pl.coalesce("rank", "launched", "owner"))
        return ranked.with_columns(printer=printer).sort("pos")

    own_files = [file for file in traceback_frame["file"].cast(pl.String).unique().drop_nulls() if not is_library(file)]
    name = text_of("file").str.split("/").list.last()
    places = traceback_frame.filter(text_of("file").is_in(own_files)).select(
        "source",
        "pos",
        pid="launcher_pid",
        rank=pl.col("rank").cast(pl.Int32),
        place=pl.format("{} ({}:{})", text_of("frame_function"), name, "numbered"),
        place_line="line",
    )
    function = text_of("frame_function")
    handlers = traceback_frame.filter(function.is_in(SIGNAL_HANDLERS)).select(
        "source", "pos", pid="launcher_pid", rank=pl.col("rank").cast(pl.Int32), handler=pl.lit(IN_HANDLER)
    )
    inner = traceback_frame.with_columns(call=function.replace_strict(CALLS_WITHIN, default=None))
    calls = pl.concat(
        [
            traced_call.select(
                "source",
                "pos",
                pid="launcher_pid",
                rank=pl.col("global_rank").cast(pl.Int32),
                call=text_of("function"),
                call_line="line",
            ),
            inner.drop_nulls("call").select(
                "source",
                "pos",
                pl.col("launcher_pid").alias("pid"),
                pl.col("rank").cast(pl.Int32),
                "call",
                pl.col("line").alias("call_line"),
            ),
        ]
    )
    from ncclforensics.analyses.job.ends.tracebacks import FAR  # others ask this module for the words alone

    named = with_printer(errors)
    for frame, columns in ((calls, ("call", "call_line")), (places, ("place", "place_line")), (handlers, ("handler",))):
        above = with_printer(frame).select("pos", *columns, "printer")
        near = FAR if frame is handlers else None
        named = named.join_asof(
            above, on="pos", by="printer", strategy="backward", tolerance=near, check_sortedness=False
        )
    named = _unasked(named, elastic_failure, exception, owner, printer)
    shown_at = pl.when(pl.col("handler").is_null()).then("call_line").otherwise("place_line")
    return named.with_columns(call=pl.coalesce("handler", "call"), call_line=shown_at).select(*TorchError._fields)


def _unasked(
    errors: pl.DataFrame, elastic_failure: pl.DataFrame, exception: pl.DataFrame, owner: pl.DataFrame, printer: pl.Expr
) -> pl.DataFrame:
    """Leave out lost connections behind a signal to torchrun or a rank, or right before their rank is interrupted."""
    from ncclforensics.analyses.job.ends.tracebacks import LONGEST

    interrupts = exception.filter(form="interrupt").join(owner, on="source", how="left")
    interrupts = interrupts.with_columns(rank=pl.coalesce(pl.col("rank").cast(pl.Int32), "owner"))
    signals = elastic_failure.filter(form="terminated")
    asked = pl.concat([interrupts.select("source", "pos"), signals.select("source", "pos")])
    asked = asked.group_by("source").agg(asked=pl.col("pos").min())
    own = interrupts.select("pos", printer=printer, interrupted="pos").sort("pos")
    marked = errors.join(asked, on="source", how="left", maintain_order="left").join_asof(
        own, on="pos", by="printer", strategy="forward", tolerance=LONGEST, check_sortedness=False
    )
    is_asked = (pl.col("pos") > pl.col("asked")).fill_null(False) | pl.col("interrupted").is_not_null()
    return marked.filter((pl.col("kind") != CLOSED) | ~is_asked).drop("asked", "interrupted")


WITHOUT_TENSORS = "BARRIER"  # of the calls, the only one whose fingerprint has no tensor
NOT_RECEIVED = "an empty fingerprint, which shows no call"
_OF_FIRST = ("operation", "shape", "dtypes", "sequence")
_OF_OTHER = tuple(f"other_{name}" for name in _OF_FIRST)


def compared_calls(fingerprints: Iterable[Row]) -> dict[int, str]:
    """Return the call of each rank of a process group, as PyTorch's comparison of calls prints it.

    PyTorch prints no shape of a call without tensors (ProcessGroupWrapper.cpp): beside one that has some, that is said.
    """
    compared = [row for row in fingerprints if row["first_rank"] is not None]
    has_shapes = any(row["shape"] or row["other_shape"] for row in compared)
    called: dict[int, str] = {}
    for row in compared:
        called[row["first_rank"]] = _fingerprint_text(*(row[name] for name in _OF_FIRST), has_shapes=has_shapes)
        if row["other_rank"] is not None:
            other = _fingerprint_text(*(row[name] for name in _OF_OTHER), has_shapes=has_shapes)
            called.setdefault(row["other_rank"], other)
    return called


def differ_in_number_alone(fingerprints: list[Row]) -> bool:
    """Whether all that differs in the compared calls is their number, which PyTorch counts itself (pytorch#101422)."""
    compared = [row for row in fingerprints if row["first_rank"] is not None]
    return bool(compared) and all(
        row["sequence"] != row["other_sequence"]
        and all(row[name] == row[other] for name, other in zip(_OF_FIRST[:-1], _OF_OTHER[:-1], strict=True))
        for row in compared
    )


def _fingerprint_text(
    operation: str, shape: str | None, dtypes: str | None, sequence: int | None, *, has_shapes: bool
) -> str:
    """Format a call of PyTorch's fingerprint; one of zeros alone is that of a rank whose call did not arrive."""
    if sequence == 0 and shape is None and dtypes is None and operation != WITHOUT_TENSORS:
        return NOT_RECEIVED
    number = "" if sequence is None else f"as number {sequence}"
    is_bare = has_shapes and not shape and operation != WITHOUT_TENSORS
    tensors = f"[{shape}]" if shape else "without a tensor in this text" * is_bare
    return " ".join(part for part in (operation, tensors, dtypes, number) if part)


def minority_of(values: dict[int, Any]) -> list[int]:
    """Return the ranks whose value differs from that of the majority; all of them where there is no majority."""
    if not values:
        return []
    usual, count = Counter(values.values()).most_common(1)[0]
    has_majority = 2 * count > len(values)
    return sorted(rank for rank, value in values.items() if value != usual or not has_majority)


def differing_ranks(fingerprints: list[Row]) -> list[int]:
    """Return the ranks whose call differs from the majority's; none where the messages of some ranks are not here.

    Without a majority all differ, if every rank reported: of two ranks in one message either may be the odd one.
    """
    called = compared_calls(fingerprints)
    outliers = minority_of(called)
    reporting = {row["first_rank"] for row in fingerprints if row["first_rank"] is not None}
    is_complete = reporting == set(called) == set(range(len(called)))
    return outliers if len(outliers) < len(called) or is_complete else []
