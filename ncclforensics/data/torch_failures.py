"""Exceptions of PyTorch that have shapes of their own, in plain words: what is wrong in the process."""

from __future__ import annotations

# Form of `torch_without_gpu` -> what PyTorch finds.
WITHOUT_GPU = {
    "no_driver": "PyTorch finds no NVIDIA driver",
    "old_driver": "PyTorch finds an NVIDIA driver that is too old for it",
    "no_cuda": "PyTorch is built without CUDA",
    "no_gpu": "PyTorch sees no GPU",
    "no_nccl": "PyTorch is built without NCCL",
    "failed_driver": "PyTorch cannot initialise the NVIDIA driver",
    "uncounted": "PyTorch cannot count the GPUs",
}
# Part of a function in the stack of a C++ exception -> what was wrong, where the text of the exception is not shown.
OF_STACK = {
    "WorkNCCL::checkTimeout": "PyTorch's watchdog saw that a collective call timed out",
    "checkForNCCLErrors": "PyTorch's watchdog saw an error that NCCL reported",
    "ProcessGroupNCCL::heartbeatMonitor": "the monitor of PyTorch's watchdog saw no heartbeat of it",
    "ProcessGroupNCCL::broadcastUniqueNCCLID": "a rank did not get the unique id of a communicator over the store",
    "ProcessGroupNCCL::getNCCLComm": "NCCL or the store failed while a communicator was created",
    "ProcessGroupNCCL::initNCCLComm": "NCCL or the store failed while a communicator was created",
    "NCCLComm::create": "NCCL failed while a communicator was created",
    "NCCLComm::waitReady": "NCCL did not end the creation of a communicator in time, or with an error",
    "ProcessGroupNCCL::runHealthCheck": "the first call of a communicator did not complete in time",
    "c10d::TCPStore": "PyTorch's store (TCPStore) failed",
    "c10d::detail::Tcp": "PyTorch's store (TCPStore) failed",
    "c10d::detail::SocketImpl": "a connection to PyTorch's store failed",
    "gloo::": "gloo, PyTorch's transport for CPUs, failed",
    "c10d::ProcessGroupGloo": "gloo, PyTorch's transport for CPUs, failed",
    "c10_cuda_check_implementation": "a CUDA call failed",
    "CUDACachingAllocator": "the memory of a GPU ran out, or a CUDA call of its allocator failed",
    "c10d::Reducer": "DistributedDataParallel refused or failed to reduce gradients",
}
# Functions in which an exception is made, which tell nothing of what was wrong.
OF_EXCEPTIONS = ("c10::Error::Error", "c10::detail::torchCheckFail", "c10::detail::torchInternalAssertFail")
# Form of `gradient_error` -> what DistributedDataParallel found.
GRADIENTS = {
    "missing": "parameters of the model got no gradient in a step",
    "twice": "a parameter of the model got a second gradient in a step",
}
