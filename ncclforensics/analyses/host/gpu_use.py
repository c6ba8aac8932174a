"""What GPUs do at the moment of a tool's call: nvidia-smi's table, -q, dmon, pmon and CSV, dcgmi, rocm-smi, rdci."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from typing import Any

import polars as pl

from ncclforensics.data.gpu_metrics import AMD_READINGS, REASON_BITS, REASON_FIELDS, REASON_PREFIXES
from ncclforensics.frames.columns import Row, frame_of_rows, text_of
from ncclforensics.frames.registry import analysis
from ncclforensics.grammar.values import find_values, parse_value

GPU_USE = {
    "source": pl.Int32(),
    "host": pl.String(),  # that a launcher, a prompt or a heading names; null: none does
    "gpu": pl.String(),  # index, or PCI address
    "utilization": pl.Float64(),  # percent of the last second in which a kernel ran
    "power": pl.Float64(),  # watts
    "power_limit": pl.Float64(),
    "memory": pl.Float64(),  # MiB in use
    "memory_share": pl.Float64(),  # percent of its memory in use, by rocm-smi
    "clock": pl.Float64(),  # MHz of its multiprocessors
    "uncorrectable": pl.Int64(),  # memory errors since the driver was loaded
    "is_pending": pl.Boolean(),  # rows are to be remapped, or pages retired, at the next reset
    "slowdown": pl.String(),  # why the hardware lowers the clocks now
    "model": pl.String(),  # in the default table
    "unread": pl.String(),  # readings that ended with an error
    "mode": pl.String(),  # who may use it: any process, or one alone
    "pid": pl.Int32(),  # of its process, where the default table shows only one
    "line": pl.Int32(),
    "slowdown_line": pl.Int32(),  # null: that of the GPU
    "unread_line": pl.Int32(),  # null: that of the GPU
}
# Columns of CSV (`nvidia-smi --help-query-gpu`) and of dmon -> those above. The first that is there counts.
QUERY_NAMES = {
    "gpu": ("pci.bus_id", "gpu_bus_id", "index", "uuid", "gpu_uuid"),
    "utilization": ("utilization.gpu",),
    "power": ("power.draw", "power.draw.average", "power.draw.instant"),
    "power_limit": ("enforced.power.limit", "power.limit"),
    "memory": ("memory.used",),
    "clock": ("clocks.current.sm", "clocks.sm", "clocks.current.graphics", "clocks.gr"),
    "uncorrectable": ("ecc.errors.uncorrected.volatile.total",),
}
PENDING_NAMES = ("retired_pages.pending", "remapped_rows.pending")
SLOWDOWN_NAMES = ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown", "sw_thermal_slowdown")
UNREAD_CELLS = {  # columns of an error in a cell of the default table -> what the cell shows
    "fan_error": "fan",
    "temperature_error": "temperature",
    "state_error": "state",
    "power_error": "power",
    "limit_error": "power limit",
}
# Columns of dmon of nvidia-smi, of dcgmi (dcgm_fields.cpp) and of rdci (rdc_field.data): the name, and its unit.
MONITOR_NAMES: dict[str, dict[str, tuple[str, float]]] = {
    "names": {"utilization": ("sm", 1), "power": ("pwr", 1), "memory": ("fb", 1), "clock": ("pclk", 1)},
    "entities": {
        "utilization": ("GPUTL", 1),
        "activity": ("GRACT", 100),
        "power": ("POWER", 1),
        "memory": ("FBUSD", 1),
        "clock": ("SMCLK", 1),
    },
    "of_rdc": {
        "utilization": ("GPU_UTIL", 1),
        "power": ("POWER_USAGE", 1e-6),
        "memory": ("GPU_MEMORY_USAGE", 1 / 2**20),
        "clock": ("GPU_CLOCK", 1e-6),
        "watts": ("POWER", 1e-6),
    },
}
INSTEAD = {"activity": "utilization", "watts": "power"}  # columns that show the same where the usual one is not there


@analysis(
    GPU_USE, of=("use_gpu", "use_columns", "use_names", "use_query", "use_amd", "smi_gpu", "metric_value", "amd_state")
)
def gpu_use(
    use_gpu: pl.DataFrame,
    use_state: pl.DataFrame,
    use_unread: pl.DataFrame,
    use_process: pl.DataFrame,
    use_columns: pl.DataFrame,
    use_row: pl.DataFrame,
    use_entity: pl.DataFrame,
    use_rdc_row: pl.DataFrame,
    use_amd: pl.DataFrame,
    use_process_row: pl.DataFrame,
    use_query: pl.DataFrame,
    use_names: pl.DataFrame,
    use_readings: pl.DataFrame,
    use_values: pl.DataFrame,
    smi_gpu: pl.DataFrame,
    metric_value: pl.DataFrame,
    amd_state: pl.DataFrame,
    output_heading: pl.DataFrame,
) -> pl.DataFrame:
    """One row per GPU and moment; of the samples of exporters, one per GPU whose clocks are lowered at the last."""
    queried = smi_gpu.with_columns(gpu="device").to_dicts()
    rows = [
        *_table(use_gpu, use_state, use_unread, use_process),
        *_monitor(use_columns, use_row, use_entity, use_rdc_row),
        *_concise(use_amd),
        *_processes(use_columns, use_process_row),
        *_csv(use_names, use_query, use_readings, use_values),
        *queried,
        *_lowered_by_samples(metric_value),
        *_read_by_rocm(amd_state),
    ]
    found = frame_of_rows(rows, {**GPU_USE, "launcher_node": pl.String()}).sort("source", "line")
    headings = output_heading.filter(pl.col("heading_host").is_not_null()).select("source", "line", "heading_host")
    return found.join_asof(
        headings.sort("source", "line"), on="line", by="source", check_sortedness=False
    ).with_columns(host=pl.coalesce("launcher_node", "heading_host"))


def _owned(*frames: pl.DataFrame) -> Iterator[tuple[int, Row]]:
    """Yield the number of the frame and the row of all lines, by source and node, in their order."""
    rows = pl.concat(
        [frame.with_columns(form=text_of("form"), part=pl.lit(n)) for n, frame in enumerate(frames)],
        how="diagonal_relaxed",
    )
    for row in rows.with_columns(node=text_of("launcher_node").fill_null("")).sort("source", "node", "pos").to_dicts():
        yield row["part"], row


def _table(
    use_gpu: pl.DataFrame, use_state: pl.DataFrame, use_unread: pl.DataFrame, use_process: pl.DataFrame
) -> Iterator[Row]:
    """The GPUs of the default table: a row with the name, and one with the state; processes stand below."""
    owner = ("source", "launcher_node", "gpu")
    pids: dict[tuple[Any, ...], set[int]] = {}
    for row in use_process.to_dicts():
        pids.setdefault(tuple(row[name] for name in owner), set()).add(row["pid"])
    head: Row | None = None
    for part, row in _owned(use_gpu, use_state, use_unread):
        if part == 0:
            head = row
        elif head and (head["source"], head["node"]) == (row["source"], row["node"]):
            own = pids.get(tuple(head[name] for name in owner), set())
            pid = next(iter(own)) if len(own) == 1 else None
            named = {"gpu": str(head["gpu"]), "uncorrectable": head["errors"], "model": head["model"], "pid": pid}
            if part == 2:
                named |= {"unread": _unread_cells(row["sensors"]), "unread_line": row["line"], "line": head["line"]}
            yield row | named
            head = None


def _unread_cells(sensors: str) -> str:
    """Name the cells of the default table that show an error.

    >>> _unread_cells("ERR!   47C    P0   ERR! / 180W ")
    'fan, power'
    """
    cells = parse_value(sensors.strip(), "unread_sensors") or {}
    return ", ".join(shown for column, shown in UNREAD_CELLS.items() if cells.get(column))


def _monitor(use_columns: pl.DataFrame, *rows: pl.DataFrame) -> Iterator[Row]:
    """The rows of monitors, whose columns the head names; a unit in the head stands in brackets."""
    columns: list[str] = []
    known = MONITOR_NAMES["names"]
    for part, row in _owned(use_columns.filter(~text_of("form").str.ends_with("units")), *rows):
        if part == 0:
            names = str(row["columns"] or row["amd_columns"]).split()
            columns, known = [name for name in names if name[0] != "("], MONITOR_NAMES[row["form"]]
            continue
        cells = dict(zip(columns, str(row["cells"] or row["entity_cells"] or row["rdc_cells"]).split(), strict=False))
        read = {name: _number(cells.get(column)) for name, (column, _) in known.items()}
        values = {name: None if value is None else value * known[name][1] for name, value in read.items()}
        for name, usual in INSTEAD.items():
            if name in values and values.get(usual) is None:
                values[usual] = values[name]
        if any(values.get(name) is not None for name in known):
            place = {key: row[key] for key in ("source", "line", "launcher_node")}
            yield {name: values.get(name) for name in MONITOR_NAMES["names"]} | place | {"gpu": str(row["gpu"])}


def _concise(use_amd: pl.DataFrame) -> Iterator[Row]:
    """The GPUs of rocm-smi's table."""
    columns = {"utilization": "busy", "power": "power", "power_limit": "cap", "memory_share": "vram", "clock": "clock"}
    for row in use_amd.sort("source", "line").to_dicts():
        values = {name: _number(str(row[f"amd_{column}"] or "").rstrip("%WMHhz")) for name, column in columns.items()}
        yield values | {key: row[key] for key in ("source", "line", "launcher_node")} | {"gpu": str(row["gpu"])}


