"""What exporters for Prometheus tell of ports, interfaces and GPUs: node_exporter, DCGM."""

from __future__ import annotations

GRAMMARS = ("metrics", "collected")
SIGNATURES = ("metric",)
KINDS = {"metric": "ib-counters"}
