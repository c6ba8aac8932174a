"""Interfaces and addresses that other hosts mostly do not reach."""

from __future__ import annotations

import polars as pl

from ncclforensics.frames.columns import begins_with

LOOPBACK = "lo"
BRIDGES = ["docker", "veth", "cni", "virbr", "br-", "tunl", "flannel", "cali"]  # host-local interfaces of containers
LINK_LOCAL = ["fe80:", "169.254."]
OF_HOST = ["::1"]


def is_bridge() -> pl.Expr:
    """Whether `interface` is the loopback interface, or joins the containers of one host."""
    return (pl.col("interface") == LOOPBACK) | begins_with("interface", *BRIDGES)


def is_local_interface() -> pl.Expr:
    """Whether `interface` and its `address` are of one host, or of one link."""
    return is_bridge() | begins_with("address", *LINK_LOCAL, *OF_HOST)
