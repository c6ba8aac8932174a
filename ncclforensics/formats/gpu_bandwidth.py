"""Output of nvbandwidth and of CUDA's sample p2pBandwidthLatencyTest."""

from __future__ import annotations

from ncclforensics.data import nouns

GRAMMARS = ("gpubandwidth",)
SIGNATURES = ("pair_matrix",)
KINDS = {"pair_matrix": "gpu-bandwidth"}
NOUN = nouns.PAIR_MATRIX
