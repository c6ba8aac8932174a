"""The log of NVIDIA's Fabric Manager."""

from __future__ import annotations

GRAMMARS = ("fabricmanager", "collected")
SIGNATURES = ("switch_error", "manager_line", "manager_service")
KINDS = dict.fromkeys(SIGNATURES, "fabric-manager")
