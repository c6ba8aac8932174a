"""Counters and settings of Ethernet ports that carry RoCE: ethtool -S, mlnx_qos."""

from __future__ import annotations

from ncclforensics.data import nouns

GRAMMARS = ("ethernet", "collected")
SIGNATURES = ("nic_statistics", "nic_counter.picked", "qos")
KINDS = {"qos": "ib-state", "nic_counter": "ib-counters"}
NOUN = nouns.PORT
