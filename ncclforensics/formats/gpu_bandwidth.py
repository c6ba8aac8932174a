"""The output of nvbandwidth and of CUDA's sample p2pBandwidthLatencyTest."""

GRAMMARS = ("gpubandwidth",)
SIGNATURES = ("pair_matrix",)
KINDS = {"pair_matrix": "gpu-bandwidth"}
