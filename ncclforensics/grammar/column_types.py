"""Column types: the base terminals of `terminals.lark`, with the dtype and cast of columns made of them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

from ncclforensics.errors import GrammarError
from ncclforensics.grammar import folders

if TYPE_CHECKING:
    import polars as pl


class ColumnType(NamedTuple):
    """A base terminal: the dtype of columns made of it, and the cast from matched text to values."""

    dtype_name: str
    unit: str
    conversion: str = "text"  # a function of `conversions`

    @property
    def dtype(self) -> pl.DataType:
        """The dtype of the columns; to explain a line, none is made."""
        return dtype_of(self.dtype_name)

    def convert(self, column: pl.Expr) -> pl.Expr:
        """Matched text as values; categories stay text."""
        from ncclforensics.grammar import conversions

        return conversions.BY_NAME[self.conversion](column)

    def cast(self, column: pl.Expr) -> pl.Expr:
        """Matched text as values of the dtype."""
        converted = self.convert(column)
        return converted.cast(self.dtype) if self.dtype_name == "Categorical" else converted


@cache
def dtype_of(name: str) -> pl.DataType:
    """Return the dtype of this name, without parameters."""
    import polars as pl  # takes longer than all else that `explain` needs

    return cast("pl.DataType", getattr(pl, name)())


COLUMN_TYPES: Mapping[str, ColumnType] = {
    "INT": ColumnType("Int64", "", "integer"),
    "NUMBER": ColumnType("Int32", "below 2^31", "number"),
    "HEX": ColumnType("Int64", "printed in hexadecimal", "hexadecimal"),
    "DECIMAL": ColumnType("Float64", "", "decimal"),
    "FLOAT": ColumnType("Float64", "null where it says N/A", "decimal"),
    "FIGURE": ColumnType("Float64", "as people print numbers: `4,376`, `1.2E+03`, `2.45K`", "figure"),
    "DURATION": ColumnType("Float64", "seconds; printed with a unit: `153.42ms`", "duration"),
    "PTR": ColumnType("Categorical", "pointer, valid within one process; null where it was left out", "pointer"),
    "MEMORY_ADDRESS": ColumnType("UInt64", "memory address", "address"),
    "HEXID": ColumnType("Categorical", "identifier; null where it was left out", "pointer"),
    "PCI": ColumnType("Categorical", "as NCCL prints it: `0000:5d:00` is 5d000", "pci"),
    "NAME": ColumnType("Categorical", ""),
    "HOSTNAME": ColumnType("Categorical", ""),
    "WORD": ColumnType("String", ""),
    "LOCAL_TIME": ColumnType("String", "as printed, format chosen by the user"),
    "GLOG_TIME": ColumnType("String", "month, day and time as glog prints them"),
    "CLOCK": ColumnType("String", "time as a launcher or collector prints it"),
    "DATETIME": ColumnType("String", "date and time of day, of whatever zone the logger has"),
    "TEXT": ColumnType("String", ""),
}
NUMERIC = ("INT", "NUMBER", "HEX", "DECIMAL", "FLOAT", "FIGURE", "PTR", "MEMORY_ADDRESS", "HEXID", "PCI")
# A terminal with a pattern of its own, or a list of words, is text from a small vocabulary.
VOCABULARY = ColumnType("Categorical", "")


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
