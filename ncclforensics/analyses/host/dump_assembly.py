"""Topology matrices and NCCL's XML of all sources, and what they say of a machine: dumps, pairs, problems."""

from __future__ import annotations

from typing import Any

import polars as pl

from ncclforensics.analyses.host.damaged_dumps import PROBLEM
from ncclforensics.analyses.host.dump_tables import (
    DEVICE_PAIR,
    DUMP,
    GPU_LINK,
    MACHINE_DEVICE,
    PromptHosts,
    Row,
    host_at,
    prompt_hosts,
    rows_frame,
)
from ncclforensics.analyses.host.nccl_topology import device_rows, nvlink_rows, path_rows
from ncclforensics.analyses.host.nccl_xml import Document, read_documents
from ncclforensics.analyses.host.topology_matrix import ITSELF, Matrix, matrix_device_rows, read_matrices
from ncclforensics.frames.columns import text_of
from ncclforensics.frames.registry import analysis

TABLES = {
    "dumps": DUMP,
    "pairs": DEVICE_PAIR,
    "devices": MACHINE_DEVICE,
    "links": GPU_LINK,
    "problems": PROBLEM,
}
ASSEMBLY = {name: pl.List(pl.Struct(columns)) for name, columns in TABLES.items()}
MATRIX_FRAMES = ("device_row", "rocm_row")
DUMP_FRAMES = (*MATRIX_FRAMES, "xml_line", "pci_device", "pci_branch", "pci_link", "smi_gpu")


@analysis(ASSEMBLY, of=(*MATRIX_FRAMES, "rocm_table", "xml_line"))
def dump_assembly(
    device_head: pl.DataFrame,
    device_row: pl.DataFrame,
    rocm_table: pl.DataFrame,
    rocm_row: pl.DataFrame,
    device_alias: pl.DataFrame,
    device_command: pl.DataFrame,
    pci_command: pl.DataFrame,
    xml_line: pl.DataFrame,
    xml_rest: pl.DataFrame,
) -> pl.DataFrame:
    """Read all matrices and all XML once, into one row with one list of structs per table."""
    prompts = prompt_hosts(device_command, pci_command)
    tables: dict[str, list[Row]] = {name: [] for name in ASSEMBLY}
    for matrices in read_matrices(device_head, device_row, rocm_table, rocm_row, device_alias, device_command):
        _add_matrices(tables, matrices, prompts)
    for document in read_documents(xml_line, xml_rest):
        _add_document(tables, document, prompts)
    row = {
        name: [{column: row.get(column) for column in TABLES[name]} for row in rows] for name, rows in tables.items()
    }
    return pl.DataFrame([row], schema=ASSEMBLY)


def _add_matrices(tables: dict[str, list[Row]], matrices: list[Matrix], prompts: PromptHosts) -> None:
    """Add what the matrices of one dump hold."""
    (source, _, node), line = matrices[0].owner, matrices[0].line
    tool = "nvidia-smi" if matrices[0].kind.startswith(("path", "p2p")) else "rocm-smi"
    origin: Row = {"source": source, "dump": line, "host": host_at(prompts, source, line, node), "tool": tool}
    names = list(dict.fromkeys(name for matrix in matrices for name in matrix.devices))
    gpus = sum(name.startswith("GPU") for name in names)
    nics = None if tool == "rocm-smi" else len(names) - gpus
    tables["dumps"].append({**origin, "gpus": gpus, "nics": nics, "line": line})
    tables["devices"] += ({**origin, **device} for device in matrix_device_rows(matrices))
    for matrix in matrices:
        tables["pairs"] += (
            {**origin, "table": matrix.kind, "device": row.device, "other": other, "path": cell, "line": row.line}
            for row, other, cell in matrix.pairs()
            if cell not in ITSELF or matrix.kind != "path"
        )
        tables["problems"] += (
            {"source": source, "line": line, "problem": f"matrix at line {line}: {problem}"}
            for line, problem in matrix.problems()
        )


def _add_document(tables: dict[str, list[Row]], document: Document, prompts: PromptHosts) -> None:
    """Add what one XML document holds: a topology (`system`), or the graphs that NCCL found in one."""
    source, root = document.source, document.root
    host = host_at(prompts, source, root.line, document.node)
    origin: Row = {"source": source, "dump": root.line, "host": host, "tool": f"NCCL {root.tag}"}
    if root.tag == "graphs":
        count = len({gpu.attributes.get("dev") for gpu in root.all("gpu")})
        tables["dumps"].append({**origin, "gpus": count or None, "nics": None, "line": root.line})
    if root.tag == "system":
        tables["devices"] += ({**origin, **device} for device in device_rows(root))
        tables["links"] += ({**origin, **link} for link in nvlink_rows(root))
    tables["pairs"] += ({**origin, "table": "path", **pair} for pair in path_rows(root))
    tables["problems"] += (
        {"source": source, "line": line, "problem": f"XML at line {line}: {problem}"}
        for line, problem in document.problems
    )


def assembled_table(dump_assembly: pl.DataFrame, name: str) -> pl.DataFrame:
    """One table of the assembly as a frame."""
    if dump_assembly.is_empty():
        return pl.DataFrame(schema=TABLES[name])
    return dump_assembly.select(name).explode(name).drop_nulls().unnest(name)


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
    trees: list[dict[str, Any]] = []
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
    assembled = assembled_table(dump_assembly, "dumps")
    return pl.concat([assembled, rows_frame(trees, DUMP), counted.select(list(DUMP))]).sort("source", "line")


@analysis(DEVICE_PAIR, of=("dump_assembly",))
def device_pair(dump_assembly: pl.DataFrame) -> pl.DataFrame:
    """One row per pair of devices in a dump: the cell of a matrix, or the best path in NCCL's XML."""
    return assembled_table(dump_assembly, "pairs")


@analysis(PROBLEM, of=("dump_assembly", "rocm_table"))
def dump_problem(dump_assembly: pl.DataFrame, rocm_table: pl.DataFrame) -> pl.DataFrame:
    """Damage in matrices and XML: missing rows, shifted cells, XML that ends too early, errors of rocm-smi."""
    failed = rocm_table.filter(pl.col("error").is_not_null()).select(
        "source", "line", problem=pl.format("line {}: rocm-smi: {}", "line", text_of("error"))
    )
    return pl.concat([assembled_table(dump_assembly, "problems"), failed]).unique(maintain_order=True)
