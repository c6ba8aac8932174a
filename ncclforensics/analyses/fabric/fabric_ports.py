"""Ports in the output of fabric tools: iblinkinfo, ibnetdiscover, ibqueryerrors, ibstat, ibstatus."""

from __future__ import annotations

import polars as pl

from ncclforensics.analyses.fabric.counters import PORT_STATE
from ncclforensics.analyses.fabric.fabric_tools import add_known_nodes, guid_of, node_of
from ncclforensics.analyses.fabric.port_infos import ports_asked_for
from ncclforensics.analyses.host.command_output import OUTPUT_KEY, add_heading_above, add_origin
from ncclforensics.data.counters import LANES, SIGNALLED
from ncclforensics.frames.columns import text_of, with_all_columns
from ncclforensics.frames.registry import analysis
from ncclforensics.grammar.values import find_values, parse_value

STATES = {"initialize": "initializing", "init": "initializing", "active_defer": "active"}


@analysis(
    PORT_STATE,
    of=(
        "link_line",
        "link_alone",
        "map_port",
        "listed_port",
        "tabled_link",
        "adapter_port",
        "port_status",
        "check_state",
        "port_info",
    ),
)
def fabric_port(
    linked_node: pl.DataFrame,
    link_line: pl.DataFrame,
    link_alone: pl.DataFrame,
    counters_of: pl.DataFrame,
    counters_port: pl.DataFrame,
    map_node: pl.DataFrame,
    map_port: pl.DataFrame,
    listed_port: pl.DataFrame,
    tabled_link: pl.DataFrame,
    adapter: pl.DataFrame,
    adapter_port: pl.DataFrame,
    adapter_field: pl.DataFrame,
    port_status: pl.DataFrame,
    status_field: pl.DataFrame,
    check_state: pl.DataFrame,
    port_info: pl.DataFrame,
    port_info_title: pl.DataFrame,
    port_info_field: pl.DataFrame,
    fabric_node: pl.DataFrame,
    output_heading: pl.DataFrame,
) -> pl.DataFrame:
    """One row per port in the output of a fabric tool: state, speed and the port at the other end."""
    links = pl.concat([link_line, link_alone], how="diagonal_relaxed").sort("source", "line")
    adapters = _adapters(adapter, adapter_port, adapter_field)
    statuses = _statuses(port_status, status_field)
    outputs = [
        add_origin(_linked(linked_node, counters_of, counters_port, links), output_heading),
        add_origin(_mapped(map_node, map_port), output_heading),
        add_origin(_listed(listed_port), output_heading),
        add_origin(_of_table(tabled_link), output_heading),
        add_origin(adapters, output_heading).with_columns(host="origin_host"),
        add_origin(statuses, output_heading).with_columns(host="origin_host"),
        add_origin(check_state, output_heading),
        add_origin(ports_asked_for(port_info, port_info_title, port_info_field), output_heading),
    ]
    rows = pl.concat([with_all_columns(_normalized(ports), PORT_STATE) for ports in outputs])
    return add_known_nodes(rows, fabric_node)


def _normalized(rows: pl.DataFrame) -> pl.DataFrame:
    """Bring states, widths, speeds and rates into one spelling."""
    if "physical" in rows.columns:
        rows = rows.rename({"physical": "physical_state"})
    for name in ("state", "physical_state", "width", "speed", "rate"):
        if name not in rows.columns:
            rows = rows.with_columns(pl.lit(None, dtype=pl.String).alias(name))
    state = text_of("state").str.to_lowercase()
    width, speed = text_of("width").str.to_uppercase(), text_of("speed")
    lane = speed.replace_strict(LANES, default=None, return_dtype=pl.Float64)
    lanes = width.str.strip_suffix("X").cast(pl.Float64, strict=False)
    return rows.with_columns(
        state=state.replace(STATES),
        physical_state=text_of("physical_state"),
        width=pl.when(width.str.strip_suffix("X").cast(pl.Int32, strict=False).is_not_null()).then(width),
        speed=pl.when(lane.is_not_null()).then(speed),
        rate_Gbps=pl.coalesce(text_of("rate").cast(pl.Float64, strict=False), lane * lanes),
    )


def _linked(
    linked_node: pl.DataFrame, counters_of: pl.DataFrame, counters_port: pl.DataFrame, links: pl.DataFrame
) -> pl.DataFrame:
    """Links that iblinkinfo prints, or ibqueryerrors below a port; `Could be` is what both ends support."""
    heads = pl.concat(
        [
            linked_node.select(*OUTPUT_KEY, "line", head_guid=guid_of("guid"), head_node=node_of("named")),
            add_heading_above(counters_port, counters_of.select(*OUTPUT_KEY, "line", head_node=node_of("node"))).select(
                *OUTPUT_KEY, "line", "head_node", head_guid=guid_of("guid")
            ),
        ],
        how="diagonal_relaxed",
    ).sort("source", "line")
    signalled = text_of("speed").replace_strict(SIGNALLED, default=None, return_dtype=pl.String)
    rows = add_heading_above(links, heads).with_row_index("text")
    first_hints = (
        find_values(rows["hint"], "link_hint")
        .group_by("text")
        .agg(
            width_supported=text_of("width").drop_nulls().first(),
            speed_supported=text_of("signalled").drop_nulls().first(),
        )
    )
    return (
        rows.join(first_hints, on="text", how="left", maintain_order="left")
        .drop("text")
        .with_columns(
            node=pl.coalesce(node_of("node"), "head_node"),
            # A host's line has the GUID of the port; a switch's line has none and follows the line of the switch.
            guid=pl.coalesce(guid_of("guid"), "head_guid"),
            speed=pl.coalesce(text_of("speed_name"), signalled),
            speed_supported=pl.col("speed_supported").replace_strict(SIGNALLED, default=None, return_dtype=pl.String),
            peer_guid=guid_of("peer_guid"),
            peer_node=node_of("peer_node"),
        )
    )


