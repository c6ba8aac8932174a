"""Hosts that the scheduler of a cluster has taken out of use."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.data.names import some_of
from ncclforensics.frames.columns import text_of
from ncclforensics.rules.finding import Category, Finding, Line, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.grouping import SHOWN

# Beginnings of the states in which Slurm starts no job on a host; `*` behind a state: it does not respond.
OUT_OF_USE = ("down", "drain", "drng", "fail", "inval", "unk", "error")
REASONS = 3  # that a title names


@rule(Category.ENVIRONMENT, Severity.WARNING, of=("slurm_node", "sinfo_row", "sinfo_reason"), role=Role.CONTEXT)
def slurm_hosts_out_of_use(
    slurm_node: pl.DataFrame,
    slurm_state: pl.DataFrame,
    sinfo_row: pl.DataFrame,
    sinfo_reason: pl.DataFrame,
    host_service: pl.DataFrame,
) -> Iterator[Finding]:
    """Slurm lists hosts that are down, drained or do not respond.

    Means: no job starts there, and one that ran there may have ended with its host. The reason, where one stands below
    the state, was written when the host was taken out of use.
    Not when: a host was taken out of use on purpose; an allocated host that drains still runs its job.
    Do: read the reason (scontrol show node HOST); look at slurmd, dmesg -T and nvidia-smi there; when it is mended,
    scontrol update NodeName=HOST State=RESUME.
    Sources: Slurm, src/common/slurm_protocol_defs.c (node_state_string), scontrol and sinfo manuals.
    """
    reasons = host_service.filter(text_of("form") == "drained").select(
        "source", "line", "pos", reason=text_of("subject").str.split(" [").list.first(), state=pl.lit(None, pl.String)
    )
    states = slurm_state.select("source", "line", "pos", reason=pl.lit(None, pl.String), state=text_of("state"))
    nodes = slurm_node.select("source", "pos", host=text_of("node"))
    shown = (
        pl.concat([reasons, states])
        .sort("pos")
        .join_asof(nodes.sort("pos"), on="pos", by="source", check_sortedness=False)
        .filter(pl.col("host").is_not_null())
        .group_by("source", "host", maintain_order=True)
        .agg(pl.col("line").last(), pl.col("state").drop_nulls().last(), pl.col("reason").drop_nulls().last())
    )
    listed = sinfo_row.select("source", "line", host=text_of("node"), state=text_of("state"), reason=text_of("reason"))
    reasoned = sinfo_reason.select("source", "line", host=text_of("numbered_nodes"), reason=text_of("why"))
    listed = pl.concat([listed, reasoned], how="diagonal")
    is_drained = pl.col("state").is_null() & pl.col("reason").is_not_null()
    rows = pl.concat([shown.select(listed.columns), listed]).filter(_is_out("state") | is_drained)
    if rows.is_empty():
        return
    hosts = rows.unique(["host", "state"], maintain_order=True).sort(_is_draining("state"), maintain_order=True)
    names = [
        f"{row['host']} ({row['state'] or 'out of use'}" + f": {row['reason']}" * bool(row["reason"]) + ")"
        for row in hosts.to_dicts()
    ]
    yield Finding(
        f"Slurm has hosts out of use: {some_of(names, REASONS)}",
        "no job starts on them",
        "certain",
        hosts=sorted(set(hosts["host"].to_list())),
        evidence=[Line(row["source"], row["line"]) for row in hosts.head(SHOWN).to_dicts()],
    )


def _parts(column: str) -> pl.Expr:
    return pl.col(column).str.to_lowercase().str.strip_chars("*~#%!$@^-").str.split("+")


def _is_draining(column: str) -> pl.Expr:
    """Whether a host was taken out of use while it runs and responds: after those that failed."""
    is_drained = _parts(column).list.eval(pl.element().str.starts_with("dr")).list.any()
    return (is_drained & ~pl.col(column).str.ends_with("*")).fill_null(False)


def _is_out(column: str) -> pl.Expr:
    state = pl.col(column).str.to_lowercase()
    parts = _parts(column).list
    is_named = parts.eval(pl.any_horizontal(pl.element().str.starts_with(word) for word in OUT_OF_USE)).list.any()
    return (is_named | state.str.ends_with("*")).fill_null(False)
