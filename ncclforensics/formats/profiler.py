"""Traces of NCCL's example profiler: what each call did on every channel, until the communicators ended."""

from __future__ import annotations

from ncclforensics.data import nouns

GRAMMARS = ("profiler",)
SIGNATURES = ("profiler_event", "profiler_end")
KINDS = dict.fromkeys(("profiler_event", "profiler_end", "profiler_other"), "inspector")
NOUN = nouns.PROFILE
