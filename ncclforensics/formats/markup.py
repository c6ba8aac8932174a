"""NCCL's topology and graphs as XML."""

from __future__ import annotations

from ncclforensics.data import nouns

GRAMMARS = ("markup",)
SIGNATURES = ("xml_line",)
KINDS = dict.fromkeys(SIGNATURES, "topology")
NOUN = nouns.MACHINE_DUMP
