"""Differences between the figures of two runs: series over sizes that differ more than equal runs do."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.data.busbw import DIP
from ncclforensics.data.difference_weights import FEWEST_SIZES, NOISE, NOISE_OF_LATENCY
from ncclforensics.data.names import bytes_text
from ncclforensics.diff import Curve, Difference, Side, Topic
from ncclforensics.frames.columns import Row
from ncclforensics.rules.finding import Line

TIME = "us"
NAMES = {TIME: "latency", "GB/s": "bandwidth"}


def figure_differences(topic: Topic, good: pl.DataFrame, bad: pl.DataFrame) -> Iterator[Difference]:
    """Yield a difference for each series of which some sizes are slower, and one if some are faster."""
    for (what, unit), rows in _paired(good, bad).group_by("what", "unit", maintain_order=True):
        for candidates in (rows.filter("is_slower"), rows.filter("is_faster")):
            different = pl.concat(_significant(candidates, rows))
            if different.height:
                yield _difference(topic, f"{NAMES[str(unit)]} of {what}", different, rows)


def curves(good: pl.DataFrame, bad: pl.DataFrame) -> list[Curve]:
    """Return the bandwidth over size of each series that both runs measured; of its first side only."""
    result = []
    rows = _paired(good, bad).filter((pl.col("unit") != TIME) & pl.col("size").is_not_null())
    for (what, unit), series in rows.group_by("what", "unit", maintain_order=True):
        side = series.filter(pl.col("side").eq_missing(series["side"][0])).sort("size")
        points = list(side.select("size", "value", "value_bad").iter_rows())
        result.append(Curve(str(what), str(unit), points))
    return result


def _paired(good: pl.DataFrame, bad: pl.DataFrame) -> pl.DataFrame:
    """Join the medians of both runs: one row per series and size that both measured, with `is_slower`, `is_faster`.

    Repeated measurements of the two runs must not overlap, because their spread is the noise of a run.
    """
    series = ["what", "side", "unit", "size"]
    both = _typical(good, series).join(
        _typical(bad, series), on=series, how="inner", nulls_equal=True, suffix="_bad", maintain_order="left"
    )
    is_time = pl.col("unit") == TIME
    gain = pl.when(is_time).then(pl.col("value") / pl.col("value_bad")).otherwise(pl.col("value_bad") / pl.col("value"))
    least = pl.when(is_time).then(1 / NOISE_OF_LATENCY).otherwise(1 - NOISE)
    is_below = pl.col("most_bad") < pl.col("least")
    is_above = pl.col("least_bad") > pl.col("most")
    return (
        both.with_columns(gain=gain, place=pl.int_range(pl.len()).over("what", "side", "unit", order_by="size"))
        .with_columns(
            is_slower=(pl.col("gain") < least) & pl.when(is_time).then(is_above).otherwise(is_below),
            is_faster=(pl.col("gain") > 1 / least) & pl.when(is_time).then(is_below).otherwise(is_above),
        )
        .sort(series)
    )


def _typical(rows: pl.DataFrame, series: list[str]) -> pl.DataFrame:
    return (
        rows.filter(pl.col("value") > 0)
        .group_by(series, maintain_order=True)
        .agg(
            pl.col("value").median(),
            least=pl.col("value").min(),
            most=pl.col("value").max(),
            source=pl.col("source").first(),
            line=pl.col("line").first(),
        )
    )


def _significant(candidates: pl.DataFrame, rows: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Yield the candidates, per side, that are adjacent in size, are the largest size, or differ a lot."""
    yield candidates.clear()
    for side in candidates["side"].unique(maintain_order=True):
        is_here = pl.col("side").eq_missing(pl.lit(side, pl.String))
        of_side, all_sizes = candidates.filter(is_here).sort("place"), rows.filter(is_here)
        streak = (pl.col("place").diff().fill_null(0) != 1).cum_sum()
        is_last = pl.col("place") == all_sizes["place"].max()
        is_far = (pl.col("gain") < DIP) & (pl.col("unit") != TIME)
        yield (
            of_side.with_columns(streak=streak)
            .filter((pl.len().over("streak") >= FEWEST_SIZES) | ((pl.col("unit") != TIME) & (is_last | is_far)))
            .drop("streak")
        )


def _difference(topic: Topic, what: str, different: pl.DataFrame, rows: pl.DataFrame) -> Difference:
    """Make one difference that shows the largest of the different sizes for bandwidth, the smallest for latency."""
    is_time = different["unit"][0] == TIME
    furthest = different.sort(pl.col("gain").log().abs(), "size", descending=True).row(0, named=True)
    shown = different.sort("size", pl.col("gain").log().abs(), descending=[not is_time, True]).row(0, named=True)
    far = "" if shown["size"] == furthest["size"] else f" It is {_share(furthest)}{_at(furthest)}."
    return Difference(
        topic.name,
        what + _span(different, rows),
        topic.kind,
        Side(
            [(f"{_figure(shown['value'], shown['unit'])}{_at(shown)}", 1)], [Line(shown["source"], shown["line"], "")]
        ),
        Side(
            [(f"{_figure(shown['value_bad'], shown['unit'])}{_at(shown)}, {_share(shown)}", 1)],
            [Line(shown["source_bad"], shown["line_bad"], "")],
        ),
        topic.unit,
        topic.means + far,
    )


def _span(different: pl.DataFrame, rows: pl.DataFrame) -> str:
    """` at 1 MiB to 8 GiB (14 of 14 sizes), in-place only`."""
    sizes = different["size"].drop_nulls().unique().sort().to_list()
    text = ""
    if sizes:
        span = bytes_text(sizes[0]) + f" to {bytes_text(sizes[-1])}" * (len(sizes) > 1)
        text = f" at {span} ({len(sizes)} of {rows['size'].drop_nulls().n_unique()} sizes)"
    sides = different["side"].drop_nulls().unique(maintain_order=True).to_list()
    return text + (f", {sides[0]} only" if len(sides) == 1 and rows["side"].n_unique() > 1 else "")


def _share(row: Row) -> str:
    return f"{row['value_bad'] / row['value']:.0%}"


def _at(row: Row) -> str:
    return f" at {bytes_text(row['size'])}" if row["size"] is not None else ""


def _figure(value: float, unit: str) -> str:
    return f"{value:,.1f} {unit}"
