"""The PCI devices of a host: lspci."""

from __future__ import annotations

GRAMMARS = ("bus",)
SIGNS = ("pci_device", "pci_link", "pci_acs", "pci_branch")
KINDS = dict.fromkeys(SIGNS, "topology")
