"""Make generated logs look like those of a job: other buffers in every call, and lines of the application between."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path

BUFFERS = re.compile(r"sendbuff 0x[0-9a-f]+ recvbuff 0x[0-9a-f]+")
BETWEEN = 10  # lines of NCCL for each line of the application
APPLICATION = (
    "iteration {n} | loss {x:.6f} | grad norm {y:.3f} | learning rate 3.0E-04",
    "2026-03-02 11:04:{s:02d},{n:03d} INFO train.py:212: step {n} took {y:.3f} s",
    "[dataloader] shard {n} of 4096, {s} batches buffered",
)


def make_lifelike(folder: Path, seed: int = 1) -> None:
    """Change all logs of a folder: no two calls have the same buffers, as under an allocator that caches."""
    draw = random.Random(seed)
    for path in sorted(folder.iterdir()):
        changed = path.with_suffix(".lifelike")
        with path.open(encoding="utf-8") as log, changed.open("w", encoding="utf-8") as out:
            out.writelines(_lifelike(log, draw))
        changed.replace(path)


def _lifelike(lines: Iterator[str], draw: random.Random) -> Iterator[str]:
    for number, line in enumerate(lines):
        send, receive = draw.getrandbits(40), draw.getrandbits(40)
        yield BUFFERS.sub(f"sendbuff 0x7f{send:010x} recvbuff 0x7f{receive:010x}", line)
        if number % BETWEEN == BETWEEN - 1 and line.endswith("\n"):
            form = APPLICATION[draw.randrange(len(APPLICATION))]
            yield (
                form.format(n=draw.randrange(1000), x=draw.random(), y=10 * draw.random(), s=draw.randrange(60)) + "\n"
            )
