"""Traffic of a fabric's links between two dumps of counters, and links and spines that carry another's share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import polars as pl

from ncclforensics.data.fabric import (
    BUSY,
    HOT,
    HOT_RATIO,
    HOT_SHARE,
    LEAVES_LEAST,
    LITTLE_LOST,
    LOST,
    MOST_SHARE,
    MUCH_DATA,
    MUCH_RATIO,
    SPINE_RATIO,
    TICK_BYTES,
    UNEVEN_BUSY,
    UNEVEN_RATIO,
    UPLINKS_LEAST,
    WIDE_TICK_BYTES,
    WIDE_TICK_DEVICES,
)
from ncclforensics.frames.columns import LINE, frame_of_rows
from ncclforensics.frames.registry import analysis

FABRIC_LOAD = {
    "map_source": pl.Int32(),
    "guid": pl.String(),  # of the switch whose port sends
    "port": pl.Int32(),
    "name": pl.String(),
    "peer_name": pl.String(),
    "parent": pl.String(),  # name of the logical switch at the upper end
    "leaf": pl.String(),  # GUID of the leaf of a link between leaf and spine
    "direction": pl.String(),  # up, down, host: to the level above, below, or to a host
    "bytes": pl.Int64(),  # sent between the dumps
    "utilisation": pl.Float64(),  # share of the rate of the link; null where the times of the dumps are not known
    "lost": pl.Float64(),  # share of the time with data that the port waited for credits; null without that counter
    "seconds": pl.Float64(),
    "key": pl.String(),  # of counter_increase
    **LINE,
    "before_source": pl.Int32(),
    "before_line": pl.Int32(),
}
LOAD_DEVIATION = {
    "kind": pl.String(),  # hot-uplink, uneven-spines, uneven-load
    "names": pl.List(pl.String()),  # of the busy switches; of a hot uplink: its switch
    "others": pl.List(pl.String()),  # of the idle ones; of a hot uplink: the switch above
    "guid": pl.String(),  # of a hot uplink's switch
    "port": pl.Int32(),
    "high": pl.Float64(),  # share of the rate; bytes of a link where `is_share` is false
    "low": pl.Float64(),
    "lost": pl.Float64(),
    "is_share": pl.Boolean(),
    "count": pl.Int32(),
    "keys": pl.List(pl.String()),
    "evidence": pl.List(pl.List(pl.Int32())),  # source and line
}
SENT, WAIT = "port_xmit_data", "port_xmit_wait"


@analysis(FABRIC_LOAD, of=("fabric_map",))
def fabric_load(
    fabric_map: pl.DataFrame, fabric_link: pl.DataFrame, fabric_switch: pl.DataFrame, counter_increase: pl.DataFrame
) -> pl.DataFrame:
    """One row per port of a switch that two dumps show: what it sent, of its rate, and how long it waited."""
    latest = fabric_map.filter(pl.col("is_latest")).select("source")
    links = fabric_link.filter(pl.col("kind").is_in(["uplink", "host"])).join(latest, on="source", how="semi")
    switches = fabric_switch.select("source", "guid", "level", "logical_name", "device_number")
    up = links.filter(pl.col("kind") == "uplink").select(
        "source", "guid", "port", "name", "peer_name", "rate_Gbps", "width", upper="peer_guid", lower="guid",
        direction=pl.lit("up"),
    )  # fmt: skip
    down = links.select(
        "source", "rate_Gbps", "width", guid="peer_guid", port="peer_port", name="peer_name", peer_name="name",
        upper="peer_guid", lower="guid",
        direction=pl.when(pl.col("kind") == "host").then(pl.lit("host")).otherwise(pl.lit("down")),
    )  # fmt: skip
    ends = pl.concat([up, down], how="diagonal")
    upper = switches.select("source", upper="guid", parent="logical_name")
    lower = switches.filter(pl.col("level") == 1).select("source", lower="guid", leaf="guid")
    own = switches.select("source", "guid", "device_number")
    for more, key in ((upper, "upper"), (lower, "lower"), (own, "guid")):
        ends = ends.join(more, on=["source", key], how="left", maintain_order="left")
    grown = counter_increase.filter((pl.col("dumps") > 1) & ~pl.col("is_reset") & ~pl.col("is_saturated"))
    known = pl.col("guid").is_not_null() & pl.col("increase").is_not_null()
    sent = grown.filter(known & (pl.col("name") == SENT)).select(
        "guid", "port", "key", "seconds", "source", "line", "before_source", "before_line", bytes="increase"
    )
    waits = grown.filter(known & (pl.col("name") == WAIT)).select("guid", "port", ticks="increase")
    rows = ends.rename({"source": "map_source"}).join(sent, on=["guid", "port"], maintain_order="left")
    rows = rows.join(waits, on=["guid", "port"], how="left", maintain_order="left")
    is_wide = pl.col("device_number").is_in(WIDE_TICK_DEVICES)
    lanes = pl.col("width").str.strip_suffix("X").cast(pl.Int64, strict=False)
    waited = pl.col("ticks") * pl.when(is_wide).then(WIDE_TICK_BYTES * lanes).otherwise(TICK_BYTES)
    full = pl.col("seconds") * pl.col("rate_Gbps") * 1e9 / 8
    share = pl.when(full > 0).then(pl.col("bytes") / full)
    is_possible = share.max().over("before_source", "source") <= MOST_SHARE  # else these are not the times of the dumps
    return rows.with_columns(
        utilisation=pl.when(is_possible).then(share),
        lost=pl.when(waited + pl.col("bytes") > 0).then(waited / (waited + pl.col("bytes"))),
    ).unique(["guid", "port"], keep="last", maintain_order=True)


@analysis(LOAD_DEVIATION, of=("fabric_load",))
def load_deviation(fabric_load: pl.DataFrame) -> pl.DataFrame:
    """One row per uplink, set of spines or of leaves whose load is not that of its siblings; each load told once."""
    for direction in ("up", "down"):  # a tool that prints ports above a threshold may show one side only
        links = fabric_load.filter((pl.col("direction") == direction) & pl.col("leaf").is_not_null())
        spines = list(_uneven_spines(links, fabric_load))
        busy = [name for row in spines for name in row["names"]]
        rows = [*_hot(links.filter(~pl.col("parent").is_in(busy))), *(spines or _uneven_leaves(links))]
        if rows:
            return frame_of_rows(rows, LOAD_DEVIATION)
    return frame_of_rows([], LOAD_DEVIATION)


def _lines(rows: pl.DataFrame) -> list[list[int]]:
    """Source and line of each row in the later dump, and of the first in the earlier one."""
    cited = [list(at) for at in rows.select("source", "line").iter_rows()]
    return cited + [list(at) for at in rows.select("before_source", "before_line").head(1).iter_rows()]


def _hot(links: pl.DataFrame) -> Iterator[dict[str, Any]]:
    """Yield uplinks that are full and wait while most of the same leaf's uplinks are not."""
    of_leaf = links.filter(pl.len().over("leaf") >= UPLINKS_LEAST)
    share = pl.col("utilisation")
    hot = of_leaf.with_columns(_usual=share.median().over("leaf"), _links=pl.len().over("leaf")).filter(
        (share >= HOT) & (share >= HOT_RATIO * pl.col("_usual")) & (pl.col("lost") >= LOST)
    )
    hot = hot.filter(pl.len().over("leaf") <= HOT_SHARE * pl.col("_links"))
    for row in hot.sort("utilisation", descending=True).iter_rows(named=True):
        lines = [[row["source"], row["line"]], [row["before_source"], row["before_line"]]]
        yield {
            "kind": "hot-uplink", "names": [row["name"]], "others": [row["peer_name"]], "guid": row["guid"],
            "port": row["port"],
            "high": row["utilisation"], "low": row["_usual"], "lost": row["lost"], "is_share": True,
            "count": row["_links"], "keys": [row["key"]], "evidence": lines,
        }  # fmt: skip


