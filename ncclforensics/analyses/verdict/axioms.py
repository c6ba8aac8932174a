"""How far a host runs ahead of its GPU: what calls behind a stuck one show, and what they do not."""

from __future__ import annotations

# Collectives that a host enqueues at most while the GPU does not go on: the queue of a stream holds 1,024 operations,
# of which a collective takes at least four (CUDA programming guide, asynchronous execution; nccl: src/enqueue.cc).
RUN_AHEAD = 256
# Collectives that few programs enqueue behind one that does not return: a step of a training reads its loss or the norm
# of its gradients, and so waits for its GPU.
SELDOM_AHEAD = 64
# Collectives that programs often enqueue behind it: those of one layer, and those that overlap with its computation.
OFTEN_AHEAD = 8
# Collectives behind which two logs that begin in the middle are known to be at the same place.
ENOUGH_ALIKE = 16
