"""What GPUs do at one moment: nvidia-smi's default table, dmon and CSV."""

from __future__ import annotations

from ncclforensics.data import nouns

GRAMMARS = ("gpuuse", "collected")
SIGNATURES = ("use_gpu", "use_columns", "use_names")
KINDS = dict.fromkeys(SIGNATURES, "topology")
NOUN = nouns.MACHINE_DUMP
