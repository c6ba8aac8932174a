"""Read JSON that may be cut off or contain `inf` and `nan`, and convert its values for columns."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import orjson

CLOSERS = {"{": "}", "[": "]"}


def parse_json(data: bytes) -> tuple[Any, list[str]]:
    """Parse JSON as far as possible: the value (None if it cannot be parsed), and problems."""
    problems: list[str] = []
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
    stack: list[str] = []
    last_complete = (0, "")
    in_text = escaped = False
    for position, character in enumerate(text):
        if in_text:
            in_text = escaped or character != '"'
            escaped = character == "\\" and not escaped
        elif character == '"':
            in_text = True
        elif character in CLOSERS:
            stack.append(CLOSERS[character])
        elif character in ("}", "]") and stack:
            stack.pop()
        elif character == ",":
            last_complete = position, "".join(reversed(stack))
    is_cut = bool(stack) or in_text
    if is_cut:
        text = text[: last_complete[0]] + last_complete[1]
    for unknown in ("-inf", "inf", "-nan", "nan"):
        for before, after in ((":", ","), (":", "}")):
            text = text.replace(f"{before}{unknown}{after}", f"{before}null{after}")
    return text, is_cut


def json_object(value: object) -> dict[str, Any]:
    """Return the value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def json_array(value: object) -> list[Any]:
    """Return the value if it is an array, else an empty one."""
    return value if isinstance(value, list) else []


def json_text(value: object) -> str | None:
    """Return the value if it is a text, else None."""
    return value if isinstance(value, str) else None


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
    with suppress(ValueError):
        number = int(json_scalar(value).strip())
        return number if abs(number) < 1 << 62 else None
    return None


def json_scalar(value: object) -> str:
    """Return a text or a number as text; empty for all else, which may be nested deeper than Python can print."""
    return str(value) if isinstance(value, str | int | float) else ""
