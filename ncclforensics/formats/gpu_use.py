"""What GPUs do at one moment: nvidia-smi's default table, dmon, pmon and CSV."""

from __future__ import annotations

from ncclforensics.data import nouns

GRAMMARS = ("gpuuse", "collected")
SIGNATURES = ("use_gpu", "use_columns", "use_names", "use_query", "use_readings")
KINDS = dict.fromkeys(SIGNATURES, "topology")
NOUN = nouns.MACHINE_DUMP
