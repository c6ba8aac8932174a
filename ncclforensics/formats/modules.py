"""The kernel's modules on a host: lsmod."""

from __future__ import annotations

GRAMMARS = ("modules",)
SIGNATURES = ("kernel_module",)
KINDS = dict.fromkeys(SIGNATURES, "topology")
