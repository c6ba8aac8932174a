"""Output of NVIDIA's Data Center GPU Manager: links, and the results of its diagnostics."""

from __future__ import annotations

from ncclforensics.data import nouns

GRAMMARS = ("dcgm", "collected")
SIGNATURES = ("dcgm_link_head", "dcgm_head", "dcgm_section", "dcgm_result.on")
KINDS = dict.fromkeys(SIGNATURES, "topology")
NOUN = nouns.MACHINE_DUMP
