"""GPUs of a host, as nvidia-smi -q describes them."""

from __future__ import annotations

from ncclforensics.data import nouns

GRAMMARS = ("gpuquery",)
SIGNATURES = ("query_head", "query_field.remapped", "query_field.retired", "query_field.reasons", "query_field.ecc")
KINDS = dict.fromkeys(SIGNATURES, "topology")
NOUN = nouns.MACHINE_DUMP
