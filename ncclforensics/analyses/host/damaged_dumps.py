"""Damage in the output of tools: truncated files, missing rows, values that cannot be read."""

from __future__ import annotations

import polars as pl

from ncclforensics.frames.registry import analysis

# Columns of every frame on damage.
PROBLEM = {
    "source": pl.Int32(),
    "line": pl.Int32(),
    "problem": pl.String(),
}


@analysis(PROBLEM, of=("dump_problem", "fabric_problem", "host_problem"))
def dump_damage(dump_problem: pl.DataFrame, fabric_problem: pl.DataFrame, host_problem: pl.DataFrame) -> pl.DataFrame:
    """One row per problem in a dump of any kind, in the order of lines."""
    problems = [frame.select(list(PROBLEM)) for frame in (dump_problem, fabric_problem, host_problem)]
    return pl.concat(problems).sort("source", "line", maintain_order=True)
