"""Writes logs with every family of lines, as `NCCL_DEBUG_SUBSYS=ALL` leaves them, out of the grammars' examples.

python -m tests.benchmarks.families DIR --ranks 4 --rank-bytes 20000000
"""

from __future__ import annotations

import argparse
import random
import re
from collections.abc import Iterator
from pathlib import Path

from ncclforensics import grammar

# What a healthy job prints.
HEALTHY = ("operation", "channel", "init", "network", "topology", "tuning", "environment", "memory", "progress")
# Of the lines of a long one: what every step prints. All other shapes share the rest alike.
EVERY_STEP = {
    "operation": 0.4,
    "algorithm_choice": 0.15,
    "proxy_call": 0.1,
    "connection": 0.1,
    "registration": 0.03,
    "allocation": 0.03,
}
DRAWN = 20_000  # lines of a rank that differ; then they repeat with other numbers
_HEAD = re.compile(r"^\S+:\d+:\d+ \[\d\] (?=NCCL INFO )")
_NUMBER = re.compile(r"0x[0-9a-f]{5,}|\b[0-9]{4,7}\b")


def bodies() -> dict[str, list[str]]:
    """Frame -> what its INFO examples say."""
    found: dict[str, list[str]] = {}
    for shape in (shape for name in HEALTHY for shape in grammar.load(name).shapes):
        said = [_HEAD.sub("", example) for example in shape.examples if _HEAD.match(example)]
        said = said[:1] if shape.frame == "operation" else said  # its form of 2.12 and later
        if said:
            found[shape.frame] = said
    return found


def lines(rank: int, draw: random.Random) -> Iterator[str]:
    """The lines of one rank, without end; no pointer or size in them was there before."""
    said = bodies()
    often = {frame: share for frame, share in EVERY_STEP.items() if frame in said}
    rare = [frame for frame in said if frame not in often]
    weights = [*often.values(), *[(1 - sum(often.values())) / len(rare)] * len(rare)]
    head = f"node{rank // 8:02}:{77_000 + rank}:{77_900 + rank} [{rank % 8}] "
    count = 0
    while True:
        for frame in draw.choices([*often, *rare], weights, k=DRAWN):
            count += 1
            body = draw.choice(said[frame])
            text = _NUMBER.sub(lambda match: _other(match[0], draw), body)
            yield f"{head}{text.replace('opCount 1a', f'opCount {count:x}')}\n"


def _other(number: str, draw: random.Random) -> str:
    if number.startswith("0x"):
        return f"0x{draw.getrandbits(4 * len(number) - 8) | 1:0{len(number) - 2}x}"
    return str(draw.randrange(10 ** (len(number) - 1), 10 ** len(number)))


def write(folder: Path, ranks: int, rank_bytes: int) -> list[Path]:
    """One log a rank."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for rank in range(ranks):
        path = folder / f"rank{rank}.log"
        written = 0
        with path.open("w", encoding="ascii") as out:
            for line in lines(rank, random.Random(rank)):
                written += out.write(line)
                if written >= rank_bytes:
                    break
        paths.append(path)
    return paths


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rank-bytes", type=int, default=20_000_000)
    wanted = parser.parse_args()
    write(wanted.folder, wanted.ranks, wanted.rank_bytes)
