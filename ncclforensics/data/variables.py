"""NCCL's variables that make a log tell more (NCCL user guide, environment variables; nccl: src/debug.cc)."""

NOTHING_SAID = "no line of NCCL stands in these files"
COLLECT_CALLS = [
    "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,COLL NCCL_DEBUG_FILE=/path/%h.%p.log on every rank, then run until it hangs"
]
COLLECT_BOOTSTRAP = [
    "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,BOOTSTRAP,ENV on every rank, and the number of ranks that were started"
]
COLLECT_UNBUFFERED = ["NCCL_DEBUG_FILE=/path/%h.%p.log, which NCCL writes line by line, in place of buffered stdout"]
COLLECT_EVERY_LINE = ["RAY_DEDUP_LOGS=0, or NCCL_DEBUG_FILE=/path/%h.%p.log on every rank"]
