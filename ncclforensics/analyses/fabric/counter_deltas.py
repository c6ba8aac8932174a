"""Increases of counters between dumps, with resets, wraps and saturated counters."""

from __future__ import annotations

import polars as pl

from ncclforensics.analyses.fabric.counters import COUNTER_SAMPLE, PORT, concat_filled, path_of_dump
from ncclforensics.data.counters import AFTER, BEFORE, UNITS
from ncclforensics.frames.columns import LINE, no_rows, with_all_columns
from ncclforensics.frames.registry import analysis
from ncclforensics.parsing.templates import distinct_rows

COUNTER_KEY = {
    "key": pl.String(),  # equal for one port
    **PORT,
    "name": pl.Categorical(),
    "unit": pl.Categorical(),
}
ORDERED_SAMPLE = {
    **COUNTER_SAMPLE,
    "key": pl.String(),
    "key_number": pl.UInt32(),  # of `key`
    "counter_number": pl.UInt32(),  # of `key` and `name`
    "is_single": pl.Boolean(),  # its port was dumped once: there is nothing to compare
    "rank": pl.Int8(),  # the order of dumps that the names of their files show
    "is_timed": pl.Boolean(),  # all dumps of the port have a time
    "first_traffic": pl.Int64(),  # of the port in the first dump of this file
}
COUNTER_DELTA = {
    **COUNTER_KEY,
    "before": pl.Int64(),
    "after": pl.Int64(),
    "increase": pl.Int64(),  # null where both are saturated
    "is_lower_bound": pl.Boolean(),  # the true increase may be larger: the counter was reset, or is saturated
    "is_reset": pl.Boolean(),
    "seconds": pl.Float64(),  # between the dumps, where both have a time
    "order": pl.String(),  # how the earlier dump is known: time, place (in one file), name (of files), traffic
    "moment": pl.Datetime("us"),
    "before_moment": pl.Datetime("us"),
    **LINE,
    "before_source": pl.Int32(),
    "before_line": pl.Int32(),
}
COUNTER_INCREASE = {
    **COUNTER_KEY,
    "dumps": pl.UInt32(),  # with this counter; one dump shows no increase
    "value": pl.Int64(),  # in the last dump
    "is_saturated": pl.Boolean(),
    "increase": pl.Int64(),  # from the first dump to the last; null if unknown
    "is_lower_bound": pl.Boolean(),
    "is_reset": pl.Boolean(),
    "seconds": pl.Float64(),
    "order": pl.String(),
    "first_increase": pl.Datetime("us"),  # time of the first dump after an increase
    "last_unchanged": pl.Datetime("us"),  # time of the last dump before it
    **LINE,
    "before_source": pl.Int32(),
    "before_line": pl.Int32(),
}
SEPARATORS = ["/", "_", "-", ".", " ", "\\"]
# A counter of 8, 16 or 32 bits wrapped only if it was near its maximum before.
WIDTHS, NEAR = (8, 16, 32), 0.75


@analysis(ORDERED_SAMPLE, of=("counter_sample",), is_step=True)
def ordered_sample(counter_sample: pl.DataFrame, source: pl.DataFrame) -> pl.DataFrame:
    """The samples of every port, the earliest first, each with the number of its counter; those of one dump last.

    They are sorted by time if all have one, then by words in file names, then by traffic, which only increases.
    """
    ports, port = distinct_rows(counter_sample, ["source", *PORT])
    named = _with_keys(ports.select("source", *PORT), source)
    _, key_number = distinct_rows(named, ["key"])
    rows = counter_sample.hstack([named["key"].gather(port), named["rank"].gather(port)])
    rows = rows.with_columns(key_number=key_number.gather(port))
    counters = rows.select("key_number", "name")
    if counters.hash_rows().n_unique() == rows.height:  # as in most runs; to number them takes five times the memory
        rows = rows.with_columns(counter_number=pl.int_range(pl.len(), dtype=pl.UInt32))
        repeated = rows.clear()
    else:
        _, counter_number = distinct_rows(counters, ["key_number", "name"])
        rows = rows.with_columns(counter_number=counter_number)
        is_repeated = counter_number.is_duplicated()
        repeated_keys = rows["key_number"].filter(is_repeated).unique().implode()
        is_of_repeated = pl.col("key_number").is_in(repeated_keys)
        rows, repeated = rows.filter(~is_of_repeated), rows.filter(is_of_repeated)
    none = {"is_timed": pl.lit(None, pl.Boolean), "first_traffic": pl.lit(None, pl.Int64)}
    single = rows.with_columns(is_single=pl.lit(value=True), **none)
    in_order = _in_order(repeated).with_columns(is_single=pl.lit(value=False))
    return concat_filled([in_order.select(single.columns), single])


