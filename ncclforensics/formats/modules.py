"""The kernel's modules on a host: lsmod."""

from __future__ import annotations

GRAMMARS = ("modules",)
SIGNS = ("kernel_module",)
KINDS = dict.fromkeys(SIGNS, "topology")
