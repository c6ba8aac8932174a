"""Ports of hosts in the output of host tools: state, speed, interface."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import polars as pl

from ncclforensics.analyses.fabric.counters import PORT_STATE, path_of_dump
from ncclforensics.analyses.host.command_sessions import (
    CommandHistory,
    frame_from_rows,
    mlxlink_outputs,
    origin_of,
    rows_with_origin,
)
from ncclforensics.analyses.host.numbers import parse_float, parse_hexadecimal, parse_integer
from ncclforensics.data.counters import LANES
from ncclforensics.data.host_counters import PHYSICAL, PHYSICAL_CODES, SPEED_CODES, STATE_CODES, port_state_of
from ncclforensics.frames.columns import LINE, Row, frame_of_rows
from ncclforensics.frames.registry import analysis
from ncclforensics.grammar.values import parse_value

VERBS_TEXTS = {"transport": "transport", "board_id": "model", "fw_ver": "firmware"}  # of ibv_devinfo
NETDEV_STATES = {"Up": "active", "Down": "down"}  # of ibdev2netdev
# Columns of lshca (lshca.py, LnkStat and others), and how it marks what is wrong.
LSHCA_NAMES = {
    "PCI_addr": "busid",
    "RDMA": "rdma",
    "Net": "netdev",
    "LnkStat": "port_state",
    "Link": "layer",
    "Rate": "rate",
    "LnkCapWidth": "pci_capability",
}
WRONG = ">!<"
LISTED_STATES = {"actv": "active", "init": "initializing", "poll": "down", "down": "down"}
LISTED_LAYERS = {"IB": "InfiniBand", "Eth": "Ethernet"}
LSHCA_PORT = {
    **LINE,
    "launcher_node": pl.String(),
    "launcher_time": pl.String(),
    **dict.fromkeys(LSHCA_NAMES.values(), pl.String()),
    "wrong": pl.List(pl.String()),  # what lshca itself marks as an error: the column and its cell
}
LINK_LAYERS = {"IB": "InfiniBand", "NVLink": "NVLink", "ethernet": "Ethernet"}  # of the speeds that mlxlink prints


@analysis(
    PORT_STATE,
    of=(
        *("port_file", "verbs_device", "rdma_link", "port_netdev", "mlxlink_field", "metric_value", "omni_path_port"),
        "lshca_port",
    ),
)
def host_port(
    port_file: pl.DataFrame,
    device_file: pl.DataFrame,
    verbs_device: pl.DataFrame,
    verbs_attribute: pl.DataFrame,
    rdma_link: pl.DataFrame,
    port_netdev: pl.DataFrame,
    mlxlink_section: pl.DataFrame,
    mlxlink_field: pl.DataFrame,
    metric_value: pl.DataFrame,
    omni_path_port: pl.DataFrame,
    lshca_port: pl.DataFrame,
    dump_command: pl.DataFrame,
    output_heading: pl.DataFrame,
    source: pl.DataFrame,
) -> pl.DataFrame:
    """One row per port in the output of a host's tools: state, speed, interface."""
    at = partial(rows_with_origin, output_heading=output_heading)
    dumps = source.select("source", dump=path_of_dump())
    rows: list[Row] = [
        *_files_of_ports(at(port_file.join(dumps, on="source")), at(device_file.join(dumps, on="source"))),
        *_verbs_ports(at(pl.concat([verbs_device, verbs_attribute], how="diagonal"))),
        *_rdma_links(at(rdma_link)),
        *_linked(mlxlink_outputs(mlxlink_section, mlxlink_field, output_heading, CommandHistory(dump_command))),
        *_sampled(metric_value),
        *_of_omni_path(omni_path_port),
        *_of_lshca(at(lshca_port)),
    ]
    rows += _netdevs(at(port_netdev), {_port_of(row) for row in rows if row.get("state")})
    return frame_from_rows(rows, PORT_STATE)


def _rated(width: str | None, speed: str | None) -> Row:
    """Return width, speed, and the rate of a port in Gb/s.

    >>> _rated("4X", "NDR"), _rated("4X", None)
    ({'width': '4X', 'speed': 'NDR', 'rate_Gbps': 400.0}, {'width': '4X', 'speed': None, 'rate_Gbps': None})
    """
    lanes = parse_integer((width or "").upper().removesuffix("X"))
    rate = lanes * LANES[speed] if lanes and speed in LANES else None
    return {"width": width.upper() if width else None, "speed": speed, "rate_Gbps": rate}


def _guid(text: object) -> str | None:
    """Return `0c42:a103:0054:b372` in the form of fabric tools, 0x0c42a1030054b372; None if it is no GUID."""
    digits = str(text).replace(":", "").lower().removeprefix("0x")
    return f"0x{digits}" if len(digits) == 16 else None


