"""Links and statistics of iproute2's rdma tool."""

from __future__ import annotations

from ncclforensics.data import nouns

GRAMMARS = ("rdmatool", "collected")
SIGNATURES = ("rdma_link", "rdma_statistic", "rdma_other")
KINDS = {"rdma_other": "ib-state", "rdma_link": "ib-state", "rdma_statistic": "ib-counters"}
NOUN = nouns.PORT
