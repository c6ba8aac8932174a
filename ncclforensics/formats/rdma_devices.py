"""RDMA devices of a host, as OFED's tools list them: ibv_devinfo, show_gids, ibdev2netdev."""

from __future__ import annotations

from ncclforensics.data import nouns

GRAMMARS = ("rdmadevices", "collected")
SIGNATURES = ("verbs_device", "verbs_gid", "gid_row", "port_netdev")
KINDS = dict.fromkeys(SIGNATURES, "ib-state")
NOUN = nouns.PORT
