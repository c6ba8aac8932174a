"""Read the JSON of rocm-smi (--json): its readings become rows of the frame of the printed ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ncclforensics.data.gpu_metrics import AMD_READINGS, XGMI_ERRORS
from ncclforensics.formats import Record
from ncclforensics.inputs.tolerant_json import json_object, json_text, parse_json

GRAMMARS = ()
SIGNATURES = ()
KINDS: Mapping[str, str] = {}
CARD = "card"


def is_dump(beginning: bytes) -> bool:
    """Whether a file with this beginning is such a report: an object of cards."""
    return beginning.startswith((b'{"card0": {"', b'{"system": {"')) and b'"card' in beginning


def head(data: bytes) -> None:
    """Return nothing: a report is short."""


def records(data: bytes) -> tuple[list[Record], list[str]]:
    """Return the records of the document, frame and columns of each in order, and its problems."""
    document, problems = parse_json(data)
    return list(_rows(json_object(document))), problems


def _rows(document: Mapping[str, object]) -> Iterator[Record]:
    for card, values in document.items():
        number = card.removeprefix(CARD)
        for name, value in json_object(values).items():
            place = {"gpu": int(number) if number.isdecimal() else None}
            count = (json_text(value) or "").split(" ")[0]
            if name in AMD_READINGS:
                yield "amd_state", {"form": "reading", **place, "reading": name, "amount": count}
            elif name == XGMI_ERRORS and count.isdecimal() and int(count):
                yield "amd_state", {"form": "xgmi", **place, "xgmi_errors": count}
