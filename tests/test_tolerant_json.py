"""JSON that is cut off is read as far as it is complete; no JSON takes more than a moment."""

from __future__ import annotations

import json

import pytest

from ncclforensics.inputs.tolerant_json import LARGE, parse_json

DOCUMENT = {"text": 'a "b" {[,\\', "numbers": [1, {"inner": [2.5, None]}], "last": "x"}


def test_json_that_is_cut_anywhere_holds_what_is_complete() -> None:
    data = json.dumps(DOCUMENT).encode()

    for end in range(data.index(b",", 24) + 1, len(data)):
        value, problems = parse_json(data[:end])
        assert problems == ["is JSON that was cut off"]
        assert value["text"] == DOCUMENT["text"]


@pytest.mark.parametrize("piece", [b"[,", b"[1,", b'{"a":[1,', b'{"a":"', b'"\\', b",", b"{", b"]"])
def test_a_megabyte_of_one_piece_is_read_at_a_glance(piece: bytes) -> None:
    """Where every comma copied what is open, this took an hour."""
    value, problems = parse_json(b'{"entries": [1, ' + piece * (1_000_000 // len(piece)))

    assert value is None or value["entries"][0] == 1
    assert problems


def test_a_large_document_of_empty_values_is_not_read() -> None:
    value, (problem,) = parse_json(b"[" + b"[]," * (LARGE // 3) + b"[]]")

    assert value is None
    assert "next to nothing" in problem
