"""Parts of a fabric that failed and slow pairs of hosts have in common, and that working pairs avoid."""

from __future__ import annotations

from collections.abc import Iterator
from math import comb
from typing import Any, NamedTuple

import polars as pl

from ncclforensics.analyses.benchmark.tested_pairs import NCCL_TEST
from ncclforensics.data.busbw import SLOW_RUN
from ncclforensics.data.fabric import CHANCE, CLASS_LEAST, COVERED, GOOD_PARTS, MOST_HOPS, PAIRS_LEAST
from ncclforensics.frames.columns import frame_of_rows, short_host
from ncclforensics.frames.registry import analysis

PAIR_PART = {
    "pair": pl.Int32(),  # of tested_pair
    "is_bad": pl.Boolean(),  # failed, or slow beside pairs of the same test and distance
    "is_failed": pl.Boolean(),
    "kind": pl.String(),  # host, adapter, leaf, link, spine, path (between two leaves: what tables would tell apart)
    "part": pl.String(),  # its name
    "host": pl.String(),  # of hosts and adapters
    "guid": pl.String(),  # of the switch whose port it is, of adapters and links
    "port": pl.Int32(),
    "map_source": pl.Int32(),
    "map_line": pl.Int32(),
}
SHARED_PART = {
    "kinds": pl.List(pl.String()),  # of parts through which exactly the same bad pairs go: no test tells them apart
    "parts": pl.List(pl.String()),
    "hosts": pl.List(pl.String()),
    "guids": pl.List(pl.String()),
    "ports": pl.List(pl.Int32()),
    "failed": pl.Int32(),  # pairs through them
    "slow": pl.Int32(),
    "good": pl.Int32(),
    "good_elsewhere": pl.Int32(),  # pairs that avoid them
    "is_measured": pl.Boolean(),  # by enough tests; else a job reports it, which ended at its first failures
    "job_hosts": pl.List(pl.String()),  # both ends of the transfers of jobs that failed through them
    "bad_elsewhere": pl.Int32(),  # of which other parts are named, or none
    "evidence": pl.List(pl.List(pl.Int32())),  # source and line of bad pairs, then of the part in the map
    "good_evidence": pl.List(pl.List(pl.Int32())),  # of a good pair that has a line
}


class Hop(NamedTuple):
    """A link that a route takes out of a switch."""

    name: str
    guid: str
    port: int
    source: int
    line: int
    peer: str  # GUID of the next node
    peer_name: str
    is_switch: bool  # the next node is one


def _ends(tested_pair: pl.DataFrame, host_link: pl.DataFrame) -> pl.DataFrame:
    """One row per pair, end (0 or 1) and port of a host that may have been used."""
    sides = [
        tested_pair.select(
            "pair", end=pl.lit(end), at=short_host(f"{prefix}host").str.to_lowercase(), by=f"{prefix}device",
            by_lid=f"{prefix}lid",
        )
        for end, prefix in enumerate(("", "peer_"))
    ]  # fmt: skip
    ends = pl.concat(sides)
    by_lid = ends.filter(pl.col("by_lid").is_not_null()).join(host_link, left_on="by_lid", right_on="lid")
    named = ends.filter(pl.col("by_lid").is_null() & pl.col("at").is_not_null())
    by_device = named.filter(pl.col("by").is_not_null()).join(
        host_link, left_on=["at", "by"], right_on=["short", "device"]
    )
    by_host = named.filter(pl.col("by").is_null()).join(host_link, left_on="at", right_on="short")
    columns = ["pair", "end", "host", "adapter", "host_lid", "leaf", "leaf_guid", "leaf_port", "source", "line"]
    return pl.concat([rows.select(columns) for rows in (by_lid, by_device, by_host)])


def _judged(tested_pair: pl.DataFrame, ends: pl.DataFrame, fabric_switch: pl.DataFrame) -> pl.DataFrame:
    """The pairs with both ends in the map that failed or can be compared, with `is_bad`."""
    group = fabric_switch.select(leaf_guid="guid", group=pl.coalesce("siblings", -1)).unique("leaf_guid")
    known = ends.join(group, on="leaf_guid", how="left")
    leaves = known.group_by("pair").agg(
        pl.col("leaf_guid").filter(pl.col("end") == 0).unique().alias("near"),
        pl.col("leaf_guid").filter(pl.col("end") == 1).unique().alias("far"),
        distance=pl.col("group").n_unique(),
    )
    both = leaves.filter((pl.col("near").list.len() > 0) & (pl.col("far").list.len() > 0))
    pairs = tested_pair.join(both, on="pair").with_columns(
        is_near=pl.col("near").list.set_intersection("far").list.len() > 0
    )
    alike = ["test", "is_near", "distance"]
    value = pl.col("bandwidth_GBps")
    usual = value.quantile(0.75).over(alike)  # a quarter of them reach it
    is_slow = (value < SLOW_RUN * usual).fill_null(value=False)
    can_compare = value.is_null() | (value.count().over(alike) >= CLASS_LEAST)
    return pairs.filter(pl.col("is_failed") | can_compare).select(
        "pair", "is_failed", is_bad=pl.col("is_failed") | is_slow
    )


