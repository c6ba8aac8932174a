"""How counters grew from dump to dump: pairs and series, with resets, wraps and counters that stick."""

from __future__ import annotations

import polars as pl

from ncclforensics.analyses.fabric.counters import PORT, dump_of
from ncclforensics.data.counters import AFTER, BEFORE, UNITS
from ncclforensics.frames.registry import analysis

WHO = {"key": pl.String(), **PORT, "name": pl.String(), "unit": pl.String()}  # `key`: the same port in all dumps
COUNTER_DELTA = {
    **WHO,
    "before": pl.Int64(),
    "after": pl.Int64(),
    "increase": pl.Int64(),  # null where both are stuck
    "is_lower_bound": pl.Boolean(),  # it may have grown by more: it was reset between them, or got stuck
    "is_reset": pl.Boolean(),
    "seconds": pl.Float64(),  # between them, where both dumps tell their time
    "order": pl.String(),  # what tells which dump is the earlier one: time, place (in one file), name, traffic
    "moment": pl.Datetime("us"),
    "before_moment": pl.Datetime("us"),
    "source": pl.Int32(),
    "line": pl.Int32(),
    "before_source": pl.Int32(),
    "before_line": pl.Int32(),
}
COUNTER_INCREASE = {
    **WHO,
    "dumps": pl.UInt32(),  # that tell it; with one there is no growth to be seen
    "value": pl.Int64(),  # in the last one
    "is_saturated": pl.Boolean(),
    "increase": pl.Int64(),  # from the first to the last; null where that is not known
    "is_lower_bound": pl.Boolean(),
    "is_reset": pl.Boolean(),
    "seconds": pl.Float64(),
    "order": pl.String(),
    "first_increase": pl.Datetime("us"),  # of the first dump in which it had grown
    "last_unchanged": pl.Datetime("us"),  # of the last one in which it had not
    "source": pl.Int32(),
    "line": pl.Int32(),
    "before_source": pl.Int32(),
    "before_line": pl.Int32(),
}
SEPARATORS = ["/", "_", "-", ".", " ", "\\"]
# A counter that wraps was near its end before: of 8, 16 or 32 bits.
WIDTHS, NEAR = (8, 16, 32), 0.75


@analysis(COUNTER_DELTA, of=("counter_sample",))
def counter_delta(counter_sample: pl.DataFrame, source: pl.DataFrame) -> pl.DataFrame:
    """One row for each counter and each pair of dumps that follow one another."""
    ordered = _in_order(_keyed(counter_sample, source))
    earlier = pl.col("value", "moment", "source", "line", "is_saturated", "rank", "first_traffic")
    pairs = ordered.with_columns(earlier.shift(1).over("key", "name").name.prefix("before_"))
    pairs = pairs.filter(pl.col("before_line").is_not_null())
    fell = pl.col("value") < pl.col("before_value")
    sticks = pl.col("name").is_in(list(UNITS))
    alone = (fell & ~_is_wrap()).any().over("key", "source", "sample").not_()
    wrapped = fell & ~sticks & _is_wrap() & alone
    stuck = pl.col("is_saturated") & pl.col("before_is_saturated")
    grown = (
        pl.when(wrapped)
        .then(_end() - pl.col("before_value") + pl.col("value"))
        .when(fell)
        .then("value")
        .when(~stuck)
        .then(pl.col("value") - pl.col("before_value"))
    )
    order = (
        pl.when("is_timed")
        .then(pl.lit("time"))
        .when(pl.col("source") == pl.col("before_source"))
        .then(pl.lit("place"))
        .when(pl.col("rank") != pl.col("before_rank"))
        .then(pl.lit("name"))
        .otherwise(pl.lit("traffic"))
    )
    return pairs.with_columns(
        before="before_value",
        after="value",
        increase=grown,
        is_reset=fell & ~wrapped,
        is_lower_bound=(fell & ~wrapped) | (pl.col("is_saturated") & ~pl.col("before_is_saturated")),
        seconds=(pl.col("moment") - pl.col("before_moment")).dt.total_microseconds() / 1e6,
        order=order,
    )


