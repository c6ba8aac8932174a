"""What else was considered, in words: claims, faults, and why a fault does not explain a claim."""

from __future__ import annotations

from ncclforensics.analyses.verdict.claims import Claim
from ncclforensics.analyses.verdict.vocabulary import Kind

# The ends of sentences such as `that leaves unexplained that ...`.
CLAIMS = {
    Claim.REFUSED: "NCCL refused to create a communicator",
    Claim.FAULT_IN_INIT: "a rank failed while it created a communicator",
    Claim.CALLS_DIFFER: "ranks made different calls in the same place",
    Claim.CALLS_COMPARED: "PyTorch found different calls or models",
    Claim.RECORDED_DIFFERENCE: "the dumps show different calls in the same place",
    Claim.RECORDED_WAIT: "the dumps show for which ranks the others wait",
    Claim.COUNTED_WAIT: "the watchdogs counted fewer calls on some ranks",
    Claim.ENDED: "a process ended by itself",
    Claim.ABSENT_AT_BARRIER: "a barrier names ranks that did not come",
    Claim.LOST: "ranks lost their connection to a process that reports nothing",
    Claim.ABSENT_FROM_STORE: "processes never came to the store",
    Claim.INIT_UNFINISHED: "an init was begun and not completed",
    Claim.LINES_DIFFER: "calls differ as where lines are lost",
    Claim.CALL_MISSING: "a rank did not make a call that others are in",
    Claim.OF_ANOTHER_RUN: "another source shows ranks that are behind",
    Claim.RECORDED_OPEN: "the dumps show open calls",
    Claim.TIMED_OUT: "watchdogs timed out",
    Claim.TRANSPORT_FAILED: "connections, transfers or a GPU failed",
    Claim.CALL_LACKING: "one log lacks a call among equal ones",
    Claim.REPORTS_DIFFER: "ranks differ in the RAS reports",
    Claim.CALLS_FAILED: "calls timed out or lost their connection",
    Claim.STORE_FAILED: "ranks waited for the store",
}
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
