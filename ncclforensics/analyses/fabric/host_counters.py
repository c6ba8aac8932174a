"""Counters of ports and NVLinks in the output of host tools, converted to common units."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from itertools import product

import polars as pl

from ncclforensics.analyses.fabric.counters import COUNTER
from ncclforensics.analyses.fabric.ethernet_names import interface_names, interface_of_command
from ncclforensics.analyses.host.command_sessions import (
    CommandHistory,
    frame_from_rows,
    mlxlink_outputs,
    origin_of,
    rows_with_origin,
)
from ncclforensics.analyses.host.damaged_dumps import PROBLEM
from ncclforensics.analyses.host.numbers import LARGEST, parse_float, parse_integer
from ncclforensics.data.counters import CANONICAL, MOST, WORD
from ncclforensics.data.gpu_metrics import EXPORTED_XIDS, XID
from ncclforensics.data.host_counters import EXPORTED, NO_COUNTERS, OF_GPUS, OF_HFI1, unit
from ncclforensics.frames.columns import LINE, Row, text_of
from ncclforensics.frames.registry import analysis
from ncclforensics.grammar.values import find_values

METRIC_VALUE = {
    **LINE,
    "moment": pl.Datetime("us"),
    "host": pl.String(),
    "family": pl.String(),
    "name": pl.String(),
    "device": pl.String(),
    "port": pl.Int32(),
    "value": pl.Float64(),
}
NETDEV_DEVICE = {"host": pl.String(), "source": pl.Int32(), "netdev": pl.String(), "device": pl.String(),
                 "port": pl.Int32()}  # fmt: skip
MLXLINK_COUNTERS = {
    "Symbol Errors": "symbol_error",
    "Effective Physical Errors": "effective_physical_errors",
    "Link Down Counter": "link_downed",
    "Link Error Recovery Counter": "link_error_recovery",
}
GPU_FAMILIES = ("DCGM_FI_", "DCGM_EXP_", "nvidia_smi_", "rocm_ras_", "gpu_ecc_")  # of metrics, one sample for each GPU
GPU_LABELS = ("gpu", "card", "gpu_id")  # that hold its number on the host
OMNI_PATH = "hfi1"  # how its devices are named
Port = tuple[str | None, int | None]
Devices = dict[tuple[str | None, int | None, str], Port]


@analysis(
    COUNTER,
    of=(
        "port_counter_file",
        "port_counter",
        "rdma_statistic",
        "nic_counter",
        "qdisc",
        "mlxlink_field",
        "metric_value",
        "nvlink_port",
    ),
)
def host_counter(
    port_counter_file: pl.DataFrame,
    port_counter: pl.DataFrame,
    counter_folder: pl.DataFrame,
    rdma_statistic: pl.DataFrame,
    rdma_more: pl.DataFrame,
    nic_statistics: pl.DataFrame,
    ethernet_device: pl.DataFrame,
    dump_host: pl.DataFrame,
    nic_counter: pl.DataFrame,
    qdisc: pl.DataFrame,
    mlxlink_section: pl.DataFrame,
    mlxlink_field: pl.DataFrame,
    metric_value: pl.DataFrame,
    nvlink_port: pl.DataFrame,
    dump_command: pl.DataFrame,
    output_heading: pl.DataFrame,
    netdev_device: pl.DataFrame,
) -> pl.DataFrame:
    """One row per counter of a port or NVLink in the output of a host's tools."""
    commands = CommandHistory(dump_command)
    devices = {
        (host, source, netdev): (device, port) for host, source, netdev, device, port in netdev_device.iter_rows()
    }
    names = interface_names(nic_statistics, ethernet_device, dump_host, commands)
    rows: list[Row] = [
        *_of_files(rows_with_origin(port_counter_file.filter(pl.col("counter").is_not_null()), output_heading)),
        *_of_folders(counter_folder, port_counter, output_heading),
        *_of_statistics(rdma_statistic, rdma_more, output_heading),
        *_of_ethernet(names, nic_statistics, nic_counter, output_heading, commands, devices),
        *_of_queues(rows_with_origin(qdisc, output_heading), devices),
        *_of_links(mlxlink_section, mlxlink_field, output_heading, commands),
        *_of_samples(metric_value, devices),
        *_of_nvlinks(rows_with_origin(nvlink_port, output_heading)),
    ]
    return frame_from_rows(rows, COUNTER)


def _counted(name: str, value: int, *, is_words: bool = False) -> Row:
    """Return name, value, unit and `is_saturated` of a counter; words of 4 bytes are converted to bytes."""
    is_saturated = value == MOST.get(name, -1)
    is_data = is_words and name.endswith("_data") and value < LARGEST // WORD
    return {"name": name, "value": value * WORD if is_data else value, "unit": unit(name), "is_saturated": is_saturated}


