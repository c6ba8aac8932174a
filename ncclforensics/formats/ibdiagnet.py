"""What ibdiagnet leaves behind."""

from __future__ import annotations

GRAMMARS = ("ibdiagnet", "collected")
SIGNS = ("diagnosed_port", "diagnosed_excess", "table_edge", "ibdiagnet_says")
KINDS = dict.fromkeys(SIGNS, "ib-counters")
