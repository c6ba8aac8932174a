"""Kinds of CUDA errors by their text (CUDA runtime API, cudaError_t); old versions print no number."""

from __future__ import annotations

MEMORY = "memory"
EXITING = "exiting"  # the process is exiting; this is not the reason
CORRUPTED = "poisoned"  # an earlier kernel corrupted the context, mostly not one of NCCL
HARDWARE = "hardware"
UNUSABLE = "unusable"  # CUDA cannot be used in this process at all
UNSPECIFIC = "unspecific"  # mostly the driver is unusable, but memory and links report it, too
HIDDEN = "hidden"  # the requested GPU is not visible to this process
FABRIC = "fabric"  # NVSwitch is not configured
PEER = "peer"  # direct access between two GPUs is not possible
AMD = "amd"  # ROCm's runtime reports it, and ends the process
OTHER = "other"
SELF_EXPLAINED = (MEMORY, CORRUPTED, HARDWARE, UNUSABLE)  # the error says what failed, whichever call reports it

KINDS = {
    "out of memory": MEMORY,
    "driver shutting down": EXITING,
    "context is destroyed": EXITING,
    "an illegal memory access was encountered": CORRUPTED,
    "unspecified launch failure": CORRUPTED,
    "device-side assert triggered": CORRUPTED,
    "misaligned address": CORRUPTED,
    "an illegal instruction was encountered": CORRUPTED,
    "operation not supported on global/shared address space": CORRUPTED,
    "invalid program counter": CORRUPTED,
    "the launch timed out and was terminated": CORRUPTED,
    "hardware stack error": HARDWARE,
    "uncorrectable ECC error encountered": HARDWARE,
    "uncorrectable NVLink error detected during the execution": HARDWARE,
    "Invalid access of peer GPU memory over nvlink or a hardware error": HARDWARE,
    "GPU is lost": HARDWARE,
    "initialization error": UNUSABLE,
    "CUDA driver version is insufficient for CUDA runtime version": UNUSABLE,
    "API call is not supported in the installed CUDA driver": UNUSABLE,
    "system has unsupported display driver / cuda driver combination": UNUSABLE,
    "all CUDA-capable devices are busy or unavailable": UNUSABLE,
    "unknown error": UNSPECIFIC,
    "no CUDA-capable device is detected": HIDDEN,
    "invalid device ordinal": HIDDEN,
    "system not yet initialized": FABRIC,
    "peer access is not supported between these two devices": PEER,
}


# By number, for programs that print only that.
ERROR_NUMBERS = {
    1: "invalid argument",
    2: "out of memory",
    3: "initialization error",
    46: "all CUDA-capable devices are busy or unavailable",
    100: "no CUDA-capable device is detected",
    101: "invalid device ordinal",
    217: "peer access is not supported between these two devices",
    700: "an illegal memory access was encountered",
    719: "unspecified launch failure",
    802: "system not yet initialized",
    803: "system has unsupported display driver / cuda driver combination",
}


def error_kind(text: str) -> str:
    """Return the kind of the error that a text begins with; OTHER for unknown errors.

    >>> error_kind("an illegal memory access was encountered'"), error_kind("invalid argument")
    ('poisoned', 'other')
    """
    return next((kind for error, kind in KINDS.items() if text.startswith(error)), OTHER)
