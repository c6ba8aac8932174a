"""Mixes lines of every family into a generated run, as `NCCL_DEBUG_SUBSYS=ALL` leaves them, from the examples.

python -m tests.benchmarks.families DIR
"""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from ncclforensics.grammar import grammar_file

# What a healthy job prints, beside who is who and the calls, which the run itself has.
HEALTHY = ("channel", "network", "topology", "tuning", "environment", "memory", "progress")
# Of these lines: what every step prints. All other shapes share the rest alike.
EVERY_STEP = {"algorithm_choice": 0.3, "proxy_call": 0.2, "connection": 0.2, "registration": 0.06, "allocation": 0.06}
SHARE = 0.5  # of all lines
_HEAD = re.compile(r"^\S+:\d+:\d+ \[\d\] NCCL INFO ")
_NUMBER = re.compile(r"0x[0-9a-f]{5,}|\b[0-9]{4,7}\b")


def bodies() -> dict[str, list[str]]:
    """Frame -> what its INFO examples say."""
    found: dict[str, list[str]] = {}
    for shape in (shape for name in HEALTHY for shape in grammar_file.load(name).shapes):
        if said := [_HEAD.sub("", example) for example in shape.examples if _HEAD.match(example)]:
            found[shape.frame] = said
    return found


def others(draw: random.Random) -> Iterator[str]:
    """What lines of the families say, without end; no pointer or size in them was there before."""
    said = bodies()
    often = {frame: share for frame, share in EVERY_STEP.items() if frame in said}
    rare = [frame for frame in said if frame not in often]
    weights = [*often.values(), *[(1 - sum(often.values())) / len(rare)] * len(rare)]
    while True:
        for frame in draw.choices([*often, *rare], weights, k=10_000):
            yield _NUMBER.sub(lambda number: _other(number[0], draw), draw.choice(said[frame]))


def _other(number: str, draw: random.Random) -> str:
    if number.startswith("0x"):
        return f"0x{draw.getrandbits(4 * len(number) - 8) | 1:0{len(number) - 2}x}"
    return str(draw.randrange(10 ** (len(number) - 1), 10 ** len(number)))


def mix(folder: Path) -> None:
    """Put lines of the families between the lines of every log of a generated run."""
    for number, path in enumerate(sorted(folder.iterdir())):
        draw = random.Random(number)
        more = others(draw)
        mixed = path.with_suffix(".mixed")
        with path.open(encoding="ascii") as lines, mixed.open("w", encoding="ascii") as out:
            for line in lines:
                out.write(line)
                if (head := _HEAD.match(line)) and draw.random() < SHARE:
                    out.write(f"{head[0]}{next(more)}\n")
        mixed.replace(path)


if __name__ == "__main__":
    mix(Path(sys.argv[1]))
