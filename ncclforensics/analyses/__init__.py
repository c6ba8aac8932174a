"""Frames computed from frames. One module per question, imported when one of its frames is asked for."""

from ncclforensics.frames.registry import declare_analyses

declare_analyses(__name__)
