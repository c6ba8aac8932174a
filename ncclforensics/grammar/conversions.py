"""From the text that a pattern matched to the values of a column, by the conversion that its type names."""

from __future__ import annotations

import polars as pl


def text(column: pl.Expr) -> pl.Expr:
    """Text as it stands."""
    return column


def pointer(column: pl.Expr) -> pl.Expr:
    """Text, without what was left out."""
    is_left_out = column.str.slice(2, 1).is_in([".", "X", "x", "*"])  # behind the 0x
    return pl.when(~is_left_out).then(column)


def integer(column: pl.Expr) -> pl.Expr:
    """Whole numbers of 64 bits."""
    return column.cast(pl.Int64, strict=False)


def number(column: pl.Expr) -> pl.Expr:
    """Whole numbers of 32 bits."""
    return column.cast(pl.Int32, strict=False)


def decimal(column: pl.Expr) -> pl.Expr:
    """Decimal numbers."""
    return column.cast(pl.Float64, strict=False)


def figure(column: pl.Expr) -> pl.Expr:
    """Numbers as people print them."""
    digits = column.str.replace_all(",", "", literal=True)
    suffix = digits.str.slice(-1)
    scale = suffix.replace_strict(["K", "M", "B", "T"], [1e3, 1e6, 1e9, 1e12], default=1.0, return_dtype=pl.Float64)
    return digits.str.strip_chars_end("KMBT").cast(pl.Float64, strict=False) * scale


def duration(column: pl.Expr) -> pl.Expr:
    """Seconds, from numbers with a unit."""
    scale = pl.when(column.str.ends_with("us")).then(1e-6).when(column.str.ends_with("ms")).then(1e-3).otherwise(1.0)
    return column.str.strip_chars_end(" musecond").cast(pl.Float64, strict=False) * scale


def hexadecimal(column: pl.Expr) -> pl.Expr:
    """Hexadecimal numbers."""
    # More than 63 bits cannot be a counter: null, rather than a number that wrapped around.
    return column.str.to_integer(base=16, strict=False)


def address(column: pl.Expr) -> pl.Expr:
    """Addresses of memory."""
    return column.str.strip_prefix("0x").str.to_integer(base=16, dtype=pl.UInt64, strict=False)


def pci(column: pl.Expr) -> pl.Expr:
    """Addresses of devices as NCCL prints them."""
    # NCCL's number: domain, bus, device and function. Kernels may omit the function, which is 0 for GPUs.
    parts = column.str.split(".")
    address = parts.list.first().str.replace_all(":", "", literal=True).str.to_lowercase().str.strip_chars_start("0")
    function = parts.list.get(1, null_on_oob=True).str.slice(0, 1).str.to_lowercase().fill_null("")
    number = address + pl.when(function == "").then(pl.lit("0")).otherwise(function)
    return pl.when(~column.str.contains_any(["x", "X"])).then(number)  # without what was left out, it names no device


BY_NAME = {
    convert.__name__: convert
    for convert in (text, pointer, integer, number, decimal, figure, duration, hexadecimal, address, pci)
}
