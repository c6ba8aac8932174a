"""Texts on benchmarks in the titles of findings, and rows that several rules read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median

import polars as pl

from ncclforensics.data.busbw import COLLAPSE, DROP, DROPPED_SIZES, FEWEST_PAIRS, LONE_GPU
from ncclforensics.frames.columns import Row, text_of

# Pairs that share the network, where one slow host of four takes part in half of all pairs.
BETWEEN_HOSTS = ("pairs of hosts", "pairs of ranks of two hosts")
PARTICIPANTS = ["benchmark", "collective", "nranks", "listed_devices", "hosts", "gpus"]  # columns of `benchmark`


def called(row: Row) -> str:
    """`all_reduce on 8 ranks`, of a row of `benchmark`; a text that ends with the devices may lack some."""
    least = "at least " if row.get("is_cut_in_list") else ""
    return f"{row['collective'] or 'a test'}" + (
        f" on {least}{row['nranks']} rank{'s' * (row['nranks'] > 1)}" if row["nranks"] else ""
    )


def rows_of(measurement: pl.DataFrame, row: Row) -> pl.DataFrame:
    """Return the measurements of one benchmark, of measurements in the order of benchmarks.

    They are looked up, because one file may hold thousands of tests.
    """
    start, stop = (measurement["benchmark"].search_sorted(row["benchmark"], side=side) for side in ("left", "right"))
    return measurement.slice(start, stop - start)


def drop_from(best: float, rates: Sequence[float]) -> int:
    """Return the place from which these rates, of ever larger sizes, have dropped; their number where they have not.

    They stay below half of the best: at several sizes, at the end of a steady fall, or far below it even at one size.

    >>> drop_from(110.4, [90.0, 24.1, 18.7, 17.8]), drop_from(110.4, [24.1, 108.0]), drop_from(110.4, [99.0, 2.1])
    (1, 2, 1)
    """
    first = next((nth for nth in range(len(rates)) if max(rates[nth:]) < DROP * best), len(rates))
    slow = rates[first:]
    is_falling = len(rates) >= DROPPED_SIZES and all(after < before for before, after in pairwise([best, *rates]))
    has_dropped = len(slow) >= DROPPED_SIZES or is_falling or is_collapse(best, slow)
    return first if has_dropped else len(rates)


def is_collapse(best: float, rates: Sequence[float]) -> bool:
    """Whether all of these rates are far below the best."""
    return bool(rates) and max(rates) < COLLAPSE * best


def best_of_tests(measurement: pl.DataFrame, size: int) -> Mapping[int, Row]:
    """Return the measurement of each benchmark with the highest busbw at this size or above."""
    large = measurement.filter((pl.col("size") >= size) & pl.col("busbw").is_finite())
    best = large.select("benchmark", "size", "algbw", "busbw", "source", "line")
    best = best.sort("busbw", descending=True, maintain_order=True).unique("benchmark", keep="first")
    return {row["benchmark"]: row for row in best.iter_rows(named=True)}


def between_gpus(gpu_pair: pl.DataFrame, pair_device: pl.DataFrame) -> pl.DataFrame:
    """Return the bandwidths between two GPUs of hosts with one known `model`, and which directions they count.

    Older versions of nvbandwidth print one direction of their bidirectional tests, or both: what they count is unclear.
    """
    cells = gpu_pair.filter(
        (pl.col("kind") == "bandwidth") & (pl.col("ends") == "GPU") & (pl.col("row") != pl.col("column"))
    )
    models = pair_device.group_by("source").agg(text_of("gpu").drop_nulls().unique().alias("models"))
    of_one_model = models.filter(pl.col("models").list.len() == 1).select("source", model=pl.col("models").list.first())
    test = pl.col("test").fill_null("")
    return cells.join(of_one_model, on="source", maintain_order="left").with_columns(
        is_sum_of_both_ways=test.str.starts_with("Bidirectional") | test.str.ends_with(" Total"),
        is_counted_both_ways=test.str.to_lowercase().str.contains("bidirectional", literal=True),
    )


def tested_ends(ping_pong: pl.DataFrame, source: object) -> str:
    """The addresses of the two ends of a test, as the file prints them; empty if it does not."""
    form, near, far = text_of("form"), "local", "remote"
    gid = pl.when(text_of("end_gid") != "::").then(text_of("end_gid"))  # of InfiniBand none is printed
    named = pl.coalesce(gid, "LID " + text_of("end_lid"))
    ends = ping_pong.filter(pl.col("source") == source).select("line", form=form, end=named).drop_nulls().sort("line")
    first = dict(ends.unique("form", keep="first", maintain_order=True).select("form", "end").iter_rows())
    return f"; from {first[near]} to {first[far]}" if near in first and far in first else ""


def pairs_of_others(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the pairs to compare with: those without the one end whose pairs are the slowest.

    Within a host these are all pairs, unless that end reaches no other one at a rate that links through CPUs explain.
    """
    by_end = rows.group_by("row").agg(pl.col("value").median()).sort("value", "row")
    is_of_end = (pl.col("row") == by_end["row"][0]) | (pl.col("column") == by_end["row"][0])
    own, others = rows.filter(is_of_end)["value"].to_list(), rows.filter(~is_of_end)
    if others.height < FEWEST_PAIRS:
        return rows
    is_lone = max(own) < LONE_GPU * median(others["value"])
    return others if is_lone or rows["test"][0] in BETWEEN_HOSTS else rows
