"""How nccl-tests reckons its bandwidths, and what they come to on known machines."""

# busbw / algbw by collective, of n ranks (nccl-tests, doc/PERFORMANCE.md and src/*.cu at 2.19.6; unchanged since 2.9).
DOUBLED = ("all_reduce", "all_reduce_bias")  # 2 (n - 1) / n
SHRUNK = ("all_gather", "reduce_scatter", "alltoall", "alltoallv", "gather", "scatter")  # (n - 1) / n; all others: 1
