"""Read topology matrices of nvidia-smi and rocm-smi: which path connects each pair of devices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import polars as pl

ITSELF = ("X", "0", "N/A")  # cells of a device and itself
PEER_ACCESS = {"OK", "CNS", "GNS", "TNS", "NS", "DR", "U"}
# Words of column titles that are not devices: CPU Affinity, NUMA Affinity, GPU NUMA ID, also without blanks.
NO_DEVICE = {"CPU", "NUMA", "GPU", "Affinity", "ID", "AffinityNUMA", "AffinityGPU"}
TABLES = {"Weight": "weight", "Hops": "hops", "Link Type": "type"}

Owner = tuple[int, int | None, str | None]  # source, rank and node in the launcher prefix


@dataclass(slots=True)
class Row:
    """A row of a matrix: a device, its cells, and the columns behind them."""

    device: str
    cells: list[str]
    affinity: list[str]  # CPUs, NUMA nodes
    line: int


@dataclass(slots=True)
class Matrix:
    """One matrix. `columns` is empty where the line of column titles is missing."""

    owner: Owner
    line: int
    kind: str
    columns: list[str] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)  # NIC0 -> mlx5_0, from the legend

    @property
    def devices(self) -> list[str]:
        """All devices of columns and rows, in the order of the columns."""
        return list(dict.fromkeys([*self.columns, *(row.device for row in self.rows)]))

    @property
    def heads(self) -> list[str]:
        """The devices of the columns; without their line those of the rows, which have the same order."""
        return self.columns or [row.device for row in self.rows]

    def pairs(self) -> Iterator[tuple[Row, str, str]]:
        """Yield row, other device and cell, of all rows that are not shifted."""
        for row in self.rows:
            if not self.is_shifted(row):
                for other, cell in zip(self.heads, row.cells, strict=False):
                    if other != row.device:
                        yield row, other, cell

    def is_shifted(self, row: Row) -> bool:
        """Whether the cell of a device and itself is in another column: then no cell of the row is used."""
        if self.kind == "access":
            return False
        column = self.heads.index(row.device) if row.device in self.heads else len(row.cells)
        own = row.cells[column] if column < len(row.cells) else None
        return (own is not None and own not in ITSELF) or ("X" in row.cells and own != "X")

    def problems(self) -> Iterator[tuple[int, str]]:
        """Yield line and description of each defect."""
        if not self.columns:
            yield self.line, "the line that names the columns is missing"
        for row in self.rows:
            if self.is_shifted(row):
                yield row.line, f"the cells of {row.device} do not stand below their columns"
            elif len(row.cells) < len(self.heads):
                yield row.line, f"{row.device} has {len(row.cells)} of {len(self.heads)} cells"
        absent = [name for name in self.columns if name not in {row.device for row in self.rows}]
        if absent:
            yield self.line, f"rows are missing: {', '.join(absent)}"


def read_matrices(
    device_head: pl.DataFrame,
    device_row: pl.DataFrame,
    rocm_table: pl.DataFrame,
    rocm_row: pl.DataFrame,
    device_alias: pl.DataFrame,
    device_command: pl.DataFrame,
) -> list[list[Matrix]]:
    """Read the matrices of each dump: consecutive ones with different tables of the same GPUs are one dump."""
    lines = [(row, "head") for row in device_head.to_dicts()]
    lines += [(row, "row") for row in device_row.to_dicts()]
    lines += [(row, "rocm") for row in rocm_row.to_dicts()]
    lines += [(row, "table") for row in rocm_table.filter(pl.col("table").is_not_null()).to_dicts()]
    lines += [(row, "alias") for row in device_alias.to_dicts()]
    lines += [(row, "command") for row in device_command.filter(pl.col("arguments").is_not_null()).to_dicts()]
    matrices: dict[Owner, list[Matrix]] = {}
    titles: dict[Owner, str] = {}
    for row, kind in sorted(lines, key=lambda line: line[0]["pos"]):
        owner = row["source"], row["launcher_rank"], row["launcher_node"]
        of_owner = matrices.setdefault(owner, [])
        line = row["line"]
        if kind == "table":
            titles[owner] = TABLES.get(row["table"], "access")
        elif kind == "command":
            titles[owner] = _access_table(str(row["arguments"]).split())
        elif kind == "head":
            named = [word for word in f"GPU{row['columns']}".split() if word not in NO_DEVICE]
            of_owner.append(Matrix(owner, line, _take_title(titles, owner), named))
        elif kind == "alias":
            if of_owner:
                of_owner[-1].names[f"NIC{row['nic_index']}"] = row["called"]
        else:
            matrix_row = _read_row(row, is_rocm=kind == "rocm")
            if not of_owner or matrix_row.device in (other.device for other in of_owner[-1].rows):
                of_owner.append(Matrix(owner, line, _take_title(titles, owner)))
            of_owner[-1].rows.append(matrix_row)
    return [dump for of_owner in matrices.values() for dump in _split_dumps(of_owner)]


def matrix_device_rows(matrices: list[Matrix]) -> Iterator[dict[str, Any]]:
    """List the devices of the matrices of one dump, with CPU and NUMA affinity."""
    names = {number: name for matrix in matrices for number, name in matrix.names.items()}
    listed: set[str] = set()
    for matrix in matrices:
        for device in matrix.devices:
            if device in listed:
                continue
            listed.add(device)
            row = next((row for row in matrix.rows if row.device == device), None)
            affinity = [word for word in row.affinity if word != "N/A"] if row else []
            is_gpu = device.startswith("GPU")
            yield {
                "kind": "gpu" if is_gpu else "nic",
                "device": device,
                "name": names.get(device, None if is_gpu or device.startswith("NIC") else device),
                "cpus": affinity[0] if affinity else None,
                "numa": affinity[1] if len(affinity) > 1 else None,
                "line": row.line if row else matrix.line,
            }


def _access_table(arguments: list[str]) -> str:
    """Name the table that the options of nvidia-smi topo ask for, if it is one on peer access.

    >>> _access_table(["-p2p", "r"]), _access_table(["-m"])
    ('p2p r', '')
    """
    kinds = arguments[arguments.index("-p2p") + 1 :] if "-p2p" in arguments else []
    return f"p2p {kinds[0]}" if kinds else ""


def _take_title(titles: dict[Owner, str], owner: Owner) -> str:
    """The table of the next matrix. A command of nvidia-smi is used up by it; a title of rocm-smi stays valid."""
    title = titles.get(owner, "")
    if title.startswith("p2p"):
        titles.pop(owner)
    return title


def _read_row(row: dict[str, object], *, is_rocm: bool) -> Row:
    line = int(str(row["line"]))
    if is_rocm:
        return Row(f"GPU{row['gpu']}", str(row["links"]).split(), [], line)
    device = f"GPU{row['gpu']}" if row["gpu"] is not None else str(row["nic"])
    words = str(row["paths"] or row["nic_paths"]).split()
    cells = list(takewhile(lambda word: word[0].isalpha() and word != "N/A", words))
    return Row(device, cells, words[len(cells) :], line)


def _split_dumps(matrices: Iterable[Matrix]) -> Iterator[list[Matrix]]:
    """Decide what each matrix shows, and begin a dump where the GPUs change or a table repeats."""
    dump: list[Matrix] = []
    for matrix in matrices:
        if not matrix.rows:
            continue  # a line of column titles only
        values = {cell for row in matrix.rows for cell in row.cells} - set(ITSELF)
        if not matrix.kind or matrix.kind.startswith("p2p"):
            matrix.kind = (matrix.kind or "p2p") if values and values <= PEER_ACCESS else "path"
        elif values & {"XGMI", "PCIE"}:
            matrix.kind = "type"  # printed under a wrong title by some versions
        gpus = [name for name in matrix.devices if name.startswith("GPU")]
        previous = [name for name in dump[0].devices if name.startswith("GPU")] if dump else []
        if dump and (previous != gpus or matrix.kind in (other.kind for other in dump)):
            yield dump
            dump = []
        dump.append(matrix)
    if dump:
        yield dump
