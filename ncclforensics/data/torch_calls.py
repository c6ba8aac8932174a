"""Calls and data types as PyTorch and torchcomms name them, and the names of NCCL for them.

Sources: torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp (profiling titles),
torch/distributed/flight_recorder/components/types.py (collectives that are compared), c10/core/ScalarType.h.
"""

from __future__ import annotations

# Title in Flight Recorder entries -> NCCL's name.
NCCL_NAMES = {
    "all_reduce": "AllReduce",
    "all_reduce_barrier": "AllReduce",
    "barrier": "AllReduce",
    "allreduce_coalesced": "AllReduce",
    "all_reduce_sparse": "AllReduce",
    "broadcast": "Broadcast",
    "_broadcast_oop": "Broadcast",
    "reduce": "Reduce",
    "_reduce_oop": "Reduce",
    "all_gather": "AllGather",
    "_all_gather_base": "AllGather",
    "all_gather_into_tensor_coalesced": "AllGather",
    "all_gather_single": "AllGather",
    "all_gather_v": "AllGather",
    "reduce_scatter": "ReduceScatter",
    "_reduce_scatter_base": "ReduceScatter",
    "reduce_scatter_tensor_coalesced": "ReduceScatter",
    "reduce_scatter_single": "ReduceScatter",
    "reduce_scatter_v": "ReduceScatter",
    "gather": "Gather",
    "gather_single": "Gather",
    "scatter": "Scatter",
    "all_to_all": "AlltoAll",
    "all_to_all_single": "AlltoAll",
    "all_to_all_v_single": "AlltoAll",
    "send": "Send",
    "recv": "Recv",
}
# All members pass the same number of elements.
EQUAL_SIZED = (
    "all_reduce", "all_reduce_barrier", "barrier", "allreduce_coalesced", "broadcast", "reduce", "_all_gather_base",
    "_reduce_scatter_base", "all_gather_single", "reduce_scatter_single",
)  # fmt: skip
# No member can complete it before all have taken part; the root of others may complete before the rest.
SYMMETRIC = (
    "all_reduce", "all_reduce_barrier", "barrier", "allreduce_coalesced", "all_gather", "_all_gather_base",
    "all_gather_into_tensor_coalesced", "reduce_scatter", "_reduce_scatter_base", "reduce_scatter_tensor_coalesced",
    "all_to_all", "all_to_all_single", "all_gather_single", "reduce_scatter_single",
)  # fmt: skip
# For each, NCCL makes one collective; others are several messages, or are coalesced.
ONE_CALL = (
    "all_reduce", "all_reduce_barrier", "barrier", "broadcast", "_broadcast_oop", "reduce", "_reduce_oop",
    "_all_gather_base", "_reduce_scatter_base", "all_gather_single", "reduce_scatter_single",
)  # fmt: skip
# Functions of PyTorch that make calls outside of distributed_c10d.py -> what a rank does in them. Hooks of the backward
# pass reduce gradients (torch/autograd/graph.py); DistributedDataParallel broadcasts buffers before a forward pass, and
# parameters where a model is wrapped (torch/nn/parallel/distributed.py, torch/distributed/utils.py).
CALLS_WITHIN = {
    "_engine_run_backward": "the backward pass",
    "_sync_module_buffers": "the broadcast of buffers before a forward pass",
    "_sync_module_states": "the broadcast of a model's parameters",
    "_verify_param_shape_across_processes": "the comparison of models",
}
# Functions that a signal calls, and that make calls themselves, where the program did not come to one: Lightning's, by
# which rank 0 asks the others to end (lightning: trainer/connectors/signal_connector.py).
SIGNAL_HANDLERS = ("_sigterm_notifier_fn",)
# What closes a batch of calls, which were recorded before it without a state of their own.
BATCHES = ("coalesced", "ALLGATHER_coalesced", "REDUCE_SCATTER_coalesced")
# Data type in Flight Recorder entries -> NCCL's number (data/names.py, DATATYPES).
DATATYPES = {
    "Char": 0, "Byte": 1, "Bool": 1, "Int": 2, "UInt32": 3, "Long": 4, "UInt64": 5, "Half": 6, "Float": 7, "Double": 8,
    "BFloat16": 9, "Float8_e4m3fn": 10, "Float8_e5m2": 11,
}  # fmt: skip
# Libraries whose calls PyTorch marks as completed itself; of others it only sees that a call is over (`retired`).
WATCHED_LIBRARIES = ("nccl", "xccl", "")
