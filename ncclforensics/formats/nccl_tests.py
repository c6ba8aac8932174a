"""Output of nccl-tests and rccl-tests, of any version."""

from __future__ import annotations

from ncclforensics.data import nouns

GRAMMARS = ("nccltests",)
SIGNATURES = ("test_setting", "test_device", "table_head", "table_row.both", "test_end")
KINDS = dict.fromkeys(("test_setting", "test_device", "table_head", "table_row", "test_end"), "nccl-tests")
NOUN = nouns.BENCHMARK
