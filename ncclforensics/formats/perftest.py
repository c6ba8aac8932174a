"""Output of perftest: ib_write_bw and the other tests of the package."""

from __future__ import annotations

from ncclforensics.data import nouns

GRAMMARS = ("perftest",)
_FAILURES = (
    "link_failure.status",
    "link_failure.registration",
    "link_failure.port",
    "link_failure.refused",
    "link_failure.unsupported",
)
SIGNATURES = ("link_title", "link_head", *_FAILURES)
KINDS = dict.fromkeys(("link_head", "link_row", "link_failure"), "perftest")
NOUN = nouns.LINK_TEST
