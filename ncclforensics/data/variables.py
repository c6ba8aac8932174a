"""Variables to set so that logs contain the missing lines (NCCL user guide, environment variables; src/debug.cc)."""

NO_NCCL_LINES = "no NCCL lines found in these files"
NO_PROCESSES = "no line of NCCL here shows which rank printed it"
NO_RANKS_IN_TEXT = "no NCCL lines found in these files, and the other lines show no ranks to judge"
NO_RANKS_OF_DUMPS = "no Flight Recorder dump here shows which rank wrote it"
COLLECT_CALLS = [
    "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,COLL NCCL_DEBUG_FILE=/path/%h.%p.log on every rank, then run the job again"
]
COLLECT_RANKS_OF_DUMPS = [
    "the dumps under the names that PyTorch gave them (comm_lib_trace_rank_N), or renamed to rank_N"
]
COLLECT_OUTPUT = ["stdout and stderr of every rank, and the output of the launcher"]
COLLECT_STUCK_HOSTS = [
    "while the job stands still, on each host: ncclforensics collect -o incident (stacks, RAS, Flight Recorder dumps)"
]
COLLECT_INIT = ["the logs from their beginning, with their Init lines"]
COLLECT_BOOTSTRAP = [
    "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,BOOTSTRAP,ENV on every rank, and the number of started ranks"
]
COLLECT_UNBUFFERED = ["NCCL_DEBUG_FILE=/path/%h.%p.log, which NCCL writes line by line, instead of buffered stdout"]
COLLECT_UNCHANGED = ["the logs as NCCL wrote them, with their pointers; --redact hides hosts, addresses and paths"]
COLLECT_PROGRESS = ["the program's output with times: whether steps were made until the job was ended"]
COLLECT_UNCUT = ["the log files themselves, not copied from a screen or a table that cuts long lines"]
COLLECT_EVERY_LINE = ["RAY_DEDUP_LOGS=0, or NCCL_DEBUG_FILE=/path/%h.%p.log on every rank"]
LOOK_AGAIN = "this command again in a minute: if no log has grown, the job stands still"
STACK_OF_ANY_RANK = "or py-spy dump --native of any rank: it stands in this call, or is past it"
