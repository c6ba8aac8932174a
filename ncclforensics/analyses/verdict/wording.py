"""What else was considered, in words: faults, and why one does not explain what shows another."""

from __future__ import annotations

from ncclforensics.analyses.verdict.vocabulary import Kind

FAULTS = {
    Kind.INIT_FAILED: "an init that failed",
    Kind.RANK_DIED: "the end of a process",
    Kind.MISMATCH: "a call that differs",
    Kind.DEADLOCK: "calls in another order",
    Kind.LAGGING: "a rank behind the others",
    Kind.UNMATCHED: "a message without its counterpart",
    Kind.RANK_MISSING: "a rank that never came",
    Kind.INIT_INCOMPLETE: "an init that is not completed",
    Kind.STUCK_TOGETHER: "a fault of the network or of a GPU",
    Kind.NO_HANG: "no fault",
    Kind.UNDECIDABLE: "another fault",
}
# The first fault does not explain what shows the second; `{ranks}` are those that the second is about.
CANNOT = {
    (Kind.STUCK_TOGETHER, Kind.LAGGING): "would stop ranks in a call that all of them made, which {ranks} did not",
    (Kind.STUCK_TOGETHER, Kind.UNMATCHED): "would stop a message that both sides posted, which {ranks} did not",
    (Kind.STUCK_TOGETHER, Kind.MISMATCH): "does not change which calls {ranks} made",
    (Kind.STUCK_TOGETHER, Kind.DEADLOCK): "does not change the order in which {ranks} made calls",
    (Kind.LAGGING, Kind.STUCK_TOGETHER): "would lack the call that all ranks made",
}


def fault_text(fault: Kind, ranks: str) -> str:
    """Name a fault and the ranks that it would be on.

    >>> fault_text(Kind.RANK_DIED, "rank 3")
    'the end of a process (rank 3)'
    """
    return f"{FAULTS[fault]} ({ranks})" if ranks else FAULTS[fault]
