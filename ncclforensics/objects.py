"""JSON that other programs wrote: what is broken is mended as far as it goes, and what is no such value is None."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import orjson

CLOSERS = {"{": "}", "[": "]"}


def loaded(data: bytes) -> tuple[dict[str, Any], list[str]]:
    """The object as far as it can be read, and what is wrong with it."""
    problems = []
    try:
        whole = orjson.loads(data)
    except orjson.JSONDecodeError:
        text, is_cut = _mended(data.decode("utf-8", "replace"))
        problems += ["is JSON that was cut off"] * is_cut
        try:
            whole = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            return {}, [f"is no JSON: {error}"]
    return as_object(whole), problems


def _mended(text: str) -> tuple[str, bool]:
    """The object without what JSON does not know (`inf`), closed behind its last whole part if its end is missing."""
    stack: list[str] = []
    safe = (0, "")
    in_text = escaped = False
    for place, character in enumerate(text):
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
            safe = place, "".join(reversed(stack))
    is_cut = bool(stack) or in_text
    if is_cut:
        text = text[: safe[0]] + safe[1]
    for unknown in ("-inf", "inf", "-nan", "nan"):
        for before, behind in ((":", ","), (":", "}")):
            text = text.replace(f"{before}{unknown}{behind}", f"{before}null{behind}")
    return text, is_cut


def as_object(value: object) -> dict[str, Any]:
    """The value, if it is an object; else an empty one."""
    return value if isinstance(value, dict) else {}


def as_array(value: object) -> list[Any]:
    """The value, if it is an array; else an empty one."""
    return value if isinstance(value, list) else []


def as_text(value: object) -> str | None:
    """The value, if it is text."""
    return value if isinstance(value, str) else None


def as_number(value: object) -> float | None:
    """The value, if it is a number."""
    return float(value) if isinstance(value, int | float) else None


def as_small(value: object) -> int | None:
    """A number that a column of small ones holds."""
    number = as_integer(value)
    return number if number is not None and abs(number) < 1 << 31 else None


def as_integer(value: object) -> int | None:
    """A number, or the text of one (the root is padded with blanks), if it is no larger than a column holds."""
    with suppress(ValueError):
        number = int(str(value).strip())
        return number if abs(number) < 1 << 63 else None
    return None
