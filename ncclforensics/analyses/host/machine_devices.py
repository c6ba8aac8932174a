"""GPUs, NICs, bridges and NVSwitches of a machine, as lspci, nvidia-smi and the assembled dumps list them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import polars as pl

from ncclforensics.analyses.host.dump_origin import (
    DUMP_FRAMES,
    DUMP_ORIGIN,
    PromptHosts,
    Row,
    assembled_table,
    host_at,
    prompt_hosts,
    rows_frame,
)
from ncclforensics.analyses.host.numbers import parse_transfer_rate
from ncclforensics.data.names import parse_short_integer
from ncclforensics.frames.registry import analysis

MACHINE_DEVICE = {
    **DUMP_ORIGIN,
    "kind": pl.String(),  # gpu, nic, bridge, switch
    "device": pl.String(),  # GPU0, NIC0, or the PCI address
    "name": pl.String(),  # of a NIC; model of a PCI device
    "model": pl.String(),  # vendor and device number: devices of one model may be compared
    "cpus": pl.String(),  # with affinity to it
    "numa": pl.String(),
    "speed": pl.Float64(),  # GT/s of the PCIe link
    "width": pl.Int32(),  # lanes
    "speed_can": pl.Float64(),  # the device's maximum
    "width_can": pl.Int32(),
    "is_redirecting": pl.Boolean(),  # access control (ACS) routes peer traffic through the root complex
    "line": pl.Int32(),
    "link_line": pl.Int32(),
    "acs_line": pl.Int32(),
}
GPU_LINK = {
    **DUMP_ORIGIN,
    "device": pl.String(),
    "model": pl.String(),
    "links": pl.Int32(),  # NVLinks that are up
    "down": pl.Int32(),
    "errors": pl.Int64(),  # counted by the driver since it was loaded
    "line": pl.Int32(),
    "down_line": pl.Int32(),  # the first that is down
}

# Tools that show the current speed of a PCIe link, which a GPU at rest lowers.
CURRENT_SPEED_TOOLS = ("lspci", "nvidia-smi -q")
NVIDIA, AMD = "10de", "1002"  # PCI vendor numbers
GPU_VENDORS = ("NVIDIA", "Advanced Micro Devices")
GPU_KINDS = ("3D controller", "VGA compatible controller", "Display controller", "Processing accelerators")
NIC_KINDS = ("Ethernet controller", "niband controller", "Network controller")


@analysis(MACHINE_DEVICE, of=DUMP_FRAMES)
def machine_device(
    dump_assembly: pl.DataFrame,
    pci_device: pl.DataFrame,
    pci_other: pl.DataFrame,
    pci_lost: pl.DataFrame,
    pci_link: pl.DataFrame,
    pci_acs: pl.DataFrame,
    smi_gpu: pl.DataFrame,
    device_command: pl.DataFrame,
    pci_command: pl.DataFrame,
) -> pl.DataFrame:
    """One row per GPU, NIC, bridge and NVSwitch of a dump, with its PCIe link where the dump shows it."""
    prompts = prompt_hosts(device_command, pci_command)
    others = [*pci_other.to_dicts(), *pci_lost.to_dicts()]
    lspci = rows_frame(_lspci_rows(pci_device, others, pci_link, pci_acs, prompts), MACHINE_DEVICE)
    nvidia_smi = rows_frame(_nvidia_smi_rows(smi_gpu, prompts), MACHINE_DEVICE)
    return pl.concat([assembled_table(dump_assembly, "devices", MACHINE_DEVICE), lspci, nvidia_smi])


def _nvidia_smi_rows(smi_gpu: pl.DataFrame, prompts: PromptHosts) -> Iterator[Row]:
    """The GPUs of nvidia-smi -q."""
    for row in smi_gpu.to_dicts():
        host = host_at(prompts, row["source"], row["dump"], row["launcher_node"])
        columns = {column: row[column] for column in MACHINE_DEVICE if column in row}
        yield {**columns, "host": host, "tool": "nvidia-smi -q", "kind": "gpu", "name": row["model"]}


def _lspci_rows(
    pci_device: pl.DataFrame, others: list[Row], pci_link: pl.DataFrame, pci_acs: pl.DataFrame, prompts: PromptHosts
) -> list[Row]:
    """The devices of lspci; the lines on PCIe link and ACS stand below the line of their device, listed or other."""
    lines = [(row, "device") for row in pci_device.to_dicts()] + [(row, "link") for row in pci_link.to_dicts()]
    lines += [(row, "other") for row in others]
    lines += [(row, "acs") for row in pci_acs.filter(pl.col("src_valid").is_not_null()).to_dicts()]
    rows: list[Row] = []
    first_lines: dict[tuple[int, object], int] = {}
    listed: set[tuple[int, object, str]] = set()
    current: dict[tuple[int, object], Row] = {}
    for row, kind_of_line in sorted(lines, key=lambda line: line[0]["pos"]):
        owner, line = (row["source"], row["launcher_node"]), row["line"]
        if kind_of_line == "device":
            if (*owner, row["bus"]) in listed:  # the list begins again: another dump
                listed = {device for device in listed if device[:2] != owner}
                first_lines.pop(owner, None)
            listed.add((*owner, row["bus"]))
            kind = _device_kind(row)
            current[owner] = {
                "source": owner[0],
                "dump": first_lines.setdefault(owner, line),
                "host": host_at(prompts, owner[0], line, row["launcher_node"]),
                "tool": "lspci",
                "kind": kind,
                "device": row["bus"],
                "name": row["device"],
                "model": f"{row['vendor']}:{row['model']}" if row["vendor"] else row["device"],
                "line": line,
            }
            if kind:
                rows.append(current[owner])
        elif kind_of_line == "other":
            current.pop(owner, None)
        elif owner in current:
            device = current[owner]
            if kind_of_line == "acs":
                device["is_redirecting"] = row["src_valid"] == "+" and row["req_redir"] == "+"
                device["acs_line"] = line
            else:
                suffix = "_can" if str(row["form"]) == "can" else ""
                device[f"speed{suffix}"] = parse_transfer_rate(row["speed"])
                device[f"width{suffix}"] = row["width"]
                if not suffix:
                    device["link_line"] = line
    return rows


def _device_kind(row: dict[str, Any]) -> str | None:
    """Classify a device of lspci by its class number, or by the words where numbers are not printed."""
    code, vendor = row["class"] or "", row["vendor"] or ""
    kind, device = row["named_kind"] or row["kind"] or "", row["device"] or ""
    is_gpu_vendor = vendor in (NVIDIA, AMD) if vendor else device.startswith(GPU_VENDORS)
    if code.startswith(("03", "12")) or kind in GPU_KINDS:
        return "gpu" if is_gpu_vendor else None
    if code.startswith("02") or kind.endswith(NIC_KINDS):
        return "nic"
    if code == "0680" or kind == "Bridge":
        return "switch" if vendor == NVIDIA or device.startswith("NVIDIA") else None
    return "bridge" if code == "0604" or kind == "PCI bridge" else None


@analysis(GPU_LINK, of=("nvlink_port", "xml_line"))
def gpu_link(nvlink_port: pl.DataFrame, device_command: pl.DataFrame, dump_assembly: pl.DataFrame) -> pl.DataFrame:
    """One row per GPU of a dump: how many of its NVLinks are up and down, and the errors that the driver counted."""
    prompts = prompt_hosts(device_command)
    rows: list[Row] = []
    current: dict[tuple[int, object], Row] = {}
    dumps: dict[tuple[int, object], tuple[int, set[str]]] = {}  # first line, and the GPUs listed so far
    for row in nvlink_port.sort("pos").to_dicts():
        owner, form, line = (row["source"], row["launcher_node"]), str(row["form"]), row["line"]
        if form == "gpu":
            device = f"GPU{row['gpu']}"
            first_line, listed = dumps.get(owner, (line, set()))
            if device in listed:
                first_line, listed = line, set()
            dumps[owner] = first_line, {*listed, device}
            current[owner] = {
                "source": owner[0], "dump": first_line, "host": host_at(prompts, owner[0], line, row["launcher_node"]),
                "tool": "nvidia-smi nvlink", "device": device, "model": row["model"],
                "links": None, "down": None, "errors": None, "line": line, "down_line": None,
            }  # fmt: skip
            rows.append(current[owner])
        elif gpu := current.get(owner):
            if form == "errors":
                gpu["errors"] = (gpu["errors"] or 0) + (parse_short_integer(row["errors"]) or 0)
            elif form in ("active", "inactive"):
                is_up = form == "active" and float(row["port_rate"]) > 0
                gpu["links"], gpu["down"] = (gpu["links"] or 0) + is_up, (gpu["down"] or 0) + (not is_up)
                if not is_up and gpu["down_line"] is None:
                    gpu["down_line"] = line
            elif form == "none":  # how many links it has, the line does not show
                gpu["links"], gpu["down_line"] = 0, line
    return pl.concat([rows_frame(rows, GPU_LINK), assembled_table(dump_assembly, "links", GPU_LINK)])
