"""What transceivers report of themselves: by the flags of ethtool -m, and the readings and flags of mlxlink -m."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.analyses.fabric.ethernet_names import interface_of_command
from ncclforensics.analyses.host.command_sessions import (
    CommandHistory,
    Row,
    frame_from_rows,
    mlxlink_outputs,
    origin_of,
    rows_with_origin,
)
from ncclforensics.analyses.host.numbers import parse_float
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


@analysis(TRANSCEIVER_FAULT, of=("module_flag", "mlxlink_field"))
def transceiver_fault(
    module_flag: pl.DataFrame,
    mlxlink_section: pl.DataFrame,
    mlxlink_field: pl.DataFrame,
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
    return frame_from_rows(rows, TRANSCEIVER_FAULT)


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
