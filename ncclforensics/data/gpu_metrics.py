"""Metrics of GPUs that tell of a fault, as exporters for Prometheus name them, and what a value above zero means.

Sources: DCGM, dcgm_fields.h; dcgm-exporter, etc/default-counters.csv; nvidia_gpu_exporter, METRICS.md; omnistat, RAS
counters; ROCm device-metrics-exporter, metrics list.
"""

from __future__ import annotations

from enum import StrEnum


class GpuFault(StrEnum):
    """What a metric tells of, as the end of a title."""

    MEMORY = "memory errors that could not be corrected"
    UNMAPPED = "bad memory that could not be replaced by spare rows"
    PENDING = "bad memory that the next reset takes out of use"
    RESET = "a state that only a reset ends"
    FABRIC = "not registered with the fabric of NVLink"


XID = "DEV_XID_ERRORS"  # its value is the number of the last Xid, 0 without any

# Names without the family and without `_total`.
GPU_FAULTS = {
    "DEV_ECC_DBE_VOL": GpuFault.MEMORY,
    "DEV_ECC_DBE_VOL_TOTAL": GpuFault.MEMORY,
    "DEV_ROW_REMAP_FAILURE": GpuFault.UNMAPPED,
    "DEV_ROW_REMAP_PENDING": GpuFault.PENDING,
    "DEV_RETIRED_PENDING": GpuFault.PENDING,
    "ecc_errors_uncorrected_volatile": GpuFault.MEMORY,
    "remapped_rows_failure": GpuFault.UNMAPPED,
    "remapped_rows_pending": GpuFault.PENDING,
    "retired_pages_pending": GpuFault.PENDING,
    "reset_status_reset_required": GpuFault.RESET,
    "uncorrect": GpuFault.MEMORY,  # gpu_ecc_uncorrect_total
    "gpu_recovery_action": GpuFault.RESET,  # 1 GPU reset, 2 reboot, 3 and 4 drain
    "fabric_state": GpuFault.FABRIC,  # 1 not started, 2 in progress
}
WELL = {"fabric_state": 3.0}  # a value above zero that tells of no fault
PASSING = (GpuFault.RESET, GpuFault.FABRIC)  # what the last sample decides
# Of nvidia_gpu_exporter and dcgm-exporter, by its name and by the first one: the Xid is a label.
EXPORTED_XIDS = ("xid_errors_total", "XID_ERRORS_COUNT", "DEV_XID_ERRORS_ACTIVE")

# Why the hardware lowers the clocks: bits of DCGM's field (nvml.h, nvmlClocksEventReason), and names of exporters. That
# a GPU is idle, and a limit that was set, are no fault.
REASON_BITS = {  # the most telling first
    64: "hw thermal slowdown",
    128: "hw power brake slowdown",
    32: "sw thermal slowdown",
    8: "hw slowdown",
}
REASON_FIELDS = ("DEV_CLOCK_THROTTLE_REASONS", "DEV_CLOCKS_EVENT_REASONS")
REASON_PREFIXES = ("clocks_event_reasons_", "clocks_throttle_reasons_")

# Readings of rocm-smi, and what `gpu_use` calls them.
AMD_READINGS = {
    "GPU use (%)": "utilization",
    "Average Graphics Package Power (W)": "power",
    "Current Socket Graphics Package Power (W)": "power",
    "Max Graphics Package Power (W)": "power_limit",
}
XGMI_ERRORS = "XGMI Error count"
AMD_WELL = ("AMDSMI_XGMI_STATUS_NO_ERRORS", "N/A")
