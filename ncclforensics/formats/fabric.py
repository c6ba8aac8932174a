"""Output of InfiniBand fabric tools: perfquery, ibqueryerrors, iblinkinfo, ibnetdiscover, ibstat, sminfo."""

from __future__ import annotations

from ncclforensics.data import nouns

GRAMMARS = ("portcounters", "fabriclinks", "portstates", "fabricmap", "subnet", "collected")
COUNTERS = ("counter_head", "counter_line", "check_warning", "counters_of", "counters_port", "counters_summary")
STATES = ("adapter", "port_status", "port_info", "no_adapter", "tool_failure")
FABRIC = (
    "link_line", "link_alone", "map_head", "map_node", "map_port", "listed_port", "listed_node", "check_state",
    "manager", "manager_log", "fabric_ping", "switch_supply",
)  # fmt: skip
SIGNATURES = (*COUNTERS, *STATES, *FABRIC)
KINDS = {
    **dict.fromkeys(FABRIC, "ib-fabric"),
    **dict.fromkeys(STATES, "ib-state"),
    **dict.fromkeys(COUNTERS, "ib-counters"),
}
NOUN = nouns.PORT
ID_COLUMNS = (
    ("counters_of", "guid"), ("counters_port", "guid"), ("linked_node", "guid"), ("link_line", "guid"),
    ("link_line", "peer_guid"), ("link_alone", "guid"), ("map_head", "node_guid"), ("map_node", "node_guid"),
    ("map_port", "peer_guid"), ("listed_port", "guid"), ("listed_port", "peer_guid"), ("listed_node", "guid"),
    ("manager", "guid"),
)  # fmt: skip
