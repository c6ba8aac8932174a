"""Frames computed from frames. One module per question, imported when one of its frames is first asked for."""

from pathlib import Path

from ncclforensics.frames.registry import find_analyses

find_analyses(Path(__file__).parent, __name__)
