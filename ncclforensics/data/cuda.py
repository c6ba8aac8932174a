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
HIP = "HIP"  # the runtime of AMD's GPUs, whose errors PyTorch may call those of CUDA
HIP_SOURCES = "/hipify/"  # in the path of a source file of RCCL, which is made from those of NCCL
SHORTEST_CUT = 10  # characters of an error whose end is missing
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
    "CUDA-capable device(s) is/are busy or unavailable": UNUSABLE,
    "shared object initialization failed": UNUSABLE,
    "forward compatibility was attempted on non supported HW": UNUSABLE,
    "MPS client failed to connect to the MPS control daemon or the MPS server": UNUSABLE,
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
    35: "CUDA driver version is insufficient for CUDA runtime version",
    36: "API call is not supported in the installed CUDA driver",
    46: "all CUDA-capable devices are busy or unavailable",
    100: "no CUDA-capable device is detected",
    101: "invalid device ordinal",
    201: "invalid device context",
    209: "no kernel image is available for execution on the device",
    214: "uncorrectable ECC error encountered",
    217: "peer access is not supported between these two devices",
    220: "uncorrectable NVLink error detected during the execution",
    304: "OS call failed or operation not supported on this OS",
    400: "invalid resource handle",
    700: "an illegal memory access was encountered",
    702: "the launch timed out and was terminated",
    710: "device-side assert triggered",
    716: "misaligned address",
    719: "unspecified launch failure",
    800: "operation not permitted",
    801: "operation not supported",
    802: "system not yet initialized",
    803: "system has unsupported display driver / cuda driver combination",
    900: "operation not permitted when stream is capturing",
    999: "unknown error",
}

# The names of these in the CUDA runtime API; PyTorch and NCCL print the texts.
ERROR_NAMES = {
    "cudaErrorInvalidValue": 1,
    "cudaErrorMemoryAllocation": 2,
    "cudaErrorInitializationError": 3,
    "cudaErrorInsufficientDriver": 35,
    "cudaErrorCallRequiresNewerDriver": 36,
    "cudaErrorDevicesUnavailable": 46,
    "cudaErrorNoDevice": 100,
    "cudaErrorInvalidDevice": 101,
    "cudaErrorDeviceUninitialized": 201,
    "cudaErrorNoKernelImageForDevice": 209,
    "cudaErrorECCUncorrectable": 214,
    "cudaErrorPeerAccessUnsupported": 217,
    "cudaErrorNvlinkUncorrectable": 220,
    "cudaErrorOperatingSystem": 304,
    "cudaErrorInvalidResourceHandle": 400,
    "cudaErrorIllegalAddress": 700,
    "cudaErrorLaunchTimeout": 702,
    "cudaErrorAssert": 710,
    "cudaErrorMisalignedAddress": 716,
    "cudaErrorLaunchFailure": 719,
    "cudaErrorNotPermitted": 800,
    "cudaErrorNotSupported": 801,
    "cudaErrorSystemNotReady": 802,
    "cudaErrorSystemDriverMismatch": 803,
    "cudaErrorStreamCaptureUnsupported": 900,
    "cudaErrorUnknown": 999,
}

_CAPTURE = (
    "a call was made while a CUDA graph was being captured: make the first collective of each group (which creates its "
    "communicator), allocations and synchronisation before the capture; or start the engine without CUDA graphs "
    "(enforce_eager, --disable-cuda-graph)"
)
# What to do about an error whose name says it, whichever call reports it (CUDA runtime API, cudaError_t).
_ADVICE = {
    "operation not permitted when stream is capturing": _CAPTURE,
    "operation failed due to a previous error during capture": _CAPTURE,
    "operation would result in a merge of separate capture sequences": _CAPTURE,
    "operation would make the legacy stream depend on a capturing blocking stream": _CAPTURE,
    "dependency created on uncaptured work in another stream": _CAPTURE,
    "capture was not ended in the same stream as it began": _CAPTURE,
    "capturing stream has unjoined work": _CAPTURE,
    "operation not permitted on an event last recorded in a capturing stream": _CAPTURE,
    "attempt to terminate a thread-local capture sequence from another thread": _CAPTURE,
    "no kernel image is available for execution on the device": (
        "the program was built for other GPUs: compare its list of architectures (torch.cuda.get_arch_list()) with the "
        "compute capability that nvidia-smi --query-gpu=compute_cap --format=csv prints"
    ),
    "device kernel image is invalid": "rebuild the kernel: its image is damaged, or for another CUDA",
    "invalid kernel file": (  # of HIP
        "the library was built for another ROCm or for other GPUs: use the RCCL of the installed ROCm, or build it for "
        "this one and for the GPUs that rocminfo lists"
    ),
    "the provided PTX was compiled with an unsupported toolchain": (
        "the driver is older than the CUDA that compiled the kernel: update the driver"
    ),
    "invalid resource handle": (
        "a stream or event of another device or context is used: call torch.cuda.set_device(LOCAL_RANK) before "
        "anything else, and create streams on the device that uses them"
    ),
    "named symbol not found": "the program was built for other GPUs, or lacks a variable of its kernels: rebuild it",
    "invalid device function": "the program was built for other GPUs, or its kernel was not loaded: rebuild it",
    "operation not supported": (
        "this GPU, driver or container does not have what the call in the traceback asks for: look that call up"
    ),
    "peer mapping resources exhausted": (
        "without NVSwitch, a GPU has direct access to at most eight others: use at most nine GPUs of the host in one "
        "program (CUDA_VISIBLE_DEVICES)"
    ),
    "mapping of buffer object failed": (
        "memory of one GPU could not be mapped for another one, or for the host: see whether the driver supports "
        "direct access between these GPUs (nvidia-smi topo -p2p r), and the IOMMU of the host or virtual machine"
    ),
    "OS call failed or operation not supported on this OS": (
        "the driver was refused a call of the system: in a container devices or capabilities are missing; read dmesg "
        "-T | grep NVRM on the host"
    ),
    "peer access is already enabled": "no fault: the program had enabled it before, and may ignore the error",
    "too many resources requested for launch": "the kernel needs more registers or threads than this GPU has",
}


def error_advice(text: str) -> str | None:
    """Return what to do about the error that a text begins with, or None.

    >>> error_advice("no such error"), (error_advice("invalid device function") or "")[:11]
    (None, 'the program')
    """
    return next((advice for error, advice in _ADVICE.items() if text.startswith(error)), None)


def advice_within(text: str) -> str | None:
    """Return what to do about the first error that a text names anywhere, or None.

    >>> advice_within("CUDA failure test.cu:20 'invalid device function'")
    'the program was built for other GPUs, or its kernel was not loaded: rebuild it'
    """
    return next((advice for error, advice in _ADVICE.items() if error in text), None)


def error_kind(text: str) -> str:
    """Return the kind of the error that a text begins with, or that it is the cut beginning of; OTHER for unknown ones.

    >>> error_kind("an illegal memory access was encountered'"), error_kind("invalid argument")
    ('poisoned', 'other')
    >>> error_kind("uncorrectable ECC err"), error_kind("invalid device"), error_kind("invalid device ordi")
    ('hardware', 'other', 'hidden')
    """
    known = next((kind for error, kind in KINDS.items() if text.startswith(error)), None)
    if known or len(text) < SHORTEST_CUT:
        return known or OTHER
    kinds = {KINDS.get(error, OTHER) for error in (*KINDS, *_ADVICE, *ERROR_NUMBERS.values()) if error.startswith(text)}
    return kinds.pop() if len(kinds) == 1 else OTHER