def _files_of_ports(files: list[Row], of_devices: list[Row]) -> Iterator[Row]:
    guids = {
        (row["dump"], row["launcher_node"], str(row["device"])): _guid(row["value"])
        for row in of_devices
        if str(row["device_file"]) == "node_guid"
    }
    here: dict[tuple[Any, ...], dict[str, Row]] = {}
    for row in files:
        owner = (row["dump"], row["launcher_node"], str(row["device"]), row["port"])
        name = str(row["file"])
        if name in here.get(owner, {}):  # the same file again: another dump
            yield _file_port(owner, here.pop(owner), guids)
        here.setdefault(owner, {})[name] = row
    for owner, port_files in here.items():
        yield _file_port(owner, port_files, guids)


def _file_port(owner: tuple[Any, ...], files: dict[str, Row], guids: dict[Any, str | None]) -> Row:
    dump, node, device, port = owner
    values = {name: str(row["value"]) for name, row in files.items()}
    rate = parse_value(values.get("rate"), "port_rate") or {}
    state = STATE_CODES.get(_code(values.get("state")))
    # Cite the most informative line.
    shown = ("rate", "state", "phys_state") if state == "active" else ("state", "phys_state", "rate")
    return {
        **origin_of(next((files[name] for name in shown if name in files), next(iter(files.values())))),
        "device": device,
        "port": port,
        "lid": parse_hexadecimal(values.get("lid")) or None,
        "guid": guids.get((dump, node, device)),
        "state": state,
        "physical_state": PHYSICAL_CODES.get(_code(values.get("phys_state"))),
        "rate_Gbps": rate.get("rate"),
        "width": rate.get("width"),
        "speed": rate.get("speed") if rate.get("speed") in LANES else None,
        "link_layer": values.get("link_layer"),
    }


def _verbs_ports(lines: list[Row]) -> Iterator[Row]:
    device: Row = {}
    port: Row | None = None
    for row in lines:
        form = row["form"]
        if row["device"] is not None:
            if port:
                yield port
            device, port = {"device": str(row["device"])}, None
        elif form == "port" and device:
            if port:
                yield port
            port = {**origin_of(row), **device, "port": row["port"]}
        elif form == "state" and port:
            port["state"] = port_state_of(row["state"])
            port["line"] = row["line"]
        elif form == "layer" and port:
            port["link_layer"] = str(row["link_layer"])
        elif row["key"] is not None and device:
            (port if port is not None else device).update(_verbs_told(row, port or {}))
    if port:
        yield port


def _verbs_told(row: Row, port: Row) -> Row:
    key, value = str(row["key"]), str(row["value"])
    if key == "node_guid":
        return {"guid": _guid(value.strip())}
    if key == "active_mtu":  # the most informative line of a port that is up
        shown = {"line": row["line"]} if port.get("state") == "active" else {}
        return {"mtu": parse_integer(_shown(value)), **shown}
    if key in VERBS_TEXTS:
        line = {"firmware_line": row["line"]} if key == "fw_ver" else {}
        return {VERBS_TEXTS[key]: _shown(value) or value.strip(), **line}
    if key == "port_lid":
        return {"lid": parse_integer(value) or None}
    if key == "phys_state":
        return {"physical_state": PHYSICAL_CODES.get(_code(value))}
    if key == "active_width":
        return {"width": _shown(value)}
    if key == "active_speed":
        return _rated(port.get("width"), SPEED_CODES.get(_code(value)))
    return {}


def _code(value: str | None) -> int:
    """Return the number behind or before a value that ibv_devinfo or sysfs prints in words; 0 if there is none.

    >>> _code("LINK_UP (5)"), _code("4: ACTIVE"), _code("unknown")
    (5, 4, 0)
    """
    coded = parse_value(value.strip(), "coded_value") if value else None
    return int(coded["code"] or 0) if coded else 0


def _shown(value: str) -> str:
    """Return a value without its number: `4X` of `4X (2)`."""
    coded = parse_value(value.strip(), "coded_value")
    return str(coded["shown"]) if coded else value.strip()


def _rdma_links(links: list[Row]) -> Iterator[Row]:
    for row in links:
        yield {
            **origin_of(row),
            "device": str(row["device"]),
            "port": row["port"],
            "lid": row["lid"] or None,
            "state": port_state_of(row["state"]),
            "physical_state": PHYSICAL.get(str(row["physical_state"])),
            "link_layer": "InfiniBand" if row["lid"] is not None else None,
            "netdev": None if row["netdev"] is None else str(row["netdev"]),
        }


def _port_of(row: Row) -> tuple[Any, ...]:
    """What a row shares with others of the same port: its host, or where none is known its file."""
    return row["host"] or row["source"], row["device"], row["port"]


