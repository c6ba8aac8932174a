"""What errors of CUDA mean for a job (CUDA runtime API, cudaError_t), by their text: old versions print no number."""

from __future__ import annotations

MEMORY = "memory"
EXITING = "exiting"  # the process is leaving: says nothing about why
POISONED = "poisoned"  # an earlier kernel spoiled the context, mostly not one of NCCL's
HARDWARE = "hardware"
UNUSABLE = "unusable"  # CUDA cannot be used in this process at all
HIDDEN = "hidden"  # the GPU that was asked for is not there for this process
FABRIC = "fabric"  # NVSwitch is not set up
OTHER = "other"

KINDS = {
    "out of memory": MEMORY,
    "driver shutting down": EXITING,
    "context is destroyed": EXITING,
    "an illegal memory access was encountered": POISONED,
    "unspecified launch failure": POISONED,
    "device-side assert triggered": POISONED,
    "misaligned address": POISONED,
    "an illegal instruction was encountered": POISONED,
    "operation not supported on global/shared address space": POISONED,
    "invalid program counter": POISONED,
    "the launch timed out and was terminated": POISONED,
    "hardware stack error": HARDWARE,
    "uncorrectable ECC error encountered": HARDWARE,
    "uncorrectable NVLink error detected during the execution": HARDWARE,
    "Invalid access of peer GPU memory over nvlink or a hardware error": HARDWARE,
    "GPU is lost": HARDWARE,
    "initialization error": UNUSABLE,
    "CUDA driver version is insufficient for CUDA runtime version": UNUSABLE,
    "system has unsupported display driver / cuda driver combination": UNUSABLE,
    "all CUDA-capable devices are busy or unavailable": UNUSABLE,
    "unknown error": UNUSABLE,
    "no CUDA-capable device is detected": HIDDEN,
    "invalid device ordinal": HIDDEN,
    "system not yet initialized": FABRIC,
}


def kind(text: str) -> str:
    """What kind of error a text names.

    >>> kind("an illegal memory access was encountered'"), kind("invalid argument")
    ('poisoned', 'other')
    """
    return next((meaning for begins, meaning in KINDS.items() if text.startswith(begins)), OTHER)