@analysis(COUNTER_DELTA, of=("counter_sample",))
def counter_delta(ordered_sample: pl.DataFrame) -> pl.DataFrame:
    """One row per counter and pair of consecutive dumps: values before and after, and the increase."""
    ordered = ordered_sample.filter(~pl.col("is_single"))
    if ordered.is_empty():
        return no_rows(COUNTER_DELTA)
    earlier = pl.col("value", "moment", "source", "line", "is_saturated", "rank", "first_traffic")
    pairs = ordered.with_columns(earlier.shift(1).over("counter_number").name.prefix("before_"))
    pairs = pairs.filter(pl.col("before_line").is_not_null())
    is_lower = pl.col("value") < pl.col("before_value")
    saturates = pl.col("name").is_in(list(UNITS))
    has_no_reset = (is_lower & ~_is_wrap()).any().over("key_number", "source", "sample").not_()
    wrapped = is_lower & ~saturates & _is_wrap() & has_no_reset
    is_saturated = pl.col("is_saturated") & pl.col("before_is_saturated")
    increase = (
        pl.when(wrapped)
        .then(_wrap_value() - pl.col("before_value") + pl.col("value"))
        .when(is_lower)
        .then("value")
        .when(~is_saturated)
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
        increase=increase,
        is_reset=is_lower & ~wrapped,
        is_lower_bound=(is_lower & ~wrapped) | (pl.col("is_saturated") & ~pl.col("before_is_saturated")),
        seconds=(pl.col("moment") - pl.col("before_moment")).dt.total_microseconds() / 1e6,
        order=order,
    )


def _wrap_value() -> pl.Expr:
    """The value at which a counter that holds `before_value` wraps to 0, by the smallest width that fits."""
    limits = [pl.when(pl.col("before_value") < 1 << bits).then(pl.lit(1 << bits, pl.Int64)) for bits in WIDTHS]
    return pl.coalesce(limits)


def _is_wrap() -> pl.Expr:
    return (pl.col("before_value") >= _wrap_value() * NEAR).fill_null(value=False)


def _with_keys(sample: pl.DataFrame, source: pl.DataFrame) -> pl.DataFrame:
    """Add `key`, equal for one port in all dumps, and `rank`: the order of dumps that the names of their files show.

    A device without a host may belong to any host: two files show the same device only if their names are equal except
    for words such as `before` and `after`.
    """
    words = path_of_dump().str.to_lowercase().str.replace_many(dict.fromkeys(SEPARATORS, " ")).str.split(" ")
    order_words = [*BEFORE, *AFTER]
    named = source.select(
        "source",
        stem=words.list.eval(pl.element().filter(~pl.element().is_in(order_words))).list.join(" "),
        rank=words.list.eval(
            pl.element().is_in(list(AFTER)).cast(pl.Int8) - pl.element().is_in(list(BEFORE)).cast(pl.Int8)
        )
        .list.sum()
        .cast(pl.Int8),
    )
    port = pl.col("port").cast(pl.String).fill_null("?")
    key = pl.coalesce(
        pl.format("{} {}", "guid", port),
        pl.format("{} {} {}", "host", "device", port),
        pl.format("LID {} {}", "lid", port),
        pl.format("{} {} {}", "stem", pl.col("device").fill_null(""), port),
    )
    return sample.join(named, on="source", how="left").with_columns(key=key)


def _in_order(rows: pl.DataFrame) -> pl.DataFrame:
    """Sort the samples of every port, the earliest first."""
    traffic = pl.col("value").filter(pl.col("unit").is_in(["packets", "bytes"])).sum()
    timed = rows.with_columns(
        is_timed=(pl.col("moment").is_not_null().all() & (pl.col("moment").n_unique() > 1)).over("key_number"),
        _traffic=traffic.over("key_number", "source", "sample"),
    )
    timed = timed.with_columns(first_traffic=pl.col("_traffic").first().over("key_number", "source"))
    clock = pl.when("is_timed").then("moment")
    return (
        timed.with_columns(_clock=clock)
        .sort("_clock", "rank", "first_traffic", "source", "sample", "line", maintain_order=True)
        # Two tools that query a port at the same time print the same counters twice.
        .unique(["counter_number", "source", "sample"], keep="last", maintain_order=True)
        .drop("_clock", "_traffic")
    )


@analysis(COUNTER_INCREASE, of=("counter_sample",))
def counter_increase(ordered_sample: pl.DataFrame, counter_delta: pl.DataFrame) -> pl.DataFrame:
    """One row per counter of a port: its last value, and its increase over all dumps."""
    shown = ["key", "name", *PORT, "unit", "value", "is_saturated", "source", "line"]
    repeated = ordered_sample.filter(~pl.col("is_single"))
    last = repeated.group_by("counter_number", maintain_order=True).agg(pl.col(shown).last(), dumps=pl.len())
    single = ordered_sample.filter("is_single").select(shown).with_columns(dumps=pl.lit(1, pl.UInt32))
    is_increase = pl.col("increase") > 0
    total = counter_delta.group_by("key", "name").agg(
        pl.when(pl.col("increase").is_not_null().any()).then(pl.col("increase").sum()).alias("increase"),
        pl.col("is_lower_bound", "is_reset").any(),
        pl.when(pl.col("seconds").is_not_null().all()).then(pl.col("seconds").sum()).alias("seconds"),
        # The least reliable order of two dumps counts for all.
        order=pl.coalesce(
            *(
                pl.col("order").filter(pl.col("order") == order).first()
                for order in ("traffic", "name", "place", "time")
            )
        ),
        first_increase=pl.col("moment").filter(is_increase).first(),
        last_unchanged=pl.col("before_moment").filter(is_increase).first(),
        before_source=pl.col("before_source").first(),
        before_line=pl.col("before_line").first(),
    )
    increases = last.join(total, on=["key", "name"], how="left", maintain_order="left")
    return with_all_columns(concat_filled([increases, single]), COUNTER_INCREASE).with_columns(
        pl.col("is_lower_bound", "is_reset").fill_null(value=False)
    )
