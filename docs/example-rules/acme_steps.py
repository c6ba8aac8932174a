"""Step lines of a program of one's own, for `ncclforensics slow`."""

from __future__ import annotations

GRAMMARS = ("acme_steps",)
SIGNATURES = ("acme_step",)
KINDS = {"acme_step": "step-log"}
FILLS = {"acme_step": "training_step"}
