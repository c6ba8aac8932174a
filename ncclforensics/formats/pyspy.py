"""Stacks of Python processes, as py-spy dump prints them."""

from __future__ import annotations

from ncclforensics.data import nouns

GRAMMARS = ("stackdumps", "pyspy", "collected")
SIGNATURES = ("pyspy_thread",)
KINDS = dict.fromkeys(SIGNATURES, "stacks")
NOUN = nouns.STACK
CODE_COLUMNS = (("pyspy_frame", "file"),)
