"""Read JSON of rocm-smi, and that of amd-smi on one line: their rows are those of the frames of the printed ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ncclforensics.data.gpu_metrics import AMD_READINGS, AMD_WELL, XGMI_ERRORS
from ncclforensics.formats import Record
from ncclforensics.inputs.tolerant_json import json_array, json_int32, json_object, json_text, parse_json

CARD, GPUS = "card", "gpu_data"
BEGINNINGS = (b'{"card0": {"', b'{"system": {"', b'[{"gpu": ', b'[{"gpu":', b'{"gpu_data": [{"gpu"')


def is_dump(beginning: bytes) -> bool:
    """Whether a file with this beginning is such a report: an object of cards, or a list of GPUs."""
    return beginning.startswith(BEGINNINGS) and any(word in beginning for word in (b'"card', b'"ecc"', b'"xgmi_err"'))


def head(data: bytes) -> None:
    """Return nothing: a report is short."""


def records(data: bytes) -> tuple[list[Record], list[str]]:
    """Return the records of the document, frame and columns of each in order, and its problems."""
    document, problems = parse_json(data)
    gpus = json_array(json_object(document).get(GPUS) if isinstance(document, dict) else document)
    return [*_cards(json_object(document)), *(row for gpu in gpus for row in _gpu(json_object(gpu)))], problems


def _cards(document: Mapping[str, Any]) -> Iterator[Record]:
    for card, values in document.items():
        number = card.removeprefix(CARD)
        place = {"gpu": int(number) if number.isdecimal() else None}
        for name, value in json_object(values).items():
            count = (json_text(value) or "").split(" ")[0]
            if name in AMD_READINGS:
                yield "amd_state", {"form": "reading", **place, "reading": name, "amount": count}
            elif name == XGMI_ERRORS and count.isdecimal() and int(count):
                yield "amd_state", {"form": "xgmi", **place, "xgmi_errors": count}


def _gpu(values: Mapping[str, Any]) -> Iterator[Record]:
    place = {"gpu": json_int32(values.get("gpu"))}
    errors = json_int32(json_object(values.get("ecc")).get("total_uncorrectable_count"))
    if errors is not None:
        yield "amd_errors", {"form": "total", **place, "errors": errors}
    if (links := json_text(values.get("xgmi_err"))) and links not in AMD_WELL:
        yield "amd_state", {"form": "xgmi", **place}
    for name, state in json_object(values.get("throttle")).items():
        if name.endswith("_violation_status") and not name.startswith("ppt") and json_text(state) == "ACTIVE":
            yield "amd_state", {"form": "hot", **place, "heat": name}
