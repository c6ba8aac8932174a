"""NCCL's own log, of any version from 2.0 to 2.32, with PyTorch's and RAS's lines, and the journal of `capture`."""

from __future__ import annotations

from functools import lru_cache

from ncclforensics.grammar import grammar_file
from ncclforensics.grammar.dialect import Dialect, MessageInside, Quotation

SIGNATURES = ()
KINDS = {
    "work_timeout": "pytorch-log",
    "work_status": "pytorch-log",
    "watchdog": "pytorch-log",
    "watchdog_failure": "pytorch-log",
    "desync": "pytorch-log",
    "fingerprint": "pytorch-log",
    "call_error": "pytorch-log",
    "gloo_error": "pytorch-log",
    "monitored_barrier": "pytorch-log",
    "model_difference": "pytorch-log",
    "store_error": "pytorch-log",
    "c10d_note": "pytorch-log",
    "engine_start": "pytorch-log",
    "xla_rendezvous": "pytorch-log",
    "horovod_stall": "pytorch-log",
    "jax_service": "pytorch-log",
    "ras_report": "ras-report",
    "ras_group": "ras-report",
    "ras_section": "ras-report",
    "ras_json": "ras-report",
    "ras_event": "ras-report",
    "diagnostics_run": "ras-report",
    "diagnostics_fault": "ras-report",
    "ended_operation": "inspector",
    "journal_init": "capture-journal",
    "journal_call": "capture-journal",
    "journal_exit": "capture-journal",
    "version": "nccl-log",
    "failure": "nccl-log",
    "warning": "nccl-log",
    "speaker": "nccl-log",
}
# In the order they are tried: calls come first, for they are nearly all there is in a long log.
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
    "kerneltrace",
    "stated",
    "warning",
    "diagnostics",
    "pytorch",
    "c10d",
    "engines",
    "waits",
    "phases",
    "openmpi",
    "neighbours",
    "ras",
    "inspector",
    "journal",
    "kernel",
    "storage",
    "drivers",
    "driverlog",
    "job",
    "podevents",
    "containers",
    "omitted",
    "prefix",
    "unread",
)
LAST_GRAMMAR = "unread"  # tried on what all others leave over
# A frame shows that its subsystem was switched on (nccl: src/debug.cc); an absent frame shows nothing.
SUBSYSTEMS = {
    "INIT": ("communicator", "placement"),
    "BOOTSTRAP": ("bootstrap_timing",),
    "COLL": ("operation", "plan"),
    "CALL": ("replay", "request"),
    "NET": ("queue_pair",),
    "GRAPH": ("topology_node", "topology_path", "graph", "graph_channel"),
    "TUNING": ("algorithm_choice", "algorithm_estimate", "algorithm_allowed"),
    "ENV": ("setting",),
    "ALLOC": ("allocation",),
    "REG": ("registration",),
    "PROXY": ("proxy_call",),
    "NVLS": ("nvls_memory",),
    "RAS": ("ras_thread", "ras_peer", "ras_connection", "ras_timeout"),
}
HOST_COLUMNS = {
    "job": ("node", "address"),
    "drivers": ("node",),
    "driverlog": ("node",),
    "kernel": ("node",),
    "plugin": ("peer_host",),
    "storage": ("node", "server"),
    "inspector": ("node",),
    "ras": ("node",),
    "diagnostics": ("node",),
}
NO_HOST_COLUMNS = ("hca",)  # a NIC, printed where other versions print a host
ID_COLUMNS = (("topology_node", "guid"), ("mnnvl", "uuid"), ("mnnvl", "serial"))
SECRET_COLUMNS = (
    ("setting", "variable", "value"),
    ("setting", "variable", "given"),
    ("setting_refused", "variable", "given"),
    ("exported", "name", "value"),
    ("exported", "name", "word_value"),
    ("exported", "name", "listed_value"),
    ("library_variable", "name", "value"),
    ("libfabric_setting", "setting", "value"),
)
CODE_COLUMNS = (("traceback_frame", "file"), ("traceback_frame", "boxed_file"))
# Prefix rules: the beginning of a line, up to the first character of its message.
PREFIXES = ("_info", "_note", "_warn", "_attn", "_call", "_trace", "_plugin", "_signed")
# Prefix rules of launchers that only some lines of an input have: records of the program, and lines of Ray's workers.
PREFIXES_OF_SOME = frozenset({"ray", "record"})
# Prefixes without host and process, as in excerpts, and the prefix rules they stand for.
SHORT_PREFIXES = {
    "_info_without_process": frozenset({"_info", "_note", "_plugin"}),
    "_warn_without_process": frozenset({"_warn", "_note", "_plugin", "_signed"}),
}


