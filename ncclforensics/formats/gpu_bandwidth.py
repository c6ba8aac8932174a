"""Output of nvbandwidth and of CUDA's sample p2pBandwidthLatencyTest."""

from __future__ import annotations

from ncclforensics.data import nouns

GRAMMARS = ("gpubandwidth",)
SIGNATURES = ("pair_matrix", "pair_waived", "pair_failure", "pair_setting.nvbandwidth")
KINDS = dict.fromkeys(("pair_matrix", "pair_waived", "pair_failure"), "gpu-bandwidth")
HOST_COLUMNS = {"gpubandwidth": ("node",)}
NOUN = nouns.PAIR_MATRIX
