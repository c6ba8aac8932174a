"""The shape of a fabric: switches that are wired otherwise than their siblings, in a map of ibnetdiscover."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import polars as pl

from ncclforensics.data.names import ranks_text, some_of
from ncclforensics.rules.finding import Category, Finding, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.deviations import SHOWN, lines_of, rows_of


def _links_text(row: dict[str, Any], column: str = "links") -> str:
    """`1 to each of 8 switches above`; `5 to spine-03, 1 to each of spine-02 and spine-04, none to spine-01`."""
    at: dict[int, list[str]] = defaultdict(list)
    for name, count in zip(row["parents"], row[column], strict=True):
        at[count].append(name)
    if len(at) == 1 and len(row["parents"]) > 1:
        return f"{next(iter(at)) or 'none'} to each of {len(row['parents'])} switches above"
    parts = []
    for count, names in sorted(at.items(), key=lambda item: (len(item[1]), -item[0])):
        to = f"each of {len(names)} others" if len(names) > SHOWN else _joined(names)
        parts.append(f"{count or 'none'} to {'each of ' * (1 < len(names) <= SHOWN and count > 0)}{to}")
    return ", ".join(parts)


def _joined(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _certainty(row: dict[str, Any]) -> str:
    return "likely" if row["is_regular"] else "possible"


@rule(Category.TOPOLOGY, Severity.WARNING, of=("fabric_deviation",))
def fabric_uneven_uplinks(fabric_deviation: pl.DataFrame) -> Iterator[Finding]:
    """A switch has most of its uplinks to a part of the spines, while its siblings spread theirs.

    Means: cables were plugged into the wrong spine. Whether routes are dealt over spines or over links, some links of
    this switch carry a multiple of the others' traffic; and OpenSM's ftree gives up a tree whose port groups are
    unequal, so that the whole fabric may be routed by another engine.
    Not when: the uplinks end in directors, whose line cards take cables in any order; the siblings are uneven, too;
    the switch has other hosts below than its siblings (storage, management), or the fabric is being built.
    Do: compare the uplinks of both switches in the map with the cabling plan, and move the cables; ibdiagnet --ft
    checks the symmetry of a fat tree. Then run the subnet manager's routing again and compare the load of the spines.
    Sources: maps of published fabrics; OpenSM doc/current-routing.txt; ibdiagnet user manual.
    """
    for row in rows_of(fabric_deviation, "uneven-uplinks"):
        usual = f"; {row['sibling']} has {_links_text(row, 'sibling_links')}" if row["sibling"] else ""
        finding = Finding(
            f"{row['name']} has uneven uplinks: {_links_text(row)}",
            f"one of {row['count']} switches with the same switches above it{usual}",
            _certainty(row),
            evidence=lines_of(row),
        )
        if row["is_director"]:
            finding.severity, finding.role = Severity.INFO, Role.CONTEXT
            finding.detail += "; a director's line cards take cables in any order"
        yield finding


@rule(Category.TOPOLOGY, Severity.WARNING, of=("fabric_deviation",))
def fabric_uplinks_missing(fabric_deviation: pl.DataFrame, port_state: pl.DataFrame) -> Iterator[Finding]:
    """A switch lacks a fifth or more of the uplinks that its siblings have.

    Means: cables are unplugged or dead, ports are disabled, or a spine was never connected: the hosts below share less
    bandwidth than those of other leaves, and the collectives of a job wait for them.
    Not when: single links are absent, as in every large fabric (a note sums them up); a class of several switches has
    fewer uplinks by design, as leaves of storage or management have; more than a third of the siblings lacks some.
    Do: list the ports of this switch that are down (iblinkinfo -S GUID); reseat or replace their cables.
    Sources: maps of published fabrics; NVIDIA UFM, topology comparison.
    """
    for row in rows_of(fabric_deviation, "uplinks-missing"):
        lost = row["usual"] - row["have"]
        usual = f"; {row['sibling']} has {_links_text(row, 'sibling_links')}" if row["sibling"] else ""
        down = _down_text(port_state, row["name"])
        yield Finding(
            f"{row['name']} lacks {lost} of {row['usual']} uplinks: {_lost_text(row)}",
            f"it has {_links_text(row)}{usual}{down}; {row['count']} switches have the same switches above them",
            _certainty(row),
            evidence=lines_of(row),
            remedy="reseat or replace the cables of the ports that are down" * bool(down),
        )


def _lost_text(row: dict[str, Any]) -> str:
    """`none to spine-01, fewer to spine-02 and 3 more`: the switches above to which links are missing."""
    links = dict(zip(row["parents"], row["links"], strict=True))
    none = [name for name in row["others"] if not links[name]]
    fewer = [name for name in row["others"] if links[name]]
    return ", ".join(
        f"{word} to {some_of(names, SHOWN)}" for word, names in (("none", none), ("fewer", fewer)) if names
    )


def _down_text(port_state: pl.DataFrame, switch: str) -> str:
    """Name the ports of a switch that are down, where the tool lists them."""
    name = pl.col("node").str.strip_prefix("MF0;").str.split(":").list.first()
    ports = port_state.filter((name == switch) & (pl.col("state") == "down"))["port"].drop_nulls().unique().to_list()
    return f"; down on {switch}: {ranks_text(ports).replace('rank', 'port')}" if ports else ""


@rule(Category.TOPOLOGY, Severity.INFO, of=("fabric_deviation",), role=Role.CONTEXT)
def fabric_links_absent(fabric_deviation: pl.DataFrame) -> Iterator[Finding]:
    """Single links between switches are absent.

    Means: some cables are unplugged or dead. Each costs its switch a few percent of its uplinks.
    Not when: a switch lacks a fifth of its uplinks: that is a finding of its own.
    Do: list the ports that are down with iblinkinfo, and compare with the cabling plan at the next maintenance.
    Sources: maps of published fabrics: 14 of 203 leaves of NVIDIA's Selene lack 1 of 20 uplinks.
    """
    for row in rows_of(fabric_deviation, "single-links"):
        links, switches, name = row["absent"], row["count"], row["name"]
        has = f"has {row['have']} of {row['usual']}; large fabrics have some of these"
        yield Finding(
            f"{links} single {'uplink is' if links == 1 else 'uplinks are'} absent on "
            f"{name if switches == 1 else f'{switches} switches'}",
            f"it {has}" if switches == 1 else f"such as {name}, which {has}",
            "likely",
            evidence=lines_of(row),
        )


@rule(Category.TOPOLOGY, Severity.WARNING, of=("fabric_deviation",))
def fabric_spine_short(fabric_deviation: pl.DataFrame) -> Iterator[Finding]:
    """A spine has far fewer links to the switches below it than its siblings.

    Means: a line card, a power supply or a bundle of cables of this spine is out: the switches below it that lack the
    links have less bandwidth, and the traffic of the others meets in the links that remain.
    Not when: the better half of the spines is within a fifth of it; fewer than three switches below lack links; there
    are fewer than four switches below.
    Do: look at this switch (ports that are down, its own log, power) before the cables of each leaf.
    Sources: maps of published fabrics.
    """
    for row in rows_of(fabric_deviation, "spine-short"):
        yield Finding(
            f"{row['name']} has {row['have']} links to the {row['count']} switches below it, {row['sibling']} has "
            f"{row['usual']}",
            f"{row['absent']} of these switches have fewer links to it than to other spines, such as "
            f"{some_of(row['others'], SHOWN)}; what they lack is counted here only",
            _certainty(row),
            evidence=lines_of(row),
        )


@rule(Category.TOPOLOGY, Severity.INFO, of=("fabric_deviation",), role=Role.CONTEXT)
def fabric_spine_absent(fabric_deviation: pl.DataFrame) -> Iterator[Finding]:
    """A spine may be absent: the same ports are unused on all leaves, and the names of the spines have a gap.

    Means: a switch is off, or was taken out of the subnet: all leaves lost the same share of their bandwidth.
    Not when: names have a gap but no ports are free between those in use, or the other way round; the switch is in
    the map elsewhere; more than a quarter of the numbers is missing, because then numbers follow another plan.
    Do: ask whether that spine exists; if it does, look at its power and at its management port.
    Sources: derived from maps in which one spine was removed.
    """
    for row in rows_of(fabric_deviation, "spine-absent"):
        names, (first, last) = some_of(row["names"], SHOWN), row["ports"]
        ports = f"port {first}" if first == last else f"ports {first} to {last}"
        is_one = len(row["names"]) == 1
        yield Finding(
            f"{names} {'is' if is_one else 'are'} not in the map, and {ports} of all {row['count']} leaves "
            f"{'is' if first == last else 'are'} unused",
            "the names of the spines have a gap that fits these ports",
            "possible",
            evidence=lines_of(row),
        )


@rule(Category.TOPOLOGY, Severity.WARNING, of=("fabric_deviation",))
def fabric_oversubscribed(fabric_deviation: pl.DataFrame) -> Iterator[Finding]:
    """The hosts of a leaf can send more than its uplinks can carry.

    Means: when all hosts of a leaf send to other leaves at once, as in an all-to-all or an all-reduce over many units,
    each gets only this share of its link.
    Not when: the ratio is at most 2:1, as many fabrics are built; from there on it is a note for hosts with fewer than
    four NICs, which need less; a fabric of rails keeps most traffic below one leaf.
    Do: place a job's ranks below as few leaves as possible; add uplinks. nccl-tests over hosts of several leaves
    measures what is left.
    Sources: field guides for GPU clusters (2:1 at most); published maps.
    """
    for row in rows_of(fabric_deviation, "oversubscribed"):
        finding = Finding(
            f"leaves are oversubscribed {row['ratio']:.3g}:1",
            "at least half of the hosts' ports are below such leaves; "
            f"at {row['name']}, {row['usual']} ports of hosts share {row['have']} uplinks",
            "certain",
            evidence=lines_of(row),
        )
        if not row["is_regular"]:
            finding.severity, finding.role = Severity.INFO, Role.CONTEXT
        yield finding


@rule(Category.TOPOLOGY, Severity.WARNING, of=("fabric_deviation",))
def fabric_link_within_level(fabric_deviation: pl.DataFrame) -> Iterator[Finding]:
    """A cable connects two switches of one level, where the others lead to spines.

    Means: the cable is in the wrong port: both switches lack an uplink, and routes through this link are no up-down
    routes, which some routing engines refuse or which may end in a credit loop.
    Not when: more than half of the switches of the level have such links, or one has many: dragonfly+ and rings are
    built that way.
    Do: compare with the cabling plan and move the cable; check for credit loops with ibdiagnet -r.
    Sources: published maps; ibdiagnet user manual; OpenSM doc/current-routing.txt.
    """
    for row in rows_of(fabric_deviation, "level-link"):
        own, other = row["ports"]
        yield Finding(
            f"{row['name']} port {own} leads to {row['sibling']} port {other}, a switch of its own level",
            f"{row['absent']} of {row['count']} switches of this level have such a link; the others lead to the "
            "level above",
            "likely",
            evidence=lines_of(row),
        )


@rule(Category.LINK_DEGRADED, Severity.WARNING, of=("fabric_deviation",))
def fabric_slow_link(fabric_deviation: pl.DataFrame) -> Iterator[Finding]:
    """A link between two switches is slower than nearly all others between the same levels.

    Means: lanes were lost or a lower speed was negotiated: cable, transceiver, or a port that is limited. Traffic that
    is routed over this link is slow, and the collectives behind it.
    Not when: more than a tenth of the links of these levels is slower: another design; a faster link connects the same
    two switches, with which ctr-rate-downshift compares it.
    Do: reseat or replace cable and transceivers, then run ibnetdiscover again; check that speed and width are not
    limited at either end.
    Sources: published maps.
    """
    for row in rows_of(fabric_deviation, "slow-link"):
        own, other = row["ports"]
        yield Finding(
            f"the link of {row['name']} port {own} to {row['sibling']} port {other} runs at {row['names'][0]} "
            f"({row['rate']:g} Gb/s)",
            f"{row['count']:,} links between these levels run at {row['usual_rate']:g} Gb/s",
            "likely",
            evidence=lines_of(row),
        )
