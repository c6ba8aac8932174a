"""Read the JSON of dcgmi health (-c -j): its watches become rows of the frames of the printed ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ncclforensics.formats import Record
from ncclforensics.inputs.tolerant_json import json_array, json_object, json_text, parse_json

OVERALL = "Overall Health"
# Other commands of dcgmi write a body, too; titles stand at the end. The watches of an entity stand below `Errors`.
MARKERS = (b'"Errors"', b'"Overall Health"')


def is_dump(beginning: bytes) -> bool:
    """Whether a file with this beginning is such a report: a body with the watches of an entity, or without any."""
    return beginning.startswith(b"{") and b'"body"' in beginning and any(name in beginning for name in MARKERS)


def head(data: bytes) -> None:
    """Return nothing: the overall health stands at the end."""


def records(data: bytes) -> tuple[list[Record], list[str]]:
    """Return the records of the document, frame and columns of each in order, and its problems."""
    document, problems = parse_json(data)
    return list(_rows(json_object(json_object(document).get("body")))), problems


def _rows(body: Mapping[str, Any]) -> Iterator[Record]:
    yield "dcgm_health", {"form": "overall", "health": json_text(json_object(body.get(OVERALL)).get("value"))}
    for kind, entities in body.items():
        for entity, watched in _children(entities):
            place = {"watched_kind": kind, "watched": int(entity) if entity.isdecimal() else None}
            yield "dcgm_health", {"form": "watched", **place, "health": json_text(watched.get("value"))}
            for system, state in _children(dict(_children(watched)).get("Errors")):
                yield (
                    "dcgm_health",
                    {
                        "form": "system",
                        "system": system.removesuffix(" system"),
                        "health": json_text(state.get("value")),
                        "reason": " ".join(filter(None, map(json_text, json_array(state.get("overflow"))))) or None,
                    },
                )


def _children(box: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name, child in json_object(json_object(box).get("children")).items():
        yield name, json_object(child)
