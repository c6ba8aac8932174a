"""The rules that judge a line, by what it is: known without importing, or running, any of them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import cast

import orjson

# Frame -> form -> the rules that answer example lines of it where each stands alone, the most frequent first. Generated
# (tests/test_meanings.py), for to judge one line takes longer than to explain it otherwise.
LINE_RULES = Path(__file__).with_name("catalogue") / "line_rules.json"


@cache
def _by_frame() -> Mapping[str, Mapping[str, list[str]]]:
    return cast(Mapping[str, Mapping[str, list[str]]], orjson.loads(LINE_RULES.read_bytes()))


def rules_of_line(frame: str, form: str) -> list[str]:
    """Return the names of the rules that judge lines of a form, the most frequent first."""
    return list(_by_frame().get(frame, {}).get(form, ()))
