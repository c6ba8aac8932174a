"""Read topology matrices and NCCL's XML of all sources once, for the frames on machine dumps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import polars as pl

from ncclforensics.analyses.host.damaged_dumps import PROBLEM
from ncclforensics.analyses.host.dump_origin import MATRIX_FRAMES, PromptHosts, Row, host_at, prompt_hosts
from ncclforensics.analyses.host.dumps import DEVICE_PAIR, DUMP
from ncclforensics.analyses.host.machine_devices import GPU_LINK, MACHINE_DEVICE
from ncclforensics.analyses.host.nccl_topology import device_rows, is_too_large, nvlink_rows, path_rows
from ncclforensics.analyses.host.nccl_xml import Document, read_documents
from ncclforensics.analyses.host.topology_matrix import ITSELF, Matrix, matrix_device_rows, read_matrices
from ncclforensics.frames.registry import analysis

TABLES = {
    "dumps": DUMP,
    "pairs": DEVICE_PAIR,
    "devices": MACHINE_DEVICE,
    "links": GPU_LINK,
    "problems": PROBLEM,
}
TOO_LARGE = "describes more GPUs and NICs than a machine has; the paths between them are left out"
ASSEMBLY = {name: pl.List(pl.Struct(columns)) for name, columns in TABLES.items()}
MANY_ROWS = 10_000  # as objects of Python they take ten times the memory of a frame


class _Table:
    """Rows that become a frame, some thousands at a time."""

    def __init__(self, columns: dict[str, pl.DataType]) -> None:
        self._columns = columns
        self._rows: list[tuple[Any, ...]] = []
        self._pieces: list[pl.DataFrame] = []

    def add(self, rows: Iterable[Row]) -> None:
        """Add rows; columns that a row lacks are empty."""
        self._rows += (tuple(row.get(column) for column in self._columns) for row in rows)
        if len(self._rows) > MANY_ROWS:
            self._pieces.append(self._frame())
            self._rows.clear()

    def _frame(self) -> pl.DataFrame:
        return pl.DataFrame(self._rows, schema=self._columns, orient="row")

    def as_structs(self) -> pl.Series:
        """All rows, as structs."""
        return pl.concat([*self._pieces, self._frame()]).to_struct()


Tables = dict[str, _Table]


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
    """One row: the tables of all matrices and all XML, each as a list of structs."""
    prompts = prompt_hosts(device_command, pci_command)
    tables = {name: _Table(columns) for name, columns in TABLES.items()}
    for matrices in read_matrices(device_head, device_row, rocm_table, rocm_row, device_alias, device_command):
        _add_matrices(tables, matrices, prompts)
    for document in read_documents(xml_line, xml_rest):
        _add_document(tables, document, prompts)
    return pl.DataFrame({name: table.as_structs().implode() for name, table in tables.items()})


def _add_matrices(tables: Tables, matrices: list[Matrix], prompts: PromptHosts) -> None:
    """Add what the matrices of one dump hold."""
    (source, _, node), line = matrices[0].owner, matrices[0].line
    tool = "nvidia-smi" if matrices[0].kind.startswith(("path", "p2p")) else "rocm-smi"
    origin: Row = {"source": source, "dump": line, "host": host_at(prompts, source, line, node), "tool": tool}
    names = list(dict.fromkeys(name for matrix in matrices for name in matrix.devices))
    gpus = sum(name.startswith("GPU") for name in names)
    nics = None if tool == "rocm-smi" else len(names) - gpus
    tables["dumps"].add([{**origin, "gpus": gpus, "nics": nics, "line": line}])
    tables["devices"].add({**origin, **device} for device in matrix_device_rows(matrices))
    for matrix in matrices:
        tables["pairs"].add(
            {**origin, "table": matrix.kind, "device": row.device, "other": other, "path": cell, "line": row.line}
            for row, other, cell in matrix.pairs()
            if cell not in ITSELF or matrix.kind != "path"
        )
        tables["problems"].add(
            {"source": source, "line": line, "problem": f"matrix at line {line}: {problem}"}
            for line, problem in matrix.problems()
        )


def _add_document(tables: Tables, document: Document, prompts: PromptHosts) -> None:
    """Add what one XML document holds: a topology (`system`), or the graphs that NCCL found in one."""
    source, root = document.source, document.root
    host = host_at(prompts, source, root.line, document.node)
    origin: Row = {"source": source, "dump": root.line, "host": host, "tool": f"NCCL {root.tag}"}
    if root.tag == "graphs":
        count = len({gpu.attributes.get("dev") for gpu in root.all("gpu")})
        tables["dumps"].add([{**origin, "gpus": count or None, "nics": None, "line": root.line}])
    if root.tag == "system":
        tables["devices"].add({**origin, **device} for device in device_rows(root))
        tables["links"].add({**origin, **link} for link in nvlink_rows(root))
    tables["pairs"].add({**origin, "table": "path", **pair} for pair in path_rows(root))
    tables["problems"].add(
        {"source": source, "line": line, "problem": f"XML at line {line}: {problem}"}
        for line, problem in [*document.problems, *[(root.line, TOO_LARGE)] * is_too_large(root)]
    )
