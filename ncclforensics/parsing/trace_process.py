"""A process that reads traces for another one, which sends it a pickled request for each (`trace_readers`)."""

from __future__ import annotations

import os
import pickle
import signal
import sys

from ncclforensics.parsing.concurrency import DEFECTS
from ncclforensics.parsing.trace_readers import read_trace


def serve() -> None:
    """Answer each request on stdin on stdout, until stdin ends; None for a trace that cannot be read here."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C reaches this process, too, and is no defect of it
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as answers:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints is no answer
        while True:
            try:
                source, found = pickle.load(sys.stdin.buffer)
            except EOFError:
                return
            try:
                records = read_trace(source, found)
            except DEFECTS:
                records = None
            pickle.dump(records, answers)
            answers.flush()
