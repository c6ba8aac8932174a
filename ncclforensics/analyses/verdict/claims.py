"""Claims of failure: what the sources of a job show, each as strong as what it takes to explain it.

The order is the one of causes: whatever is behind a claim may follow from what is before it, and not the other way
round. A refused init makes processes end; a call that differs makes others wait; nobody refuses an init because a rank
is behind. So the explanation that suggests itself by the first of a job's claims leaves the fewest unexplained.
"""

from __future__ import annotations

from enum import IntEnum


class Claim(IntEnum):
    """What shows that a job failed or stood still, or that it did not."""

    REFUSED = 0  # NCCL states why it creates no communicator
    FAULT_IN_INIT = 1  # a rank failed in an init by itself
    CALLS_DIFFER = 2  # the lines of calls show another call in the same place
    CALLS_COMPARED = 3  # PyTorch compared calls or models, and found a difference
    RECORDED_DIFFERENCE = 4  # Flight Recorder dumps show another call in the same place
    RECORDED_WAIT = 5  # they show for which ranks the others wait
    COUNTED_WAIT = 6  # watchdogs counted fewer works on some ranks
    ENDED = 7  # a process ended by itself
    ABSENT_AT_BARRIER = 8  # a barrier names who did not come
    LOST = 9  # ranks lost their connection to a process that is silent
    ABSENT_FROM_STORE = 10  # the store counts fewer clients than it expects
    INIT_UNFINISHED = 11  # ranks are inside an init
    LINES_DIFFER = 12  # the lines of calls differ as where lines are lost
    CALL_MISSING = 13  # a log lacks a call that the others show
    OF_ANOTHER_RUN = 14  # sources that may be of another run show a difference or a wait
    RECORDED_OPEN = 15  # dumps show open calls, and no rank that is behind
    TIMED_OUT = 16  # watchdogs timed out in a call that is counted on all who speak
    TRANSPORT_FAILED = 17  # the network or a GPU failed behind equal calls
    CALL_LACKING = 18  # one log lacks a call among equal ones
    REPORTS_DIFFER = 19  # RAS reports, of which no other source says who is behind
    CALLS_FAILED = 20  # calls of gloo timed out or lost their connection
    # What shows no failure.
    SUCCESS = 21  # the program reports its end
    ALL_OVER = 22  # dumps in which every call is over
    NO_CALLS = 23  # logs that show no calls
    RETURNED = 24  # NCCL returned an error after the last call
    LOG_ABSENT = 25  # ranks without a log, which the others may wait for
    STORE_FAILED = 26  # ranks waited for the store, or did not reach it: a rank that ended lets others wait there, too
    QUIET = 27  # nothing else
