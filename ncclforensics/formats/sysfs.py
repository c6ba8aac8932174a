"""Ports of RDMA devices as Linux tells them: the files below /sys/class/infiniband, as grep lists them."""

from __future__ import annotations

GRAMMARS = ("sysfs", "collected")
SIGNATURES = ("port_counter_file", "port_file", "port_gid_file")
KINDS = {
    "device_file": "ib-state", "port_file": "ib-state", "port_gid_file": "ib-state", "port_counter_file": "ib-counters",
}  # fmt: skip
