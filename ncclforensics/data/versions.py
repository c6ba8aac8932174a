"""Versions of NCCL as numbers."""

from __future__ import annotations

from collections.abc import Iterable

from ncclforensics.data.names import version_text

Version = tuple[int, ...]

# NCCL allocates shared host memory by cuMem from the first, and falls back if it fails from the second (nccl#1838).
CUMEM_HOST, CUMEM_HOST_OPTIONAL = (2, 24), (2, 26, 5)
# Releases from the first to before the second whose opCount counts every call. That of 2.8 stands still, and those of
# 2.9 to 2.11, and from 2.27 on, count only operations of the network proxy: they differ between ranks.
COUNT_EVERY_CALL = (((2, 3), (2, 8)), ((2, 12), (2, 27)))


def release(printed: str) -> Version:
    """Parse the numbers of a version, without the CUDA version and build.

    >>> release("2.18.6+cuda12.4"), release("2.27.3-1"), release("2.26.nvbuild")
    ((2, 18, 6), (2, 27, 3), (2, 26))
    """
    numbers = printed.partition("+")[0].partition("-")[0].split(".")
    return tuple(int(number) for number in numbers if number.isdecimal())


def version_of_torch(printed: str) -> str:
    """Return the version that PyTorch means: to 1.10 it divides the code of NCCL 2.9 and later as that of earlier ones.

    >>> version_of_torch("21.0.3"), version_of_torch("2.14.3")
    ('2.10.3', '2.14.3')
    """
    numbers = release(printed)
    is_divided_wrongly = len(numbers) == 3 and numbers[0] > 2
    return version_text(numbers[0] * 1000 + numbers[1] * 100 + numbers[2]) if is_divided_wrongly else printed


def releases(printed: Iterable[str | None]) -> list[Version]:
    """Return the distinct versions among these texts, ascending.

    >>> releases(["2.27.3+cuda12.9", "2.9.6+cuda11.0", None, "2.27.3+cuda12.4", "unknown"])
    [(2, 9, 6), (2, 27, 3)]
    """
    return sorted({version for text in set(printed) if text and len(version := release(text)) > 1})


def count_every_call(versions: list[Version]) -> bool:
    """Whether the counters of all versions of a job count every call."""
    return bool(versions) and all(any(begin <= of < end for begin, end in COUNT_EVERY_CALL) for of in versions)
