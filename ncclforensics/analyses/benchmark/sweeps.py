"""Sweeps of nccl-tests: runs of one size each that a script started one after the other are one measurement."""

from __future__ import annotations

import polars as pl

from ncclforensics.analyses.benchmark.nccl_tests import BENCHMARK
from ncclforensics.frames.columns import Row, frame_of_rows
from ncclforensics.frames.registry import analysis

BENCHMARK_SWEEP = {**BENCHMARK, "benchmarks": pl.List(pl.Int32())}  # `benchmark`: the first of these
EQUAL = ("source", "nranks", "hosts", "gpus", "version", "is_checked", "has_failed")


@analysis(BENCHMARK_SWEEP, of=("benchmark",))
def benchmark_sweep(benchmark: pl.DataFrame) -> pl.DataFrame:
    """One row per run of nccl-tests, in the order of the files; of runs of one size that differ in nothing else, one.

    Where the test is started once for each size, the rows would be equal but for the size.
    """
    is_same = pl.all_horizontal(pl.col(name).eq_missing(pl.col(name).shift()) for name in EQUAL)
    runs = benchmark.with_columns(may_go_on=(pl.col("rows") == 1) & is_same & (pl.int_range(pl.len()) > 0))
    may_be_part = pl.col("may_go_on") | pl.col("may_go_on").shift(-1, fill_value=False)
    joined: list[Row] = []
    for run in runs.filter(may_be_part).to_dicts():
        row = {**run, "benchmarks": [run["benchmark"]]}
        if row.pop("may_go_on") and _goes_on(joined[-1], row):
            joined[-1] = _joined(joined[-1], row)
        else:
            joined.append(row)
    single = runs.filter(~may_be_part).select(*BENCHMARK, benchmarks=pl.concat_list("benchmark"))
    return pl.concat([single, frame_of_rows(joined, BENCHMARK_SWEEP)]).sort("source", "line", "benchmark")


def _goes_on(last: Row, row: Row) -> bool:
    """Whether a run is of the same test; the bandwidths of the smallest sizes do not show which one it is."""
    is_unknown = None in (last["collective"], row["collective"]) and last["last_size"] != row["last_size"]
    return last["collective"] == row["collective"] or is_unknown


def _joined(last: Row, row: Row) -> Row:
    best = max(last, row, key=lambda run: (run["max_busbw"] or 0.0, run["max_size"] or 0))
    return {
        **last,
        "collective": last["collective"] or row["collective"],
        "benchmarks": [*last["benchmarks"], row["benchmark"]],
        "rows": last["rows"] + 1,
        "last_size": max(filter(None, (last["last_size"], row["last_size"])), default=None),
        "max_busbw": best["max_busbw"],
        "max_size": best["max_size"],
        "wrong": None if row["wrong"] is None else (last["wrong"] or 0.0) + row["wrong"],
        "failed_checks": (last["failed_checks"] or 0) + (row["failed_checks"] or 0),
        "is_complete": last["is_complete"] and row["is_complete"],
    }
