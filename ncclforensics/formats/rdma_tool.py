"""The rdma tool of iproute2: links and their statistics."""

from __future__ import annotations

GRAMMARS = ("rdmatool", "collected")
SIGNATURES = ("rdma_link", "rdma_statistic", "rdma_other")
KINDS = {"rdma_other": "ib-state", "rdma_link": "ib-state", "rdma_statistic": "ib-counters"}
