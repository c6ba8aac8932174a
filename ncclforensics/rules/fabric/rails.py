"""Hosts whose adapters lead to other leaves than those of their neighbours, in a map of ibnetdiscover."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import polars as pl

from ncclforensics.data.names import some_of
from ncclforensics.rules.finding import Category, Finding, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.deviations import SHOWN, lines_of, rows_of


def _moves_text(row: dict[str, Any]) -> str:
    """`mlx5_1 is on leaf-r3 instead of leaf-r2, mlx5_2 on leaf-r2 instead of leaf-r3`."""
    moved = zip(row["devices"], row["others"], row["parents"], strict=True)
    return some_of([f"{device} is on {leaf}, not on {own}" for device, leaf, own in moved], SHOWN)


@rule(Category.TOPOLOGY, Severity.WARNING, of=("fabric_deviation",))
def fabric_rails_crossed(fabric_deviation: pl.DataFrame) -> Iterator[Finding]:
    """The adapters of a host lead to the leaves of its unit in another order than those of its neighbours.

    Means: cables are swapped. NCCL sends between adapters of one number: from this host, rails no longer meet on one
    leaf but cross the spines, and with NCCL_CROSS_NIC=0 a ring meets another rail's traffic.
    Not when: an adapter is missing, because the others are numbered anew; several hosts have this order, which is then
    a design of its own (a note); the names of the devices cannot be ordered; the unit is not wired by rails.
    Do: compare with the cabling plan, and exchange the cables; ibdiagnet --rail_validation checks all hosts.
    Sources: published maps, in two of which two cables of a host are swapped; NCCL documentation, NCCL_CROSS_NIC.
    """
    for row in rows_of(fabric_deviation, "crossed-rails"):
        moves = _moves_text(row) or f"it has {row['have']} of {row['usual']} adapters, in another order"
        yield Finding(
            f"the cables of {row['hosts'][0]} are crossed: {moves}",
            f"{row['count']} hosts of this unit are complete, and most are wired as {row['sibling']} is",
            "likely",
            hosts=row["hosts"],
            evidence=lines_of(row),
        )
    for row in rows_of(fabric_deviation, "other-order"):
        yield Finding(
            f"{row['count']} hosts, {row['hosts'][0]} among them, follow another order of rails",
            f"{_moves_text(row)}; {row['sibling']} and most others do not",
            "possible",
            severity=Severity.INFO,
            role=Role.CONTEXT,
            hosts=row["hosts"],
            evidence=lines_of(row),
        )


@rule(Category.TOPOLOGY, Severity.WARNING, of=("fabric_deviation",))
def fabric_wrong_leaf(fabric_deviation: pl.DataFrame) -> Iterator[Finding]:
    """An adapter of a host is connected to a leaf of another unit, or to a leaf that its host has already.

    Means: a cable is plugged into the wrong switch: the traffic of this rail crosses the spines, and a port of the
    other unit is taken.
    Not when: the host is of another kind than its neighbours by its name; too few hosts of the unit are wired alike.
    Do: move the cable to the leaf where those of its neighbours are.
    Sources: published maps; NVIDIA DGX SuperPOD reference architectures (NIC k of each system on leaf k of its unit).
    """
    for row in rows_of(fabric_deviation, "wrong-leaf"):
        yield Finding(
            f"{row['hosts'][0]} is connected to the wrong leaf: {_moves_text(row)}",
            f"{row['count']} hosts of this unit are complete, and most are wired as {row['sibling']} is",
            "likely",
            hosts=row["hosts"],
            evidence=lines_of(row),
        )


@rule(Category.TOPOLOGY, Severity.WARNING, of=("fabric_deviation",))
def fabric_nic_missing(fabric_deviation: pl.DataFrame) -> Iterator[Finding]:
    """Hosts have fewer adapters in the fabric than their neighbours.

    Means: an adapter failed, its cable is unplugged, or its port is down: a job on this host uses fewer NICs, and waits
    for the ones that are left. The devices behind it may have been numbered anew.
    Not when: hosts of another kind have fewer adapters (logins, storage, managers); too few hosts of the unit are
    wired alike; all hosts of a unit lack the same one, which is a leaf that is absent.
    Do: run ibstat on the host, and iblinkinfo for the leaf; reseat the cable; look for the adapter with lspci.
    Sources: published maps; NVIDIA UFM KPI plugin (share of connected NICs).
    """
    units: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in rows_of(fabric_deviation, "nic-missing"):
        units[row["source"], row["usual"], row["have"], tuple(row["parents"]), row["sibling"]].append(row)
    for (_, usual, have, leaves, sibling), rows in units.items():
        hosts = [row["hosts"][0] for row in rows]
        found_on = some_of(leaves, SHOWN)
        absent = f"ones on {found_on} are" if len(leaves) > 1 else f"one on {found_on} is"
        yield Finding(
            f"{some_of(hosts, SHOWN)} {'has' if len(hosts) == 1 else 'have'} {have} of {usual} NICs in the fabric: the "
            f"{absent} missing",
            f"{rows[0]['count']} hosts of this unit are complete, such as {sibling}",
            "likely",
            hosts=hosts,
            evidence=[line for row in rows[:3] for line in lines_of(row)],
        )


@rule(Category.TOPOLOGY, Severity.WARNING, of=("fabric_deviation",))
def fabric_leaf_absent(fabric_deviation: pl.DataFrame) -> Iterator[Finding]:
    """All hosts of a unit have one adapter fewer in the fabric than like hosts elsewhere.

    Means: the leaf of a rail is off, or not in this subnet: each host of the unit lost that rail.
    Not when: hosts of other kinds have fewer adapters; most units have this number.
    Do: look at the leaf of this rail: its power, its management port, the subnet manager's log.
    Sources: a published map of a GB200 SuperPOD, in which a rack has three of four rails.
    """
    for row in rows_of(fabric_deviation, "leaf-absent"):
        hosts, devices = row["hosts"], f"{some_of(row['devices'], SHOWN)} of " * bool(row["devices"])
        yield Finding(
            f"all {len(hosts)} hosts of a unit have {row['have']} of {row['usual']} NICs in the fabric: the leaf of "
            f"{devices or 'a rail of '}{hosts[0]} to {hosts[-1]} is missing",
            f"such as {some_of(hosts, SHOWN)}; {row['count']} hosts of this kind elsewhere have {row['usual']}; the "
            f"leaves of this unit in the map are {some_of(sorted(row['others']), SHOWN)}",
            "likely",
            hosts=hosts,
            evidence=lines_of(row),
        )


@rule(Category.LINK_DEGRADED, Severity.WARNING, of=("fabric_deviation",))
def fabric_slow_nic(fabric_deviation: pl.DataFrame) -> Iterator[Finding]:
    """An adapter is slower than all others of its model in its host, or in the hosts of its kind at its leaf.

    Means: lanes were lost or a lower speed was negotiated: cable, transceiver, or the port of the leaf. A collective
    waits for its slowest rail.
    Not when: several are slower, as where ports are split; the host has fewer than three adapters of this model, and
    fewer than seven hosts of its kind (by its name and its model) are at the leaf.
    Do: run mlxlink -d DEVICE -m on the host; reseat the cable; compare both ends with iblinkinfo.
    Sources: NCCL documentation, networking; published maps with hosts of several speeds.
    """
    for row in rows_of(fabric_deviation, "slow-nic"):
        host, device = row["hosts"][0], row["devices"][0]
        others = f"those of the {row['count']} other hosts of this kind at its leaf, such as {row['sibling']},"
        others = others if row["sibling"] else f"its {row['count']} other adapters of this model"
        more = " or more" * bool(row["sibling"])
        yield Finding(
            f"{host} {device} runs at {row['rate']:g} Gb/s",
            f"{others} run at {row['usual_rate']:g} Gb/s{more}; it leads to {some_of(row['others'], SHOWN)}",
            "likely",
            hosts=[host],
            nics={(host, device, 1)},
            evidence=lines_of(row),
        )


@rule(Category.INCOMPLETE_EVIDENCE, Severity.INFO, of=("fabric_map",))
def fabric_not_judged(fabric_map: pl.DataFrame) -> Iterator[Finding]:
    """The shape of a map is not judged: it is a part of one, a laboratory, or its ports are made of planes.

    Means: nothing is said of uplinks, spines and rails of this map; speeds and counters of its ports are judged.
    Not when: nearly all links between switches are shown from both ends.
    Do: save the whole output of ibnetdiscover, without grep or head.
    Sources: rdma-core pull request 1541 (planarized devices); published maps of test fabrics.
    """
    for row in fabric_map.filter(pl.col("is_latest") & pl.col("line").is_not_null()).to_dicts():
        reason = (
            "its ports are made of planes (XDR), and planes are not known to this program yet"
            if row["is_planar"]
            else "most links between switches are shown from one end only: it is a part of a map"
            if not row["is_whole"]
            else "it has fewer ports of hosts than switches, as a laboratory or a director on test has"
            if row["is_laboratory"] and (row["levels"] or 0) > 1
            else ""
        )
        if reason:
            finding = Finding(f"the shape of this map is not judged: {reason}", "", "certain", role=Role.CONTEXT)
            finding.detail = f"{row['switches']} switches and {row['links']} links were read"
            if row["is_whole"]:
                finding.remedy = "Compare it with the cabling plan; ibdiagnet checks what it knows of such a fabric."
            yield finding
