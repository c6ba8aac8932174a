"""Ports of RDMA devices: the files below /sys/class/infiniband, as grep prints them."""

from __future__ import annotations

from ncclforensics.data import nouns

GRAMMARS = ("sysfs", "collected")
SIGNATURES = ("port_counter_file", "port_file", "port_gid_file")
KINDS = {
    "device_file": "ib-state", "port_file": "ib-state", "port_gid_file": "ib-state", "port_counter_file": "ib-counters",
}  # fmt: skip
NOUN = nouns.PORT
