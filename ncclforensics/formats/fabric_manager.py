"""The log of NVIDIA's Fabric Manager."""

from __future__ import annotations

GRAMMARS = ("fabricmanager", "collected")
SIGNS = ("switch_error", "manager_line")
KINDS = dict.fromkeys(SIGNS, "fabric-manager")
