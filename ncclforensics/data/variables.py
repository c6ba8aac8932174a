"""Variables to set so that logs contain the missing lines (NCCL user guide, environment variables; src/debug.cc)."""

NO_NCCL_LINES = "these files hold no line of NCCL, nor one of another known format"
NO_LINES = "these files are empty"
NOT_JUDGED = "a part of this program failed, so that these files were not judged"
NO_PROCESSES = "no line of NCCL here shows which rank printed it"
ENDED_WELL = "the program reports that it came to its end, and no failure was read"
READY = "the engine reports that it is ready, which all its ranks must reach, and no failure after that was read"
ANSWERED = "the engine answered requests, and no failure after the last of them was read"
RECORDED = "the process that recorded its run with wandb came to its exit, and no failure was read"
STOPPED = "the server was ready, then shut down or was told to end, and no failure in between that ended it was read"
NO_CALLS_IN_TEXT = "no NCCL lines found in these files"
NO_RANKS_OF_DUMPS = "no Flight Recorder dump here shows which rank wrote it"
# What to do next: a verb and its object. A command stands at the end between backticks, so that it can be copied.
STACKS_OF_HOST = "for p in $(pgrep python); do py-spy dump --native --pid $p; done"
STANDING_STACKS = f"while it stands still, take the stacks on each host: `{STACKS_OF_HOST}`"
LOOK_AT_HOST = "nvidia-smi; dmesg -T | tail -50"
LOG_FILE = "NCCL_DEBUG_FILE=/path/%h.%p.log"
COLLECT_CALLS = [
    f"set on every rank, and run the job again: `export NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,COLL {LOG_FILE}`"
]
REPORT_DEFECT = ["report the failure of the program, with the file that it names, and keep these files"]
COLLECT_RANKS_OF_DUMPS = [
    "give the dumps under the names that PyTorch gave them (comm_lib_trace_rank_N), or renamed to rank_N"
]
COLLECT_OUTPUT = ["collect stdout and stderr of every rank, and the output of the launcher"]
COLLECT_STUCK_HOSTS = [
    "while it stands still, collect stacks, RAS and dumps on each host: `ncclforensics collect -o incident`"
]
COLLECT_INIT = ["collect the logs from their beginning, with their Init lines"]
COLLECT_BOOTSTRAP = [
    "set on every rank, and count the ranks that start: `export NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,BOOTSTRAP,ENV`"
]
COLLECT_UNBUFFERED = [
    f"set on every rank a file that NCCL writes line by line, for stdout is buffered: `export {LOG_FILE}`"
]
COLLECT_UNCHANGED = ["collect the logs as NCCL wrote them, with their pointers (--redact hides hosts and paths)"]
COLLECT_PROGRESS = ["collect the program's output with times: whether steps were made until the job was ended"]
COLLECT_ANEW = [
    "compare the times, hosts and process ids of these sources, to see which of them are of the run that hangs"
]
COLLECT_UNCUT = ["collect the log files themselves, not copied from a screen or a table that cuts long lines"]
ASCEND_LOGS = (
    "collect the logs that Ascend's software wrote on each host, whose earliest error names what failed first: "
    "`grep -rl ERROR ~/ascend/log`"
)
COLLECT_EVERY_LINE = ["set on every host, so that Ray drops no repeated lines: `export RAY_DEDUP_LOGS=0`"]
STACK_OF_ANY_RANK = (
    f"take the stacks of one host, which show whether its ranks wait in a call or went on: `{STACKS_OF_HOST}`"
)


def hosts_of(ranks: str) -> str:
    """Return how a sentence names the hosts of ranks that it named before, as a text.

    >>> hosts_of("rank 3"), hosts_of("ranks 3-4"), hosts_of("rank 3 and rank 7")
    ('its host', 'their hosts', 'their hosts')
    """
    return "its host" if ranks.startswith("rank ") and " and " not in ranks else "their hosts"


def stacks_of(ranks: str) -> str:
    """Return the step that takes the stacks of ranks, which are given as a text."""
    return f"take the stacks of {ranks} on {hosts_of(ranks)}: `{STACKS_OF_HOST}`"