@analysis(PAIR_PART, of=("fabric_map",))
def pair_part(
    tested_pair: pl.DataFrame,
    fabric_map: pl.DataFrame,
    fabric_switch: pl.DataFrame,
    fabric_link: pl.DataFrame,
    route: pl.DataFrame,
) -> pl.DataFrame:
    """One row per tested pair and part of the fabric that it certainly went through."""
    latest = fabric_map.filter(pl.col("is_latest")).select("source")
    links = fabric_link.join(latest, on="source", how="semi")
    host_link = links.filter(pl.col("kind") == "host").select(
        "host", "device", "lid", "source", "line", short=short_host("host").str.to_lowercase(), host_lid="lid",
        adapter=pl.coalesce(pl.concat_str("host", "device", separator=" "), "name"),
        leaf="peer_name", leaf_guid="peer_guid", leaf_port="peer_port",
    )  # fmt: skip
    ends = _ends(tested_pair, host_link)
    pairs = _judged(tested_pair, ends, fabric_switch.join(latest, on="source", how="semi"))
    ends = ends.join(pairs.select("pair", "is_bad", "is_failed"), on="pair")
    of_pair = ["pair", "is_bad", "is_failed"]
    at = {"map_source": pl.col("source"), "map_line": pl.col("line")}
    only = ends.filter(pl.len().over("pair", "end") == 1)
    switches = fabric_switch.select(leaf_guid="guid", leaf_source="source", leaf_line="line").unique("leaf_guid")
    through = ends.join(switches, on="leaf_guid", how="left")
    parts = [
        ends.drop_nulls("host").select(*of_pair, **at, kind=pl.lit("host"), part="host", host="host"),
        only.select(
            *of_pair, **at, kind=pl.lit("adapter"), host="host", guid="leaf_guid", port="leaf_port",
            part=pl.format("{} ({} port {})", "adapter", "leaf", "leaf_port"),
        ),
        through.select(*of_pair, kind=pl.lit("leaf"), part="leaf", map_source="leaf_source", map_line="leaf_line"),
    ]  # fmt: skip
    between = only.filter((pl.len().over("pair") == 2) & (pl.col("leaf_guid").n_unique().over("pair") == 2))
    routed = frame_of_rows(list(_routed(between, links, route)), PAIR_PART)
    parts += [routed, _paths(between.join(routed.select("pair").unique(), on="pair", how="anti"))]
    rows = pl.concat([part for part in parts if part.height], how="diagonal_relaxed") if ends.height else routed
    return rows.drop_nulls("map_line").unique(["pair", "kind", "part"], maintain_order=True)


def _paths(between: pl.DataFrame) -> pl.DataFrame:
    """What lies between two leaves, of pairs whose ends are known and whose route is not."""
    return between.group_by("pair", maintain_order=True).agg(
        pl.col("is_bad", "is_failed").first(),
        kind=pl.lit("path"),
        part=pl.lit("what lies between ") + pl.col("leaf").sort().str.join(" and "),
        map_source=pl.col("source").first(),
        map_line=pl.col("line").first(),
    )


def _routed(between: pl.DataFrame, links: pl.DataFrame, route: pl.DataFrame) -> Iterator[dict[str, Any]]:
    """Yield links and upper switches of pairs, in both directions, as far as the forwarding tables tell."""
    ports = dict(zip(zip(route["table_guid"], route["lid"], strict=True), route["out_port"], strict=True))
    if not ports:
        return
    hops = {
        (row[f"{near}guid"], row[f"{near}port"]): Hop(
            row[f"{near}name"], row[f"{near}guid"], row[f"{near}port"], row["source"], row["line"],
            row[f"{far}guid"], row[f"{far}name"], row["kind"] != "host",
        )
        for row in links.iter_rows(named=True)
        for near, far in (("", "peer_"), ("peer_", ""))
    }  # fmt: skip
    rows = between.sort("pair").to_dicts()
    for near, far in zip(rows[::2], rows[1::2], strict=True):
        of_pair = {name: near[name] for name in ("pair", "is_bad", "is_failed")}
        for start, end in ((near, far), (far, near)):
            at, seen = start["leaf_guid"], set[str]()
            while len(seen) < MOST_HOPS and at not in seen and (at, end["host_lid"]) in ports:
                seen.add(at)
                hop = hops.get((at, ports[at, end["host_lid"]]))
                if hop is None or not hop.is_switch:
                    break
                place = {"map_source": hop.source, "map_line": hop.line}
                link = f"the link from {hop.name} port {hop.port} to {hop.peer_name}"
                yield {**of_pair, **place, "kind": "link", "part": link, "guid": hop.guid, "port": hop.port}
                if hop.peer != end["leaf_guid"]:
                    yield {**of_pair, **place, "kind": "spine", "part": hop.peer_name}
                at = hop.peer