def _netdevs(netdevs: list[Row], stated: set[tuple[Any, ...]]) -> Iterator[Row]:
    """Ports of ibdev2netdev; of those in `stated` another tool prints the state."""
    for row in netdevs:
        # A RoCE port is active while its interface has a carrier; that of IPoIB is down where none was set up.
        is_ipoib = str(row["netdev"]).startswith("ib")
        by_netdev = None if is_ipoib else NETDEV_STATES[str(row["netdev_state"])]
        state = port_state_of(row["verbose_state"]) or by_netdev
        place = {"device": str(row["device"]), "port": row["port"], "netdev": str(row["netdev"])}
        port = {**origin_of(row), **place}
        yield {**port, "state": None if _port_of(port) in stated else state}


def _linked(links: Iterable[tuple[Row, dict[str, Row]]]) -> Iterator[Row]:
    for place, fields in links:
        values = {field: str(row["value"]).strip() for field, row in fields.items()}
        if "State" not in values:
            continue
        link_speed = parse_value(values.get("Speed"), "link_speed") or {}
        kind, speed = link_speed.get("link_kind"), link_speed.get("speed")
        width = values.get("Width")
        rated = _rated(width if width and width[0].isdigit() else None, speed if kind == "IB" else None)
        yield {
            **place,
            "line": fields["State"]["line"],
            "state": port_state_of(values["State"]),
            "physical_state": PHYSICAL.get(values.get("Physical state", "").upper()),
            **rated,
            "rate_Gbps": link_speed.get("rate") or rated["rate_Gbps"],
            "link_layer": LINK_LAYERS.get(kind or link_speed.get("form", "")),
        }


def _sampled(metric_value: pl.DataFrame) -> Iterator[Row]:
    """Ports of node_exporter: state and rate, which are separate samples."""
    wanted = {"state_id", "physical_state_id", "rate_bytes_per_second"}
    ports = metric_value.filter((pl.col("family") == "node_infiniband_") & pl.col("name").is_in(wanted))
    place = ["source", "moment", "host", "device", "port"]
    for key, rows in ports.sort("source", "line").group_by(place, maintain_order=True):
        samples: dict[str, float] = dict(rows.select("name", "value").drop_nulls().iter_rows())
        rate = samples.get("rate_bytes_per_second")
        yield {
            **dict(zip(place, key, strict=True)),
            "line": rows["line"][0],
            "state": STATE_CODES.get(int(samples.get("state_id", 0))),
            "physical_state": PHYSICAL_CODES.get(int(samples.get("physical_state_id", 0))),
            "rate_Gbps": None if rate is None else rate * 8 / 1e9,
        }


def _of_omni_path(omni_path_port: pl.DataFrame) -> Iterator[Row]:
    """Ports of Omni-Path: of the lanes that a link goes on with, the lesser number counts."""
    for row in omni_path_port.drop_nulls("state").to_dicts():
        lanes = min((row[name] for name in ("lanes", "sending", "receiving") if row[name] is not None), default=None)
        rated = {"width": f"{lanes}X", "rate_Gbps": lanes * row["lane_Gbps"]} if lanes and row["lane_Gbps"] else {}
        place = {name: row[name] for name in ("source", "line", "host", "moment", "device", "port", "lid")}
        physical = {"physical_state": row["physical_state"], "link_layer": "Omni-Path"}
        yield {**place, **physical, "state": port_state_of(row["state"]), **rated}


def _of_lshca(lshca_port: list[Row]) -> Iterator[Row]:
    """Ports of lshca; the rate of one that is down means nothing."""
    for row in lshca_port:
        place = {
            "device": row["rdma"],
            "port": None,
            "netdev": row["netdev"],
            "link_layer": LISTED_LAYERS.get(str(row["layer"])),
        }
        state = LISTED_STATES.get(str(row["port_state"]))
        rate = parse_float(row["rate"]) if state != "down" else None
        yield {**origin_of(row), **place, "state": state, "rate_Gbps": rate}


@analysis(LSHCA_PORT, of=("lshca_head",))
def lshca_port(lshca_head: pl.DataFrame, lshca_row: pl.DataFrame) -> pl.DataFrame:
    """One row per port that lshca lists: the cells of its view, and those that it marks as wrong."""
    names: list[str] = []
    rows = []
    for row in pl.concat([lshca_head, lshca_row], how="diagonal").sort("source", "line").to_dicts():
        if row["lshca_columns"] is not None:
            names = [name.strip() for name in str(row["lshca_columns"]).split("|")]
            continue
        cells = [str(row["lshca_first"]), *(cell.strip() for cell in str(row["lshca_cells"]).split("|"))]
        values = dict(zip(names, cells, strict=False))
        marked = [name for name, value in values.items() if value.endswith(WRONG)]
        values.setdefault("LnkStat", "actv")  # the column is left out where all are
        known = {column: (values.get(name) or "").rstrip(" *>!<") or None for name, column in LSHCA_NAMES.items()}
        place = {name: row[name] for name in ("source", "line", "launcher_node", "launcher_time") if name in row}
        rows.append(
            place | known | {"wrong": [f"{name} {values[name].removesuffix(WRONG).strip()}" for name in marked]}
        )
    return frame_of_rows(rows, LSHCA_PORT)
