"""Why a rank may work longer than the others: its kernels, the time without one, and the state of its host's GPUs.

Never certain: a state explains a slow rank, and accuses none.
"""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from ncclforensics.analyses.slow.answer import SlowKind
from ncclforensics.analyses.slow.explanations import Request, SlowExplanation
from ncclforensics.data.names import ranks_text
from ncclforensics.frames.columns import short_host, short_name, text_of

MOST_OF_IT = 0.6  # share of the difference that one part of the time explains
ALIKE = 0.05  # kernels whose ratios to other ranks differ by less are slower alike
FEWEST_KINDS = 3  # kernels, to say that all of them are
LOWER = 0.95  # of the clock of the other GPUs in use
IN_USE = 50.0  # percent of the time in which a kernel runs: the clock of a GPU at rest says nothing
FEWEST_GPUS = 3  # others with a clock
DCGM_CLOCK = "SM_CLOCK"
EXPORTED_CLOCK = "clocks_current_sm_clock_hz"  # of nvidia_gpu_exporter
LATE_HOST = "its GPU waits longer for the next kernel, and its kernels take no longer: the host is late "


def cause_of(rank: int, times: pl.DataFrame, kernels: pl.DataFrame, processes: pl.DataFrame) -> str | None:
    """Return what the traces show of the reason; None where they show nothing, as on CPUs.

    `times`: rows of `rank_time`; `kernels`: of `profiled_kernel`; `processes`: of `ranked_process`.
    """
    own, others = times.filter(pl.col("rank") == rank), times.filter(pl.col("rank") != rank)
    if own.is_empty() or not times["busy_us"].max():
        return None
    excess = {name: float(own[name][0]) - _quantile(others[name], 0.5) for name in ("own_us", "busy_us", "idle_us")}
    if excess["idle_us"] >= MOST_OF_IT * excess["own_us"]:
        return f"{LATE_HOST}(data loading, garbage collection, a busy CPU, a synchronisation in the program)"
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


def with_state_of_host(
    explanation: SlowExplanation, gpu_use: pl.DataFrame, use_process: pl.DataFrame, metric_value: pl.DataFrame
) -> SlowExplanation:
    """Add what nvidia-smi and DCGM say of the GPUs of the host that is named, or else ask for it.

    Rows of `gpu_use`, `use_process` and `metric_value`. A rank whose host is late is not slowed by its GPU.
    """
    if explanation.verdict not in (SlowKind.RANK, SlowKind.HOST, SlowKind.GROUP) or len(explanation.hosts) > 1:
        return explanation
    host = explanation.hosts[0] if explanation.hosts else None
    clocks = _clocks(gpu_use, metric_value)
    states: list[tuple[str, tuple[int, int]]] = []
    if host is not None and not (explanation.cause or "").startswith(LATE_HOST):
        states = [*_lowered(gpu_use, host), *_lower_clocks(clocks, host), *_shared(gpu_use, use_process, host)]
    if states:
        state = f"on {host} {states[0][0]}"
        cause = state if explanation.cause is None else f"{explanation.cause}; {state}"
        return replace(explanation, cause=cause, evidence=(*explanation.evidence[:-1], states[0][1]))
    if host is not None and _of_host(gpu_use, host).height:
        return explanation
    where = host or f"the host of {ranks_text(explanation.ranks)}"
    wanted = (
        f"on {where}, while the job is slow: `nvidia-smi -q -d PERFORMANCE,CLOCK,TEMPERATURE,POWER`, "
        f"`nvidia-smi`, `nvidia-smi dmon -c 5`, and ten times `py-spy dump` of {ranks_text(explanation.ranks)}"
    )
    return replace(explanation, collect=(*explanation.collect, Request(wanted)))


def _of_host(rows: pl.DataFrame, host: str) -> pl.DataFrame:
    """The rows of a host, whose name may stand with or without its domain."""
    return rows.filter(short_host("host") == short_name(host))