def _messages_inside() -> tuple[MessageInside, ...]:
    """The messages that are recognised inside other text, such as a title, a sentence or another logger's record."""
    part = grammar_file.load("copied").part_regex
    end = part("_message_end")
    return (
        MessageInside(part("_warning_inside"), end, "NCCL WARN "),
        MessageInside(part("_exception_inside"), end, ""),
        MessageInside(part("_call_error_inside"), end, "RuntimeError: "),
        MessageInside(part("_torch_record"), end, ""),
        MessageInside(part("_record_inside"), end, "[E ProcessGroupNCCL.cpp:0] "),
        MessageInside(part("_note_inside"), end, "NCCL INFO "),
        MessageInside(part("_before_last_error"), end, "NCCL WARN ", is_quoted=True),
        MessageInside(part("_before_quote"), part("_quote_end"), "NCCL WARN ", is_quoted=True),
    )


@lru_cache(maxsize=1)
def dialect() -> Dialect:
    """The shapes and prefixes of NCCL's lines, without embedded formats."""
    prefix, launcher = grammar_file.load("prefix"), grammar_file.load("launcher")
    shapes = tuple(shape for name in GRAMMARS if name != LAST_GRAMMAR for shape in grammar_file.load(name).shapes)
    return Dialect(
        shapes,
        prefix_regex=prefix.part_regex("_line_prefix"),
        prefixes=tuple(prefix.part_shape(name) for name in PREFIXES),
        short_prefixes=tuple((prefix.part_shape(name), shortened) for name, shortened in SHORT_PREFIXES.items()),
        prefix_marker=prefix.part_regex("_MARKER"),
        level_regex=prefix.part_regex("_level"),
        catch_all="unknown",
        counter="opcount",
        prefixes_of_some=PREFIXES_OF_SOME,
        launcher_prefixes=(*launcher.shapes, *grammar_file.load("deduplicated").shapes),
        failure_word=grammar_file.load("copied").part_regex("_failure_word"),
        tag_regex=launcher.part_regex("_ray_tag"),
        alone_regex=prefix.part_regex("_message_alone"),
        alone_prefix="NCCL INFO ",
        unnamed_prefix=prefix.part_regex("_prefix_without_name"),
        quotation=Quotation(
            frame="call_error",
            form="last_error",
            tag_regex=grammar_file.load("pytorch").part_regex("_tags"),
            end_regex=grammar_file.load("copied").part_regex("_traceback_behind"),
            time_regex=f"^(?:{grammar_file.load('copied').part_regex('_glued_time')})$",
            prefix="NCCL WARN ",
        ),
        record_regex=grammar_file.load("copied").part_regex("_torch_record"),
        start_regex=grammar_file.load("copied").part_regex("_torch_start"),
        messages_inside=_messages_inside(),
        bar="progress_bar",
        bar_end_regex=grammar_file.load("copied").part_regex("_bar_end"),
        raised="exception",
        calls=("traceback_frame", "traced_call"),
        call_mark=grammar_file.load("copied").part_regex("_call_mark"),
        last_shapes=grammar_file.load(LAST_GRAMMAR).shapes,
    )
