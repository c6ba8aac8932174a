"""Files that ibdiagnet writes."""

from __future__ import annotations

from ncclforensics.data import nouns

GRAMMARS = ("ibdiagnet", "collected")
_LINES = ("ibdiagnet_message", "ibdiagnet_firmware", "ibdiagnet_stage")
SIGNATURES = ("diagnosed_port", "diagnosed_excess", "table_edge", *_LINES)
KINDS = dict.fromkeys(SIGNATURES, "ib-counters")
NOUN = nouns.PORT
ID_COLUMNS = (("diagnosed_port", "guid"),)
