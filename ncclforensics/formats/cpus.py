"""The NUMA nodes of a host: numactl, lscpu, /sys."""

from __future__ import annotations

GRAMMARS = ("cpus",)
SIGNATURES = ("numa_node",)
KINDS = dict.fromkeys(SIGNATURES, "topology")
