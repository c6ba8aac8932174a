"""The rank of a file in the folders of torchrun: `RUN_ID/attempt_0/2/stderr.log` is of local rank 2 of one agent."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

import polars as pl

ATTEMPT = "attempt_"


def ranks_of_files(paths: Mapping[int, str], tagged: Iterable[pl.DataFrame]) -> dict[int, int]:
    """Return the rank of each file (input -> rank) of agents of which a line names the rank of one of its files.

    Without such a line, the agent may be that of any node. `tagged`: rows with the columns `source` and `rank`. Source:
    torch/distributed/elastic/multiprocessing/api.py (DefaultLogsSpecs): run id, attempt, local rank.
    """
    local_ranks: dict[str, dict[int, int]] = defaultdict(dict)
    for source, path in paths.items():
        *folders, _ = path.split("/")
        if len(folders) > 2 and folders[-2].startswith(ATTEMPT) and folders[-1].isdecimal():
            local_ranks["/".join(folders[:-2])][source] = int(folders[-1])
    return ranks_of_agents(local_ranks, tagged)


def ranks_of_agents(local_ranks: Mapping[str, Mapping[int, int]], tagged: Iterable[pl.DataFrame]) -> dict[int, int]:
    """Return the rank of each file of agents, of which the local ranks are known: agent -> input -> local rank."""
    if not local_ranks:
        return {}
    none = pl.DataFrame(schema={"source": pl.Int32(), "rank": pl.Int32()})
    pieces = [none, *(rows.select(pl.col("source", "rank").cast(pl.Int32)) for rows in tagged)]
    named = pl.concat(pieces).drop_nulls().unique()
    found: dict[int, int] = {}
    for of_agent in local_ranks.values():
        first = {rank - of_agent[source] for source, rank in named.iter_rows() if source in of_agent}
        if len(first) == 1 and min(first) >= 0:
            found |= {source: local + min(first) for source, local in of_agent.items()}
    return found