def _uneven_spines(links: pl.DataFrame, fabric_load: pl.DataFrame) -> Iterator[dict[str, Any]]:
    """Yield the busy and the idle spines: by share of the rate, or by bytes where only the busy ones wait."""
    spines = links.group_by("parent", maintain_order=True).agg(
        share=pl.col("utilisation").mean(), sent=pl.col("bytes").mean(), lost=pl.col("lost").fill_null(0.0).mean(),
        links=pl.len(), leaves=pl.col("leaf").n_unique(),
    )  # fmt: skip
    if spines.height < 2:
        return
    high, low = spines["share"].max(), spines["share"].min()
    by_share = high is not None and low is not None and not spines["share"].has_nulls()
    most = float(str(spines["sent"].max()))
    if by_share and float(str(high)) >= UNEVEN_BUSY and SPINE_RATIO * float(str(low)) <= float(str(high)):
        column, top, ratio = "share", float(str(high)), SPINE_RATIO
    elif most >= MUCH_DATA and links.height >= 2 * UPLINKS_LEAST and int(str(spines["leaves"].min())) >= LEAVES_LEAST:
        column, top, ratio = "sent", most, MUCH_RATIO
    else:
        return
    busy = spines.filter(pl.col(column) >= 0.75 * top).sort("parent")
    idle = spines.filter(pl.col(column) * ratio <= top).sort("parent")
    waits = float(str(busy["lost"].min() or 0.0))
    if column == "sent":
        has_wait = waits >= LOST and not idle.is_empty() and float(str(idle["lost"].max() or 0.0)) <= LITTLE_LOST
        if not has_wait or busy.height + idle.height < spines.height:
            return
    shown = pl.concat(
        [links.filter(pl.col("parent") == spine).head(1) for spine in (busy["parent"][0], idle["parent"][0])]
    )
    of_busy = fabric_load.filter(pl.col("parent").is_in(busy["parent"].implode()))
    yield {
        "kind": "uneven-spines", "names": busy["parent"].to_list(), "others": idle["parent"].to_list(),
        "high": busy[column].mean(), "low": idle[column].mean(), "lost": waits, "is_share": column == "share",
        "count": spines.height, "keys": of_busy["key"].to_list(), "evidence": _lines(shown),
    }  # fmt: skip