def _lowered(gpu_use: pl.DataFrame, host: str) -> list[tuple[str, tuple[int, int]]]:
    """GPUs of which the driver says that their clocks are lowered."""
    rows = _of_host(gpu_use, host).filter(pl.col("slowdown").is_not_null())
    return [
        (
            f"the clocks of GPU {row['gpu']} are lowered: {row['slowdown']}",
            (row["source"], row["line"] if row["slowdown_line"] is None else row["slowdown_line"]),
        )
        for row in rows.to_dicts()
    ]


def _clocks(gpu_use: pl.DataFrame, metric_value: pl.DataFrame) -> pl.DataFrame:
    """The median clock of each GPU in use, by nvidia-smi, and by exporters, which do not show the use beside it."""
    is_hertz = text_of("name") == EXPORTED_CLOCK
    of_exporters = metric_value.filter((text_of("name").str.ends_with(DCGM_CLOCK) | is_hertz) & (pl.col("value") > 0))
    megahertz = pl.when(is_hertz).then(pl.col("value") / 1e6).otherwise("value")
    samples = pl.concat(
        [
            gpu_use.filter(pl.col("utilization") >= IN_USE).select("source", "line", text_of("host"), "gpu", "clock"),
            of_exporters.select("source", "line", text_of("host"), gpu=text_of("device"), clock=megahertz),
        ]
    ).drop_nulls(["host", "clock"])
    return samples.group_by("host", "gpu").agg(pl.col("clock").median(), pl.col("source", "line").first()).sort("clock")


def _lower_clocks(clocks: pl.DataFrame, host: str) -> list[tuple[str, tuple[int, int]]]:
    """GPUs whose clock is lower than the median of the others, the slowest first."""
    lower = []
    for row in _of_host(clocks, host).to_dicts():
        others = clocks.filter((pl.col("host") != row["host"]) | (pl.col("gpu") != row["gpu"]))["clock"]
        usual = _quantile(others, 0.5)
        if others.len() >= FEWEST_GPUS and row["clock"] < LOWER * usual:
            lower.append({**row, "usual": usual})
    if not lower:
        return []
    names = sorted(row["gpu"].removeprefix("GPU").removeprefix("-") for row in lower)
    run = f"GPUs {', '.join(names)} run" if len(names) > 1 else f"GPU {names[0]} runs"
    text = f"{run} at {lower[0]['clock']:.0f} MHz, the others at {lower[0]['usual']:.0f} MHz (median)"
    return [(text, (lower[0]["source"], lower[0]["line"]))]


def _shared(gpu_use: pl.DataFrame, use_process: pl.DataFrame, host: str) -> list[tuple[str, tuple[int, int]]]:
    """GPUs on which more processes run than on the others in nvidia-smi's tables of this host."""
    tables = _of_host(gpu_use, host).select("source").unique()
    place = ["source", "gpu"]
    pids = use_process.join(tables, on="source").group_by(place).agg(pl.col("pid").n_unique(), pl.col("line").last())
    shared = pids.filter((pl.col("pid") > 1) & (pl.col("pid") > pl.col("pid").median())).sort(place)
    return [
        (f"{row['pid']} processes run on GPU {row['gpu']}", (row["source"], row["line"])) for row in shared.to_dicts()
    ]


def _kernel_ratios(rank: int, kernels: pl.DataFrame, processes: pl.DataFrame) -> pl.DataFrame:
    """The durations of a rank's kernels as ratios to those of the same kernels on other ranks."""
    known = kernels.join(processes.select("source", "rank"), on="source").with_columns(text_of("kernel"))
    usual = known.filter(pl.col("rank") != rank).group_by("kernel").agg(usual_us=pl.col("median_us").median())
    own = known.filter(pl.col("rank") == rank).join(usual, on="kernel").filter(pl.col("usual_us") > 0)
    return own.select(ratio=pl.col("median_us") / pl.col("usual_us"))


def _quantile(values: pl.Series, share: float) -> float:
    found = values.quantile(share, "linear")
    return 0.0 if found is None else float(found)
