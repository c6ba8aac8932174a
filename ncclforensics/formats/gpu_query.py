"""What nvidia-smi -q tells of the GPUs of a host."""

from __future__ import annotations

GRAMMARS = ("gpuquery",)
SIGNATURES = ("query_head",)
KINDS = dict.fromkeys(SIGNATURES, "topology")