def _end() -> pl.Expr:
    """Where a counter of this value would wrap."""
    ends = [pl.when(pl.col("before_value") < 1 << bits).then(pl.lit(1 << bits, pl.Int64)) for bits in WIDTHS]
    return pl.coalesce(ends)


def _is_wrap() -> pl.Expr:
    return (pl.col("before_value") >= _end() * NEAR).fill_null(value=False)


def _keyed(sample: pl.DataFrame, source: pl.DataFrame) -> pl.DataFrame:
    """With what is the same for one port in all dumps, and what the name of the file tells of their order.

    A device without a host may be any host's: only two files whose names are the same but for words such as `before`
    and `after` tell of the same one.
    """
    words = dump_of("path").str.to_lowercase().str.replace_many(dict.fromkeys(SEPARATORS, " ")).str.split(" ")
    marks = [*BEFORE, *AFTER]
    named = source.select(
        "source",
        stem=words.list.eval(pl.element().filter(~pl.element().is_in(marks))).list.join(" "),
        rank=words.list.eval(
            pl.element().is_in(list(AFTER)).cast(pl.Int8) - pl.element().is_in(list(BEFORE)).cast(pl.Int8)
        ).list.sum(),
    )
    here = pl.col("port").cast(pl.String).fill_null("?")
    key = pl.coalesce(
        pl.format("{} {}", "guid", here),
        pl.format("{} {} {}", "host", "device", here),
        pl.format("LID {} {}", "lid", here),
        pl.format("{} {} {}", "stem", pl.col("device").fill_null(""), here),
    )
    return sample.join(named, on="source", how="left").with_columns(key=key)


def _in_order(rows: pl.DataFrame) -> pl.DataFrame:
    """The samples of every port, the earliest first.

    By their time if all tell it; by the words in the names of files; by traffic, which only grows.
    """
    traffic = pl.col("value").filter(pl.col("unit").is_in(["packets", "bytes"])).sum()
    timed = rows.with_columns(
        is_timed=(pl.col("moment").is_not_null().all() & (pl.col("moment").n_unique() > 1)).over("key"),
        _traffic=traffic.over("key", "source", "sample"),
    )
    timed = timed.with_columns(first_traffic=pl.col("_traffic").first().over("key", "source"))
    clock = pl.when("is_timed").then("moment")
    return (
        timed.with_columns(_clock=clock)
        .sort("_clock", "rank", "first_traffic", "source", "sample", "line", maintain_order=True)
        # Two tools that ask at the same time tell the same twice.
        .unique(["key", "name", "source", "sample"], keep="last", maintain_order=True)
    )


@analysis(COUNTER_INCREASE, of=("counter_sample",))
def counter_increase(counter_sample: pl.DataFrame, source: pl.DataFrame, counter_delta: pl.DataFrame) -> pl.DataFrame:
    """One row for each counter of each port: what it is now, and how it grew over all dumps that tell it."""
    ordered = _in_order(_keyed(counter_sample, source))
    last = ordered.group_by("key", "name", maintain_order=True).agg(
        pl.col(*PORT, "unit", "value", "is_saturated", "source", "line").last(), dumps=pl.len()
    )
    grew = pl.col("increase") > 0
    over = counter_delta.group_by("key", "name").agg(
        pl.when(pl.col("increase").is_not_null().any()).then(pl.col("increase").sum()).alias("increase"),
        pl.col("is_lower_bound", "is_reset").any(),
        pl.when(pl.col("seconds").is_not_null().all()).then(pl.col("seconds").sum()).alias("seconds"),
        # The weakest of them is what can be said of all.
        order=pl.coalesce(
            *(pl.col("order").filter(pl.col("order") == each).first() for each in ("traffic", "name", "place", "time"))
        ),
        first_increase=pl.col("moment").filter(grew).first(),
        last_unchanged=pl.col("before_moment").filter(grew).first(),
        before_source=pl.col("before_source").first(),
        before_line=pl.col("before_line").first(),
    )
    return last.join(over, on=["key", "name"], how="left", maintain_order="left").with_columns(
        pl.col("is_lower_bound", "is_reset").fill_null(value=False)
    )
