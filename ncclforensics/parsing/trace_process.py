"""A process that reads traces for another one, which sends it a request for each (`trace_readers`)."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from ncclforensics.formats import TraceReader
from ncclforensics.inputs.sources import source_at
from ncclforensics.parsing.concurrency import DEFECTS
from ncclforensics.parsing.trace_readers import read_trace, write_answer


def serve() -> None:
    """Answer each request on stdin on stdout, until stdin ends; None for a trace that cannot be read here."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C reaches this process, too, and is no defect of it
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as answers:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints is no answer
        for line in sys.stdin.buffer:
            request = json.loads(line)
            try:
                source = source_at(Path(request["file"]), request["file"])
                records = read_trace(source, TraceReader(request["format"]))
            except DEFECTS:
                records = None
            write_answer(records, answers)
