"""NCCL's topology and graphs as XML."""

from __future__ import annotations

GRAMMARS = ("markup",)
SIGNATURES = ("xml_line",)
KINDS = dict.fromkeys(SIGNATURES, "topology")