def _mapped(map_node: pl.DataFrame, map_port: pl.DataFrame) -> pl.DataFrame:
    """Links that ibnetdiscover prints; they are up."""
    heads = map_node.select(
        *OUTPUT_KEY, "line", head_lid="lid", head_guid=guid_of("node_guid"), head_node=node_of("node")
    )
    return add_heading_above(map_port, heads).with_columns(
        lid=pl.coalesce("lid", "head_lid"),
        guid="head_guid",
        node="head_node",
        peer_guid=guid_of("peer_guid"),
        peer_node=node_of("peer_node"),
        link_layer=pl.lit("InfiniBand"),
    )


def _listed(listed_port: pl.DataFrame) -> pl.DataFrame:
    """Ports that ibnetdiscover -p prints; the speed of a port without a peer is meaningless."""
    is_linked = pl.col("peer_lid").is_not_null()
    return listed_port.with_columns(
        guid=guid_of("guid"),
        node=pl.coalesce(node_of("node"), node_of("bare_node")),
        width=pl.when(is_linked).then(text_of("width")),
        speed=pl.when(is_linked).then(text_of("speed")),
        peer_guid=guid_of("peer_guid"),
        peer_node=node_of("peer_node"),
        link_layer=pl.lit("InfiniBand"),
    )


def _of_table(tabled_link: pl.DataFrame) -> pl.DataFrame:
    """Ports in the tables of ibdiagnet."""
    return tabled_link.with_columns(
        guid=guid_of("guid"),
        node=node_of("node"),
        lid=_valid_lid(pl.col("lid")),
        peer_guid=guid_of("peer_guid"),
        peer_node=node_of("peer_node"),
        peer_lid=_valid_lid(pl.col("peer_lid")),
        link_layer=pl.lit("InfiniBand"),
    )


FIELDS = {
    "State": "state",
    "Physical state": "physical_state",
    "Rate": "rate",
    "Base lid": "base_lid",
    "Link layer": "link_layer",
}


def _adapters(adapter: pl.DataFrame, adapter_port: pl.DataFrame, adapter_field: pl.DataFrame) -> pl.DataFrame:
    """Ports that ibstat prints, one block each."""
    ports = add_heading_above(adapter_port, adapter.select(*OUTPUT_KEY, "line", device=text_of("device")))
    ports = ports.select(*OUTPUT_KEY, "line", "launcher_time", "device", "port", adapter_line="head_line")
    port_fields = add_heading_above(adapter_field, ports.select(*OUTPUT_KEY, "line", "adapter_line"))
    # The fields of the adapter precede its first port.
    adapter_fields = add_heading_above(adapter_field, adapter.select(*OUTPUT_KEY, "line"))
    named = adapter_fields.unique(["source", "head_line", "field"], keep="first", maintain_order=True)

    def of_adapter(field: str) -> pl.Expr:
        return pl.col("value").filter(text_of("field") == field).str.strip_chars().first()

    attributes = named.group_by("source", adapter_line="head_line").agg(
        _guid=of_adapter("Node GUID"),
        model=of_adapter("CA type"),
        firmware=of_adapter("Firmware version"),
        firmware_line=pl.col("line").filter(text_of("field") == "Firmware version").first(),
    )
    values = (
        port_fields.filter(text_of("field").is_in(list(FIELDS)))
        .with_columns(field=text_of("field").replace(FIELDS), value=pl.col("value").str.strip_chars())
        .unique(["source", "head_line", "field"], keep="first", maintain_order=True)
        .select("source", line="head_line", field="field", value="value", field_line="line")
    )
    columns = [
        values.filter(pl.col("field") == field).select("source", "line", pl.col("value").alias(field))
        for field in FIELDS.values()
    ]
    rows = ports.join(attributes, on=["source", "adapter_line"], how="left").with_columns(guid=guid_of("_guid"))
    for column in columns:
        rows = rows.join(column, on=["source", "line"], how="left")
    stated = values.filter(pl.col("field") == "state").select("source", "line", "field_line")
    rows = rows.join(stated, on=["source", "line"], how="left")
    rows = rows.with_columns(line=pl.coalesce("field_line", "line"))  # the line of the state is the best evidence
    lid = pl.col("base_lid").cast(pl.Int32, strict=False)
    rate = pl.col("rate").map_elements(lambda text: (parse_value(text, "port_rate") or {}).get("rate"), pl.Float64)
    return rows.with_columns(lid=_valid_lid(lid), rate=rate).sort("source", "line")


def _valid_lid(lid: pl.Expr) -> pl.Expr:
    """Return the LID, or null: 0 and 65535 mean that none is configured."""
    return pl.when((lid > 0) & (lid < 65535)).then(lid)


def _statuses(port_status: pl.DataFrame, status_field: pl.DataFrame) -> pl.DataFrame:
    """Ports that ibstatus prints, one block each."""
    heads = port_status.select(*OUTPUT_KEY, "line", "launcher_time", device=text_of("device"), port="port")
    names = ["state", "physical", "rate", "width", "speed", "link_layer", "lid"]
    blocks = (
        add_heading_above(status_field, heads.select(*OUTPUT_KEY, "line"))
        .group_by("source", "head_line")
        .agg(pl.col(names).drop_nulls().first())
        .rename({"head_line": "line"})
    )
    rows = heads.join(blocks, on=["source", "line"], how="left").sort("source", "line")
    return rows.with_columns(lid=_valid_lid(text_of("lid").str.to_integer(base=16, dtype=pl.Int32, strict=False)))
