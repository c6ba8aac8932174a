"""The paths between GPUs and NICs of a machine as text: a line for each GPU, unusual paths marked."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import polars as pl
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ncclforensics.data.names import bytes_text, number_ranges, printable, some_of
from ncclforensics.report.build import Report
from ncclforensics.views.text_layout import file_name, heading, indented, table_with_header

UNUSUAL = "bold red"
UNREAD = "XXXX"  # rocm-smi's cell for a link whose type the driver did not give
LEGEND = {"!": "! differs from the others", UNREAD: f"{UNREAD}: rocm-smi could not read this link"}
PATHS = ("PIX", "PXB", "PHB", "NODE", "SYS")  # the shortest first
MOST = 3  # machines
LONGEST = 4  # NICs
NUMA_COLUMNS = ("cpus", "megabytes", "distances")  # of `numa_node`
LINK_TOOL = "nvidia-smi nvlink"
PathMap = dict[str, dict[str, list[str]]]  # device -> path type -> devices at the other end


def machines(report: Report) -> list[tuple[str, Table]]:
    """Return a title and a table for each kind of machine; machines with equal paths share one.

    The table is that of paths, or of rocm-smi's types of links.
    """
    pairs = report.run["device_pair"].filter(
        pl.col("table").is_in(["path", "type"]) & pl.col("device").str.starts_with("GPU")
    )
    names = report.run["machine_device"].filter(pl.col("name").is_not_null())
    groups: dict[str, list[str]] = {}
    tables: dict[str, tuple[str, Table]] = {}
    for (source, dump, host), rows in pairs.group_by("source", "dump", "host", maintain_order=True):
        device_names = names.filter((pl.col("source") == source) & (pl.col("dump") == dump))
        cells = rows.select("device", "other", "path").rows()
        key = repr(sorted(cells))
        groups.setdefault(key, []).append(str(host or Path(report.path_of(int(str(source)))).name))
        if key not in tables:
            tables[key] = _table(cells, dict(device_names.select("device", "name").iter_rows()))
    titled = []
    for key, machines in groups.items():
        legend, table = tables[key]
        titled.append((printable(some_of(machines, LONGEST)) + legend, table))
    return titled[:MOST]


def _table(cells: list[tuple[str, str, str]], names: dict[str, str]) -> tuple[str, Table]:
    """Return the table of a machine, and what explains the marks in it."""
    gpus: PathMap = {}
    nics: PathMap = {}
    for device, other, way in cells:
        side = gpus if other.startswith("GPU") else nics
        side.setdefault(device, {}).setdefault(way, []).append(other)
    usual = Counter(way for ways in gpus.values() for way, others in ways.items() for _ in others).most_common(1)
    total = sum(len(others) for ways in gpus.values() for others in ways.values())
    is_even = bool(usual) and usual[0][1] * 2 > total and usual[0][0].startswith("NV")
    nearest = {gpu: next((way for way in PATHS if way in ways), "") for gpu, ways in nics.items()}
    is_near = any(way in PATHS[:2] for way in nearest.values())
    marks = {UNREAD for ways in gpus.values() if UNREAD in ways}
    table = table_with_header(*("", "other GPUs", "nearest NIC")[: 3 if nics else 2])
    for device in dict.fromkeys([*gpus, *nics]):
        row = [Text(device), _reached(gpus.get(device, {}), usual[0][0] if is_even else None)]
        if nics:
            way = nearest.get(device, "")
            ends = [names.get(nic, nic) for nic in nics.get(device, {}).get(way, [])]
            is_unusual = is_near and way == PATHS[-1]
            row.append(
                Text(
                    printable(f"{way} {some_of(ends, LONGEST)}{' !' * is_unusual}"), style=UNUSUAL if is_unusual else ""
                )
            )
        marks |= {"!" for cell in row if " !" in cell.plain}
        table.add_row(*row)
    legend = "; ".join(text for mark, text in LEGEND.items() if mark in marks)
    return f" ({legend})" if legend else "", table


def _reached(ways: dict[str, list[str]], usual: str | None) -> Text:
    """Return the path types to the other GPUs: `NV18`, or `NV18; NV12 ! to GPU5`."""
    text = Text()
    for way, others in sorted(ways.items(), key=lambda item: -len(item[1])):
        is_unusual = usual is not None and way != usual
        text.append("; " * bool(text))
        text.append(way + " !" * is_unusual, style=UNUSUAL if is_unusual else "")
        if len(ways) > 1 and way != usual:
            text.append(f" to {', '.join(others)}")
    return text


def nvlinks(report: Report) -> list[RenderableType]:
    """List the NVLinks of the GPUs in each file; GPUs with equal links share a row."""
    parts: list[RenderableType] = []
    links = report.run["gpu_link"].filter(pl.col("links").is_not_null() & (pl.col("tool") == LINK_TOOL))
    for (source,), rows in list(links.group_by("source", maintain_order=True))[:MOST]:
        file = file_name(report, report.path_of(int(str(source))))
        table = table_with_header("GPUs", "model", "up", "down")
        alike = rows.group_by("host", "model", "links", "down", maintain_order=True).agg("device")
        for row in alike.to_dicts():
            gpus = number_ranges(int(device.removeprefix("GPU")) for device in row["device"])
            table.add_row(
                printable(f"{row['host'] or ''} {gpus}".strip()),
                printable(str(row["model"] or "?")),
                str(row["links"]),
                str(row["down"] or 0),
            )
        parts += [heading(f"NVLINKS {file}"), indented(table)]
    return parts


def numa_nodes(report: Report) -> list[RenderableType]:
    """List the CPUs and the memory of the NUMA nodes in each file, of the first few."""
    parts: list[RenderableType] = []
    numa = report.run["numa_node"].drop_nulls("node")
    for (source,), rows in list(numa.group_by("source", maintain_order=True))[:MOST]:
        file = file_name(report, report.path_of(int(str(source))))
        table = table_with_header("node", "CPUs", "memory", "distances")
        for (node,), lines in rows.sort("node").group_by("node", maintain_order=True):
            cpus, sizes, distances = (lines[name].drop_nulls().to_list() for name in NUMA_COLUMNS)
            memory = bytes_text(int(sizes[0]) << 20) if sizes else "?"
            table.add_row(
                str(node), _ranges(str(cpus[0])) if cpus else "", memory, str(distances[0]) if distances else "?"
            )
        parts += [heading(f"NUMA NODES {file}"), indented(table)]
    return parts


def _ranges(numbers: str) -> str:
    """Shorten a list of CPUs.

    >>> _ranges("0 1 2 3 48 49"), _ranges("0-23,48-71")
    ('0-3, 48, 49', '0-23,48-71')
    """
    words = numbers.split()
    is_list = all(map(str.isdecimal, words))
    return number_ranges(map(int, words)) if is_list else numbers
