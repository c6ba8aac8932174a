"""The words of a verdict: what it may be, how sure, how calls differ, what it rests on, and what shows it."""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import Self


class Kind(StrEnum):
    """What went wrong, as the contract's `hang.verdict`, and in words."""

    text: str

    def __new__(cls, value: str, text: str) -> Self:
        """Give a verdict its words."""
        kind = str.__new__(cls, value)
        kind._value_, kind.text = value, text
        return kind

    INIT_FAILED = "init-failed", "an init that failed"
    RANK_DIED = "rank-died", "the end of a process"
    MISMATCH = "collective-mismatch", "a call that differs"
    DEADLOCK = "cross-communicator-deadlock", "calls in another order"
    LAGGING = "lagging-ranks", "a rank behind the others"
    UNMATCHED = "p2p-unmatched", "a message without its counterpart"
    RANK_MISSING = "rank-missing", "a rank that never came"
    INIT_INCOMPLETE = "init-incomplete", "an init that is not completed"
    STUCK_TOGETHER = "stuck-together", "a fault of the network or of a GPU"
    UNDECIDABLE = "undecidable", "another fault"
    NO_HANG = "no-hang", "no fault"


class Certainty(StrEnum):
    """How sure a verdict is; follows from the cheapest rival."""

    CERTAIN = "certain"
    LIKELY = "likely"
    POSSIBLE = "possible"


class How(StrEnum):
    """How the culprits differ from the others."""

    NOT_SAID = ""
    SKIPPED = "skipped"
    EXTRA = "extra"
    SWAPPED = "swapped"
    ARGUMENTS = "arguments"
    ANOTHER = "another"  # another call in its place
    COMPARED = "compared"  # by PyTorch, before it made the call
    UNFINISHED = "unfinished"  # made the call and did not complete it, and others did
    NOT_BEGUN = "not-begun"  # its GPU did not begin the call, and those of the others did
    LATE = "late"  # made the call when the others had given up
    LEFT = "left"  # ended with exit code 0


class Basis(StrEnum):
    """What a verdict rests on, if not on calls in logs."""

    LINES = ""
    STACKS = "stacks"
    DUMPS = "dumps"
    COUNTERS = "counters"  # of work: some ranks completed the call, and others did not


class Detail(StrEnum):
    """What a verdict says beyond its kind, for those who advise what to do."""

    NOTHING = ""
    SAME_GPU = "same-gpu"
    SAME_NUMBER = "same-number"
    OTHER_SIZE = "other-size"
    OTHER_VERSION = "other-version"  # of NCCL
    UNCONNECTED = "unconnected"  # no transport connects ranks
    UNCONNECTED_LATE = "unconnected-late"  # the same, at the first call behind init
    FAULT_IN_INIT = "fault-in-init"  # a rank failed, and NCCL did not refuse the arguments
    LEFT_BY_SOME = "left-by-some"  # a call that did not complete on all ranks that made it
    UNNAMED_FAULT = "unnamed-fault"  # the same, where no line names the fault


class Sign(StrEnum):
    """What shows that a job stood still or failed, as in the contract's `standstill.by`."""

    WATCHDOG = "watchdog"
    TIMEOUT = "timeout"
    RAS = "ras"
    STACKS = "stacks"
    ABORT = "abort"
    SILENCE = "silence"
    FAILURE = "failure"
    LOST_CONNECTION = "lost-connection"
    CAPTURE = "capture"
    STALLED = "stalled"  # capture ended the ranks because none made progress
    STATED = "stated"  # a program says that it makes no progress
    LOOKS = "two-looks"  # no rank made a call between them


class Source(StrEnum):
    """A source of evidence on the calls of a job, in words."""

    LINES = "NCCL's lines"
    DUMPS = "the Flight Recorder dumps"
    WATCHDOGS = "the watchdogs' messages"
    STACKS = "the stacks"
    REPORTS = "the RAS reports"
    EXITS = "the reports on ended processes"
    INSPECTOR = "NCCL's Inspector"
    PROFILER = "the trace of NCCL's profiler"

    @property
    def shows(self) -> str:
        """Begin a sentence on what it shows."""
        return f"{self} {'shows' if self in (Source.INSPECTOR, Source.PROFILER) else 'show'}"


# Verdicts on ranks that did not make a call.
OF_ABSENCE = (Kind.LAGGING, Kind.UNMATCHED)
# Those that hold if the last calls are known.
BY_ENDS = (*OF_ABSENCE, Kind.DEADLOCK)
# Those that compare where the logs end: they hold only if the job stood still.
FROM_ENDS = (*BY_ENDS, Kind.INIT_INCOMPLETE, Kind.RANK_MISSING)


class Claim(IntEnum):
    """What the sources of a job show: that it failed or stood still, or that it did not.

    The order is the one of causes: whatever is behind a claim may follow from what is before it, and not the other way
    round. A refused init makes processes end; a call that differs makes others wait; nobody refuses an init because a
    rank is behind. So the explanation that the first of a job's claims suggests leaves the fewest unexplained.
    `text` is the end of sentences such as `that leaves unexplained that ...`.
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
