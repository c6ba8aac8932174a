"""What a host consists of as text: its interfaces, what its GPUs do, and the devices that lspci lists."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ncclforensics.data.names import count_of, printable, some_of
from ncclforensics.frames.columns import text_of
from ncclforensics.grammar.values import find_values
from ncclforensics.report.build import Report
from ncclforensics.views.text_layout import file_name, heading, indented, table_with_header

FILES = 3
MOST = 16  # rows of a table
NAMED = 3  # addresses or processes in a cell
KINDS = {"gpu": "GPU", "nic": "NIC", "switch": "NVSwitch"}


def hosts(report: Report) -> list[RenderableType]:
    """Return the tables of interfaces and GPUs, and the list of devices, of the first files."""
    parts: list[RenderableType] = []
    for title, tables in (
        ("INTERFACES", _interfaces(report)),
        ("GPUS AT ONE MOMENT", _gpus(report)),
        ("DEVICES", _devices(report)),
        ("GPU-BURN", _burned(report)),
    ):
        for source, table in list(tables)[:FILES]:
            parts += [heading(f"{title} {file_name(report, report.path_of(source))}"), indented(table)]
    return parts


def _interfaces(report: Report) -> Iterator[tuple[int, Table]]:
    """Yield the interfaces of each file: carrier, MTU, addresses, and errors where any are counted."""
    of_host = report.run["ip_interface"].sort("pos").with_columns(place="pos")
    if of_host.is_empty():
        return
    owner = of_host.select("source", "pos", "place")
    below = {
        name: report.run[name].sort("pos").join_asof(owner, on="pos", by="source", check_sortedness=False)
        for name in ("ip_address", "ip_detail")
    }
    addresses = dict(below["ip_address"].group_by("place").agg(text_of("address")).iter_rows())
    counted = below["ip_detail"].group_by("place").agg(pl.col("bad").sum(), pl.col("dropped").sum())
    errors = {place: (bad, dropped) for place, bad, dropped in counted.iter_rows()}
    for (source,), rows in of_host.group_by("source", maintain_order=True):
        table = table_with_header("", "carrier", "MTU", "addresses", "errors, dropped")
        for row in rows.head(MOST).to_dicts():
            bad, dropped = errors.get(row["place"], (0, 0))
            table.add_row(
                printable(str(row["interface"])),
                _carrier(str(row["flags"])),
                str(row["mtu"]),
                Text(some_of(addresses.get(row["place"], []), NAMED)),
                f"{bad:,}, {dropped:,}" if bad or dropped else "",
            )
        if rows.height > MOST:
            table.add_row(f"and {rows.height - MOST} more", "", "", "", "")
        yield int(str(source)), table


def _carrier(flags: str) -> str:
    """Say whether an interface has a carrier.

    >>> _carrier("NO-CARRIER,BROADCAST,UP"), _carrier("UP,RUNNING"), _carrier("BROADCAST,MULTICAST")
    ('none', 'up', 'switched off')
    """
    words = set(flags.split(","))
    if "UP" not in words:
        return "switched off"
    return "up" if words & {"LOWER_UP", "RUNNING"} else "none"


def _gpus(report: Report) -> Iterator[tuple[int, Table]]:
    """Yield what the GPUs of each table or monitor do, at its last moment, and their processes."""
    measured = pl.any_horizontal(pl.col("utilization", "memory", "power").is_not_null())
    used = report.run["gpu_use"].filter(pl.col("gpu").is_not_null() & measured)
    processes = report.run["use_process"].select("source", "line", gpu=pl.col("gpu").cast(pl.String), pid="pid")
    sources = [*used["source"].unique(maintain_order=True), *processes["source"].unique(maintain_order=True)]
    for source in dict.fromkeys(sources):
        of_file, running = used.filter(source=source), processes.filter(source=source)
        pids = dict(running.group_by("gpu", maintain_order=True).agg("pid").iter_rows())
        table = table_with_header("GPU", "model", "busy", "memory", "power", "mode", "processes")
        last = of_file.unique("gpu", keep="last", maintain_order=True).rows_by_key("gpu", named=True, unique=True)
        for gpu in list(dict.fromkeys([*last, *pids]))[:MOST]:
            row = last.get(gpu, {})
            table.add_row(
                gpu,
                printable(str(row.get("model") or "")),
                _amount(row.get("utilization"), " %"),
                _amount(row.get("memory"), " MiB") or _amount(row.get("memory_share"), " %"),
                _amount(row.get("power"), " W"),
                str(row.get("mode") or ""),
                some_of([f"pid {pid}" for pid in pids.get(gpu, [])], NAMED),
            )
        yield source, table


def _amount(value: object, unit: str) -> str:
    return f"{value:,.0f}{unit}" if isinstance(value, float) else ""


def _burned(report: Report) -> Iterator[tuple[int, Table]]:
    """Yield what gpu-burn counted on each GPU at its last report, or that it calls the GPU sound."""
    progress = report.run["burn_progress"].sort("line").unique("source", keep="last", maintain_order=True)
    sound = report.run["burn_result"].select("source", gpu=pl.col("gpu").cast(pl.Int64))
    for source in dict.fromkeys([*progress["source"], *sound["source"]]):
        table = table_with_header("GPU", "Gflop/s", "wrong values", "°C", "result")
        last = progress.filter(source=source)
        rates = find_values(last["computed"], "burn_rate")["gflops"].to_list()
        errors = find_values(last["counted"], "burn_errors").select("burn_errors", text_of("burn_state")).rows()
        heat = last["temperatures"].cast(pl.String).str.split(" - ").explode().str.strip_suffix(" C").to_list()
        is_sound = set(sound.filter(source=source)["gpu"])
        for gpu in sorted({*range(len(rates)), *is_sound})[:MOST]:
            counted, state = errors[gpu] if gpu < len(errors) else ("", None)
            table.add_row(
                str(gpu),
                f"{rates[gpu]:,}" if gpu < len(rates) else "",
                "its process died" if state == "DIED" else str(counted),
                str(heat[gpu]) if gpu < len(heat) else "",
                "OK" if gpu in is_sound else "",
            )
        yield source, table


def _devices(report: Report) -> Iterator[tuple[int, RenderableType]]:
    """Yield how many GPUs, NICs and NVSwitches of which model lspci lists in each file."""
    listed = report.run["machine_device"].filter((pl.col("tool") == "lspci") & pl.col("kind").is_in(list(KINDS)))
    for (source,), rows in listed.group_by("source", maintain_order=True):
        alike = rows.group_by("kind", "name", maintain_order=True).len()
        lines = [
            f"{count_of(number, KINDS[kind])}: {printable(str(name or 'of a model that is not named'))}"
            for kind, name, number in alike.head(MOST).iter_rows()
        ]
        yield int(str(source)), Text("\n".join(lines))