def _processes(use_columns: pl.DataFrame, use_process_row: pl.DataFrame) -> Iterator[Row]:
    """The GPUs of pmon at each moment: the most that one process uses, and its pid where it is the only one."""
    columns: list[str] = []
    last: Row | None = None
    for part, row in _owned(use_columns.filter(text_of("form") == "names"), use_process_row):
        if part == 0:
            columns = row["columns"].split()
            continue
        cells = dict(zip(columns[2:], row["process_cells"].split(), strict=False))
        used = _number(cells.get("sm"))
        place = {key: row[key] for key in ("source", "launcher_node", "gpu")}
        if used is None:
            continue
        if last and all(last[key] == value for key, value in place.items()) and row["pid"] not in last["pids"]:
            last["pids"].add(row["pid"])
            last["utilization"], last["pid"] = max(last["utilization"], used), None
            continue
        if last:
            yield last | {"gpu": str(last["gpu"])}
        last = {**place, "utilization": used, "pid": row["pid"], "pids": {row["pid"]}, "line": row["line"]}
    if last:
        yield last | {"gpu": str(last["gpu"])}


def _csv(
    use_names: pl.DataFrame, use_query: pl.DataFrame, use_readings: pl.DataFrame, use_values: pl.DataFrame
) -> Iterator[Row]:
    """The rows of CSV below a head or a command; those that have another number of cells are no such rows."""
    names: list[str] = []
    errors = {
        error
        for cells in (use_readings["readings"], use_values["other_values"])
        for error in find_values(cells, "reading_error")["reading_error"]
    }
    for part, row in _owned(use_names, use_query, use_readings, use_values):
        if part < 2:
            listed = row["queried"] if part else f"{row['first_name']},{row['other_names']}"
            names = [name.partition(" [")[0].strip() for name in listed.split(",")]
            continue
        values_text = row["readings"] if part == 2 else row["other_values"]
        cells = next(csv.reader([f"{row['first_value']}, {values_text}"], skipinitialspace=True))
        if len(cells) != len(names):
            continue
        values = dict(zip(names, cells, strict=True))
        found = {
            column: next((values[name] for name in known if name in values), None)
            for column, known in QUERY_NAMES.items()
        }
        slow = [
            name
            for name in SLOWDOWN_NAMES
            for key in values
            if key.endswith(f"_reasons.{name}") and values[key].strip() == "Active"
        ]
        yield {
            **{column: _number(value) for column, value in found.items() if column != "gpu"},
            **{key: row[key] for key in ("source", "line", "launcher_node")},
            "gpu": found["gpu"],
            "is_pending": any(values.get(name, "").strip() == "Yes" for name in PENDING_NAMES),
            "slowdown": slow[0].replace("_", " ") if slow else None,
            "unread": ", ".join(name for name, value in values.items() if value in errors) or None,
        }  # fmt: skip


