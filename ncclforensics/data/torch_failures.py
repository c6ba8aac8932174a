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
# Form of `gradient_error` -> what DistributedDataParallel found.
GRADIENTS = {
    "missing": "parameters of the model got no gradient in a step",
    "twice": "a parameter of the model got a second gradient in a step",
}
