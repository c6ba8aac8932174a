"""Two ends of a transfer that do not match, as the transport detects it."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.rules.finding import Category, Finding, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.environment_settings import environment_settings
from ncclforensics.rules.shared.grouping import evidence_lines, group_finding

SIZES = ["size_mismatch", "ib_size_mismatch", "ib_bad_receive"]
CHUNKING = ["NCCL_ALGO", "NCCL_PROTO", "NCCL_BUFFSIZE", "NCCL_NTHREADS", "NCCL_P2P_NET_CHUNKSIZE", "NCCL_MAX_NCHANNELS"]


@rule(Category.COLLECTIVE_MISMATCH, Severity.ERROR, of=("failure",), hang=True)
def coll_size_mismatch_at_transport(
    failure: pl.DataFrame, verdict: pl.DataFrame, setting: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """A rank received a message of another size than its buffer.

    Means: the two ranks do not run the same call, or split it into different chunks: their counts or datatypes differ,
    or their values of NCCL_BUFFSIZE, NCCL_ALGO or NCCL_PROTO.
    Not when: the logs show that the calls of the ranks differ, which is a finding of its own and names the call; the
    message is one of bootstrap, which shows different builds.
    Do: run with NCCL_DEBUG_SUBSYS=INIT,ENV,COLL on all ranks; compare their counts, then their NCCL variables.
    Sources: nccl#969, nccl#531, nccl#268, nccl#605.
    """
    if not verdict.filter(pl.col("verdict") == "collective-mismatch").is_empty():
        return
    rows = failure.filter(pl.col("form").is_in(SIZES)).sort("source", "line")
    if rows.is_empty():
        return
    first = rows.row(0, named=True)
    received = first["received"] if first["received"] is not None else first["remote_size"]
    expected = first["expected"] if first["expected"] is not None else first["local_size"]
    settings = environment_settings(setting).filter(pl.col("variable").is_in(CHUNKING))
    unequal = settings.filter(pl.col("value").n_unique().over("variable") > 1)
    names = ", ".join(sorted(unequal["variable"].unique()))
    detail = f"{received} bytes instead of {expected}" if received and expected else "the sizes at the two ends differ"
    detail += f"; {names} differs between ranks" if names else "; these logs do not show the calls of both ranks"
    finding = group_finding(rows, rank, "{processes} received a message of an unexpected size", detail, "certain")
    finding.evidence = finding.evidence[:3] + evidence_lines(unequal, "differs")[:2]
    yield finding


@rule(Category.COLLECTIVE_MISMATCH, Severity.ERROR, of=("usage",), hang=True)
def p2p_self_unmatched(usage: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """A rank sends to itself and does not receive from itself in the same group, or the reverse.

    Means: NCCL refuses the group: Send and Recv of a rank with itself must be in one group.
    Not when: the peer is another rank, which may call later.
    Do: put both calls between the same ncclGroupStart and ncclGroupEnd, or omit the message.
    Sources: nccl: src/enqueue.cc; NCCL user guide, point-to-point communication.
    """
    for form, verb, other in (("self_send", "sends to", "receive"), ("self_recv", "receives from", "send")):
        rows = usage.filter(pl.col("form") == form)
        if not rows.is_empty():
            yield group_finding(
                rows,
                rank,
                f"{{processes}} {verb} itself without the matching {other}",
                "NCCL refuses such a group",
                "certain",
            )
