"""Matrices of how devices reach one another, as nvidia-smi and rocm-smi print them: bound to their columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import takewhile

import polars as pl

ITSELF = ("X", "0", "N/A")  # what stands where a device meets itself
PEER_ACCESS = {"OK", "CNS", "GNS", "TNS", "NS", "DR", "U"}
# Words of the columns that are no devices: CPU Affinity, NUMA Affinity, GPU NUMA ID, with or without blanks between.
NO_DEVICE = {"CPU", "NUMA", "GPU", "Affinity", "ID", "AffinityNUMA", "AffinityGPU"}
TABLES = {"Weight": "weight", "Hops": "hops", "Link Type": "type"}

Owner = tuple[int, int | None, str | None]  # the source, and the process that a launcher names


@dataclass(slots=True)
class Row:
    """A row of a matrix: the device, and what stands behind it."""

    device: str
    cells: list[str]
    rest: list[str]  # CPUs and NUMA nodes
    line: int


@dataclass(slots=True)
class Matrix:
    """One matrix. `columns` is empty where the line that names them is missing."""

    owner: Owner
    line: int
    kind: str
    columns: list[str] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)  # of NICs that are only numbered

    @property
    def devices(self) -> list[str]:
        """All that are named, in the order of the columns."""
        return list(dict.fromkeys([*self.columns, *(row.device for row in self.rows)]))

    @property
    def heads(self) -> list[str]:
        """What the columns are; without their line, the rows tell: both have the same order."""
        return self.columns or [row.device for row in self.rows]

    def pairs(self) -> Iterator[tuple[Row, str, str]]:
        """The row, the other device, and what stands between them, of the rows that can be bound."""
        for row in self.rows:
            if not self.is_shifted(row):
                for other, cell in zip(self.heads, row.cells, strict=False):
                    if other != row.device:
                        yield row, other, cell

    def is_shifted(self, row: Row) -> bool:
        """Whether a device does not meet itself where it should: then no cell can be believed."""
        if self.kind == "access":
            return False
        place = self.heads.index(row.device) if row.device in self.heads else len(row.cells)
        own = row.cells[place] if place < len(row.cells) else None
        return (own is not None and own not in ITSELF) or ("X" in row.cells and own != "X")

    def problems(self) -> Iterator[tuple[int, str]]:
        """What is wrong with it: lines, and words."""
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


def matrices(
    device_head: pl.DataFrame,
    device_row: pl.DataFrame,
    rocm_table: pl.DataFrame,
    rocm_row: pl.DataFrame,
    device_alias: pl.DataFrame,
    device_command: pl.DataFrame,
) -> list[list[Matrix]]:
    """The matrices of each dump: those that follow one another and tell different things of the same GPUs."""
    lines = [(row, "head") for row in device_head.to_dicts()]
    lines += [(row, "row") for row in device_row.to_dicts()]
    lines += [(row, "rocm") for row in rocm_row.to_dicts()]
    lines += [(row, "table") for row in rocm_table.filter(pl.col("table").is_not_null()).to_dicts()]
    lines += [(row, "alias") for row in device_alias.to_dicts()]
    lines += [(row, "command") for row in device_command.filter(pl.col("arguments").is_not_null()).to_dicts()]
    found: dict[Owner, list[Matrix]] = {}
    titles: dict[Owner, str] = {}
    for row, what in sorted(lines, key=lambda each: each[0]["pos"]):
        owner = row["source"], row["launcher_rank"], row["launcher_node"]
        mine = found.setdefault(owner, [])
        line = row["line"]
        if what == "table":
            titles[owner] = TABLES.get(row["table"], "access")
        elif what == "command":
            titles[owner] = _asked_for(str(row["arguments"]).split())
        elif what == "head":
            named = [word for word in f"GPU{row['columns']}".split() if word not in NO_DEVICE]
            mine.append(Matrix(owner, line, _title(titles, owner), named))
        elif what == "alias":
            if mine:
                mine[-1].names[f"NIC{row['nic_index']}"] = row["called"]
        else:
            each = _row(row, what)
            if not mine or each.device in (seen.device for seen in mine[-1].rows):
                mine.append(Matrix(owner, line, _title(titles, owner)))
            mine[-1].rows.append(each)
    return [dump for mine in found.values() for dump in _dumps(mine)]


def _asked_for(arguments: list[str]) -> str:
    """Which peer access a matrix tells of.

    >>> _asked_for(["-p2p", "r"]), _asked_for(["-m"])
    ('p2p r', '')
    """
    after = arguments[arguments.index("-p2p") + 1 :] if "-p2p" in arguments else []
    return f"p2p {after[0]}" if after else ""


def _title(titles: dict[Owner, str], owner: Owner) -> str:
    """What the next matrix is about; a command of nvidia-smi prints one, a title of rocm-smi stands above it."""
    title = titles.get(owner, "")
    if title.startswith("p2p"):
        titles.pop(owner)
    return title


def _row(row: dict[str, object], what: str) -> Row:
    line = int(str(row["line"]))
    if what == "rocm":
        return Row(f"GPU{row['gpu']}", str(row["links"]).split(), [], line)
    device = f"GPU{row['gpu']}" if row["gpu"] is not None else str(row["nic"])
    words = str(row["paths"] or row["nic_paths"]).split()
    cells = list(takewhile(lambda word: word[0].isalpha() and word != "N/A", words))
    return Row(device, cells, words[len(cells) :], line)


def _dumps(mine: Iterable[Matrix]) -> Iterator[list[Matrix]]:
    dump: list[Matrix] = []
    for matrix in mine:
        if not matrix.rows:
            continue  # a line of columns without a row is nothing
        words = {cell for row in matrix.rows for cell in row.cells} - set(ITSELF)
        if not matrix.kind or matrix.kind.startswith("p2p"):
            matrix.kind = (matrix.kind or "p2p") if words and words <= PEER_ACCESS else "path"
        elif words & {"XGMI", "PCIE"}:
            matrix.kind = "type"  # printed under a wrong title by some versions
        gpus = [name for name in matrix.devices if name.startswith("GPU")]
        before = [name for name in dump[0].devices if name.startswith("GPU")] if dump else []
        if dump and (before != gpus or matrix.kind in (other.kind for other in dump)):
            yield dump
            dump = []
        dump.append(matrix)
    if dump:
        yield dump
