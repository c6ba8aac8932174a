"""The output of perftest: ib_write_bw and its like."""

GRAMMARS = ("perftest",)
SIGNATURES = ("link_title", "link_head")
KINDS = dict.fromkeys(("link_head", "link_row"), "perftest")
