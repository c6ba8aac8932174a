"""Prometheus metrics of ports, interfaces and GPUs: node_exporter, DCGM."""

from __future__ import annotations

from ncclforensics.data import nouns

GRAMMARS = ("metrics", "collected")
SIGNATURES = ("metric",)
KINDS = {"metric": "ib-counters"}
NOUN = nouns.PORT
