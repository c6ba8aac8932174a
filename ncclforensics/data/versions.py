"""Versions of NCCL as numbers."""

from __future__ import annotations

from collections.abc import Iterable

Version = tuple[int, ...]

# NCCL allocates shared host memory by cuMem, and from the second on goes on without (release notes; nccl#1838).
CUMEM_HOST, CUMEM_HOST_OPTIONAL = (2, 24), (2, 26, 5)


def release(printed: str) -> Version:
    """The numbers of a version; what it was built for and with is left out.

    >>> release("2.18.6+cuda12.4"), release("2.27.3-1"), release("2.26.nvbuild")
    ((2, 18, 6), (2, 27, 3), (2, 26))
    """
    numbers = printed.partition("+")[0].partition("-")[0].split(".")
    return tuple(int(number) for number in numbers if number.isdecimal())


def releases(printed: Iterable[str | None]) -> list[Version]:
    """The versions among these texts, each once, in their order.

    >>> releases(["2.27.3+cuda12.9", "2.9.6+cuda11.0", None, "2.27.3+cuda12.4", "unknown"])
    [(2, 9, 6), (2, 27, 3)]
    """
    return sorted({found for text in set(printed) if text and len(found := release(text)) > 1})
