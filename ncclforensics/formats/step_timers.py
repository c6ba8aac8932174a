"""Timers of training programs beside their steps, and reports of straggler detectors."""

from __future__ import annotations

GRAMMARS = ("steptimers",)
SIGNATURES = ("timer_head", "timer_list", "straggler_report", "comms_logged")
KINDS = dict.fromkeys(SIGNATURES, "step-log")
IS_SIDE_OUTPUT = True
