"""What drivers in the kernel say of their devices: what happened by the words, what it means for a job, what to do."""

from __future__ import annotations

from typing import NamedTuple


class DriverTopic(NamedTuple):
    """A kind of words: what the driver of a device says, what that means for a job, and what to do first."""

    text: str
    meaning: str
    remedy: str = ""
    is_failure: bool = True  # else it is worth a note


class DeviceKind(NamedTuple):
    """A kind of device: its noun, in front of a name and alone; its category in the contract, and what to do."""

    noun: str
    unnamed: str
    category: str
    remedy: str


OTHER_TOPIC = "other"
# By the name of the part of grammars/driverlog.lark that holds its words, behind `_topic_`: the first that holds
# counts, and of several statements on a device the one whose topic stands first here.
DRIVER_TOPICS = {
    "gone": DriverTopic("cannot reach it any more", "whatever uses it fails or stands still"),
    "module": DriverTopic(
        "reports its module or cable: refused, switched off or faulty",
        "its link stays down, or loses packets",
        "reseat or replace module and cable; mlxlink -d DEVICE -m or ethtool -m shows its temperature and power",
    ),
    "hot": DriverTopic(
        "reports that it is too hot",
        "it lowers its clock, or switches itself off",
        "look at fans, air flow and the BMC's event log of this host",
    ),
    "damaged": DriverTopic("reports an error of its hardware, firmware or data", "what used it may have failed"),
    "reset": DriverTopic(
        "reports a reset of it, or of a part of it",
        "what used it at that time failed or was interrupted; lines before it may give the reason",
    ),
    "silent": DriverTopic("got no answer from it in time", "what waits for it stands still, and may fail"),
    "virtual": DriverTopic(
        "could not create its virtual functions (SR-IOV)",
        "pods and machines that ask for one get none",
        "enable SR-IOV and addresses above 4 GB in the BIOS, or boot with pci=realloc; compare the number asked for "
        "with the one that the firmware allows (sriov_totalvfs; mlxconfig: NUM_OF_VFS)",
    ),
    "exhausted": DriverTopic(
        "found no memory, or no free object",
        "the process that asked for them fails; what runs already mostly goes on",
        "look at free -h, ulimit -l, and for processes of old jobs that hold objects (rdma resource; nvidia-smi)",
    ),
    "unstarted": DriverTopic("could not set it up, or a part of it", "what needs that part does not work until it is"),
    "refused": DriverTopic(
        "reports that a command, or one of its objects, failed", "the process that asked for it may have failed"
    ),
    "unset": DriverTopic(
        "could not apply a setting",
        "it runs otherwise than was asked for",
        "compare its settings with those of a host that works",
        is_failure=False,
    ),
    "narrow": DriverTopic(
        "says that its PCIe link limits it",
        "a slot that is meant to be narrower limits it for good",
        "compare with healthy hosts of this kind (lspci -vv, LnkCap and LnkSta)",
        is_failure=False,
    ),
    OTHER_TOPIC: DriverTopic("reports an error", "what it means for a job is not known here", is_failure=False),
}
_GPU = DeviceKind(
    "GPU",
    "a GPU",
    "cuda-error",
    "look for the first line of NVRM or amdgpu in dmesg -T, and for Xid; nvidia-smi -q or rocm-smi --showras; reset "
    "the GPU or reboot the host if it stays",
)
# By the form of `driver_statement`.
DEVICE_KINDS = {
    "nic": DeviceKind(
        "NIC",
        "a NIC",
        "link-error",
        "look in dmesg -T before it for errors of PCIe (AER) and of the NIC's firmware, and at its ports (ibstat, ip "
        "link); update firmware and driver; reboot the host if it stays",
    ),
    "gpu": _GPU,
    "amd": _GPU._replace(noun="AMD", unnamed="an AMD GPU"),
    "nvidia": _GPU._replace(noun="NVIDIA", unnamed="an NVIDIA GPU"),
    "switch": DeviceKind(
        "NVSwitch",
        "an NVSwitch",
        "cuda-error",
        "look for SXid in dmesg -T, and at systemctl status nvidia-fabricmanager; reset all GPUs and switches of the "
        "host (nvidia-smi -r), or reboot it",
    ),
    "port": DeviceKind(
        "PCIe port",
        "a PCIe port",
        "link-error",
        "lspci -tv shows which device is behind it; look for errors of PCIe (AER) in dmesg -T; reboot the host; reseat "
        "the card",
    ),
    "disk": DeviceKind(
        "disk", "a disk", "environment", "look at dmesg -T before it, and at smartctl -a or nvme smart-log of the disk"
    ),
    "lustre": DeviceKind(
        "Lustre",
        "Lustre",
        "environment",
        "look at lfs check servers and lfs df on that host, at the network to the servers (lnetctl ping NID), and at "
        "the log of the servers at that time",
    ),
    "volume": DeviceKind(
        "volume",
        "a volume",
        "environment",
        "look at dmesg -T before it for errors of the disk below; check the file system (fsck, xfs_repair) or the "
        "array (mdadm --detail) while it is not mounted",
    ),
}
