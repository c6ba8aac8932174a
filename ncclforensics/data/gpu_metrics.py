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
}
