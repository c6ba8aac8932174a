"""Kernel modules of a host, as lsmod lists them."""

from __future__ import annotations

from ncclforensics.data import nouns

GRAMMARS = ("modules",)
SIGNATURES = ("kernel_module",)
KINDS = dict.fromkeys(SIGNATURES, "topology")
NOUN = nouns.MACHINE_DUMP
