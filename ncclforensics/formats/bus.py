"""PCI devices of a host, as lspci lists them."""

from __future__ import annotations

from ncclforensics.data import nouns

GRAMMARS = ("bus",)
SIGNATURES = ("pci_device", "pci_link", "pci_acs", "pci_branch")
KINDS = dict.fromkeys(SIGNATURES, "topology")
NOUN = nouns.MACHINE_DUMP
