"""Files that ibdiagnet writes."""

from __future__ import annotations

from ncclforensics.data import nouns

GRAMMARS = ("ibdiagnet", "collected")
SIGNATURES = ("diagnosed_port", "diagnosed_excess", "table_edge", "ibdiagnet_message", "ibdiagnet_firmware")
KINDS = dict.fromkeys(SIGNATURES, "ib-counters")
NOUN = nouns.PORT
ID_COLUMNS = (("diagnosed_port", "guid"),)
