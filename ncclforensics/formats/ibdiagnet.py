"""What ibdiagnet leaves behind."""

from __future__ import annotations

GRAMMARS = ("ibdiagnet", "collected")
SIGNS = ("diagnosed_port", "diagnosed_excess", "diagnosis", "table_edge")
KINDS = dict.fromkeys(SIGNS, "ib-counters")
