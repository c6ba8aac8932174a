"""The state of a link as its firmware reports it: mlxlink, mstlink."""

from __future__ import annotations

from ncclforensics.data import nouns

GRAMMARS = ("mlxlink", "collected")
SIGNATURES = ("mlxlink_section", "mlxlink_field")
KINDS = {"mlxlink_field": "ib-counters"}
NOUN = nouns.PORT
