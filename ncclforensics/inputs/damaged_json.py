"""Read what is whole in JSON that is damaged in its middle: by a lost block, an overwritten one, or a missing quote.

What stands behind the damage is found again at the next object of the expected kind; what cannot be read is counted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

MOST_FAILURES = 10_000  # places that are tried in vain
_DECODER = json.JSONDecoder()  # a text with control characters was overwritten
NOT_READ = object()


def value_of_key(text: str, key: str) -> Any:
    """Return the value of the last such key in a text; NOT_READ if there is none, or it cannot be read."""
    place = text.rfind(f'"{key}"')
    begin = text.find(":", place) + 1
    if place < 0 or not begin:
        return NOT_READ
    while text[begin : begin + 1].isspace():
        begin += 1
    value, end = decoded(text, begin)
    return value if end else NOT_READ


def elements_of_key(text: str, key: str, is_element: Callable[[Any], bool]) -> tuple[list[Any], int]:
    """Return the elements of the array of a key that can be read, and how many places in it cannot."""
    place = text.find(f'"{key}"')
    place = text.find("[", place) + 1 if place >= 0 else 0
    found: list[Any] = []
    failures, is_behind_damage = 0, False
    while place and failures < MOST_FAILURES:
        rest = text[place : place + 64].lstrip(" \t\r\n,")
        if rest.startswith("]") and not is_behind_damage:
            break
        begin = text.find("{", place)
        if begin < 0:
            break
        value, end = decoded(text, begin)
        if not end:
            failures += not is_behind_damage
            is_behind_damage, place = True, begin + 1
        elif is_element(value):
            found.append(value)
            is_behind_damage, place = False, end
        else:
            place = end
    return found, failures


def objects_in(text: str) -> Iterator[tuple[int, Any]]:
    """Yield the places of objects with their values, outer ones first; NOT_READ for one that is damaged."""
    place, failures = text.find("{"), 0
    while place >= 0 and failures < MOST_FAILURES:
        value, end = decoded(text, place)
        failures += not end
        yield place, value if end else NOT_READ
        place = text.find("{", end or place + 1)


def decoded(text: str, place: int) -> tuple[Any, int]:
    """Return the value at a place and where it ends; 0 if it cannot be read."""
    try:
        return _DECODER.raw_decode(text, place)
    except (json.JSONDecodeError, RecursionError):
        return None, 0