def _of_files(files: list[Row]) -> Iterator[Row]:
    for row in files:
        name, value = (
            str(row["counter"]).removesuffix("_64"),
            parse_integer(row["value"]),
        )  # before kernel 4.5 counters_ext
        if value is not None and name not in NO_COUNTERS:
            name = CANONICAL.get(name, name)
            if str(row["device"]).startswith(OMNI_PATH):
                name = OF_HFI1.get(name, name)
            yield {
                **origin_of(row), "device": str(row["device"]), "port": row["port"],
                **_counted(name, value, is_words=True),
            }  # fmt: skip


def _of_folders(folders: pl.DataFrame, counters: pl.DataFrame, output_heading: pl.DataFrame) -> Iterator[Row]:
    """Counters inside the folder of a port; without a line that names the folder, only where none is repeated."""
    names = pl.coalesce(text_of("counter"), text_of("efa_counter"), text_of("plain_counter"), text_of("ib_counter"))
    named = counters.with_columns(counter=names, is_repeated=pl.struct("source", names.alias("name")).is_duplicated())
    folder: Row = {}
    for row in rows_with_origin(pl.concat([folders, named], how="diagonal_relaxed"), output_heading):
        if row["device"] is not None:
            folder = {"source": row["source"], "device": str(row["device"]), "port": row["port"]}
        elif (folder.get("source") == row["source"] or not row["is_repeated"]) and row["counter"] not in NO_COUNTERS:
            place = folder if folder.get("source") == row["source"] else {}
            name = str(row["counter"])
            counted = _counted(CANONICAL.get(name, name), row["count"], is_words=True)
            yield {**place, **origin_of(row), **counted}


def _of_statistics(first: pl.DataFrame, more: pl.DataFrame, output_heading: pl.DataFrame) -> Iterator[Row]:
    """Counters of `rdma statistic`: pairs of names and values, which may continue on further lines."""
    begun = first.with_columns(text=text_of("statistics").fill_null(""))
    dump_damage = more.with_columns(text=text_of("more"))
    link: Row | None = None
    name, last = "", (0, 0)
    for row in rows_with_origin(pl.concat([begun, dump_damage], how="diagonal"), output_heading):
        here = (row["source"], row["line"])
        if row["device"] is not None:
            link, name = row, ""
        elif here != (last[0], last[1] + 1):
            link = None  # the previous line is not part of a statistic
        last = here
        if link is None:
            continue
        for word in str(row["text"]).split():
            value = parse_integer(word)
            if value is None:
                name = word
            elif name:
                if name not in NO_COUNTERS:
                    port = {"device": str(link["device"]), "port": link["port"]}
                    yield {**origin_of(row), **port, **_counted(name, value)}
                name = ""


@analysis(NETDEV_DEVICE, of=("port_netdev", "rdma_link", "gid_row", "port_gid_file"))
def netdev_device(
    port_netdev: pl.DataFrame,
    rdma_link: pl.DataFrame,
    gid_row: pl.DataFrame,
    port_gid_file: pl.DataFrame,
    output_heading: pl.DataFrame,
) -> pl.DataFrame:
    """One row per network interface: its RDMA device and port. Either the host is known, or the source is set."""
    pairs = set()
    for rows in (port_netdev, rdma_link, gid_row, port_gid_file):
        for row in rows_with_origin(rows.filter(pl.col("netdev").is_not_null()), output_heading):
            host = row["origin_host"]
            pairs.add((host, None if host else row["source"], str(row["netdev"]), str(row["device"]), row["port"]))
    ordered = sorted(pairs, key=repr)
    return pl.DataFrame(ordered, schema=NETDEV_DEVICE, orient="row")


def _port_of(netdev: str | None, source: int, host: str | None, devices: Devices) -> Row:
    """Return device and port of a network interface, from a list of the same host or source; None if unknown."""
    if netdev is None:
        return {}
    unlisted = (netdev, None)
    device, port = devices.get((host, None, netdev)) or devices.get((None, source, netdev)) or unlisted
    return {"device": device, "port": port}


