"""Settings and signal quality of the ports of hosts: GIDs, PFC, MTU, bit error rates."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.analyses.host.command_sessions import (
    CommandHistory,
    frame_from_rows,
    mlxlink_outputs,
    option,
    origin_of,
    rows_with_origin,
)
from ncclforensics.analyses.host.numbers import parse_float, parse_integer
from ncclforensics.frames.columns import LINE, Row
from ncclforensics.frames.registry import analysis

PORT_GID = {
    **LINE,
    "host": pl.String(),
    "device": pl.String(),
    "port": pl.Int32(),
    "index": pl.Int32(),
    "gid": pl.String(),
    "version": pl.Int32(),  # of RoCE; null: InfiniBand, or unknown
    "is_ipv4": pl.Boolean(),  # made from an IPv4 address
    "is_link_local": pl.Boolean(),
    "netdev": pl.String(),
}
PFC = {
    **LINE,
    "host": pl.String(),
    "netdev": pl.String(),
    "priorities": pl.List(pl.Int32()),  # with PFC: they pause instead of dropping packets
    "trust": pl.String(),  # dscp, pcp
    "trust_line": pl.Int32(),
}
LINK_QUALITY = {
    **LINE,
    "host": pl.String(),
    "device": pl.String(),
    "port": pl.Int32(),
    "minutes": pl.Float64(),  # since the counters were cleared
    "effective_ber": pl.Float64(),  # after error correction
    "raw_ber": pl.Float64(),
    "opcode": pl.Int32(),  # of troubleshooting: 0 means no problem
    "recommendation": pl.String(),
    "speed": pl.String(),
    "ber_line": pl.Int32(),
}
INTERFACE = {
    **LINE,
    "host": pl.String(),
    "netdev": pl.String(),
    "mtu": pl.Int32(),
}
VERSIONS = {"RoCE v1": 1, "IB/RoCE v1": 1, "RoCE v2": 2}


@analysis(PORT_GID, of=("gid_row", "verbs_gid", "port_gid_file"))
def port_gid(
    gid_row: pl.DataFrame,
    verbs_device: pl.DataFrame,
    verbs_attribute: pl.DataFrame,
    verbs_gid: pl.DataFrame,
    port_gid_file: pl.DataFrame,
    output_heading: pl.DataFrame,
) -> pl.DataFrame:
    """The GIDs of every port."""
    rows = []
    for row in rows_with_origin(gid_row, output_heading):
        version = {"v1": 1, "v2": 2}.get(str(row["gid_version"]))
        place = {"device": str(row["device"]), "port": row["port"], "index": row["gid_index"]}
        gid = _gid_fields(row["long_gid"])
        netdev = None if row["netdev"] is None else str(row["netdev"])
        rows.append({**origin_of(row), **place, **gid, "version": version, "netdev": netdev})
    ports = verbs_attribute.filter(pl.col("form") == "port")
    rows += _verbs_gids(rows_with_origin(pl.concat([verbs_device, ports, verbs_gid], how="diagonal"), output_heading))
    rows += _gid_files(rows_with_origin(port_gid_file, output_heading))
    return frame_from_rows(rows, PORT_GID)


def _gid_fields(gid: object) -> Row:
    """Return the GID in lower case, and whether it is made from an IPv4 address or link-local.

    >>> _gid_fields("0000:0000:0000:0000:0000:ffff:0a00:040c")["is_ipv4"], _gid_fields("::ffff:10.0.4.12")["is_ipv4"]
    (True, True)
    """
    text = str(gid).lower()
    is_ipv4 = text.startswith(("0000:0000:0000:0000:0000:ffff:", "::ffff:"))
    return {"gid": text, "is_ipv4": is_ipv4, "is_link_local": text.startswith("fe80:")}


def _verbs_gids(lines: list[Row]) -> Iterator[Row]:
    device = port = None
    for row in lines:
        if row["gid"] is not None:
            version = VERSIONS.get(str(row["gid_type"]))
            place = {"device": device, "port": port, "index": row["gid_index"], "version": version}
            yield {**origin_of(row), **place, **_gid_fields(row["gid"])}
        elif row["device"] is not None:
            device = str(row["device"])
        else:
            port = row["port"]


def _gid_files(files: list[Row]) -> Iterator[Row]:
    gids: dict[tuple[object, ...], Row] = {}
    for row in files:
        place = {"device": str(row["device"]), "port": row["port"], "index": row["gid_index"]}
        gid = gids.setdefault((row["source"], row["launcher_node"], *place.values()), {})
        if row["form"] == "type":
            gid["version"] = VERSIONS.get(str(row["gid_type"]))
        elif row["form"] == "netdev":
            gid["netdev"] = str(row["netdev"])
        else:
            gid.update({**origin_of(row), **place, **_gid_fields(row["gid"])})
    empty = ("0000:0000:0000:0000:0000:0000:0000:0000", "fe80:0000:0000:0000:0000:0000:0000:0000")
    return (gid for gid in gids.values() if gid.get("gid") and gid["gid"] not in empty)


@analysis(PFC, of=("qos_row",))
def pfc(
    qos: pl.DataFrame, qos_row: pl.DataFrame, dump_command: pl.DataFrame, output_heading: pl.DataFrame
) -> pl.DataFrame:
    """One row per interface in the output of mlnx_qos: the priorities with PFC, and the trust state."""
    commands = CommandHistory(dump_command)
    rows: list[Row] = []
    trusted: Row = {}
    for row in rows_with_origin(pl.concat([qos, qos_row], how="diagonal"), output_heading):
        if row["trust"] is not None:
            trusted = {"trust": str(row["trust"]), "trust_line": row["line"]}
        if str(row["row"]) != "enabled":
            continue
        arguments = commands.arguments(row["source"], row["line"], ("mlnx_qos",))
        flags = [parse_integer(cell) for cell in str(row["cells"]).split()]
        place = {**origin_of(row), "netdev": option(arguments, "-i", "--interface")}
        rows.append({**place, "priorities": [n for n, flag in enumerate(flags) if flag], **trusted})
        trusted = {}
    return frame_from_rows(rows, PFC)


@analysis(LINK_QUALITY, of=("mlxlink_field",))
def link_quality(
    mlxlink_section: pl.DataFrame,
    mlxlink_field: pl.DataFrame,
    dump_command: pl.DataFrame,
    output_heading: pl.DataFrame,
) -> pl.DataFrame:
    """One row per link in the output of mlxlink: bit error rates before and after error correction."""
    rows = []
    for place, fields in mlxlink_outputs(mlxlink_section, mlxlink_field, output_heading, CommandHistory(dump_command)):
        values = {field: str(row["value"]).strip() for field, row in fields.items()}
        effective = next((name for name in ("Effective Physical BER", "Symbol BER") if name in values), None)
        rows.append(
            {
                **place,
                "minutes": parse_float(values.get("Time Since Last Clear [Min]")),
                "effective_ber": parse_float(values.get(effective or "")),
                "raw_ber": parse_float(values.get("Raw Physical BER")),
                "opcode": parse_integer(values.get("Status Opcode")),
                "recommendation": values.get("Recommendation"),
                "speed": values.get("Speed"),
                "line": next(iter(fields.values()))["line"],
                "ber_line": fields[effective]["line"] if effective else None,
            }
        )
    return frame_from_rows(rows, LINK_QUALITY)


@analysis(INTERFACE, of=("metric_value",))
def interface(metric_value: pl.DataFrame) -> pl.DataFrame:
    """The MTU of each network interface, from node_exporter."""
    is_mtu = (pl.col("family") == "node_network_") & (pl.col("name") == "mtu_bytes")
    mtu = pl.col("value").cast(pl.Int32, strict=False)
    return metric_value.filter(is_mtu & mtu.is_not_null()).select("source", "line", "host", netdev="device", mtu=mtu)
