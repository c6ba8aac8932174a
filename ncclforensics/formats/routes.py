"""Forwarding tables of the switches of a fabric: ibroute, dump_lfts, OpenSM's dump, ibdiagnet's fdbs."""

from __future__ import annotations

from ncclforensics.data import nouns

GRAMMARS = ("routes", "collected")
SIGNATURES = ("route_switch",)
KINDS = {"route_switch": "ib-fabric"}
NOUN = nouns.TABLE
ID_COLUMNS = (("route_switch", "guid"),)
