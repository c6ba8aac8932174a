"""One link as its firmware sees it: mlxlink, mstlink."""

from __future__ import annotations

GRAMMARS = ("mlxlink", "collected")
SIGNATURES = ("mlxlink_section", "mlxlink_field")
KINDS = {"mlxlink_field": "ib-counters"}
