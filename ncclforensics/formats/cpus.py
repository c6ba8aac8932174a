"""The NUMA nodes of a host: numactl, lscpu, /sys."""

from __future__ import annotations

GRAMMARS = ("cpus",)
SIGNS = ("numa_node",)
KINDS = dict.fromkeys(SIGNS, "topology")
