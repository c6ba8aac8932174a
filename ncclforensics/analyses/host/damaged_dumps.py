"""What is broken in dumps, whichever tool wrote them."""

from __future__ import annotations

import polars as pl

from ncclforensics.frames.registry import analysis

# Columns of every frame that names what is broken.
PROBLEM = {
    "source": pl.Int32(),
    "line": pl.Int32(),
    "problem": pl.String(),
}


@analysis(PROBLEM, of=("dump_problem", "fabric_problem", "host_problem"))
def dump_damage(dump_problem: pl.DataFrame, fabric_problem: pl.DataFrame, host_problem: pl.DataFrame) -> pl.DataFrame:
    """Problems of all sources, in the order of their lines."""
    told = [each.select(list(PROBLEM)) for each in (dump_problem, fabric_problem, host_problem)]
    return pl.concat(told).sort("source", "line", maintain_order=True)
