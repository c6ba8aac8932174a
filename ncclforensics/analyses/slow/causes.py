"""Why a rank may work longer than the others: its kernels, or the time in which its GPU has none. Never certain."""

from __future__ import annotations

import polars as pl

from ncclforensics.frames.columns import text_of

MOST_OF_IT = 0.6  # share of the difference that one part of the time explains
ALIKE = 0.05  # kernels whose ratios to other ranks differ by less are slower alike
FEWEST_KINDS = 3  # kernels, to say that all of them are


def cause_of(rank: int, times: pl.DataFrame, kernels: pl.DataFrame, processes: pl.DataFrame) -> str | None:
    """Return what the traces show of the reason; None where they show nothing, as on CPUs.

    `times`: rows of `rank_time`; `kernels`: of `profiled_kernel`; `processes`: of `ranked_process`.
    """
    own, others = times.filter(pl.col("rank") == rank), times.filter(pl.col("rank") != rank)
    if own.is_empty() or not times["busy_us"].max():
        return None
    excess = {name: float(own[name][0]) - _quantile(others[name], 0.5) for name in ("own_us", "busy_us", "idle_us")}
    if excess["idle_us"] >= MOST_OF_IT * excess["own_us"]:
        return (
            "its GPU waits longer for the next kernel, and its kernels take no longer: the host is late "
            "(data loading, garbage collection, a busy CPU, a synchronisation in the program)"
        )
    if excess["busy_us"] < MOST_OF_IT * excess["own_us"]:
        return None
    ratios = _kernel_ratios(rank, kernels, processes)
    if ratios.height < FEWEST_KINDS:
        return "its kernels take longer"
    low, middle, high = (_quantile(ratios["ratio"], share) for share in (0.25, 0.5, 0.75))
    if high - low <= ALIKE * middle:
        return (
            f"its kernels take {middle:.2f} times as long as on the other ranks, all kinds alike "
            f"({low:.2f}-{high:.2f}): clock, power, heat, or another process on its GPU"
        )
    return f"some of its kernels take longer ({low:.2f}-{high:.2f} times): other work, or other shapes"


def _kernel_ratios(rank: int, kernels: pl.DataFrame, processes: pl.DataFrame) -> pl.DataFrame:
    """The durations of a rank's kernels as ratios to those of the same kernels on other ranks."""
    known = kernels.join(processes.select("source", "rank"), on="source").with_columns(text_of("kernel"))
    usual = known.filter(pl.col("rank") != rank).group_by("kernel").agg(usual_us=pl.col("median_us").median())
    own = known.filter(pl.col("rank") == rank).join(usual, on="kernel").filter(pl.col("usual_us") > 0)
    return own.select(ratio=pl.col("median_us") / pl.col("usual_us"))


def _quantile(values: pl.Series, share: float) -> float:
    found = values.quantile(share, "linear")
    return 0.0 if found is None else float(found)