@analysis(SHARED_PART, of=("pair_part",))
def shared_part(pair_part: pl.DataFrame, tested_pair: pl.DataFrame) -> pl.DataFrame:
    """One row per part, or parts that no test tells apart, that explains bad pairs: the one with most first.

    A greedy cover of the bad pairs. A part explains them if nearly all pairs through it are bad, good pairs avoid it,
    other parts of its kind carry good pairs, and pairs that are bad as often as all others would hardly meet in it.
    """
    place = tested_pair.select(
        "pair", at=pl.concat_list("source", "line"), has_line=pl.col("line").is_not_null(),
        is_measured=pl.col("test") != NCCL_TEST,
    )  # fmt: skip
    of_jobs = tested_pair.filter("is_failed", pl.col("test") == NCCL_TEST)
    ends_of_jobs = pl.concat([of_jobs.select("pair", "host"), of_jobs.select("pair", host="peer_host")])
    part = ["kind", "part"]
    counts = pair_part.group_by(part, maintain_order=True).agg(
        bad=pl.col("is_bad").sum(), good=(~pl.col("is_bad")).sum(),
        host=pl.col("host").first(), guid=pl.col("guid").first(), port=pl.col("port").first(),
        map_at=pl.concat_list(pl.col("map_source").first(), pl.col("map_line").first()),
    )  # fmt: skip
    share = pl.col("bad") / (pl.col("bad") + pl.col("good"))
    is_good = (pl.col("good") > 0) & (share < 1 - COVERED)
    counts = counts.with_columns(share=share, good_parts=is_good.sum().over("kind"))
    named = counts.filter((pl.col("share") >= COVERED) & (pl.col("good_parts") >= GOOD_PARTS))
    all_good = pair_part.filter(~pl.col("is_bad"))["pair"].unique()
    rows: list[dict[str, Any]] = []
    left = pair_part.filter("is_bad").join(named, on=part)
    bad = pair_part.filter("is_bad")["pair"].n_unique()
    while left.height:
        score = left.group_by(part, maintain_order=True).agg(
            n=pl.len(), pairs=pl.col("pair").sort().implode(), share=pl.col("share").first()
        )
        first = score.sort("n", "share", "kind", "part", descending=[True, True, False, False]).row(0, named=True)
        if first["n"] < PAIRS_LEAST:
            break
        alike = score.filter((pl.col("n") == first["n"]) & (pl.col("share") == first["share"]))
        alike = alike.filter(pl.Series([pairs == first["pairs"] for pairs in alike["pairs"].to_list()]))
        same = counts.join(alike, on=part, how="semi", maintain_order="left")
        through = pair_part.filter((pl.col("kind") == first["kind"]) & (pl.col("part") == first["part"]))
        hit = through.filter("is_bad")
        good_here = through.filter(~pl.col("is_bad"))["pair"]
        elsewhere = all_good.filter(~all_good.is_in(good_here.implode()))
        if elsewhere.len() < PAIRS_LEAST:
            break
        left = left.filter(~pl.col("pair").is_in(first["pairs"]))
        other_pairs = bad - hit.height + elsewhere.len()
        by_chance = comb(through.height, hit.height) * ((bad - hit.height) / other_pairs) ** hit.height
        if by_chance * counts.filter(pl.col("kind") == first["kind"]).height > CHANCE:
            continue
        good_at = place.filter(pl.col("pair").is_in(elsewhere.implode()) & pl.col("has_line"))["at"].head(1)
        rows.append(
            {
                "job_hosts": ends_of_jobs.filter(pl.col("pair").is_in(hit["pair"].implode()))["host"].unique().sort(),
                "kinds": same["kind"].to_list(),
                "parts": same["part"].to_list(),
                "hosts": sorted({host for host in same["host"] if host}),
                "guids": same["guid"].drop_nulls().to_list(),
                "ports": same["port"].drop_nulls().to_list(),
                "failed": hit.filter("is_failed").height,
                "slow": hit.filter(~pl.col("is_failed")).height,
                "good": good_here.len(),
                "good_elsewhere": elsewhere.len(),
                "is_measured": place.filter("is_measured", pl.col("pair").is_in(hit["pair"].implode())).height
                >= PAIRS_LEAST,
                "bad_elsewhere": bad - hit.height,
                "evidence": [
                    *place.filter(pl.col("pair").is_in(first["pairs"][:3]))["at"].to_list(),
                    same["map_at"][0].to_list(),
                ],
                "good_evidence": good_at.to_list(),
            }
        )
    return frame_of_rows(rows, SHARED_PART)
