"""Output of nvbandwidth and of CUDA's samples p2pBandwidthLatencyTest and bandwidthTest."""

from __future__ import annotations

from ncclforensics.data import nouns

GRAMMARS = ("gpubandwidth",)
SIGNATURES = ("pair_matrix", "pair_waived", "pair_failure", "pair_setting.nvbandwidth", "copy_line", "copy_head")
KINDS = dict.fromkeys(("pair_matrix", "pair_waived", "pair_failure", "copy_line", "copy_head"), "gpu-bandwidth")
HOST_COLUMNS = {"gpubandwidth": ("node",)}
NOUN = nouns.PAIR_MATRIX
