"""NCCL's topology and graphs as XML."""

from __future__ import annotations

GRAMMARS = ("markup",)
SIGNS = ("xml_line",)
KINDS = dict.fromkeys(SIGNS, "topology")
