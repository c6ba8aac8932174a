"""What transceivers report of themselves: by ethtool -m, mlxlink -m, and the switches of SONiC."""

from __future__ import annotations

import math
from collections.abc import Iterator

import polars as pl

from ncclforensics.analyses.fabric.ethernet_names import interface_of_command
from ncclforensics.analyses.host.command_sessions import (
    CommandHistory,
    frame_from_rows,
    mlxlink_outputs,
    origin_of,
    rows_with_origin,
)
from ncclforensics.analyses.host.numbers import parse_float
from ncclforensics.frames.columns import Row
from ncclforensics.frames.registry import analysis
from ncclforensics.grammar.values import parse_value

TRANSCEIVER_FAULT = {
    "source": pl.Int32(),
    "line": pl.Int32(),
    "host": pl.String(),
    "moment": pl.Datetime("us"),
    "port": pl.String(),  # interface or device; null where no command shows it
    "fault": pl.String(),
    "kind": pl.String(),  # limit: outside of it; flag: a fault that the module reports; warning: near a limit
}
# Flags of mlxlink -m, 1 for each lane that raises one. Light and clock are missed also where the other end is off.
OF_MODULE = {
    "Module FW Fault": "fault of its firmware",
    "DataPath FW Fault": "fault of its data path",
    "Tx Fault [per lane]": "fault of its sender",
    "Tx Adaptive EQ Fault [per lane]": "fault of its equaliser",
}
MODULE_FLAGS = {
    **OF_MODULE,
    "Rx LOS [per lane]": "no light or signal received",
    "Rx CDR LOL [per lane]": "no clock in what it receives",
    "Tx LOS [per lane]": "no signal from the NIC",
    "Tx CDR LOL [per lane]": "no clock in what the NIC sends",
}
MODULE_READINGS = {  # fields of mlxlink -m: what they measure, and the unit
    "Temperature [C]": ("temperature", "°C"),
    "Voltage [mV]": ("voltage", "mV"),
    "Bias Current [mA]": ("bias current", "mA"),
    "Rx Power Current [dBm]": ("received power", "dBm"),
    "Tx Power Current [dBm]": ("sent power", "dBm"),
}


# SONiC's flags beside those of limits; its flag of missed light is left out: it is set where the other end is off, too,
# and the received power shows the same.
OF_SONIC = {"Tx fault flag": OF_MODULE["Tx Fault [per lane]"]}


SONIC_READINGS = {
    "RXPower": "RxPower",
    "TXPower": "TxPower",
    "TXBias": "TxBias",
    "Temperature": "Temp",
    "Vcc": "Vcc",
}  # names of readings without the lane: names of their limits
WITHOUT_LANE = str.maketrans("", "", "0123456789")


@analysis(TRANSCEIVER_FAULT, of=("module_flag", "mlxlink_field", "sonic_flag", "sonic_limit"))
def transceiver_fault(
    module_flag: pl.DataFrame,
    mlxlink_section: pl.DataFrame,
    mlxlink_field: pl.DataFrame,
    sonic_flag: pl.DataFrame,
    sonic_module: pl.DataFrame,
    sonic_reading: pl.DataFrame,
    sonic_limit: pl.DataFrame,
    dump_command: pl.DataFrame,
    output_heading: pl.DataFrame,
) -> pl.DataFrame:
    """One row per limit that a transceiver does not keep, and per fault that it reports."""
    commands = CommandHistory(dump_command)
    raised = module_flag.filter(pl.col("flag") == "On")
    rows: list[Row] = [
        {**origin_of(row), "port": interface_of_command(commands, row["source"], row["line"]), **_flag_of_ethtool(row)}
        for row in rows_with_origin(raised, output_heading)
    ]
    for place, fields in mlxlink_outputs(mlxlink_section, mlxlink_field, output_heading, commands):
        faults = [*_outside_of_limits(fields), *_flags_of_mlxlink(fields)]
        rows += [{**place, "port": place["device"], **fault} for fault in faults]
    for port, shown in _modules_of_sonic((sonic_module, sonic_flag, sonic_reading, sonic_limit), output_heading):
        rows += [{**fault, "port": port} for fault in (*_flags_of_sonic(shown), *_readings_of_sonic(shown))]
    return frame_from_rows(rows, TRANSCEIVER_FAULT)


