"""Ports of the fabric that were asked for themselves: ibportstate, smpquery portinfo."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from ncclforensics.analyses.host.command_output import OUTPUT_KEY, add_heading_above
from ncclforensics.data.counters import LANES, SIGNALLED
from ncclforensics.frames.columns import text_of

ONE_LANE = "1X"
WIDTHS = {"1X": 1, "2X": 2, "4X": 4, "8X": 8, "12X": 12}
FIELDS = {
    "LinkState": "state",
    "PhysLinkState": "physical_state",
    "Lid": "own_lid",
    "LinkWidthActive": "width",
    "LinkWidthEnabled": "widths",
    "LinkSpeedActive": "plain",
    "LinkSpeedExtActive": "extended",
    "LinkSpeedExtEnabled": "speeds",
}


def ports_asked_for(
    port_info: pl.DataFrame, port_info_title: pl.DataFrame, port_info_field: pl.DataFrame
) -> pl.DataFrame:
    """Ports that ibportstate or smpquery describes, one block each.

    `width_supported` and `speed_supported` are what both ends are set to, where a link runs below it; of one lane
    this end alone is enough, since no link is set up for one.
    """
    # A port that is asked for by its way through the fabric has no LID in the head.
    heads = port_info.select(*OUTPUT_KEY, "line", "launcher_time", "port", head_lid="info_lid", node=text_of("path"))
    titles = port_info_title.select(*OUTPUT_KEY, "line", "form")
    blocks = pl.concat([heads.select(*OUTPUT_KEY, "line"), titles.select(*OUTPUT_KEY, "line")])
    fields = add_heading_above(port_info_field, blocks).with_columns(value=text_of("info_value"))
    named = fields.with_columns(name=text_of("info").replace_strict(FIELDS, default=None)).drop_nulls("name")
    columns = [pl.col("value").filter(pl.col("name") == name).first().alias(name) for name in FIELDS.values()]
    shown = named.group_by("source", line="head_line").agg(columns)
    rows = heads.join(shown, on=["source", "line"], how="left", maintain_order="left").sort("source", "line")
    peers = titles.filter(text_of("form") == "peer").select("source", line=pl.col("line") + 1, is_peer=True)
    rows = rows.join(peers, on=["source", "line"], how="left", maintain_order="left")
    is_linked = pl.col("state") != "Down"
    signalled = pl.coalesce(_signalled("extended"), _signalled("plain"))
    rows = rows.with_columns(
        lid=pl.coalesce("head_lid", pl.col("own_lid").cast(pl.Int32, strict=False)),
        width=pl.when(is_linked).then("width"),
        speed=pl.when(is_linked).then(signalled),
        is_peer=pl.col("is_peer").fill_null(value=False),
        link_layer=pl.lit("InfiniBand"),
    )
    return _with_capability(rows)


def _signalled(name: str) -> pl.Expr:
    return pl.col(name).str.strip_suffix(" Gbps").replace_strict(SIGNALLED, default=None, return_dtype=pl.String)


def _with_capability(rows: pl.DataFrame) -> pl.DataFrame:
    """Add the other end of each link, where it is described below, and what the link could run at."""
    ends = rows.to_dicts()
    added = [dict.fromkeys(("peer_lid", "peer_port", "width_supported", "speed_supported")) for _ in ends]
    for place, row in enumerate(ends):
        far = place + 1 if place + 1 < len(ends) and ends[place + 1]["is_peer"] else place - 1
        has_peer = far > place or (row["is_peer"] and far >= 0)
        peer = ends[far] if has_peer and ends[far]["source"] == row["source"] else None
        if peer:
            added[place] |= {"peer_lid": peer["lid"], "peer_port": peer["port"]}
        widths = [_most(end["widths"], "", WIDTHS) for end in (row, peer) if end]
        speeds = [_most(end["speeds"], " Gbps", SIGNALLED) for end in (row, peer) if end]
        width = min((width for width in widths if width), key=WIDTHS.__getitem__, default=None)
        is_odd = peer is not None or row["width"] == ONE_LANE
        if is_odd and width and row["width"] in WIDTHS and WIDTHS[width] > WIDTHS[row["width"]]:
            added[place]["width_supported"] = width
        speed = min((SIGNALLED[speed] for speed in speeds if speed), key=LANES.__getitem__, default=None)
        if speed and peer and row["speed"] and LANES[speed] > LANES[row["speed"]]:
            added[place]["speed_supported"] = speed
    schema = {"peer_lid": pl.Int32, "peer_port": pl.Int32, "width_supported": pl.String, "speed_supported": pl.String}
    return rows.hstack(pl.DataFrame(added, schema=schema))


def _most(text: str | None, unit: str, order: Mapping[str, object]) -> str | None:
    """Return the last in order of `1X or 4X or 2X`, or None of what is none of these.

    >>> _most("1X or 4X or 2X", "", WIDTHS), _most("5.0 Gbps or 53.125 Gbps", " Gbps", SIGNALLED)
    ('4X', '53.125')
    """
    words = [word.removesuffix(unit) for word in (text or "").split(" or ")]
    return max((word for word in words if word in order), key=list(order).index, default=None)
