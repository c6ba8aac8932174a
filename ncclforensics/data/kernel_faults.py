"""What the numbers and names of faults mean that the kernel and NVIDIA's drivers log: Xid, SXid and PCIe errors."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Origin(Enum):
    """What mostly causes an Xid, by NVIDIA's description of it."""

    HARDWARE = "the GPU, its memory, its firmware or a link of it"
    PROGRAM = "the program that used the GPU"
    OPEN = "the program, the driver or the GPU"
    HARMLESS = "nothing that a job notices at first"


# What NVIDIA advises to do at first, by its resolution buckets.
RESTART = "start the program again"
CHECK_PROGRAM = (
    "run the program under compute-sanitizer, or with CUDA_LAUNCH_BLOCKING=1; on one GPU alone, again and again, with "
    "several programs: drain the node and run NVIDIA's field diagnostic"
)
RESET = "drain the node and reset the GPU (nvidia-smi -r), or reboot; if it comes back, ask the vendor"
REBOOT = "drain and reboot the node; if it comes back, ask the vendor"
LINK = "nvidia-smi nvlink -s and -e on this host; reset the GPUs; if it comes back, ask the vendor"
WATCH = "nothing at first; look at what else the kernel logs of this part, and whether it comes again"
OTHER_XID = "follow the other Xid of this GPU or of its neighbours; alone: look for what ended the program"
POWER = "check the power cables of the GPU"
SOFTWARE = "update the driver and the firmware"


class Xid(NamedTuple):
    """An Xid: what it means, what mostly causes it, and what NVIDIA advises to do at first."""

    meaning: str
    origin: Origin
    remedy: str


def _hardware(meaning: str, remedy: str = RESET) -> Xid:
    return Xid(meaning, Origin.HARDWARE, remedy)


def _harmless(meaning: str, remedy: str = WATCH) -> Xid:
    return Xid(meaning, Origin.HARMLESS, remedy)


RECOVERY = 154  # what the driver asks for after another fault
CONTAINED = 94  # only the program that used the memory ends
_COPY_ENGINE = Xid("a copy engine reported an exception", Origin.OPEN, RESTART)
_DECODER = Xid("a video engine reported an exception", Origin.OPEN, RESTART)
_INFOROM = Xid("its InfoROM, or the chip that holds it, could not be read or written", Origin.OPEN, RESET)
_NVLINK_5 = _hardware("NVLink error", LINK)
_COMMANDS = Xid("invalid or corrupted commands from the driver", Origin.OPEN, CHECK_PROGRAM)

