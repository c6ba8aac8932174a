"""Paths between GPUs and NICs of a host: nvidia-smi topo and nvlink, rocm-smi --showtopo."""

from __future__ import annotations

from ncclforensics.data import nouns

GRAMMARS = ("devices", "collected")
SIGNATURES = ("device_row", "rocm_table", "gpu_numa", "nvlink_port")
KINDS = dict.fromkeys(SIGNATURES, "topology")
NOUN = nouns.MACHINE_DUMP
