"""Column types: the base terminals of `terminals.lark`, with the dtype and cast of columns made of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple, cast

import polars as pl

from ncclforensics.errors import GrammarError
from ncclforensics.grammar import folders


class ColumnType(NamedTuple):
    """A base terminal: the dtype of columns made of it, and the cast from matched text to values."""

    dtype_name: str
    unit: str
    convert: Callable[[pl.Expr], pl.Expr]  # from matched text; categories stay text

    @property
    def dtype(self) -> pl.DataType:
        """The dtype of the columns; to explain a line, none is made."""
        return dtype_of(self.dtype_name)

    def cast(self, column: pl.Expr) -> pl.Expr:
        """Matched text as values of the dtype."""
        converted = self.convert(column)
        return converted.cast(self.dtype) if isinstance(self.dtype, pl.Categorical) else converted


@cache
def dtype_of(name: str) -> pl.DataType:
    """Return the dtype of this name, without parameters."""
    return cast(pl.DataType, getattr(pl, name)())


def _text(column: pl.Expr) -> pl.Expr:
    return column


def _pointer(column: pl.Expr) -> pl.Expr:
    is_left_out = column.str.slice(2, 1).is_in([".", "X", "x", "*"])  # behind the 0x
    return pl.when(~is_left_out).then(column)


def _integer(column: pl.Expr) -> pl.Expr:
    return column.cast(pl.Int64, strict=False)


def _number(column: pl.Expr) -> pl.Expr:
    return column.cast(pl.Int32, strict=False)


def _decimal(column: pl.Expr) -> pl.Expr:
    return column.cast(pl.Float64, strict=False)


def _figure(column: pl.Expr) -> pl.Expr:
    digits = column.str.replace_all(",", "", literal=True)
    suffix = digits.str.slice(-1)
    scale = suffix.replace_strict(["K", "M", "B", "T"], [1e3, 1e6, 1e9, 1e12], default=1.0, return_dtype=pl.Float64)
    return digits.str.strip_chars_end("KMBT").cast(pl.Float64, strict=False) * scale


def _duration(column: pl.Expr) -> pl.Expr:
    scale = pl.when(column.str.ends_with("us")).then(1e-6).when(column.str.ends_with("ms")).then(1e-3).otherwise(1.0)
    return column.str.strip_chars_end(" mus").cast(pl.Float64, strict=False) * scale


def _hexadecimal(column: pl.Expr) -> pl.Expr:
    # More than 63 bits cannot be a counter: null, rather than a number that wrapped around.
    return column.str.to_integer(base=16, strict=False)


def _address(column: pl.Expr) -> pl.Expr:
    return column.str.strip_prefix("0x").str.to_integer(base=16, dtype=pl.UInt64, strict=False)


def _pci(column: pl.Expr) -> pl.Expr:
    # NCCL's number: domain, bus, device and function. Kernels may omit the function, which is 0 for GPUs.
    parts = column.str.split(".")
    address = parts.list.first().str.replace_all(":", "", literal=True).str.to_lowercase().str.strip_chars_start("0")
    function = parts.list.get(1, null_on_oob=True).str.slice(0, 1).str.to_lowercase().fill_null("")
    number = address + pl.when(function == "").then(pl.lit("0")).otherwise(function)
    return pl.when(~column.str.contains_any(["x", "X"])).then(number)  # without what was left out, it names no device


COLUMN_TYPES: Mapping[str, ColumnType] = {
    "INT": ColumnType("Int64", "", _integer),
    "NUMBER": ColumnType("Int32", "below 2^31", _number),
    "HEX": ColumnType("Int64", "printed in hexadecimal", _hexadecimal),
    "DECIMAL": ColumnType("Float64", "", _decimal),
    "FLOAT": ColumnType("Float64", "null where it says N/A", _decimal),
    "FIGURE": ColumnType("Float64", "as people print numbers: `4,376`, `1.2E+03`, `2.45K`", _figure),
    "DURATION": ColumnType("Float64", "seconds; printed with a unit: `153.42ms`", _duration),
    "PTR": ColumnType("Categorical", "pointer, valid within one process; null where it was left out", _pointer),
    "MEMORY_ADDRESS": ColumnType("UInt64", "memory address", _address),
    "HEXID": ColumnType("Categorical", "identifier; null where it was left out", _pointer),
    "PCI": ColumnType("Categorical", "as NCCL prints it: `0000:5d:00` is 5d000", _pci),
    "NAME": ColumnType("Categorical", "", _text),
    "HOSTNAME": ColumnType("Categorical", "", _text),
    "WORD": ColumnType("String", "", _text),
    "LOCAL_TIME": ColumnType("String", "as printed, format chosen by the user", _text),
    "GLOG_TIME": ColumnType("String", "month, day and time as glog prints them", _text),
    "CLOCK": ColumnType("String", "time as a launcher or collector prints it", _text),
    "DATETIME": ColumnType("String", "date and time of day, of whatever zone the logger has", _text),
    "TEXT": ColumnType("String", "", _text),
}
NUMERIC = ("INT", "NUMBER", "HEX", "DECIMAL", "FLOAT", "FIGURE", "PTR", "MEMORY_ADDRESS", "HEXID", "PCI")
# A terminal with a pattern of its own, or a list of words, is text from a small vocabulary.
VOCABULARY = ColumnType("Categorical", "", _text)


def column_type_name(terminal: str, grammar: Path) -> str:
    """Follow definitions such as `COUNT: INT` to the base terminal: its key in COLUMN_TYPES, or "" if there is none.

    `grammar` is the path of the file that uses the terminal. Lark's trees cannot answer this: they hold INT expanded.
    Raises GrammarError if a grammar redefines a base terminal.
    """
    stem, _, own_name = terminal.rpartition("__")
    path = folders.imported(grammar, stem) if stem else grammar
    target = _terminal_aliases(path).get(own_name)
    if target is None:
        return own_name if own_name in COLUMN_TYPES else ""
    return target if target in COLUMN_TYPES else column_type_name(target, path)


@cache
def _terminal_aliases(path: Path) -> dict[str, str]:
    """Terminals that only rename another one (`COUNT: INT`), imported ones included."""
    aliases: dict[str, str] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(": ")
        if name.partition(".")[0] in COLUMN_TYPES and path.stem != "terminals":
            raise GrammarError(f"{path.name}: {name} is a base terminal and cannot be redefined")
        if name.isupper() and value.replace("_", "").isalpha() and value.isupper():
            aliases[name] = value
        elif line.startswith("%import .") and "terminals" not in line:
            imported, _, rest = line.removeprefix("%import .").partition(" (")
            aliases = {**_terminal_aliases(folders.imported(path, imported)), **aliases} if rest else aliases
    return aliases