# NVIDIA's catalogue for Ampere and later (docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html), and by name
# those that only its driver has (open-gpu-kernel-modules: nverror.h).
XIDS = {
    8: Xid("the GPU stopped processing", Origin.OPEN, RESTART),
    11: _COMMANDS,
    13: Xid("a kernel raised an exception, such as an illegal instruction or address", Origin.PROGRAM, CHECK_PROGRAM),
    14: _harmless("an error that a program injected"),
    25: _COMMANDS,
    31: Xid("a page fault of GPU memory: a kernel used an illegal address", Origin.PROGRAM, CHECK_PROGRAM),
    32: Xid(
        "corrupted commands from the driver, mostly for want of signal quality on PCIe", Origin.OPEN,
        "start the program again; compare PCIe errors (AER) and the PCIe link (nvidia-smi -q) of this GPU with others",
    ),
    37: _harmless("error of the driver's firmware"),
    38: _harmless("time-out of the driver's firmware"),
    **dict.fromkeys((39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136)), _COPY_ENGINE),
    43: Xid("a fault of the program ended its work on the GPU, which is healthy", Origin.PROGRAM, CHECK_PROGRAM),
    44: _harmless("fault during a switch between programs"),
    45: Xid("the driver removed a program's work after another error, or when it ended", Origin.PROGRAM, OTHER_XID),
    46: _hardware("the GPU stopped processing"),
    48: _hardware("uncorrectable ECC error of its memory"),
    54: Xid("auxiliary power is not connected", Origin.OPEN, POWER),
    60: Xid("the video processor reported an exception", Origin.OPEN, RESTART),
    61: _hardware("breakpoint of its micro-controller"),
    62: _hardware("internal micro-controller halt"),
    63: _harmless("rows of its memory were marked for remapping", "reset the GPU when it is idle, which remaps them"),
    64: _hardware("row remapping failed"),
    66: _harmless("illegal access by the driver"),
    67: _harmless("illegal access by the driver"),
    **dict.fromkeys((34, 35, 36, 42, 47, 65, 68, 73, 82, 83, 84, 86, 88, 89, *range(96, 106), 139, 142), _DECODER),
    69: Xid("class error of the graphics engine: commands that it does not know", Origin.PROGRAM, CHECK_PROGRAM),
    74: _hardware("NVLink error", LINK),
    78: Xid("a virtual GPU could not start", Origin.OPEN, SOFTWARE),
    79: _hardware("it fell off the bus", REBOOT),
    80: Xid("corrupted data were sent to the GPU", Origin.OPEN, RESTART),
    92: _harmless("many corrected (single-bit) ECC errors"),
    93: _harmless("the InfoROM's limit for writing is reached"),
    CONTAINED: _hardware("contained memory error", "start the program again; reset the GPU when it is idle"),
    95: _hardware("uncontained memory error"),
    106: _harmless("a test message"),
    107: _harmless("a test message"),
    108: _harmless("an access over NVLink was not translated", OTHER_XID),
    109: Xid(
        "time-out of a switch between programs: a kernel, or the GPU, did not give way", Origin.OPEN,
        "look at the Xids just before it (13 and 31 point at the program); drain the node and reset the GPU",
    ),
    110: Xid("security fault", Origin.OPEN, RESET),
    119: _hardware("GSP time-out"),
    120: _hardware("GSP error"),
    121: _harmless("corrected error of the link to the CPU (C2C)"),
    **dict.fromkeys(range(122, 126), _INFOROM),
    136: _hardware("training of an NVLink failed"),
    137: _harmless("an access over NVLink was refused", OTHER_XID),
    140: _hardware("unrecovered ECC error"),
    141: _harmless("error on the fast path of a channel"),
    143: _hardware("the GPU could not be initialised"),
    **dict.fromkeys(range(144, 151), _NVLINK_5),
    151: Xid("rotation of keys failed", Origin.OPEN, REBOOT),
    152: _harmless("a deep-learning accelerator was refused an address"),
    153: _harmless("time-out of a deep-learning accelerator"),
    RECOVERY: _hardware(
        "the driver wants the GPU reset or the node rebooted",
        "do what the line asks for; the lines of NVRM before it say why",
    ),
    155: Xid("NVLink was brought down on purpose, or by an error", Origin.OPEN, LINK),
    156: Xid("a part of the GPU was taken out of use", Origin.OPEN, RESET),
    157: _harmless("a part of the GPU could not be taken out of use"),
    158: _hardware("fatal time-out of the GPU"),
    159: Xid("error of a channel's notifications", Origin.OPEN, OTHER_XID),
    160: _harmless("a memory channel was taken out of use", RESET),
    161: _harmless("a memory channel could not be taken out of use", RESET),
    **dict.fromkeys(range(162, 166), _harmless("state of the circuit that smooths power")),
    166: Xid("NVLink encryption failed", Origin.OPEN, LINK),
    167: _hardware("fatal PCIe time-out"),
    168: _harmless("the GPU has less memory than it was built with"),
    169: Xid("the security processor halted", Origin.OPEN, RESET),
    170: Xid("NVLink security error", Origin.OPEN, LINK),
    171: _hardware("uncorrectable ECC error of its memory"),
    172: _hardware("uncorrectable ECC error of its caches"),
    173: _hardware("the link to the CPU (C2C) failed"),
    175: Xid("error of the memory subsystem", Origin.OPEN, RESET),
    176: Xid("many corrected PCIe errors", Origin.OPEN, WATCH),
}  # fmt: skip
# Those that a program cannot cause. Not among them: 63, 92, 121 and 157, which the catalogue says to ignore at
# first, for the job goes on; 155 and 156, which intended changes cause, too.
XIDS_OF_HARDWARE = {number: xid.meaning for number, xid in XIDS.items() if xid.origin is Origin.HARDWARE}
# Numbers of which the catalogue gives the name only: 61 is unused from Ampere on, and 167 has no description yet.
UNCONFIRMED_XIDS = frozenset({61, 167})
UNKNOWN_XID = Xid(
    "not in NVIDIA's catalogue nor by name in its driver", Origin.OPEN, "look it up in the catalogue of the driver"
)

# SXids of NVSwitches that NVIDIA calls fatal (Fabric Manager user guide, tables of SXid errors), for lines that
# carry no severity; the last ones always, so that the host must be reset.
FATAL_SXIDS = frozenset(
    [
        *(10003, 11001, 11009, 11013, 11018, 11019, 11020, 12001, 12002, 12022, 12024, 12025, 12026, 12027, 12030),
        *(12031, 12032, 14017, 15001, 15006, 15009, 15010, 15012, 15013, 19047, 19048, 19054, 19056, 19058, 19060),
        *(19061, 19063, 19064, 19066, 19067, 19069, 19070, 20034, 22012, 24004, 24005, 24006, 24007),
        *(12020, 22003, 22011, *range(23001, 23018)),
    ]
)
# What the driver prints for them, for lines that carry only the registers.
SXIDS = {
    11004: "ingress invalid ACL",
    12028: "egress non-posted PRIV error",
    19084: "AN1 heartbeat timeout",
    20001: "TX replay error",
    20034: "LTSSM fault up",
    22013: "minion link DLREQ interrupt",
}
# A virtual machine or a GPU behind the switch was reset, and others still sent to it.
SXIDS_OF_RESETS = frozenset({11004, 12028})
RESET_TEXT = (
    "mostly a GPU or a virtual machine behind the switch was reset while others sent to it; programs then end with Xid "
    "45"
)
# Of those that are not fatal, the ones that stop programs; others were corrected, or tell of a link that trains again.
SXIDS_THAT_STOP = SXIDS_OF_RESETS | {19084}

# Errors that PCIe devices log, by the kernel's short names (drivers/pci/pcie/aer.c).
PCI_ERRORS = {
    "SDES": "surprise down: the link was lost",
    "CmpltTO": "completion time-out: the device did not answer",
    "CmpltAbrt": "completion abort",
    "DLP": "data link protocol error",
    "MalfTLP": "malformed packet",
    "ECRC": "end-to-end checksum error",
    "UnsupReq": "unsupported request",
    "ACSViol": "access that ACS forbids",
    "TLP": "poisoned packet",
    "RxErr": "receiver error",
    "Receiver Error": "receiver error",
    "BadTLP": "bad packet",
    "Bad TLP": "bad packet",
    "BadDLLP": "bad link packet",
    "Bad DLLP": "bad link packet",
    "Rollover": "a packet was sent again four times",
    "Timeout": "a packet was not acknowledged in time, and sent again",
}
