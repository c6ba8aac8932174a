"""What hostile inputs are made of: example lines of grammars, and logs of incidents."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from ncclforensics.grammar import grammar_file
from tests.fuzz.mutation import Draw, mutate_bytes, mutate_lines
from tests.incidents import ALL, Incident

LARGEST_CASE = 900 << 10  # bytes: less than the 1 MB for which time and memory are bounded
LARGEST_INCIDENT = 120 << 10
MOST_FILES = 12


@cache
def examples_of(grammar: str) -> tuple[bytes, ...]:
    return tuple(text.encode() for shape in grammar_file.load(grammar).shapes for text in shape.examples)


@cache
def all_examples() -> tuple[bytes, ...]:
    return tuple(line for name in grammar_file.names() for line in examples_of(name))


@cache
def small_incidents() -> tuple[Incident, ...]:
    return tuple(one for one in ALL if size(one) < LARGEST_INCIDENT)


def size(incident: Incident) -> int:
    return sum((incident.folder / log).stat().st_size for log in incident.logs)


def logs_of(incident: Incident, most: int = MOST_FILES) -> dict[str, bytes]:
    return {name: (incident.folder / name).read_bytes() for name in incident.logs[:most]}


def write(folder: Path, files: Mapping[str, bytes]) -> None:
    left = LARGEST_CASE
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data[:left])
        left -= min(left, len(data))


def faulty_incident(draw: Draw, folder: Path) -> None:
    """An incident with faulty lines, or with files that are cut, changed or put together wrongly."""
    others = all_examples()
    incident = draw.choice(small_incidents())
    logs = logs_of(incident)
    if draw.random() < 0.3:
        other = draw.choice(small_incidents())
        logs |= {f"other/{name}": data for name, data in logs_of(other, 4).items()}
    for name, data in logs.items():
        if draw.random() < 0.8:
            logs[name] = b"\n".join(mutate_lines(draw, data.split(b"\n"), others, draw.choice((0.01, 0.1, 0.5))))
        if draw.random() < 0.2:
            logs[name] = mutate_bytes(draw, data)
    if draw.random() < 0.2:
        names, contents = list(logs), list(logs.values())
        draw.shuffle(contents)
        logs = dict(zip(names, contents, strict=True))
    if draw.random() < 0.1:
        logs = {"job.log": b"".join(logs.values())}
    write(folder, logs)
