"""The output of nvbandwidth and of CUDA's sample p2pBandwidthLatencyTest."""

GRAMMARS = ("gpubandwidth",)
SIGNS = ("pair_matrix",)
KINDS = {"pair_matrix": "gpu-bandwidth"}
