"""Benchmarks and diagnoses that books and guides hand out as scripts."""

from __future__ import annotations

GRAMMARS = ("scripts",)
SIGNATURES = ("script_head", "script_bandwidth", "gpu_test", "script_wait")
KINDS = dict.fromkeys(SIGNATURES, "script-output")
IS_SIDE_OUTPUT = True
