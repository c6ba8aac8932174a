"""A number that no column can hold, or that is missing, costs no more than its line, wherever it stands."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from ncclforensics import analyze
from ncclforensics.views import json_report
from tests.budget import IS_FULL, sample
from tests.incidents import ALL, Incident

NUMBER = re.compile(rb"(?<![0-9A-Za-z.])\d+(?![0-9A-Za-z])|(?<=0x)[0-9a-f]+")
VALUES = (b"99999999999", b"9223372036854775808", b"4294967296", b"2147483648", b"-3")
LARGEST = 200_000  # bytes of an incident
LONGEST = 2_000  # bytes of a line
PLACES = 14  # numbers of a line that are replaced, one at a time
SMALL = [one for one in ALL if sum((one.folder / log).stat().st_size for log in one.logs) <= LARGEST]


def with_copies(text: bytes, place: int, draw: random.Random) -> bytes:
    """Behind the first line of every form, a copy of it in which the number at a place is another one."""
    lines: list[bytes] = []
    seen: set[bytes] = set()
    for line in text.split(b"\n"):
        lines.append(line)
        form = re.sub(rb"[0-9a-f]{3,}|\d+", b"#", line)
        numbers = list(NUMBER.finditer(line)) if form not in seen and len(line) <= LONGEST else []
        seen.add(form)
        if len(numbers) > place:
            start, end = numbers[place].span()
            lines.append(line[:start] + draw.choice(VALUES) + line[end:])
    return b"\n".join(lines)


@pytest.mark.parametrize("incident", sample(SMALL, 16), ids=lambda incident: incident.name)
def test_a_number_that_no_column_holds_fails_no_part(incident: Incident, tmp_path: Path) -> None:
    """In `make test` at one place of every line, in a full run at each."""
    draw = random.Random(incident.name)
    for place in range(PLACES) if IS_FULL else [draw.randrange(PLACES // 2)]:
        for log in incident.logs:
            path = tmp_path / str(place) / log
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(with_copies((incident.folder / log).read_bytes(), place, draw))

        json_report.as_object(analyze([str(tmp_path / str(place))], everything=True))
