"""Read the JSON of mlxlink (--json): sections, and their fields as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ncclforensics.formats import Record
from ncclforensics.inputs.tolerant_json import json_object, parse_json

MAGIC = b"{"
MARKER = b'"Operational Info"'


def records(data: bytes) -> tuple[list[Record], list[str]]:
    """Return the sections with their fields, as in the frames of the printed form, and problems."""
    document, problems = parse_json(data)
    return list(_sections(json_object(json_object(json_object(document).get("result")).get("output")))), problems


def _sections(output: Mapping[str, Any]) -> Iterator[Record]:
    for section, fields in output.items():
        yield "mlxlink_section", {"form": "", "section": section}
        for field, value in json_object(fields).items():
            if isinstance(value, str):  # values of each lane stand in lists
                yield "mlxlink_field", {"form": "", "field": field, "value": value}
