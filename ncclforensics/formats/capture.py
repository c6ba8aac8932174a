"""The record of a capture or of a collection: one object, of a capture written when it begins and when it has ended.

It holds the plan and the figures, which stand in journals and tables too: nothing of it becomes a row.
"""

from __future__ import annotations

from typing import Any

import orjson

MAGIC = b'{\n "tool": "ncclforensics c'  # how it begins
MARKER = b'"began"'  # and what stands next to that


def records(data: bytes) -> tuple[list[tuple[str, dict[str, Any]]], list[str]]:
    """No rows; and whether the capture came to its end."""
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError:
        return [], ["is the record of a capture that was cut off"]
    if not document.get("complete"):
        return [], ["is the record of a capture that did not come to its end"]
    return [], [f"the capture ended early: {why}"] if (why := document.get("ended_early")) else []
