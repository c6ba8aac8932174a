"""Parse the numbers that command-line tools print; a text without a number gives None."""

from __future__ import annotations

from string import hexdigits

from ncclforensics.grammar.values import parse_value

LARGEST = 1 << 63  # the first number that no Int64 column holds


def parse_integer(text: object) -> int | None:
    """Parse an unsigned decimal integer; None for any other text and for numbers from LARGEST on.

    >>> parse_integer("12"), parse_integer("N/A"), parse_integer(str(1 << 64)), parse_integer(None)
    (12, None, None, None)
    """
    digits = str(text).strip()
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 20 and int(digits) < LARGEST else None


def parse_hexadecimal(text: object) -> int | None:
    """Parse an unsigned hexadecimal integer, with or without 0x; None for any other text and from LARGEST on.

    >>> parse_hexadecimal("0x1f"), parse_hexadecimal("0x5 x"), parse_hexadecimal("0x" + 16 * "f")
    (31, None, None)
    """
    digits = str(text).strip().lower().removeprefix("0x")
    is_number = digits != "" and len(digits) <= 16 and set(digits) <= set(hexdigits)
    return number if is_number and (number := int(digits, 16)) < LARGEST else None


def parse_float(text: object) -> float | None:
    """Parse the number that a text begins with.

    >>> parse_float("400 Gb/sec (4X NDR)"), parse_float("15E-255"), parse_float("N/A")
    (400.0, 1.5e-254, None)
    """
    words = str(text).split()
    try:
        return float(words[0]) if words else None
    except ValueError:
        return None


def parse_transfer_rate(text: str | None) -> float | None:
    """Parse the GT/s of a PCIe lane.

    >>> parse_transfer_rate("16.0 GT/s PCIe"), parse_transfer_rate("32GT/s"), parse_transfer_rate("Unknown speed")
    (16.0, 32.0, None)
    """
    rate = parse_value(text, "transfer_rate")
    return rate["rate"] if rate else None
