"""Read JSON that may be cut off or contain `inf` and `nan`, and convert its values for columns."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import orjson

CLOSERS = {"{": "}", "[": "]"}


def loaded(data: bytes) -> tuple[Any, list[str]]:
    """Parse JSON as far as possible: the value (None if it cannot be parsed), and problems."""
    problems: list[str] = []
    try:
        return orjson.loads(data), problems
    except orjson.JSONDecodeError:
        text, is_cut = _mended(data.decode("utf-8", "replace"))
        problems += ["is JSON that was cut off"] * is_cut
        try:
            return orjson.loads(text), problems
        except orjson.JSONDecodeError as error:
            return None, [f"is no JSON: {error}"]


def _mended(text: str) -> tuple[str, bool]:
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


def an_object(value: object) -> dict[str, Any]:
    """The object, or an empty one where it is none."""
    return value if isinstance(value, dict) else {}


def an_array(value: object) -> list[Any]:
    """The array, or an empty one where it is none."""
    return value if isinstance(value, list) else []


def a_text(value: object) -> str | None:
    """The text, if it is one."""
    return value if isinstance(value, str) else None


def a_number(value: object) -> float | None:
    """The number, if it is one."""
    return float(value) if isinstance(value, int | float) else None


def a_small(value: object) -> int | None:
    """A number, or the text of one, below 2^31."""
    number = an_integer(value)
    return number if number is not None and abs(number) < 1 << 31 else None


def an_integer(value: object) -> int | None:
    """A number, or the text of one (some are padded with blanks), if it is no larger than a column holds."""
    with suppress(ValueError):
        number = int(str(value).strip())
        return number if abs(number) < 1 << 63 else None
    return None
