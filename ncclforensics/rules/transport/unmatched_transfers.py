"""Two ends of one transfer that do not go together, as the transport itself finds out."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.rules.finding import Category, Finding, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.environment_settings import environment_settings
from ncclforensics.rules.shared.grouping import shown, together

SIZES = ["size_mismatch", "ib_size_mismatch", "ib_bad_receive"]
CHUNKING = ["NCCL_ALGO", "NCCL_PROTO", "NCCL_BUFFSIZE", "NCCL_NTHREADS", "NCCL_P2P_NET_CHUNKSIZE", "NCCL_MAX_NCHANNELS"]


@rule(Category.COLLECTIVE_MISMATCH, Severity.ERROR, of=("failure",), hang=True)
def coll_size_mismatch_at_transport(
    failure: pl.DataFrame, verdict: pl.DataFrame, setting: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """A rank got a message of another size than it had posted a buffer for.

    Means: the two ranks do not run the same call, or cut it into other pieces: the program gives them other counts or
    datatypes, or the environment gives them other values of NCCL_BUFFSIZE, NCCL_ALGO or NCCL_PROTO.
    Not when: the calls of the ranks are in the logs and differ, which is a finding of its own and names the call; the
    message is one of bootstrap, which tells of different builds.
    Do: NCCL_DEBUG_SUBSYS=INIT,ENV,COLL on all ranks; compare the counts of both ranks, then their NCCL variables.
    Sources: nccl#969, nccl#531, nccl#268, nccl#605.
    """
    if not verdict.filter(pl.col("verdict") == "collective-mismatch").is_empty():
        return
    rows = failure.filter(pl.col("form").is_in(SIZES)).sort("source", "line")
    if rows.is_empty():
        return
    first = rows.row(0, named=True)
    here = first["received"] if first["received"] is not None else first["remote_size"]
    there = first["expected"] if first["expected"] is not None else first["local_size"]
    said = environment_settings(setting).filter(pl.col("variable").is_in(CHUNKING))
    unequal = said.filter(pl.col("value").n_unique().over("variable") > 1)
    names = ", ".join(sorted(unequal["variable"].unique()))
    detail = f"{here} bytes came where {there} were expected" if here and there else "the sizes of the two ends differ"
    detail += f"; {names} differs over ranks" if names else "; no line shows the calls of both ranks"
    finding = together(rows, rank, "{who} got a message of another size than expected", detail, "certain")
    finding.evidence = finding.evidence[:3] + shown(unequal, "differs")[:2]
    yield finding


@rule(Category.COLLECTIVE_MISMATCH, Severity.ERROR, of=("usage",), hang=True)
def p2p_self_unmatched(usage: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """A rank sends to itself and does not receive from itself in the same group, or the reverse.

    Means: NCCL refuses the group: a send to oneself is a copy, and both of its ends must be in one group.
    Not when: the message goes to another rank, which may post its end later.
    Do: put both calls between the same ncclGroupStart and ncclGroupEnd, or leave out the message to oneself.
    Sources: nccl: src/enqueue.cc; NCCL user guide, point-to-point communication.
    """
    for form, verb, other in (("self_send", "sends to", "receive"), ("self_recv", "receives from", "send")):
        rows = usage.filter(pl.col("form") == form)
        if not rows.is_empty():
            yield together(
                rows,
                rank,
                f"{{who}} {verb} itself without the matching {other}",
                "NCCL refuses such a group",
                "certain",
            )
