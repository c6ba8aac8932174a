"""Stacks of all threads of a process, as Python's faulthandler prints them."""

from __future__ import annotations

from ncclforensics.data import nouns

GRAMMARS = ("stackdumps", "faulthandler", "collected")
SIGNATURES = ("faulthandler_thread",)
KINDS = dict.fromkeys(SIGNATURES, "stacks")
NOUN = nouns.STACK
CODE_COLUMNS = (("faulthandler_frame", "file"),)
