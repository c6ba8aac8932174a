"""What PyTorch's own analyser of Flight Recorder dumps prints."""

from __future__ import annotations

GRAMMARS = ("torchfrtrace",)
SIGNATURES = ("analyzer_entry", "analyzer_note", "analyzer_row")
KINDS = dict.fromkeys(SIGNATURES, "flight-recorder")
