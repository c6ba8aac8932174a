"""Read the JSON of dcgmi diag (-j): its tests become rows of the frames of the printed ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ncclforensics.formats import Record
from ncclforensics.inputs.tolerant_json import json_array, json_object, json_scalar, json_text, parse_json

MAGIC = b"{"
MARKER = b'"test_categories"'
PADDING = "  "  # that ends a text in its cell, where it is printed
WORST_FIRST = ("Fail", "Warn", "Pass", "Skip")


def records(data: bytes) -> tuple[list[Record], list[str]]:
    """Return the records of the document, frame and columns of each in order, and its problems."""
    document, problems = parse_json(data)
    tests = json_object(json_object(document).get("DCGM GPU Diagnostic", json_object(document).get("DCGM Diagnostic")))
    return list(_rows(tests)), problems


def _rows(diagnostic: Mapping[str, Any]) -> Iterator[Record]:
    for category in map(json_object, json_array(diagnostic.get("test_categories"))):
        yield "dcgm_section", {"section": json_text(category.get("category"))}
        for test in map(json_object, json_array(category.get("tests"))):
            yield from _test(test)


def _test(test: Mapping[str, Any]) -> Iterator[Record]:
    results = [json_object(result) for result in json_array(test.get("results"))]
    outcomes = {_entity(result): (json_text(result.get("status")) or "").capitalize() for result in results}
    worst = next((outcome for outcome in WORST_FIRST if outcome in outcomes.values()), None)
    yield "dcgm_result", {"form": "", "test": json_text(test.get("name")), "result": worst}
    for entity, outcome in outcomes.items():
        yield "dcgm_result", {"form": "entity", "entity": entity, "entity_result": outcome}
    words = [text for result in results for text in _texts(result) if result.get("status") not in ("Pass", "PASS")]
    if words:
        yield "dcgm_result", {"form": "note", "words": "; ".join(dict.fromkeys(words)) + PADDING}


def _entity(result: Mapping[str, Any]) -> str:
    """Name the part of the machine: until 3.3 `gpu_id`, later a group and a number."""
    if "gpu_id" in result:
        return f"GPU{json_scalar(result['gpu_id'])}"
    return f"{json_text(result.get('entity_group')) or ''}{json_scalar(result.get('entity_id', ''))}"


def _texts(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the test says of one result: strings, or objects with a number and a text."""
    for name in ("warnings", "info"):
        messages = result.get(name)
        for item in messages if isinstance(messages, list) else [messages]:
            text = json_text(json_object(item).get("warning", json_object(item).get("info"))) or json_text(item)
            if text:
                yield text
