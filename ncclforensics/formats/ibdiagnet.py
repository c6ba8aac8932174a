"""What ibdiagnet leaves behind."""

from __future__ import annotations

GRAMMARS = ("ibdiagnet", "collected")
SIGNATURES = ("diagnosed_port", "diagnosed_excess", "table_edge", "ibdiagnet_says")
KINDS = dict.fromkeys(SIGNATURES, "ib-counters")
