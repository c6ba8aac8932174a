"""Topics on the physical links: states of ports, and error counters that increased."""

from __future__ import annotations

import polars as pl

from ncclforensics.analyses.fabric.counters import PORT
from ncclforensics.data.counters import LINK_LIMITS
from ncclforensics.data.roce import NVLINK_ERRORS, NVLINK_FATAL
from ncclforensics.diff import topic
from ncclforensics.frames.columns import text_of

PLACE = ["source", "line", "host"]


@topic(unit="port", needs="ibstat, iblinkinfo or rdma link on both")
def ports(port_state: pl.DataFrame) -> pl.DataFrame:
    """Ports are down, slower or narrower in one run: traffic uses the other ports, or waits for these."""
    last = port_state.unique(list(PORT), keep="last", maintain_order=True)
    width = pl.concat_str("width", "speed", separator=" ", ignore_nulls=True).replace("", None)
    parts = [pl.col("state"), width, pl.when(pl.col("rate_Gbps") > 0).then(pl.format("{} Gb/s", "rate_Gbps"))]
    value = pl.concat_str(parts, separator=", ", ignore_nulls=True).replace("", None)
    layer = pl.format("{} port", pl.col("link_layer").fill_null("a"))
    return last.select(*PLACE, what=layer, value=value).drop_nulls("value")


@topic(unit="port", needs="two dumps of counters around each run: perfquery -x, ibqueryerrors or rdma statistic")
def counters(counter_increase: pl.DataFrame) -> pl.DataFrame:
    """Links corrupt or lose data in one run only: sending it again costs time, and may end the job."""
    errors = counter_increase.filter((pl.col("unit") == "errors") | pl.col("name").is_in(list(LINK_LIMITS)))
    increases = errors.filter(pl.col("increase").is_not_null()).select(
        *PLACE,
        what=text_of("name"),
        value=pl.when(pl.col("increase") > 0).then(pl.lit("increased")).otherwise(pl.lit("did not increase")),
    )
    # A total counts since the counter was cleared, at different times: zero, or the magnitude, can be compared.
    totals = errors.filter(pl.col("dumps") == 1).select(
        *PLACE,
        what=pl.format("{} in total", "name"),
        value=pl.when(pl.col("value") == 0)
        .then(pl.lit("zero"))
        .when(_is_of_nvlink())
        .then(_magnitude())
        .otherwise(pl.lit("not zero")),
    )
    return pl.concat([increases, totals])


def _is_of_nvlink() -> pl.Expr:
    """Whether a counter is one of errors of NVLink, which counts since the driver was loaded, and mostly none."""
    return pl.col("name").is_in([*NVLINK_FATAL, *NVLINK_ERRORS])


def _magnitude() -> pl.Expr:
    """Return how large a total is, in steps that two dumps of an unchanged link do not cross by chance."""
    steps = pl.lit("more than a million")
    for most in (1_000_000, 10_000, 100):
        steps = pl.when(pl.col("value") <= most).then(pl.lit(f"at most {most:,}")).otherwise(steps)
    return steps


@topic(unit="link", needs="the whole output of ibnetdiscover at both times", is_absence_different=True)
def cables(fabric_link: pl.DataFrame, fabric_map: pl.DataFrame) -> pl.DataFrame:
    """Cables of the fabric lead elsewhere, are new, or are gone: routes and loads follow from them."""
    latest = fabric_map.filter(pl.col("is_latest")).select("source")
    links = fabric_link.filter(pl.col("kind") != "aggregation").join(latest, on="source", how="semi")
    return links.select(
        "source", "line", host=pl.lit(None, pl.String),
        what=pl.format("link of {} port {}", "name", "port"),
        value=pl.format("to {} port {}", "peer_name", "peer_port"),
    )  # fmt: skip
