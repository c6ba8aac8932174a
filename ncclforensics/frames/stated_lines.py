"""The lines that state a failure, a condition or a consequence by what their grammars say of them."""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from ncclforensics.frames.columns import ORIGIN, no_rows, text_of
from ncclforensics.frames.protocol import Frames
from ncclforensics.grammar.grammar_file import grammar_of, load
from ncclforensics.grammar.meanings import ANSWERED

STATED_LINE = {
    **ORIGIN,
    "host": pl.Categorical(),  # null where the line names none
    "pid": pl.Int32(),
    "rank": pl.Int32(),  # of the world, where a prefix of the line names it
    "worker": pl.String(),  # as an engine names the process
    "frame": pl.String(),
    "form": pl.String(),
    "kind": pl.String(),  # failure, condition or consequence
    "category": pl.String(),
    "meaning": pl.String(),  # what happened
    "remedy": pl.String(),
    "subject": pl.String(),  # what the line names: a GPU, a node, what a tool said; null where its grammar keeps none
}
HOSTS = ("host", "node", "ucx_host", "launcher_node")  # columns that name the host of a line, the nearest to it first
PIDS = ("pid", "launcher_pid")
WORKERS = ("ended_worker", "worker", "launcher_process")
RANKS = ("global_rank", "launcher_rank")
SUBJECTS = (
    "subject", "listed_reason", "faulty", "bad_result", "unconnected", "unready", "service", "error_text",
    "device_name", "hot_cpu", "cloud_instance", "daemon_host", "nvshmem_nic", "cxi_nic", "peer", "mpi_reason",
    "psm_reason", "ucx_warning", "provider_warning", "ray_message", "node_reason", "taint", "reset_refusal",
    "rpc_method", "ended_job", "accounted_job", "accounted_step", "job_reason", "lsf_reason",
    "removed_node", "switch_port", "result_text", "sharp_error",
)  # fmt: skip
HOLDERS = ("of_pod", "of_condition", "of_readiness", "of_gpu")


def stated_lines(run: Frames, frames: Iterable[str]) -> pl.DataFrame:
    """Return a row per line of these parsed frames that its grammar marks as one to be answered."""
    found = [rows for name in sorted(frames) if (rows := _of_frame(run, name)) is not None]
    return pl.concat(found).sort("pos") if found else no_rows(STATED_LINE)


def _of_frame(run: Frames, name: str) -> pl.DataFrame | None:
    if not run.has(name):
        return None
    grammar = grammar_of(name)
    meanings = load(grammar).meanings.get(name, {}) if grammar else {}
    answered = {form: meaning for form, meaning in meanings.items() if meaning.kind in ANSWERED}
    if not answered:
        return None
    rows = run[name].filter(pl.col("form").is_in([*answered]))
    if rows.is_empty():  # of most frames no line is one: their columns need not be looked up
        return None
    form = text_of("form")

    def of_form(parts: dict[str, str]) -> pl.Expr:
        return form.replace_strict(parts, default=None, return_dtype=pl.String)

    # A line that names another process than the one that prints it names neither the rank nor the pid of that one.
    is_of_other = _first(rows, ["ended_worker"], pl.String()).is_not_null()
    return rows.select(
        *ORIGIN,
        host=_first(rows, HOSTS, pl.String()).cast(pl.Categorical()),
        pid=pl.when(~is_of_other).then(_first(rows, PIDS, pl.Int32())),
        rank=pl.when(~is_of_other).then(_first(rows, RANKS, pl.Int32())),
        worker=_first(rows, WORKERS, pl.String()),
        frame=pl.lit(name),
        form=form,
        kind=of_form({form: str(meaning.kind) for form, meaning in answered.items()}),
        category=of_form({form: meaning.category for form, meaning in answered.items()}),
        meaning=of_form({form: meaning.text for form, meaning in answered.items()}),
        remedy=of_form({form: meaning.remedy for form, meaning in answered.items()}),
        subject=_subject(rows),
    )


def _subject(rows: pl.DataFrame) -> pl.Expr:
    """What a line names, behind the pod of an event of Kubernetes, the condition of a node, or a GPU."""
    subject = _first(rows, SUBJECTS, pl.String()).str.strip_chars()
    holder = _first(rows, HOLDERS, pl.String())
    of_holder = pl.concat_str(holder, subject, separator=": ", ignore_nulls=True)
    return pl.when(holder.is_null()).then(subject).otherwise(of_holder)


def _first(rows: pl.DataFrame, columns: Iterable[str], dtype: pl.DataType) -> pl.Expr:
    """The first of these columns that a row has; null without any."""
    return pl.coalesce(*(pl.col(name).cast(dtype) for name in columns if name in rows.columns), pl.lit(None, dtype))
