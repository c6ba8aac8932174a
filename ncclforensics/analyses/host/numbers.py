"""Numbers as tools print them; what is none is null."""

from __future__ import annotations

LARGEST = 1 << 63  # that no column holds


def whole(text: object) -> int | None:
    """A number as printed, none that no column holds.

    >>> whole("12"), whole("N/A"), whole(str(1 << 64)), whole(None)
    (12, None, None, None)
    """
    digits = str(text).strip()
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 20 and int(digits) < LARGEST else None


def number(text: object) -> float | None:
    """The number that a text begins with.

    >>> number("400 Gb/sec (4X NDR)"), number("15E-255"), number("N/A")
    (400.0, 1.5e-254, None)
    """
    words = str(text).split()
    try:
        return float(words[0]) if words else None
    except ValueError:
        return None


def coded(text: object) -> int | None:
    """The number in the parentheses, or in front of the colon.

    >>> coded("1024 (3)"), coded("4: ACTIVE"), coded("LINK_UP")
    (3, 4, None)
    """
    words = str(text)
    return whole(words.rpartition("(")[2].removesuffix(")")) if words.endswith(")") else whole(words.split(":")[0])
