"""How much the suite tries: `make test` takes samples, `make corpus` and `make nightly` take everything."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable
from typing import TypeVar

from hypothesis import HealthCheck, settings

IS_FULL = os.environ.get("NCCLFORENSICS_TESTS") == "full"
IS_QUICK = os.environ.get("NCCLFORENSICS_TESTS") == "quick"
NIGHTLY_FACTOR = 20

Item = TypeVar("Item")


def examples(count: int, *, with_fixtures: bool = False) -> settings:
    """Settings for a property: of so many examples a quarter in `make test`, many times more in `make nightly`.

    `with_fixtures` permits fixtures that are set up once for all examples of a property.
    """
    number = count * NIGHTLY_FACTOR if IS_FULL else max(count // 4, 1)
    if with_fixtures:
        allowed = [*settings.default.suppress_health_check, HealthCheck.function_scoped_fixture]
        return settings(max_examples=number, suppress_health_check=allowed)
    return settings(max_examples=number)


def sample(items: Iterable[Item], share: int) -> list[Item]:
    """One item in `share`, chosen by a hash of its name or text; all of them in a full run."""
    return [item for item in items if IS_FULL or _hash(item) % share == 0]


def share_of(cases: int, *, writes_logs: bool) -> int:
    """One in how many cases of a test `make test` tries: similar cases rarely fail alone.

    `writes_logs`: each case writes logs of its own, and judges them, which takes as long as a hundred cases of values.
    """
    shares = ((40, 30), (2, 12)) if writes_logs else ((40, 30), (6, 12), (2, 5))
    return next((share for fewest, share in shares if cases >= fewest), 1)


def drawn(items: list[Item], share: int) -> list[Item]:
    """The same, of a list of which exactly so many are wanted, and at least one: those of the smallest hashes."""
    largest = sorted(map(_hash, items))[-1 if IS_FULL else (len(items) - 1) // share]
    return [item for item in items if _hash(item) <= largest]


def _hash(item: object) -> int:
    """Of the case of a test: tests of the same incident share what was read of it."""
    name = str(getattr(item, "name", item))
    return zlib.crc32(name[name.find("[") :].encode() if name.endswith("]") else name.encode())
