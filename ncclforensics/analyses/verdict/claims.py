"""Claims of failure: what the sources of a job show, each as strong as what it takes to explain it.

The order is the one of causes: whatever is behind a claim may follow from what is before it, and not the other way
round. A refused init makes processes end; a call that differs makes others wait; nobody refuses an init because a rank
is behind. So the explanation that suggests itself by the first of a job's claims leaves the fewest unexplained.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Self


class Claim(IntEnum):
    """What shows that a job failed or stood still, or that it did not.

    Numbered in this order; `text` is the end of sentences such as `that leaves unexplained that ...`.
    """

    text: str

    def __new__(cls, text: str) -> Self:
        """Number a claim."""
        claim = int.__new__(cls, len(cls.__members__))
        claim._value_, claim.text = len(cls.__members__), text
        return claim

    REFUSED = "NCCL refused to create a communicator"
    FAULT_IN_INIT = "a rank failed while it created a communicator"
    CALLS_DIFFER = "ranks made different calls in the same place"
    CALLS_COMPARED = "PyTorch found different calls or models"
    RECORDED_DIFFERENCE = "the dumps show different calls in the same place"
    RECORDED_WAIT = "the dumps show for which ranks the others wait"
    COUNTED_WAIT = "the watchdogs counted fewer calls on some ranks"
    ENDED = "a process ended by itself"
    ABSENT_AT_BARRIER = "a barrier names ranks that did not come"
    LOST = "ranks lost their connection to a process that reports nothing"
    ABSENT_FROM_STORE = "processes never came to the store"
    INIT_UNFINISHED = "an init was begun and not completed"
    LINES_DIFFER = "calls differ as where lines are lost"
    CALL_MISSING = "a rank did not make a call that others are in"
    OF_ANOTHER_RUN = "another source shows ranks that are behind"
    RECORDED_OPEN = "the dumps show open calls"
    TIMED_OUT = "watchdogs timed out"
    TRANSPORT_FAILED = "connections, transfers or a GPU failed"
    CALL_LACKING = "one log lacks a call among equal ones"
    REPORTS_DIFFER = "ranks differ in the RAS reports"
    CALLS_FAILED = "calls timed out or lost their connection"
    # What shows no failure.
    SUCCESS = "the program reports its end"
    ALL_OVER = "every call in the dumps is over"
    NO_CALLS = "the logs show no calls"
    RETURNED = "NCCL returned an error after the last call"
    LOG_ABSENT = "ranks without a log may be those that the others wait for"
    STORE_FAILED = "ranks waited for the store"  # a rank that ended lets others wait there, too
    QUIET = "nothing else is shown"
