"""NUMA nodes of a host, as numactl, lscpu and /sys list them."""

from __future__ import annotations

from ncclforensics.data import nouns

GRAMMARS = ("cpus",)
SIGNATURES = ("numa_node",)
KINDS = dict.fromkeys(SIGNATURES, "topology")
NOUN = nouns.MACHINE_DUMP