def _uneven_leaves(links: pl.DataFrame) -> Iterator[dict[str, Any]]:
    """Yield the leaves of which a quarter of the uplinks is busy and another quarter is not, if most are like that."""
    uneven: list[tuple[str, float, float, pl.DataFrame]] = []
    leaves = 0
    for _, rows in links.drop_nulls("utilisation").group_by("leaf", maintain_order=True):
        if rows.height < UPLINKS_LEAST:
            continue
        leaves += 1
        ordered = rows.sort("utilisation")
        quarter = max(1, rows.height // 4)
        low, high = (float(str(part["utilisation"].mean())) for part in (ordered.head(quarter), ordered.tail(quarter)))
        if high >= BUSY and UNEVEN_RATIO * low <= high:
            name = rows["name"][0] if rows["direction"][0] == "up" else rows["peer_name"][0]
            uneven.append((name, low, high, pl.concat([ordered.tail(1), ordered.head(1)])))
    if uneven and 2 * len(uneven) >= leaves:
        uneven.sort(key=lambda leaf: leaf[1] - leaf[2])  # the most uneven first, whatever their names
        name, low, high, shown = uneven[0]
        yield {
            "kind": "uneven-load", "names": [leaf[0] for leaf in uneven], "others": [], "high": high, "low": low,
            "is_share": True, "count": leaves, "keys": [], "evidence": _lines(shown),
        }  # fmt: skip
