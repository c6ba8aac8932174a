"""NCCL's own log, of any version from 2.3 to 2.30, and the journal that `capture` writes beside it."""

from __future__ import annotations

from functools import lru_cache

from ncclforensics.grammar import grammar_file
from ncclforensics.grammar.dialect import Dialect

SIGNATURES = ()
KINDS = {
    "work_timeout": "pytorch-log",
    "work_status": "pytorch-log",
    "watchdog": "pytorch-log",
    "desync": "pytorch-log",
    "fingerprint": "pytorch-log",
    "call_error": "pytorch-log",
    "ras_report": "ras-report",
    "ras_group": "ras-report",
    "ras_section": "ras-report",
    "ras_json": "ras-report",
    "ras_event": "ras-report",
    "ended_operation": "inspector",
    "journal_init": "capture-journal",
    "journal_call": "capture-journal",
    "journal_exit": "capture-journal",
    "version": "nccl-log",
    "failure": "nccl-log",
    "warning": "nccl-log",
    "speaker": "nccl-log",
}
# In the order of trial: the calls are nearly all there is in a long log.
GRAMMARS = (
    "operation",
    "channel",
    "init",
    "network",
    "plugin",
    "topology",
    "tuning",
    "environment",
    "memory",
    "progress",
    "rccl",
    "warning",
    "pytorch",
    "ras",
    "inspector",
    "journal",
    "job",
    "prefix",
)
# What begins a line, up to the first character of what it says.
HEADS = ("_info", "_note", "_warn", "_attn", "_call", "_trace", "_plugin", "_signed")
# What is left of them where nobody is named.
BARE = {
    "_bare_info": frozenset({"_info", "_note", "_plugin"}),
    "_bare_warn": frozenset({"_warn", "_note", "_plugin", "_signed"}),
}


@lru_cache(maxsize=1)
def dialect() -> Dialect:
    """The shapes of NCCL's lines."""
    shapes = tuple(shape for name in GRAMMARS for shape in grammar_file.load(name).shapes)
    return Dialect(
        shapes,
        opening=grammar_file.load("prefix").regex("_opening"),
        heads=tuple(grammar_file.load("prefix").part(name) for name in HEADS),
        bare=tuple((grammar_file.load("prefix").part(name), of) for name, of in BARE.items()),
        mark=grammar_file.load("prefix").regex("_MARK"),
        catch_all="unknown",
        counter="opcount",
        tag=grammar_file.load("launcher").regex("_actor_tag"),
        decorations=(*grammar_file.load("launcher").shapes, *grammar_file.load("deduplicated").shapes),
    )
