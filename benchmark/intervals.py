"""Confidence intervals of shares."""

from __future__ import annotations

import math

Z = 1.96  # 95 %


def wilson(hits: int, trials: int) -> tuple[float, float]:
    """The interval of a share that holds it with 95 %, after Wilson (1927); all of 0 to 1 without a trial.

    >>> [round(end, 3) for end in wilson(0, 100)]
    [0.0, 0.037]
    >>> [round(end, 3) for end in wilson(9, 10)]
    [0.596, 0.982]
    """
    if not trials:
        return 0.0, 1.0
    share, square = hits / trials, Z * Z / trials
    middle = (share + square / 2) / (1 + square)
    half = Z / (1 + square) * math.sqrt(share * (1 - share) / trials + square / (4 * trials))
    return max(0.0, middle - half), min(1.0, middle + half)
