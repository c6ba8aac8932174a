"""Stacks of all threads of a process, as debuggers print them."""

from __future__ import annotations

from ncclforensics.data import nouns

GRAMMARS = ("stackdumps", "gdb", "collected")
SIGNATURES = ("debugger_thread", "debugger_first")
KINDS = dict.fromkeys(SIGNATURES, "stacks")
NOUN = nouns.STACK
CODE_COLUMNS = tuple((name, "file") for name in ("debugger_first", "debugger_frame"))
