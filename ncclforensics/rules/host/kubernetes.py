"""Nodes of Kubernetes that give fewer devices to pods than they have."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.analyses.job.text.described_objects import titles_above
from ncclforensics.frames.columns import begins_with
from ncclforensics.rules.finding import Category, Finding, Line, Role, Severity
from ncclforensics.rules.registry import rule

NODE = ["source", "node"]
OF_GPUS = ("nvidia.com/gpu", "nvidia.com/mig-")  # of whole ones, shared ones, and parts


@rule(Category.MISSING_RANK, Severity.WARNING, of=("node_devices", "described_label"))
def node_devices_missing(
    node_devices: pl.DataFrame, described_label: pl.DataFrame, described_title: pl.DataFrame
) -> Iterator[Finding]:
    """A node of Kubernetes gives fewer devices to pods than it has.

    Means: its device plugin takes the others for unhealthy, or has not registered; a pod that asks for all of them
    does not start there, so that its ranks are missing. A plugin takes a GPU out after most kinds of Xid.
    Not when: GPUs are given to pods under another name (mig-..., gpu.shared); the list is cut, so that one of the two
    numbers is not shown.
    Do: read the log of the device plugin's pod on that node (kubectl logs), for `unhealthy` and the Xid behind it; look
    at nvidia-smi and dmesg -T there; when the device is mended, delete that pod: the new one counts again.
    Sources: Kubernetes, device plugins (allocatable leaves out unhealthy devices); NVIDIA/k8s-device-plugin,
    internal/rm/health.go; NVIDIA GPU feature discovery.
    """
    short = node_devices.filter(pl.col("allocatable") < pl.col("capacity"))
    for row in short.iter_rows(named=True):
        lines = [Line(row["source"], row[f"{part}_line"]) for part in ("capacity", "allocatable")]
        missing = row["capacity"] - row["allocatable"]
        title = f"{missing} of {row['capacity']} {row['resource']} cannot be given to pods"
        yield _finding(
            row["node"], title, "the device plugin takes what is missing for unhealthy, or does not run", lines
        )
    nodes = node_devices.filter(begins_with("resource", *OF_GPUS))
    offered = nodes.filter(pl.col("capacity").fill_null(1) > 0).select(NODE).unique()
    shown = described_title.filter(part="allocatable").select("source", node="name").unique()  # its list is not cut
    labels = described_label.with_columns(titles_above(described_label, described_title)["name"].alias("node"))
    unoffered = labels.filter(pl.col("gpus_found") > 0).join(offered, on=NODE, how="anti", nulls_equal=True)
    for row in unoffered.join(shown, on=NODE, how="semi", nulls_equal=True).iter_rows(named=True):
        none = nodes.filter(source=row["source"]).filter(pl.col("node").eq_missing(row["node"]))
        lines = [Line(row["source"], line) for line in none["capacity_line"].drop_nulls()]
        title = f"none of {row['gpus_found']} GPUs is offered to pods"
        detail = f"the labels count {row['gpus_found']}, and no device plugin of GPUs has registered"
        yield _finding(row["node"], title, detail, [Line(row["source"], row["line"]), *lines])


def _finding(node: str | None, title: str, detail: str, lines: list[Line]) -> Finding:
    return Finding(
        f"node {node}: {title}" if node else title,
        detail,
        "certain",
        hosts=[node] if node else [],
        role=Role.CONTEXT,
        evidence=lines,
    )
