"""The table of doubts: worlds in which the evidence for an explanation is false, or says nothing.

An explanation is as sure as the rarest world that it needs to be false. A doubt is raised where the evidence makes it
available; its cost says how rare such a world is. Nothing else lowers the certainty of a verdict.
"""

from __future__ import annotations

from enum import Enum, IntEnum, unique

from ncclforensics.analyses.verdict.vocabulary import Kind


class Cost(IntEnum):
    """How rare a world is, the most frequent first."""

    ORDINARY = 0  # happens every day: a log that was cut, a job that was copied while it ran
    UNUSUAL = 1  # needs a fault of its own, or a coincidence


@unique
class Doubt(Enum):
    """One way in which an explanation may be false although the evidence is as it is.

    How rare it is, and what would have to be true, as the end of the sentence `possible only if ...`.
    """

    # Lines of the logs.
    LINE_LOST = Cost.ORDINARY, "the line of that call was lost from its log"
    ONLY_LINE_LOST = Cost.UNUSUAL, "the line of that call, and no other, was lost from its log"
    LINES_MISSING = Cost.ORDINARY, "lines are missing from its log, which is cut or damaged"
    LINES_LEFT_OUT = Cost.ORDINARY, "calls stand among the lines that were left out of these logs"
    LINES_REORDERED = Cost.ORDINARY, "the lines of these logs are not in the order of the calls"
    LINE_DOUBLED = Cost.ORDINARY, "a line was delivered twice"
    LINE_DOUBLED_AND_STOPPED = Cost.UNUSUAL, "a line was delivered twice, and something else stopped the job"
    LINES_AS_WRITTEN = Cost.ORDINARY, "no line was delivered twice or moved, and another rank made other calls"
    LINES_SELECTED = Cost.ORDINARY, "the lines were selected, and those of the calls in which it waits were not"
    SECOND_FAULT = Cost.UNUSUAL, "another rank is at fault by itself at the same time"
    MADE_BEHIND = Cost.ORDINARY, "the others made that call, too, and lines before it were lost"
    # Who is a member, and whose log is here.
    MEMBER_UNSEEN = Cost.UNUSUAL, "a member of this communicator without a log is the one that stopped or differs"
    MEMBERS_INFERRED = Cost.UNUSUAL, "these processes share another communicator than their lines suggest"
    MEMBERS_GUESSED = Cost.ORDINARY, "these processes are members of several communicators that nothing tells apart"
    NO_MAJORITY = Cost.UNUSUAL, "the others are the ones that differ"
    RIGHT_AND_WRONG = Cost.UNUSUAL, "one of them made the right call, which no further rank shows"
    OTHERS_DIFFER = Cost.ORDINARY, "another rank differs, and lines were lost from the log of this one"
    NO_MAJORITY_OF_ORDER = Cost.ORDINARY, "the others are the ones that left the order of the program"
    CALLS_NOT_LOGGED = Cost.UNUSUAL, "it made this call, and its log shows none, as with another NCCL_DEBUG_SUBSYS"
    CALLS_HIDDEN = (
        Cost.ORDINARY,
        "it made calls like the others, and its log shows none, as with another NCCL_DEBUG_SUBSYS",
    )
    LOG_NOT_GIVEN = Cost.ORDINARY, "the lines of these ranks exist, and were only not given"
    POSTED_TOGETHER = Cost.ORDINARY, "each of them posted both messages in one group"
    # Whether the job stood still.
    RUNS_ON = Cost.UNUSUAL, "the job was running where the logs end"
    MET_AGAIN = Cost.UNUSUAL, "the job was running, and its ranks were met at the same lines again"
    ABORTED_IN_ORDER = Cost.UNUSUAL, "the others aborted their communicators at an orderly end"
    ENDED_WITH_DIFFERENCES = Cost.UNUSUAL, "the calls that differ are no lines that were lost or came twice"
    ENDED_WITHOUT_DIFFERENCE = Cost.UNUSUAL, "the lines that differ were lost or came twice"
    COPIED_WHILE_RUNNING = Cost.ORDINARY, "the logs were copied or ended while the job was running"
    NETWORK_CAME_LATER = Cost.ORDINARY, "the network stopped the job behind the end of this log"
    NETWORK_OF_ITS_HOST = Cost.UNUSUAL, "the network of its host stopped the job behind the end of this log"
    HANGS_TOGETHER = Cost.ORDINARY, "all ranks hang in the last call that the logs show"
    LOGS_END_BEFORE = Cost.UNUSUAL, "a rank hangs whose log ends before the end of the run"
    ABORTED_AFTER_TIME_OUT = Cost.UNUSUAL, "they aborted after a time-out, whose message is in another file"
    # Other sources.
    SECOND_HAND = Cost.UNUSUAL, "the report of a waiting rank is of another moment than the others made their calls"
    ONE_MOMENT = Cost.ORDINARY, "the ranks were only late at the moment that this source shows"
    ONE_LAUNCH = (
        Cost.ORDINARY,
        "it waits for the same as the others, whose hosts launched one call more before they stopped",
    )
    DUMPS_OF_ANOTHER_MOMENT = Cost.UNUSUAL, "the dumps are of a running job, or of different moments"
    DUMP_NOT_WRITTEN = Cost.ORDINARY, "it waits, too, and only wrote no dump"
    MAY_HAVE_COMPLETED = Cost.ORDINARY, "the links or the GPU of some ranks failed in this call"
    COUNTED_APART = (
        Cost.ORDINARY,
        "a rank made a call more or less before, so that one number stands for different calls",
    )
    OF_ANOTHER_RUN = Cost.ORDINARY, "this source is of another run than NCCL's lines"
    OF_ANOTHER_JOB = Cost.UNUSUAL, "this text is of another job: it names no process and no host of NCCL's lines"
    SOURCES_DISAGREE = Cost.UNUSUAL, "the source that names other ranks is right"
    SOURCES_CONTRADICT = Cost.ORDINARY, "the sources that contradict it are right, which are as many"
    STACKS_DISAGREE = Cost.ORDINARY, "its stack is right, and its log lacks the last lines"
    GPU_WAITS = Cost.UNUSUAL, "its GPU waits for a call whose line its log lacks"
    NO_MISMATCH_IN_RAS = Cost.ORDINARY, "it made the call behind the end of its log, as the RAS report counts"
    CALL_WAITS_OR_COMPUTES = Cost.ORDINARY, "it computes, or waits for something else than the others"
    WAITS_FOR_WORK = (
        Cost.ORDINARY,
        "it waits there for a call that it started before, as in work.wait(), which only native frames show",
    )
    OTHER_GROUP = Cost.ORDINARY, "its call belongs to another process group"
    SILENT_MEMBER = Cost.ORDINARY, "a rank that reports no time-out did not make the call"
    UNNAMED_MEMBER = (
        Cost.ORDINARY,
        "there are more ranks than these, of which the text says nothing, and one of them did not make the call",
    )
    UNSEEN_MESSAGE = Cost.ORDINARY, "it waits for another rank in a message that this source does not show"
    # Processes that ended.
    EXIT_CODE_ALONE = Cost.UNUSUAL, "its exit code is a consequence, and another process ended before"
    ABORTED_FOR_ANOTHER = Cost.ORDINARY, "it aborted for what another rank did, such as a call of another size"
    SEVERAL_ENDED = Cost.UNUSUAL, "one of these ended first, and the others followed"
    PROCESS_ID_REUSED = Cost.UNUSUAL, "the line of the kernel is about another process with the same number"
    NO_REPORT_OF_END = Cost.UNUSUAL, "its process did not end, and its last lines were lost"
    ALL_ENDED = Cost.ORDINARY, "all ranks failed by themselves"
    NO_TRACE_OF_END = Cost.UNUSUAL, "the absent process runs, and did not answer for the moment"
    # Init.
    REASON_OF_ANOTHER = Cost.UNUSUAL, "the refusal concerns other ranks than these"
    ONE_NAME = Cost.ORDINARY, "several hosts have this name, or each rank has a part of that GPU (MIG)"
    FAULT_FOLLOWED = Cost.UNUSUAL, "the fault in init followed from one that these logs do not show"
    FAULT_SURVIVED = Cost.ORDINARY, "NCCL survived this error, and the log ends among its lines"
    INIT_GOES_ON = Cost.UNUSUAL, "the init was going on where the logs end"
    INIT_COMPLETED = Cost.ORDINARY, "the init completed, and the lines that show it are not in these logs"
    TRANSPORT_SURVIVED = Cost.UNUSUAL, "the failures of the transport followed from another fault"
    # What PyTorch compared or counted.
    PARTLY_COMPARED = Cost.UNUSUAL, "a rank that was not compared differs"
    OTHER_TEXT = Cost.UNUSUAL, "another rank, of which this text says nothing, failed or stopped first"
    # What step lines tell.
    WORK_CHANGED = Cost.UNUSUAL, "a step holds more work since then, which these lines do not show"
    WORK_DIFFERS = Cost.UNUSUAL, "these steps hold more work than the others, as they should"
    FEW_STEP_LINES = Cost.ORDINARY, "these steps were slow by chance, which so few lines do not exclude"
    STEPS_DRIFT = Cost.ORDINARY, "the length of steps drifts, and returns"
    RESTARTED = Cost.ORDINARY, "the job was started with another configuration there"
    STALLS_BY_CHANCE = Cost.ORDINARY, "so few long steps stand at equal distances by chance"
    SLOW_FROM_THE_BEGINNING = Cost.ORDINARY, "the job is slow since its first step"
    # What traces of slow jobs tell.
    NAMED_BY_CHANCE = Cost.UNUSUAL, "work is uneven by chance, and these were the last in most of the few steps"
    FEW_STALLS = Cost.ORDINARY, "these stalls have no common cause, and chance made one rank the last in most of them"
    FEW_STEPS = Cost.ORDINARY, "these steps are no fair sample: there are too few"
    RANK_NOT_TRACED = Cost.ORDINARY, "the others wait for a rank of which there is no trace"
    ENDS_APART = Cost.UNUSUAL, "calls that end at different times on their members hide another cause"
    GROUPS_ASSUMED = Cost.UNUSUAL, "the calls belong to other groups than that of all ranks"
    GROUPS_LISTED = Cost.ORDINARY, "the calls belong to several groups: the traces list some, and name none of a call"
    ONLY_CALLS_TIMED = Cost.ORDINARY, "it waits itself between these calls, of which alone the times are known"
    HOST_TIMES = Cost.ORDINARY, "the clock of its host is ahead, or its host is late and its GPU is not"
    OTHER_TIMES = Cost.UNUSUAL, "it is slow at other times than those of these steps"
    SLOW_BY_DESIGN = Cost.UNUSUAL, "this network is as slow as that by design"
    OTHER_LOAD = Cost.UNUSUAL, "the program moves more or other data since then, or overlaps its calls otherwise"
    SHARED_WITH_KERNELS = (
        Cost.ORDINARY,
        "kernels that compute beside these calls slow them, as they share GPU and links",
    )
    WAITS_UNSPLIT = (
        Cost.ORDINARY,
        "in messages and all-to-all of unequal sizes ranks wait for uneven work, and move little",
    )
    PROFILED = Cost.ORDINARY, "the profiler slows the host, which launches kernels in time without it"
    AS_PROGRAMMED = Cost.ORDINARY, "the program gives its ranks unequal work on purpose"
    # An answer that names nothing.
    OPEN = Cost.UNUSUAL, "further evidence decides it"

    @property
    def cost(self) -> Cost:
        """How rare a world is in which it holds."""
        return self.value[0]

    @property
    def rival(self) -> Kind:
        """The fault in such a world: none if the job ran, one that the doubt names, else one that nothing names."""
        if self in _FAULTS:
            return _FAULTS[self]
        return Kind.NO_HANG if self in _RUNNING else Kind.UNDECIDABLE

    @property
    def assumes(self) -> str:
        """What would have to be true."""
        return self.value[1]


_FAULTS = {Doubt.SILENT_MEMBER: Kind.LAGGING, Doubt.UNNAMED_MEMBER: Kind.LAGGING, Doubt.COUNTED_APART: Kind.MISMATCH}
# In these worlds there is no fault.
_RUNNING = {
    Doubt.RUNS_ON, Doubt.MET_AGAIN, Doubt.ABORTED_IN_ORDER, Doubt.COPIED_WHILE_RUNNING, Doubt.ONE_MOMENT,
    Doubt.INIT_COMPLETED, Doubt.INIT_GOES_ON, Doubt.DUMPS_OF_ANOTHER_MOMENT,
}  # fmt: skip
