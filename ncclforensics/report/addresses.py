"""Replace IP addresses so that addresses of one network stay in one network, and its kind stays visible."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable

from ncclforensics.report.identifiers import Address

# Prefixes that are kept because they show the kind of address; other addresses get a documentation prefix.
_KEPT_NETWORKS = [
    ipaddress.ip_network(network)
    for network in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16", "100.64.0.0/10", "fe80::/64")
]
_DOCUMENTATION_NETWORKS = {4: ipaddress.ip_network("203.0.0.0/8"), 6: ipaddress.ip_network("2001:db8::/32")}


def redacted(address: Address, digest: Callable[[str, int], bytes]) -> Address:
    """Return another address of the same kind; addresses with a common prefix get an equally long common prefix."""
    if address.is_loopback or address.is_unspecified or address.is_multicast or int(address) == 0xFFFFFFFF:
        return address
    kept = next((network for network in _KEPT_NETWORKS if address in network), None)
    network = kept or _DOCUMENTATION_NETWORKS[address.version]
    width = address.max_prefixlen
    number = int(network.network_address) >> (width - network.prefixlen)
    for bit in range(network.prefixlen, width):
        prefix = int(address) >> (width - bit)
        flips = digest(f"{address.version} {bit} {prefix}", 1)[0] & 1
        number = number << 1 | ((int(address) >> (width - bit - 1) & 1) ^ flips)
    return type(address)(number)
