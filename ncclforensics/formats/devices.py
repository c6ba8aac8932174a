"""How GPUs and NICs reach one another: nvidia-smi topo and nvlink, rocm-smi --showtopo."""

from __future__ import annotations

GRAMMARS = ("devices", "collected")
SIGNATURES = ("device_row", "rocm_table", "gpu_numa", "nvlink_port")
KINDS = dict.fromkeys(SIGNATURES, "topology")
