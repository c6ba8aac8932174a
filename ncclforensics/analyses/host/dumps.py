"""Dumps of a machine, pairs of devices in them, and damage to matrices and XML."""

from __future__ import annotations

import polars as pl

from ncclforensics.analyses.host.damaged_dumps import PROBLEM
from ncclforensics.analyses.host.dump_origin import (
    DUMP_FRAMES,
    DUMP_ORIGIN,
    Row,
    assembled_table,
    host_at,
    prompt_hosts,
    rows_frame,
)
from ncclforensics.frames.columns import text_of
from ncclforensics.frames.registry import analysis

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


@analysis(DUMP, of=DUMP_FRAMES)
def dump(
    dump_assembly: pl.DataFrame,
    pci_branch: pl.DataFrame,
    device_command: pl.DataFrame,
    pci_command: pl.DataFrame,
    machine_device: pl.DataFrame,
) -> pl.DataFrame:
    """One row per description of a machine: the number of GPUs and NICs in it."""
    prompts = prompt_hosts(device_command, pci_command)
    trees: list[Row] = []
    counted = (
        machine_device.filter(~pl.col("tool").is_in(["nvidia-smi", "rocm-smi"]))
        .group_by("source", "dump", "host", "tool", maintain_order=True)
        .agg(
            gpus=(pl.col("kind") == "gpu").sum().cast(pl.Int32),
            nics=(pl.col("kind") == "nic").sum().cast(pl.Int32),
        )
        .with_columns(nics=pl.when(pl.col("tool") != "nvidia-smi -q").then("nics"), line="dump")
    )
    # The tree of lspci -t does not show which device is a GPU or a NIC.
    first = pl.col("line", "launcher_node").sort_by("pos").first()
    branches = pci_branch.group_by("source", maintain_order=True).agg(first)
    for source, line, node in branches.iter_rows():
        origin = {"source": source, "dump": line, "host": host_at(prompts, source, line, node), "tool": "lspci -t"}
        trees.append({**origin, "gpus": None, "nics": None, "line": line})
    assembled = assembled_table(dump_assembly, "dumps", DUMP)
    return pl.concat([assembled, rows_frame(trees, DUMP), counted.select(list(DUMP))]).sort("source", "line")


@analysis(DEVICE_PAIR, of=("dump_assembly",))
def device_pair(dump_assembly: pl.DataFrame) -> pl.DataFrame:
    """One row per pair of devices in a dump: the cell of a matrix, or the best path in NCCL's XML."""
    return assembled_table(dump_assembly, "pairs", DEVICE_PAIR)


@analysis(PROBLEM, of=("dump_assembly", "rocm_table"))
def dump_problem(dump_assembly: pl.DataFrame, rocm_table: pl.DataFrame) -> pl.DataFrame:
    """Damage in matrices and XML: missing rows, shifted cells, XML that ends too early, errors of rocm-smi."""
    of_gpu = pl.format(" of GPU {}", "failed_gpu").fill_null("")
    failed = rocm_table.filter(pl.col("error").is_not_null()).select(
        "source", "line", problem=pl.format("line {}: rocm-smi{}: {}", "line", of_gpu, text_of("error"))
    )
    return pl.concat([assembled_table(dump_assembly, "problems", PROBLEM), failed]).unique(maintain_order=True)
