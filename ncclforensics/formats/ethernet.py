"""An Ethernet port below RoCE: ethtool -S, mlnx_qos."""

from __future__ import annotations

GRAMMARS = ("ethernet", "collected")
SIGNATURES = ("nic_statistics", "qos")
KINDS = {"qos": "ib-state", "nic_counter": "ib-counters"}