def _modules_of_sonic(
    frames: tuple[pl.DataFrame, ...], output_heading: pl.DataFrame
) -> Iterator[tuple[str | None, list[Row]]]:
    """Yield the lines on each module of a switch, with its port; a part of an output may lack the port."""
    shown: list[Row] = []
    port: str | None = None
    for row in rows_with_origin(pl.concat(frames, how="diagonal_relaxed"), output_heading):
        is_head = row["switch_port"] is not None
        if is_head or (shown and row["source"] != shown[-1]["source"]):
            yield port, shown
            shown, port = [], str(row["switch_port"]) if is_head else None
        if not is_head:
            shown.append(row)
    yield port, shown


def _flags_of_sonic(shown: list[Row]) -> Iterator[Row]:
    """Yield the flags that a module raises; those of all lanes with one name are one row."""
    raised: dict[tuple[str, str], list[Row]] = {}
    for row in shown:
        if str(row["raised"]) != "True":
            continue
        name = (
            f"{row['quantity']} {row['bound']}".lower() if row["quantity"] else OF_SONIC.get(str(row["module_fault"]))
        )
        kind = "limit" if str(row["level"]) == "alarm" else "warning" if row["quantity"] else "flag"
        if name:
            raised.setdefault((kind, name), []).append(row)
    for (kind, name), rows in raised.items():
        lanes = ", ".join(str(row["lane"]) for row in rows if row["lane"] is not None)
        fault = f"{name} (lane{'s' * (len(rows) > 1)} {lanes})" if lanes else name
        yield {**origin_of(rows[0]), "fault": fault, "kind": kind}


def _readings_of_sonic(shown: list[Row]) -> Iterator[Row]:
    """Yield the readings outside of the limits of their alarm; without any light the other end may be off."""
    limits = {
        (str(row["limited"]), str(row["side"])): parse_float(str(row["limit"]))
        for row in shown
        if str(row["limit_level"]) == "Alarm"
    }
    for row in shown:
        quantity = SONIC_READINGS.get(str(row["reading"]).translate(WITHOUT_LANE))
        value = parse_float(str(row["read"]))
        if quantity is None or value is None or math.isinf(value):
            continue
        lowest, highest = (limits.get((quantity, side)) for side in ("Low", "High"))
        if lowest is None or highest is None or lowest <= value <= highest:
            continue
        fault = f"{row['reading']} {value:g} (limits {lowest:g} to {highest:g})"
        yield {**origin_of(row), "fault": fault, "kind": "limit"}


def _flag_of_ethtool(row: Row) -> Row:
    lane = "" if row["lane"] is None else f" (lane {row['lane']})"
    kind = "limit" if str(row["level"]) == "alarm" else "warning"
    return {"fault": f"{str(row['quantity']).lower()} {row['bound']}{lane}", "kind": kind}


def _outside_of_limits(fields: dict[str, Row]) -> Iterator[Row]:
    """Yield each reading outside of its limits; a module without limits prints them as zeros."""
    for field, (quantity, unit) in MODULE_READINGS.items():
        reading = parse_value(str(fields[field]["value"]).strip(), "module_reading") if field in fields else None
        lowest, highest = (parse_float(str(reading[name])) for name in ("lowest", "highest")) if reading else (0.0, 0.0)
        if reading is None or lowest is None or highest is None or lowest >= highest:
            continue
        lanes = [parse_float(lane) for lane in str(reading["readings"]).split(",")]
        for number, value in enumerate(lanes, 1):
            if value is not None and not lowest <= value <= highest:
                of_lane = f" of lane {number}" * (len(lanes) > 1)
                fault = f"{quantity}{of_lane} {value:g} {unit} (limits {lowest:g} to {highest:g})"
                yield {"line": fields[field]["line"], "fault": fault, "kind": "limit"}


def _flags_of_mlxlink(fields: dict[str, Row]) -> Iterator[Row]:
    is_up = str(fields["State"]["value"]).strip() == "Active" if "State" in fields else False
    for field, fault in MODULE_FLAGS.items():
        if field not in fields or not (is_up or field in OF_MODULE):
            continue
        states = [state.strip() for state in str(fields[field]["value"]).split(",")]
        raised = [str(number) for number, state in enumerate(states, 1) if state == "1"]
        if raised:
            of_lanes = f" (lane {', '.join(raised)})" * (len(states) > 1)
            yield {"line": fields[field]["line"], "fault": fault + of_lanes, "kind": "flag"}
