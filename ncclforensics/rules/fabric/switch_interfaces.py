"""Interfaces of Ethernet switches, by SNMP or SONiC: what they lost, and which of them are full."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.analyses.host.command_output import add_origin
from ncclforensics.data.fabric import HOT, HOT_RATIO, HOT_SHARE
from ncclforensics.data.interfaces import ERRORS_LEAST, LOSSES, RECEIVED, SENT
from ncclforensics.data.names import count_of, some_of
from ncclforensics.data.roce import PAUSES_LEAST
from ncclforensics.frames.columns import text_of
from ncclforensics.rules.finding import Category, Finding, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.grouping import SHOWN, evidence_lines
from ncclforensics.rules.shared.port_counters import counter_finding, counter_lines
from ncclforensics.rules.shared.port_text import period_text

DIRECTIONS = {"rx": "received", "tx": "sent"}
OF_UNKNOWN_AGE = "totals since they were cleared, which do not show whether a port pauses now"
FEWEST_PORTS = 4  # of a switch, for one of them to be busier than the others


def _interface(row: dict[str, object]) -> str:
    return " ".join(str(name) for name in (row["host"], row["device"]) if name)


@rule(Category.LINK_ERROR, Severity.INFO, of=("interface_counter",))
def switch_interface_losses(counter_increase: pl.DataFrame) -> Iterator[Finding]:
    """Ports of an Ethernet switch count errors or packets that they discarded.

    Means: discarded on the way out: the port was congested, or a PFC watchdog dropped what it could not send; receive
    errors: a damaged cable or module. Receive errors that grow between two dumps are a warning; all else is a note.
    Not when: all counters are zero, or stay the same between two dumps. Of one dump they are totals of unknown age;
    whether it slows a job, only what they grow by during its run shows.
    Do: take the counters before and after a run of the job (snmpbulkwalk, or show interfaces counters); show queue
    counters and show pfcwd stats for the queue that loses packets.
    Sources: RFC 2863 (IF-MIB); SONiC command reference, show interfaces counters; sonic-buildimage#9193.
    """
    counters = counter_increase.filter(pl.col("name").is_in(list(LOSSES)))
    is_delta = pl.col("dumps") > 1
    lost = counters.with_columns(lost=pl.when(is_delta).then("increase").otherwise("value")).filter(pl.col("lost") > 0)
    ordered = lost.sort("lost", "source", "line", descending=[True, False, False])
    for (source, has_two), rows in ordered.group_by("source", is_delta, maintain_order=True):
        texts = [f"{_interface(row)}: {row['lost']:,} {LOSSES[row['name']]}" for row in rows.head(SHOWN).to_dicts()]
        ports = counters.filter((pl.col("source") == source) & (is_delta == has_two))["key"].n_unique()
        title = (
            f"{rows['key'].n_unique()} of {count_of(ports, 'switch port')} lost packets; the most: {', '.join(texts)}"
        )
        if not has_two:
            detail = "totals since they were cleared, which do not show whether a port loses packets now"
            yield Finding(title, detail, "certain", role=Role.CONTEXT, evidence=evidence_lines(rows))
            continue
        errors = rows.filter((pl.col("name") == "ifInErrors") & (pl.col("lost") >= ERRORS_LEAST))
        names = [_interface(row) for row in errors.to_dicts()]
        cable = f"; receive errors at {some_of(names, SHOWN)}: the cable or a module there" if names else ""
        yield counter_finding(
            rows.select(counter_increase.columns),
            title,
            "they grew" + (period_text(rows.row(0, named=True)) or " between two dumps") + cable,
            role=Role.CAUSE if names else Role.CONTEXT,
            severity=Severity.WARNING if names else Severity.INFO,
            nics=set(),
            evidence=counter_lines((errors if names else rows).to_dicts()),
        )


@rule(Category.CONGESTION, Severity.INFO, of=("pfc_row", "pfc_pause"))
def switch_pfc_frames(counter_increase: pl.DataFrame, pfc_pause: pl.DataFrame) -> Iterator[Finding]:
    """Ports of a switch sent or received PFC pause frames, or were paused for some time.

    Means: a port that receives them was asked by its neighbour to wait; one that sends them could not pass on what it
    got: congestion at, or behind, that port. Many that were received between two dumps are a warning: look at what is
    behind that port.
    Not when: all counters are zero, or stay the same between two dumps. Of one dump they are totals of unknown age;
    whether it slows a job, only what they grow by during its run shows.
    Do: clear them (sonic-clear pfccounters), run the job, and look again; compare priorities with the hosts'
    (mlnx_qos).
    Sources: SONiC command reference, show pfc counters; IEEE 802.1Qbb.
    """
    is_delta = pl.col("dumps") > 1
    counters = counter_increase.filter(text_of("name").str.contains("_pfc_", literal=True))
    counters = counters.with_columns(
        frames=pl.when(is_delta).then("increase").otherwise("value"),
        direction=text_of("name").str.head(2).replace(DIRECTIONS),
        priority=text_of("name").str.tail(1),
    )
    paused = counters.filter(pl.col("frames") > 0)
    for (source, has_two), rows in paused.group_by("source", is_delta, maintain_order=True):
        most = rows.sort("frames", descending=True).unique("direction", keep="first", maintain_order=True)
        texts = [
            f"{_interface(row)} {row['direction']} {row['frames']:,} in priority {row['priority']}"
            for row in most.to_dicts()
        ]
        ports = counters.filter((pl.col("source") == source) & (is_delta == has_two))["key"].n_unique()
        title = f"PFC pause frames at {rows['key'].n_unique()} of {count_of(ports, 'switch port')}; the most: "
        title += ", ".join(texts)
        if not has_two:
            yield Finding(title, OF_UNKNOWN_AGE, "certain", role=Role.CONTEXT, evidence=evidence_lines(most))
            continue
        many = rows.filter((pl.col("direction") == DIRECTIONS["rx"]) & (pl.col("frames") >= PAUSES_LEAST))
        yield counter_finding(
            rows.select(counter_increase.columns),
            title,
            "they grew" + (period_text(most.row(0, named=True)) or " between two dumps"),
            role=Role.CAUSE if many.height else Role.CONTEXT,
            severity=Severity.WARNING if many.height else Severity.INFO,
            nics=set(),
            evidence=counter_lines(most.to_dicts()),
        )
    yield from _paused_for_long(pfc_pause)


def _paused_for_long(pfc_pause: pl.DataFrame) -> Iterator[Finding]:
    """The ports that were paused, by the table that adds up for how long."""
    microseconds = text_of("paused_us").str.replace_all(",", "", literal=True).cast(pl.Int64, strict=False)
    paused = pfc_pause.with_columns(paused_us=microseconds).filter(pl.col("paused_us") > 0)
    for _, ports in paused.sort("paused_us", descending=True).group_by("source", maintain_order=True):
        texts = [
            f"{row['switch_port']} {row['paused_us'] / 1e6:,.1f} s in priority {row['priority']}"
            for row in ports.head(SHOWN).to_dicts()
        ]
        title = f"{count_of(ports['switch_port'].n_unique(), 'switch port')} paused by a neighbour; the longest: "
        title += ", ".join(texts)
        yield Finding(title, OF_UNKNOWN_AGE, "certain", role=Role.CONTEXT, evidence=evidence_lines(ports.head(SHOWN)))


@rule(Category.LINK_ERROR, Severity.INFO, of=("interface_status",), role=Role.CONTEXT)
def switch_ports_down(interface_status: pl.DataFrame, output_heading: pl.DataFrame) -> Iterator[Finding]:
    """Ports of an Ethernet switch are switched on and have no link.

    Means: no cable, a module that does not fit, other settings of speed or FEC at the other end, or a host that is off.
    Not when: the port is switched off; an unused port looks the same, for many switches switch on all of them.
    Do: compare with what should be connected there (show lldp table); show interfaces transceiver presence and eeprom,
    show interfaces fec status, at both ends.
    Sources: sonic-utilities, scripts/intfutil; SONiC command reference, show interfaces status.
    """
    ports = add_origin(interface_status.filter(text_of("form") == "row"), output_heading)
    ports = ports.with_columns(host="origin_host", device=text_of("switch_port"))
    down = ports.filter((text_of("link_state") == "down") & (text_of("switched") == "up")).sort("source", "line")
    for (source,), rows in down.group_by("source", maintain_order=True):
        names = some_of([_interface(row) for row in rows.to_dicts()], SHOWN)
        of_source = ports.filter(pl.col("source") == source)["switch_port"].n_unique()
        title = f"{rows['switch_port'].n_unique()} of {count_of(of_source, 'switch port')} switched on without a link: "
        yield Finding(title + names, "one without a cable looks the same", "certain", evidence=evidence_lines(rows))


@rule(Category.CONGESTION, Severity.INFO, of=("interface_speed",))
def switch_interface_full(counter_increase: pl.DataFrame, interface_speed: pl.DataFrame) -> Iterator[Finding]:
    """A port of an Ethernet switch is full between two dumps while most others have room.

    Means: several large flows share this link: the hash of the switch put them together (ECMP), or a host receives
    from many others at once. NCCL has few flows, so that this is expected to happen at times.
    Not when: there is one dump, or no time between both; most ports are full; an interface without a rate.
    Do: see what the port leads to; between switches set NCCL_IB_QPS_PER_CONNECTION and NCCL_IB_SPLIT_DATA_ON_QPS=1 for
    more flows, or turn on adaptive routing of the switches.
    Sources: RFC 2863 (ifHCOutOctets, ifHighSpeed); Meta, RoCE at scale, SIGCOMM 2024.
    """
    speed = interface_speed.filter(pl.col("rate_Gbps") > 0)
    uptime = interface_speed.select("source", "uptime").unique("source")
    carried = counter_increase.filter(pl.col("name").is_in([RECEIVED, SENT]) & ~pl.col("is_reset"))
    rows = carried.join(speed.drop("host", "uptime"), on=["source", "device"]).join(uptime, on="source")
    rows = rows.join(uptime.rename({"source": "before_source", "uptime": "before"}), on="before_source", how="left")
    seconds = pl.coalesce(
        "seconds", pl.when(pl.col("uptime") > pl.col("before")).then(pl.col("uptime") - pl.col("before"))
    )
    share = pl.col("increase") * 8 / (seconds * pl.col("rate_Gbps") * 1e9)
    loads = rows.with_columns(share=share).filter(pl.col("share") > 0)
    for (name, _), of_switch in loads.group_by(
        "name", pl.coalesce("host", pl.col("source").cast(pl.String)), maintain_order=True
    ):
        usual = float(of_switch.select(pl.col("share").median()).item())
        full = of_switch.filter((pl.col("share") >= HOT) & (pl.col("share") >= HOT_RATIO * usual)).sort(
            -pl.col("share")
        )
        if of_switch.height < FEWEST_PORTS or full.is_empty() or full.height > max(1, of_switch.height * HOT_SHARE):
            continue
        way = "sends" if name == SENT else "receives"
        texts = [f"{_interface(row)} {way} {row['share']:.0%}" for row in full.head(SHOWN).to_dicts()]
        yield counter_finding(
            full.select(counter_increase.columns),
            f"full ports of a switch: {', '.join(texts)} of the rate",
            f"the median of {of_switch.height} ports with traffic is {usual:.0%}",
            role=Role.CONTEXT,
            certainty="likely",
            nics=set(),
        )