def _lowered_by_samples(metric_value: pl.DataFrame) -> Iterator[Row]:
    """The GPUs whose clocks the hardware lowers, by the last sample of each reason."""
    ordered = metric_value.sort("moment", "source", "line")
    last = ordered.unique(["source", "host", "device", "name"], keep="last", maintain_order=True)
    for row in last.filter(
        (pl.col("value") > 0) & pl.col("value").is_finite() & pl.col("device").is_not_null()
    ).to_dicts():
        if reason := _reason(row["name"], row["value"]):
            place = {"source": row["source"], "line": row["line"], "launcher_node": row["host"]}
            yield {**place, "gpu": row["device"].removeprefix("GPU").removeprefix("-"), "slowdown": reason}


def _read_by_rocm(amd_state: pl.DataFrame) -> Iterator[Row]:
    """The GPUs of rocm-smi: a line for each reading; one that comes again is of another moment."""
    shown: dict[tuple[Any, ...], Row] = {}
    for row in amd_state.filter(text_of("form") == "reading").sort("source", "line").to_dicts():
        owner, column = (row["source"], row["launcher_node"], row["gpu"]), AMD_READINGS[str(row["reading"])]
        if column in shown.get(owner, {}):
            yield shown.pop(owner)
        place = {name: row[name] for name in ("source", "line", "launcher_node")}
        shown.setdefault(owner, {**place, "gpu": None if row["gpu"] is None else str(row["gpu"])})
        shown[owner][column] = _number(str(row["amount"]))
    yield from shown.values()


def _reason(name: str, value: float) -> str | None:
    """Return why the hardware lowers the clocks, by a sample, or None of any other metric or reason.

    >>> _reason("DEV_CLOCKS_EVENT_REASONS", 72.0), _reason("DEV_CLOCKS_EVENT_REASONS", 4.0)
    ('hw thermal slowdown', None)
    >>> _reason("clocks_event_reasons_hw_thermal_slowdown", 1.0), _reason("clocks_event_reasons_gpu_idle", 1.0)
    ('hw thermal slowdown', None)
    """
    if name in REASON_FIELDS:
        return next((reason for bit, reason in REASON_BITS.items() if int(value) & bit), None)
    reasons = (name.removeprefix(prefix) for prefix in REASON_PREFIXES if name.startswith(prefix))
    return next((reason.replace("_", " ") for reason in reasons if reason in SLOWDOWN_NAMES), None)


def _number(text: str | None) -> float | None:
    """The number in a cell, without its unit; null for `-`, `N/A` and `[Not Supported]`."""
    try:
        return float((text or "").split(" ")[0])
    except ValueError:
        return None
