"""Columns of the frames on machine dumps, and the host that each dump is of.

A dump is the output of one tool: a topology matrix, NCCL's XML, lspci, nvidia-smi. It is named by its source and its
first line.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import polars as pl

Row = dict[str, Any]
PromptHosts = dict[int, list[tuple[int, str]]]  # source -> line and host of its prompts, in order of lines

# `host` is null unless a launcher or a prompt names it: the name of a file proves nothing.
DUMP_ORIGIN = {"source": pl.Int32(), "dump": pl.Int32(), "host": pl.String(), "tool": pl.String()}

DUMP = {
    **DUMP_ORIGIN,
    "gpus": pl.Int32(),  # null where the dump does not list GPUs
    "nics": pl.Int32(),
    "line": pl.Int32(),
}
DEVICE_PAIR = {
    **DUMP_ORIGIN,
    "table": pl.String(),  # path; p2p r, p2p w (peer access); of rocm-smi type, weight, hops, access
    "device": pl.String(),
    "other": pl.String(),
    "path": pl.String(),  # NV18, PIX, PXB, PHB, NODE, SYS; or the table's own words
    "line": pl.Int32(),
}
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


def rows_frame(rows: Iterable[Row], schema: dict[str, Any]) -> pl.DataFrame:
    """Build a frame from rows; a column that a row lacks is null."""
    return pl.DataFrame(list(rows), schema=schema, orient="row")


def prompt_hosts(*commands: pl.DataFrame) -> PromptHosts:
    """Collect the shell prompts that name a host."""
    hosts: PromptHosts = {}
    for rows in commands:
        named = rows.filter(pl.col("prompt_host").is_not_null()).select("source", "line", "prompt_host")
        for source, line, host in named.iter_rows():
            hosts.setdefault(source, []).append((line, str(host)))
    return {source: sorted(prompts) for source, prompts in hosts.items()}


def host_at(prompts: PromptHosts, source: int, line: int, launcher_node: str | None) -> str | None:
    """Find the host of a line: the node that the launcher prefix names, or the last prompt above."""
    if launcher_node:
        return str(launcher_node)
    above = [host for prompt_line, host in prompts.get(source, []) if prompt_line < line]
    return above[-1] if above else None
