"""The PCI devices of a host: lspci."""

from __future__ import annotations

GRAMMARS = ("bus",)
SIGNATURES = ("pci_device", "pci_link", "pci_acs", "pci_branch")
KINDS = dict.fromkeys(SIGNATURES, "topology")
