"""Output of perftest: ib_write_bw and the other tests of the package."""

from __future__ import annotations

from ncclforensics.data import nouns

GRAMMARS = ("perftest",)
SIGNATURES = ("link_title", "link_head")
KINDS = dict.fromkeys(("link_head", "link_row"), "perftest")
NOUN = nouns.LINK_TEST