def _of_ethernet(
    names: Mapping[tuple[int, int], str | None],
    heads: pl.DataFrame,
    counters: pl.DataFrame,
    output_heading: pl.DataFrame,
    commands: CommandHistory,
    devices: Devices,
) -> Iterator[Row]:
    """Counters of ethtool; if several blocks of a source have no known interface, these blocks are left out."""
    nameless = Counter(source for (source, _), name in names.items() if name is None)
    picked = Counter(counters.filter(pl.col("picked").is_not_null()).select("source", text_of("picked")).iter_rows())
    netdev: str | None = None
    headed = {source for source, _ in names}
    block = 0
    lost: dict[tuple[int, int, str], Row] = {}  # of all queues of a block
    for row in rows_with_origin(pl.concat([heads, counters], how="diagonal"), output_heading):
        source = row["source"]
        if row["title"] is not None:
            netdev, block = names[source, row["line"]], row["line"]
            continue
        if source not in headed:  # picked out by grep: the command above them names the interface
            netdev = interface_of_command(commands, source, row["line"])
        value = parse_integer(row["count"])
        is_single = nameless[source] == 1 if source in headed else picked[source, str(row["picked"])] == 1
        is_known = netdev is not None or is_single
        name = str(row["picked"] or row["counter"])
        if value is None or not is_known or (row["form"] == "queue" and unit(name) != "errors"):
            continue
        counted = {**origin_of(row), **_port_of(netdev, source, row["origin_host"], devices), **_counted(name, value)}
        if row["form"] == "queue":
            before = lost.get((source, block, name), counted | {"value": 0})
            lost[source, block, name] = counted | {"value": before["value"] + counted["value"]}
        else:
            yield counted
    yield from lost.values()


def _of_queues(lines: list[Row], devices: Devices) -> Iterator[Row]:
    """What the kernel's queues in front of an interface sent and dropped: the root counts for those below it."""
    is_root, netdev = False, None
    for row in lines:
        if row["form"] == "sent" and is_root:
            port = _port_of(netdev, row["source"], row["origin_host"], devices)
            for name, column in (("qdisc_dropped", "dropped"), ("qdisc_sent_packets", "sent_packets")):
                if (value := parse_integer(row[column])) is not None:
                    yield {**origin_of(row), **port, **_counted(name, value)}
        elif row["form"] in ("root", "child"):
            is_root, netdev = row["form"] == "root", row["queue_netdev"]


def _of_links(
    sections: pl.DataFrame, fields: pl.DataFrame, output_heading: pl.DataFrame, commands: CommandHistory
) -> Iterator[Row]:
    for place, printed in mlxlink_outputs(sections, fields, output_heading, commands):
        for field, name in MLXLINK_COUNTERS.items():
            value = parse_integer(printed[field]["value"]) if field in printed else None
            if value is not None:
                # Counters of the firmware have 64 bits.
                yield {**place, "line": printed[field]["line"], **_counted(name, value), "is_saturated": False}


def _of_samples(metric_value: pl.DataFrame, devices: Devices) -> Iterator[Row]:
    for row in metric_value.to_dicts():
        family, name, value = row["family"], str(row["name"]), row["value"]
        if value is None or not 0 <= value < LARGEST:
            continue
        base = name.removesuffix("_total")
        place = {key: row[key] for key in ("source", "line", "moment", "host", "device", "port")}
        if family == "node_infiniband_" and name.endswith("_total"):
            linux = EXPORTED.get(base, base)
            most = MOST.get(linux, -1) * (WORD if linux.endswith("_data") else 1)
            yield {**place, **_counted(linux, int(value)), "is_saturated": int(value) == most}
        elif family == "node_network_" and name.endswith("_total") and row["device"] != "lo":
            port = _port_of(row["device"], row["source"], row["host"], devices)
            yield {**place, **port, **_counted(base, int(value))}
        elif family == "rdma_" and row["device"] is not None:  # the counters of `rdma statistic`, and virtual ports
            yield {**place, **_counted(base, int(value))}
        elif family == "DCGM_FI_":
            counted, link = _of_dcgm(base)
            if counted:
                yield {**place, "port": link, **_counted(counted, int(value))}


def _of_dcgm(name: str) -> tuple[str | None, int | None]:
    """Return the counter of a DCGM field, and the number of its NVLink.

    >>> _of_dcgm("DEV_NVLINK_REPLAY_ERROR_COUNT_L3"), _of_dcgm("DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL")
    (('nvlink_replay_errors', 3), ('nvlink_replay_errors', None))
    """
    base, _, link = name.rpartition("_L")
    if base and link.isdigit():
        return OF_GPUS.get(base), int(link)
    return OF_GPUS.get(name.removesuffix("_TOTAL")), None


def _of_nvlinks(nvlinks: list[Row]) -> Iterator[Row]:
    here: dict[tuple[int, object], str] = {}
    for row in nvlinks:
        owner, form = (row["source"], row["launcher_node"]), str(row["form"])
        if form == "gpu":
            here[owner] = f"GPU{row['gpu']}"
        elif form == "errors" and owner in here and (value := parse_integer(row["errors"])) is not None:
            link = {"device": here[owner], "port": row["port"]}
            yield {**origin_of(row), **link, **_nvlink_counted(row["counter"], value)}
        elif form == "abridged" and owner in here and (value := parse_integer(row["errors"])) is not None:
            ranges = find_values(pl.Series([str(row["ports"])]), "number_range").select("first", "last").iter_rows()
            ports = [port for first, last in ranges for port in range(first, (last or first) + 1)]
            for port, kind in product(ports[:MOST_NVLINKS], str(row["counters"]).split("/")):
                link = {"device": here[owner], "port": port}
                yield {**origin_of(row), **link, **_nvlink_counted(f"{kind} Errors", value)}


