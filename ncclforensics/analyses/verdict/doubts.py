"""The table of doubts: worlds in which the evidence for an explanation is false, or says nothing.

An explanation is as sure as the rarest world that it needs to be false. A doubt is raised where the evidence makes it
available; its cost says how rare such a world is. Nothing else lowers the certainty of a verdict.
"""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import NamedTuple

from ncclforensics.analyses.verdict.vocabulary import Kind


class Cost(IntEnum):
    """How rare a world is, the most frequent first."""

    ORDINARY = 0  # happens every day: a log that was cut, a job that was copied while it ran
    UNUSUAL = 1  # needs a fault of its own, or a coincidence


class _Row(NamedTuple):
    number: int  # rows of equal text and cost are still different doubts
    cost: Cost
    assumes: str  # what would have to be true, as the end of the sentence `possible only if ...`


_ROWS: list[_Row] = []


def _ordinary(assumes: str) -> _Row:
    _ROWS.append(_Row(len(_ROWS), Cost.ORDINARY, assumes))
    return _ROWS[-1]


def _unusual(assumes: str) -> _Row:
    _ROWS.append(_Row(len(_ROWS), Cost.UNUSUAL, assumes))
    return _ROWS[-1]


class Doubt(Enum):
    """One way in which an explanation may be false although the evidence is as it is."""

    # Lines of the logs.
    LINE_LOST = _ordinary("the line of that call was lost from its log")
    ONLY_LINE_LOST = _unusual("the line of that call, and no other, was lost from its log")
    LINES_MISSING = _ordinary("lines are missing from its log, which is cut or damaged")
    LINES_LEFT_OUT = _ordinary("calls stand among the lines that were left out of these logs")
    LINES_REORDERED = _ordinary("the lines of these logs are not in the order of the calls")
    LINE_DOUBLED = _ordinary("a line was delivered twice")
    LINE_DOUBLED_AND_STOPPED = _unusual("a line was delivered twice, and something else stopped the job")
    LINES_SELECTED = _ordinary("the lines were selected, and those of the calls in which it waits were not")
    ONE_STRAY_LINE = _unusual("a rank of another host stopped at the same call by itself")
    MADE_BEHIND = _ordinary("the others made that call, too, and lines before it were lost")
    # Who is a member, and whose log is here.
    MEMBER_UNSEEN = _unusual("a member of this communicator without a log is the one that stopped or differs")
    MEMBERS_INFERRED = _unusual("these processes share another communicator than their lines suggest")
    MEMBERS_GUESSED = _ordinary("these processes are members of several communicators that nothing tells apart")
    NO_MAJORITY = _unusual("the others are the ones that differ")
    OTHERS_DIFFER = _ordinary("another rank differs, and lines were lost from the log of this one")
    NO_MAJORITY_OF_ORDER = _ordinary("the others are the ones that left the order of the program")
    CALLS_NOT_LOGGED_NOR_MEMBERS = _ordinary("its log would not show the call, nor those of other members")
    LOG_NOT_GIVEN = _ordinary("these logs exist and were only not given")
    POSTED_TOGETHER = _ordinary("each of them posted both messages in one group")
    # Whether the job stood still.
    RUNS_ON = _unusual("the job was running where the logs end")
    ENDED_WITH_DIFFERENCES = _unusual("the calls that differ are no lines that were lost or came twice")
    COPIED_WHILE_RUNNING = _ordinary("the logs were copied or ended while the job was running")
    NETWORK_CAME_LATER = _ordinary("the network stopped the job behind the end of this log")
    HANGS_TOGETHER = _ordinary("all ranks hang in the last call that the logs show")
    LOGS_END_BEFORE = _unusual("the ranks whose logs end earlier hang")
    ABORTED_AFTER_TIME_OUT = _unusual("they aborted after a time-out, whose message is in another file")
    # Other sources.
    SECOND_HAND = _unusual("the report of a waiting rank is of another moment than the others made their calls")
    ONE_MOMENT = _ordinary("the ranks were only late at the moment that this source shows")
    ONE_LAUNCH = _ordinary(
        "it waits for the same as the others, whose hosts launched one call more before they stopped"
    )
    DUMPS_OF_ANOTHER_MOMENT = _unusual("the dumps are of a running job, or of different moments")
    DUMP_NOT_WRITTEN = _ordinary("it waits, too, and only wrote no dump")
    MAY_HAVE_COMPLETED = _ordinary("the links or the GPU of some ranks failed in this call")
    COUNTED_APART = _ordinary("a rank made a call more or less before, so that one number stands for different calls")
    OF_ANOTHER_RUN = _ordinary("this source is of another run than NCCL's lines")
    SOURCES_DISAGREE = _unusual("the source that names other ranks is right")
    SOURCES_CONTRADICT = _ordinary("the sources that contradict it are right, which are as many")
    STACKS_DISAGREE = _ordinary("its stack is right, and its log lacks the last lines")
    GPU_WAITS = _unusual("its GPU waits for a call whose line its log lacks")
    NO_MISMATCH_IN_RAS = _ordinary("it made the call behind the end of its log, as the RAS report counts")
    CALL_WAITS_OR_COMPUTES = _ordinary("it computes, or waits for something else than the others")
    OTHER_GROUP = _ordinary("its call belongs to another process group")
    SILENT_MEMBER = _ordinary("a rank that reports no time-out did not make the call")
    UNSEEN_MESSAGE = _ordinary("it waits for another rank in a message that this source does not show")
    # Processes that ended.
    EXIT_CODE_ALONE = _unusual("its exit code is a consequence, and another process ended before")
    SEVERAL_ENDED = _unusual("one of these ended first, and the others followed")
    PROCESS_ID_REUSED = _unusual("the line of the kernel is about another process with the same number")
    OTHERS_AWAITED = _unusual("the ranks that the others wait for stopped by themselves")
    NO_REPORT_OF_END = _unusual("its process did not end, and its last lines were lost")
    ALL_ENDED = _ordinary("all ranks failed by themselves")
    NO_TRACE_OF_END = _unusual("the absent process runs, and did not answer for the moment")
    # Init.
    REASON_OF_ANOTHER = _unusual("the refusal concerns other ranks than these")
    FAULT_FOLLOWED = _unusual("the fault in init followed from another")
    FAULT_SURVIVED = _ordinary("NCCL survived this error, and the log ends among its lines")
    INIT_GOES_ON = _unusual("the init was going on where the logs end")
    INIT_COMPLETED = _ordinary("the init completed, and the lines that show it are not in these logs")
    TRANSPORT_SURVIVED = _unusual("the failures of the transport followed from another fault")
    # What PyTorch compared or counted.
    PARTLY_COMPARED = _unusual("a rank that was not compared differs")
    OTHER_TEXT = _unusual("another rank, of which this text says nothing, failed or stopped first")
    # What step lines tell.
    WORK_CHANGED = _unusual("a step holds more work since then, which these lines do not show")
    WORK_DIFFERS = _unusual("these steps hold more work than the others, as they should")
    FEW_STEP_LINES = _ordinary("these steps were slow by chance, which so few lines do not exclude")
    STEPS_DRIFT = _ordinary("the length of steps drifts, and returns")
    RESTARTED = _ordinary("the job was started with another configuration there")
    STALLS_BY_CHANCE = _ordinary("so few long steps stand at equal distances by chance")
    SLOW_FROM_THE_BEGINNING = _ordinary("the job is slow since its first step")
    # What traces of slow jobs tell.
    NAMED_BY_CHANCE = _unusual("work is uneven by chance, and these were the last in most of the few steps")
    FEW_STALLS = _ordinary("these stalls have no common cause, and chance made one rank the last in most of them")
    FEW_STEPS = _ordinary("these steps are no fair sample: there are too few")
    RANK_NOT_TRACED = _ordinary("the others wait for a rank of which there is no trace")
    ENDS_APART = _unusual("calls that end at different times on their members hide another cause")
    GROUPS_ASSUMED = _unusual("the calls belong to other groups than that of all ranks")
    ONLY_CALLS_TIMED = _ordinary("it waits itself between these calls, of which alone the times are known")
    HOST_TIMES = _ordinary("the clock of its host is ahead, or its host is late and its GPU is not")
    OTHER_TIMES = _unusual("it is slow at other times than those of these steps")
    SLOW_BY_DESIGN = _unusual("this network is as slow as that by design")
    OTHER_LOAD = _unusual("the program moves more or other data since then, or overlaps its calls otherwise")
    SHARED_WITH_KERNELS = _ordinary("kernels that compute beside these calls slow them, as they share GPU and links")
    WAITS_UNSPLIT = _ordinary("in messages and all-to-all of unequal sizes ranks wait for uneven work, and move little")
    PROFILED = _ordinary("the profiler slows the host, which launches kernels in time without it")
    AS_PROGRAMMED = _ordinary("the program gives its ranks unequal work on purpose")
    # An answer that names nothing.
    OPEN = _unusual("further evidence decides it")

    @property
    def cost(self) -> Cost:
        """How rare a world is in which it holds."""
        return self.value.cost

    @property
    def rival(self) -> Kind:
        """The fault in such a world: none if the job ran, one that the doubt names, else one that nothing names."""
        if self in _FAULTS:
            return _FAULTS[self]
        return Kind.NO_HANG if self in _RUNNING else Kind.UNDECIDABLE

    @property
    def assumes(self) -> str:
        """What would have to be true."""
        return self.value.assumes


_FAULTS = {Doubt.SILENT_MEMBER: Kind.LAGGING, Doubt.COUNTED_APART: Kind.MISMATCH}
# In these worlds there is no fault.
_RUNNING = {
    Doubt.RUNS_ON, Doubt.COPIED_WHILE_RUNNING, Doubt.ONE_MOMENT, Doubt.INIT_COMPLETED, Doubt.INIT_GOES_ON,
    Doubt.DUMPS_OF_ANOTHER_MOMENT,
}  # fmt: skip
