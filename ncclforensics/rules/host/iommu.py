"""Accesses and interrupts of devices that the IOMMU of a host did not let through."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.data.names import count_of, pci_address, some_of
from ncclforensics.frames.columns import text_of
from ncclforensics.rules.finding import Category, Finding, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.kernel_log import OF_LINES, JobBeside, kernel_log_findings, times_text

SHOWN = 3
INTEL_GRAPHICS = "00:02.0"  # of every processor of Intel that has graphics
NVIDIA, AMD, NVME = "nvidia", "amdgpu", "nvme"
NICS = ("mlx5_core", "mlx4_core", "bnxt_en", "ice", "i40e", "ixgbe", "igb", "igc", "ena", "ionic")
OF_GPU = "transfers of this GPU, or to it, then fail, or bring wrong data"
OF_NIC = "what it sends or receives at that address is lost; traffic of it may stand still until it is reset"
OF_DISK = "reads or writes of this disk then fail"
OF_UNKNOWN = "which device it is, lspci -s shows; of a GPU or a NIC, direct transfers then fail, or bring wrong data"
OF_GRAPHICS = "no job of NCCL computes on it"
MEANINGS = {NVIDIA: OF_GPU, AMD: OF_GPU, NVME: OF_DISK, **dict.fromkeys(NICS, OF_NIC)}
REMEDY = (
    "boot with iommu=pt; update firmware and driver of the device; for direct transfers turn ACS off, or give up "
    "direct access for a test (NCCL_P2P_DISABLE=1)"
)


@rule(Category.APPLICATION_ERROR, Severity.WARNING, of=("kernel_message",), hang=True, fallback=True)
def kernel_iommu(kernel_message: pl.DataFrame, rank: pl.DataFrame, verdict: pl.DataFrame) -> Iterator[Finding]:
    """The IOMMU of a host did not let through an access of a device, or an interrupt.

    Means: the device used an address that its driver did not give it, or no longer: a defect of driver or firmware, or
    direct transfers that the IOMMU redirects. An interrupt that is lost makes its driver wait.
    Not when: the device is the graphics of the processor, which is a note.
    Do: lspci -s ADDRESS for the device; boot with iommu=pt; update its firmware and driver.
    Sources: Linux, drivers/iommu/intel/dmar.c (dmar_fault_do_one) and drivers/iommu/amd/iommu.c.
    """
    job = JobBeside.of(rank, verdict)
    address = pl.coalesce(text_of("device"), text_of("busid").map_elements(pci_address, return_dtype=pl.String))
    events = kernel_message.filter(text_of("form").is_in(["iommu", "interrupt"])).sort(OF_LINES)
    is_graphics = (text_of("device") == INTEL_GRAPHICS).fill_null(value=False)
    events = events.with_columns(address=address, is_graphics=is_graphics, driver=text_of("driver"))
    alike = [text_of("form"), text_of("node"), "driver", "is_graphics"]
    for (form, _, driver, of_graphics), rows in events.group_by(alike, maintain_order=True):
        devices = some_of(rows["address"].drop_nulls().unique(maintain_order=True).to_list(), SHOWN)
        what = "an access" if form == "iommu" else "interrupts"
        title = (
            f"the IOMMU{{where}} did not let through {what} of PCIe device {devices or 'that the line does not name'}"
        )
        title += " (the graphics of the processor)" * bool(of_graphics) + f" (driver {driver})" * bool(driver)
        meaning = OF_GRAPHICS if of_graphics else MEANINGS.get(str(driver), OF_UNKNOWN)
        if form == "interrupt" and not of_graphics:
            meaning = "its driver waits for interrupts that do not come, or finds out late"
        details = [meaning, count_of(rows.height, "line") if rows.height > 1 else "", times_text(rows)]
        severity = Severity.INFO if of_graphics else Severity.WARNING
        remedy = "nothing is to be done" if of_graphics else REMEDY if form == "iommu" else INTERRUPTS
        yield from kernel_log_findings(rows, title, details, severity, remedy, job)


INTERRUPTS = "update the BIOS and the driver of the device; boot with intremap=off for a test"