MOST_NVLINKS = 64  # of one GPU: more than any has


def _nvlink_counted(counter: object, value: int) -> Row:
    return _counted(f"nvlink_{str(counter).lower().replace(' ', '_')}", value)


@analysis(METRIC_VALUE, of=("metric",))
def metric_value(metric: pl.DataFrame, output_heading: pl.DataFrame) -> pl.DataFrame:
    """One row per sample of a Prometheus exporter: host, device, port, value."""
    rows = []
    labels_of = _labels(metric["labels"])
    for row in rows_with_origin(metric, output_heading):
        labels = labels_of[str(row["labels"])]
        instance = labels.get("hostname") or labels.get("host") or labels.get("node") or labels.get("node_name")
        number = next((labels[name] for name in GPU_LABELS if name in labels), None)
        is_numbered = number is not None and str(row["family"]) in GPU_FAMILIES
        device = f"GPU{number}" if is_numbered else labels.get("ifname" if row["family"] == "rdma_" else "device")
        if device is None and "uuid" in labels:
            device = f"GPU-{labels['uuid'].removeprefix('GPU-')}"
        stamp = row["stamp_ms"]
        name, value = str(row["metric"]), parse_float(row["sample"])
        if name in EXPORTED_XIDS and value:
            name, value = XID, parse_float(labels.get("xid"))
        rows.append(
            {
                "source": row["source"],
                "line": row["line"],
                "moment": datetime.fromtimestamp(stamp / 1000, UTC).replace(tzinfo=None)
                if stamp is not None and 0 <= stamp < 1 << 42
                else row["moment"],
                "host": _name(instance or labels.get("instance")) or row["origin_host"],
                "family": str(row["family"]),
                "name": name,
                "device": device,
                "port": parse_integer(labels.get("port")),
                "value": value,
            }
        )
    return frame_from_rows(rows, METRIC_VALUE)


def _name(instance: str | None) -> str | None:
    """Return the host name in an exporter's address; None for localhost and IP addresses.

    >>> _name("gpu-a012:9100"), _name("localhost:9100"), _name("10.0.4.12:9100")
    ('gpu-a012', None, None)
    """
    host = (instance or "").split(":")[0]
    return host if host and host != "localhost" and not host.replace(".", "").isdigit() else None


def _labels(texts: pl.Series) -> dict[str, dict[str, str]]:
    r"""Return the labels of each text of samples; names in lower case, because exporters differ.

    >>> _labels(pl.Series(['device="mlx5_0",port="1",Hostname="a,b"']))
    {'device="mlx5_0",port="1",Hostname="a,b"': {'device': 'mlx5_0', 'port': '1', 'hostname': 'a,b'}}
    """
    distinct = texts.cast(pl.String).unique()
    labels: dict[str, dict[str, str]] = {text: {} for text in distinct}
    for place, name, value in find_values(distinct, "metric_label").select("text", "label", "label_value").iter_rows():
        labels[distinct[place]][name.lower()] = value or ""
    return labels


@analysis(PROBLEM, of=("unread_file", "nic_statistics"))
def host_problem(
    unread_file: pl.DataFrame,
    nic_statistics: pl.DataFrame,
    ethernet_device: pl.DataFrame,
    dump_host: pl.DataFrame,
    dump_command: pl.DataFrame,
) -> pl.DataFrame:
    """Problems of host dumps as text: unreadable files, statistics without an interface."""
    of_files = unread_file.group_by("source", "error", maintain_order=True).agg(pl.col("line").min(), files=pl.len())
    commands = CommandHistory(dump_command)
    rows: list[Row] = [
        {"source": source, "line": line, "problem": f"line {line}: {files} files of ports could not be read: {error}"}
        for source, error, line, files in of_files.iter_rows()
    ]
    for (source,), heads in nic_statistics.group_by("source", maintain_order=True):
        names = interface_names(heads, ethernet_device, dump_host, commands)
        lines = [line for (_, line), name in names.items() if name is None]
        if len(lines) > 1:
            problem = f"line {lines[0]}: {len(lines)} statistics of ethtool without an interface, left out"
            rows.append({"source": source, "line": lines[0], "problem": problem})
    return frame_from_rows(rows, PROBLEM)
