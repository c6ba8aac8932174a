"""Counters of switches with SONiC."""

from __future__ import annotations

from ncclforensics.data import nouns

GRAMMARS = ("sonic", "collected")
SIGNATURES = ("pfc_head",)
KINDS = {"pfc_head": "ib-counters"}
NOUN = nouns.PORT
