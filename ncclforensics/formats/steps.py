"""Step lines of training programs: how long each step took."""

from __future__ import annotations

from ncclforensics.data import nouns

GRAMMARS = ("steps",)
SIGNATURES = ("training_step", "progress_bar", "trainer_progress")
KINDS = dict.fromkeys(SIGNATURES, "step-log")
IS_SIDE_OUTPUT = True
NOUN = nouns.STEP_LINE
