"""Ranks that print other calls than the rest before PyTorch compares them."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.data.names import ranks_text
from ncclforensics.rules.finding import Category, Finding, Line, Role, Severity
from ncclforensics.rules.registry import rule

SHOWN = 4  # ranks


@rule(Category.LAGGING_RANK, Severity.INFO, of=("announced_position",), hang=True, role=Role.CONTEXT)
def torch_rank_announced_less(announced_position: pl.DataFrame) -> Iterator[Finding]:
    """Some ranks did not announce the call that the others announced last.

    Means: with TORCH_DISTRIBUTED_DEBUG=DETAIL a rank prints each call, and then waits for the others in a barrier. The
    ranks that print no further call are outside of torch.distributed, or have ended.
    Not when: the logs were copied while the job ran, for ranks print a call at slightly different times; the logs end
    at different places; there are several process groups, which these lines do not tell apart.
    Do: look again in a minute; take the stack of the named ranks.
    Sources: torch/csrc/distributed/c10d/ProcessGroupWrapper.cpp, runCollectiveChecks, of torch 1.10 to 2.15.
    """
    newest = max(announced_position["sequence"].to_list(), default=0)
    leading = announced_position.filter(pl.col("sequence") == newest)
    lagging = announced_position.filter(pl.col("sequence") < newest)
    if lagging.is_empty():
        return
    if lagging.height >= leading.height:
        ends = announced_position.sort("rank").head(SHOWN)
        last = pl.format("rank {} {} {}", "rank", "operation", "sequence")
        title = f"ranks announced different calls to PyTorch last: {', '.join(ends.select(last).to_series())}"
        detail = "no majority tells which are behind, and the lines do not name the process groups"
        yield Finding(title, detail, "possible", evidence=[Line(row["source"], row["line"]) for row in ends.to_dicts()])
        return
    call, own = leading.row(0, named=True), lagging.row(0, named=True)
    ranks = sorted(lagging["rank"].to_list())
    yield Finding(
        title=f"{ranks_text(ranks)} announced no call {newest} to PyTorch, and the others did",
        detail=f"{ranks_text(sorted(leading['rank'].to_list()))} announced {call['operation']} {newest}; the last of"
        f" {ranks_text([own['rank']])} is {own['operation']} {own['sequence']}",
        certainty="possible",
        ranks=ranks,
        evidence=[
            *(Line(row["source"], row["line"], "lagging") for row in lagging.head(2).to_dicts()),
            Line(call["source"], call["line"], "the others"),
        ],
    )
