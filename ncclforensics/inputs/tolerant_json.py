"""Read JSON that may be cut off or contain `inf` and `nan`, and convert its values for columns."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

import orjson

CLOSERS = {"{": "}", "[": "]"}
LARGE, MOST_CONTAINERS = 8 << 20, 1 / 8  # bytes; arrays and objects of each byte: of memory, each takes 64 bytes
MOST_DEPTH = 1024  # as orjson reads it
# A text, whose end may be cut off, or one of the characters that give JSON its form.
_PARTS = re.compile(r'"(?:[^"\\]++|\\.)*+("?)|[][{},]', re.DOTALL)


def is_hollow(data: bytes, begins: bytes, most: float) -> bool:
    """Whether large JSON has more of these characters, which begin values, for each byte than one that holds texts."""
    return len(data) > LARGE and sum(map(data.count, begins)) > most * len(data)


def parse_json(data: bytes) -> tuple[Any, list[str]]:
    """Parse JSON as far as possible: the value (None if it cannot be parsed), and problems."""
    problems: list[str] = []
    if is_hollow(data, b"[{", MOST_CONTAINERS):
        return None, ["is JSON of arrays and objects that hold next to nothing: it is not read"]
    try:
        return orjson.loads(data), problems
    except orjson.JSONDecodeError:
        text, is_cut = _repaired(data.decode("utf-8", "replace"))
        problems += ["is JSON that was cut off"] * is_cut
        try:
            return orjson.loads(text), problems
        except orjson.JSONDecodeError as error:
            return None, [f"is no JSON: {error}"]


def _repaired(text: str) -> tuple[str, bool]:
    """Replace `inf` and `nan` by null, and close JSON that was cut off after its last complete element."""
    _, is_cut, comma = _open_at(text, len(text))
    if is_cut:
        text = text[:comma] + "".join(reversed(_open_at(text, comma)[0]))
    for unknown in ("-inf", "inf", "-nan", "nan"):
        for before, after in ((":", ","), (":", "}")):
            text = text.replace(f"{before}{unknown}{after}", f"{before}null{after}")
    return text, is_cut


def _open_at(text: str, end: int) -> tuple[list[str], bool, int]:
    """Return what would close the values that are open at a place, whether any is, and the last comma before it."""
    stack: list[str] = []
    comma, is_in_text = 0, False
    for part in _PARTS.finditer(text, 0, end):
        character = part[0][0]
        if character in CLOSERS:
            stack.append(CLOSERS[character])
            if len(stack) > MOST_DEPTH:
                break
        elif character == ",":
            comma = part.start()
        elif character == '"':
            is_in_text = not part[1]
        elif stack:
            stack.pop()
    return stack, bool(stack) or is_in_text, comma


def json_object(value: object) -> dict[str, Any]:
    """Return the value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def json_array(value: object) -> list[Any]:
    """Return the value if it is an array, else an empty one."""
    return value if isinstance(value, list) else []


def json_text(value: object) -> str | None:
    """Return the value if it is a text, else None; half of a UTF-16 pair, which no file can hold, becomes `?`."""
    if not isinstance(value, str):
        return None
    return value if value.isascii() else value.encode("utf-8", "replace").decode()


def json_number(value: object) -> float | None:
    """Return the value if it is a number, else None."""
    return float(value) if isinstance(value, int | float) else None


def json_int32(value: object) -> int | None:
    """Return a number, or the number in a text, if it is below 2^31; else None."""
    number = json_integer(value)
    return number if number is not None and abs(number) < 1 << 31 else None


def json_integer(value: object) -> int | None:
    """Return a number, or the number in a text (blanks around it do not matter) below 2**62; else None.

    An Int64 holds such a number, the next one, and the difference of two.
    """
    number = value if type(value) is int else None
    if number is None:
        with suppress(ValueError):
            number = int(json_scalar(value).strip())
    return number if number is not None and abs(number) < 1 << 62 else None


def json_scalar(value: object) -> str:
    """Return a text or a number as text; empty for all else, which may be nested deeper than Python can print."""
    return str(value) if isinstance(value, str | int | float) else ""
