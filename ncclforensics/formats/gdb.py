"""Stacks of all threads of a process, as debuggers print them."""

from __future__ import annotations

from ncclforensics.data import nouns

GRAMMARS = ("stackdumps", "gdb", "collected")
SIGNATURES = ("debugger_thread",)
KINDS = dict.fromkeys(SIGNATURES, "stacks")
NOUN = nouns.STACK
CODE_COLUMNS = (("debugger_frame", "file"), ("debugger_python", "file"))
