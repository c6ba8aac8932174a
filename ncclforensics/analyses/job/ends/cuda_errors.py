"""CUDA errors that NCCL, PyTorch's watchdog, the application or nccl-tests report, and errors of AMD's GPUs."""

from __future__ import annotations

import polars as pl

from ncclforensics.analyses.job.ends.exit_rows import ROCM
from ncclforensics.analyses.job.ends.failure_events import without_registration
from ncclforensics.data.cuda import AMD, CORRUPTED, HARDWARE, HIP, HIP_SOURCES, error_kind
from ncclforensics.frames.columns import ORIGIN, OWNER, PROCESS, text_of
from ncclforensics.frames.registry import analysis

LASTING = (AMD, CORRUPTED, HARDWARE)  # kinds of errors that are no consequence of a corrupted context
GROUP_OF_ALL = "0"  # guid of PyTorch's default process group
CUDA_ERROR = {
    "job": pl.Int32(),
    "rank": pl.Int32(),
    **PROCESS,
    "local_rank": pl.Int32(),
    "version": pl.String(),  # of NCCL; null if none or several are in the logs
    "reporter": pl.String(),  # NCCL, PyTorch, the application, nccl-tests, ROCm's runtime
    "file": pl.String(),  # of NCCL's source: transport/nvls
    "code": pl.Int64(),
    "error": pl.String(),
    "kind": pl.String(),
    "runtime": pl.String(),  # CUDA, or HIP: of AMD's GPUs, whose errors PyTorch may call those of CUDA
    "place": pl.String(),  # in the application: the call that raised
    "worker": pl.String(),  # as an engine or Ray names the process, or its number in a process group of PyTorch
    **ORIGIN,
}


@analysis(CUDA_ERROR, of=("failure", "watchdog", "test_failure", "process_exit"))
def cuda_error(
    failure_event: pl.DataFrame,
    failure: pl.DataFrame,
    watchdog: pl.DataFrame,
    test_failure: pl.DataFrame,
    process_exit: pl.DataFrame,
    rank: pl.DataFrame,
    version: pl.DataFrame,
    not_registered: pl.DataFrame,
    gpu_exception: pl.DataFrame,
    hip_hint: pl.DataFrame,
) -> pl.DataFrame:
    """One row per line that reports an error of CUDA or ROCm, except from processes that were already exiting.

    Nor what else a process reports after an error that left its context corrupted: all its calls fail from then on.
    """
    failed_tests = test_failure.filter(pl.col("form").is_in(["cuda", "early_cuda"]))
    place = ["source", "line", "pos"]
    numbers = rank.select("job", "rank", "host", "pid").unique(OWNER, keep="none")
    exiting = failure_event.filter("at_exit").select("source", "line")
    of_nccl = without_registration(failure.filter(form="cuda"), not_registered).join(
        exiting, on=["source", "line"], how="anti"
    )
    frames = [
        of_nccl.select(
            "host", "pid", "code", *place,
            error=_quoted("error"),
            file=_file("site"),
            reporter=pl.lit("NCCL"),
        ).join(numbers, on=OWNER, how="left"),
        watchdog.filter(form="cuda").select(
            "error", *place,
            rank=pl.coalesce("global_rank", pl.when(text_of("guid") == GROUP_OF_ALL).then("group_rank")),
            worker=pl.when(pl.col("guid").is_null()).then(pl.format("rank {} of its process group", "group_rank")),
            reporter=pl.lit("PyTorch"),
        ),
        failed_tests.select(*place, error=_quoted("error"), host="node", reporter=pl.lit("nccl-tests")),
        process_exit.filter(how="gpu-error").select(
            "job", "rank", "host", "pid", "local_rank", "place", "worker", *place, error="message",
            reporter=pl.when(pl.col("reporter") == ROCM).then("reporter").otherwise(pl.lit("the application")),
        ),
    ]  # fmt: skip
    of_hip = (
        gpu_exception.filter(text_of("runtime") == HIP),
        version.filter(text_of("form").str.starts_with("rccl")),
        failure.filter(text_of("site").str.contains(HIP_SOURCES, literal=True)),
    )
    runtime = "CUDA" if all(frame.is_empty() for frame in (hip_hint, *of_hip)) else HIP
    releases = version["version"].cast(pl.String).unique().to_list()
    rows = (
        pl.concat([frame.cast({"error": pl.String}) for frame in frames], how="diagonal_relaxed")
        .with_columns(
            error=pl.col("error").str.strip_chars("'. "),
            version=pl.lit(releases[0] if len(releases) == 1 else None, dtype=pl.String),
            runtime=pl.lit(runtime),
        )
        .with_columns(
            kind=pl.when(pl.col("reporter") == ROCM)
            .then(pl.lit(AMD))
            .otherwise(pl.col("error").map_elements(error_kind, return_dtype=pl.String))
        )
        .filter(pl.col("kind") != "exiting")
        .sort("source", "line")
    )
    corrupted = rows.filter(kind=CORRUPTED)
    for of_process in (["rank"], OWNER):
        first = corrupted.drop_nulls(of_process).group_by("source", *of_process).agg(first_pos=pl.col("pos").min())
        rows = rows.join(first, on=["source", *of_process], how="left", maintain_order="left")
        is_later = (pl.col("pos") > pl.col("first_pos")).fill_null(False) & ~pl.col("kind").is_in(LASTING)
        rows = rows.filter(~is_later).drop("first_pos")
    return rows.select(list(CUDA_ERROR))


def _quoted(error: str) -> pl.Expr:
    """Return an error up to its closing quote: no error of CUDA holds one, and a sentence may go on behind it."""
    return text_of(error).str.split("'").list.first()


def _file(site: str) -> pl.Expr:
    """Return folder and file name of a source location: `transport/nvls` of src/transport/nvls.cc:157."""
    parts = text_of(site).str.split("/").list.tail(2).list.join("/").str.split(".")
    return parts.list.head(parts.list.len() - 1).list.join(".")
