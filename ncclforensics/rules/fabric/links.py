"""Links of the fabric, by port counters: links that went down, and links that corrupt data."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.data.counters import (
    LINK_DOWNED,
    LINK_LIMITS,
    LINK_RETRAINED,
    LONG_AGO,
    OFTEN,
    PEERS_LEAST,
    REMOTE_LIMIT,
)
from ncclforensics.data.host_counters import DEVICE_ERRORS, PORT_ERRORS
from ncclforensics.data.roce import LOSSES, PROOFS
from ncclforensics.data.verbs import RETRY_EXCEEDED
from ncclforensics.frames.columns import Row, short_host
from ncclforensics.rules.finding import Category, Finding, Line, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.port_counters import (
    CERTAINTY,
    SHOWN,
    LinkCounters,
    add_failed_transfers,
    counter_lines,
    increased,
    limit_findings,
)
from ncclforensics.rules.shared.port_text import increase_text, nics_of, period_text, port_name

RESTART_PORTS = 3  # ports of one node that lost their link together
SYMBOLS, RECEIVED, REMOTE = "symbol_error", "port_rcv_errors", "port_rcv_remote_physical_errors"
UNRELIABLE_ORDERS = ("traffic", "name")  # what orders two dumps, the least reliable first


@rule(Category.LINK_ERROR, Severity.ERROR, of=("counter_increase",), hang=True)
def ctr_link_downed(
    counter_increase: pl.DataFrame, port_peer: pl.DataFrame, completion_error: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """A link went down between two dumps of counters.

    Means: the link was lost and trained again. While a job runs, each time may end it: transfers get no answer until
    the retries are used up. Counted at both ends: cable or transceiver; on many ports of one node: that node restarted.
    Not when: there is only one dump, because it does not show when; the total did not increase between the dumps.
    Do: reseat or replace cable and transceiver; look for the same time in the switch's log and the host's dmesg.
    Sources: InfiniBand specification, PortCounters; NCCL documentation, networking; nebius/soperator#481.
    """
    rows = increased(counter_increase, {LINK_DOWNED: 1})
    yield from _restarts(rows, counter_increase)
    links = LinkCounters(_without_restarts(rows, counter_increase, port_peer), port_peer)
    findings = []
    for near, far in links:
        ends = near + far
        title = f"the link of {port_name(near[0])} went down"
        peer = links.peer_name(near[0])
        detail = increase_text(near[0]) + period_text(near[0])
        if peer:
            title += f" (to {peer})"
            detail += "; both ends counted it: the cable or a transceiver" if far else ""
        findings.append(_port_finding(title, detail, ends, links.hosts(ends)))
        add_failed_transfers(findings[-1], ends, completion_error, rank)
    yield from limit_findings(findings, "more links went down")


def _with_nodes(rows: pl.DataFrame) -> pl.DataFrame:
    """Add `_node`: the host or switch of each port, by the best name that is known."""
    return rows.with_columns(_node=pl.coalesce("host", "node", "guid", pl.format("LID {}", "lid")))


def _restarted_nodes(rows: pl.DataFrame, counter_increase: pl.DataFrame) -> list[str]:
    """List the nodes of which most ports, RESTART_PORTS at least, lost their link: they restarted."""
    is_counted = (pl.col("name") == LINK_DOWNED) & pl.col("increase").is_not_null()
    counted = _with_nodes(counter_increase.filter(is_counted))
    lost = _with_nodes(rows).group_by("_node").agg(lost=pl.col("key").n_unique())
    nodes = counted.group_by("_node").agg(ports=pl.col("key").n_unique()).join(lost, on="_node")
    restarted = nodes.filter((pl.col("lost") >= RESTART_PORTS) & (pl.col("lost") * 2 > pl.col("ports")))
    return restarted["_node"].sort().to_list()


def _without_restarts(rows: pl.DataFrame, counter_increase: pl.DataFrame, port_peer: pl.DataFrame) -> pl.DataFrame:
    """Drop the links of nodes that restarted, at both their ends."""
    restarted = _restarted_nodes(rows, counter_increase)
    keys = _with_nodes(rows).filter(pl.col("_node").is_in(restarted))["key"].to_list()
    peer_keys = port_peer.filter(pl.col("key").is_in(keys))["peer_key"].drop_nulls().to_list()
    return rows.filter(~pl.col("key").is_in([*keys, *peer_keys]))


def _restarts(rows: pl.DataFrame, counter_increase: pl.DataFrame) -> Iterator[Finding]:
    for node in _restarted_nodes(rows, counter_increase):
        ports = _with_nodes(rows).filter(pl.col("_node") == node).to_dicts()
        name = ports[0]["host"] or port_name(ports[0]).rpartition(" port ")[0]
        detail = f"{len(ports)} of its ports lost their link{period_text(ports[0])}: it restarted or lost power"
        hosts = sorted({row["host"] for row in ports if row["host"]})
        yield _port_finding(f"{name} lost most of its links at once", detail, ports, hosts)


def _port_finding(title: str, detail: str, rows: list[Row], hosts: list[str]) -> Finding:
    """Make a finding whose certainty follows from how the order of the dumps is known."""
    orders = [row["order"] for row in rows]
    order = next((order for order in UNRELIABLE_ORDERS if order in orders), orders[0])
    if order == "traffic":
        detail += "; only the traffic counters show which dump is the earlier one"
    certainty = CERTAINTY.get(order, "possible")
    return Finding(title, detail, certainty, hosts=hosts, nics=nics_of(rows), evidence=counter_lines(rows))


@rule(Category.LINK_ERROR, Severity.WARNING, of=("counter_increase",))
def ctr_link_quality(
    counter_increase: pl.DataFrame, port_peer: pl.DataFrame, completion_error: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """A link corrupts data: symbol errors, packets received with errors, or it is trained again and again.

    Means: this port receives bad data: the cable, or the transmitter at the other end; errors at both ends: the cable
    or a transceiver. With error correction (EDR and later) symbol errors are those that could not be corrected.
    Not when: a single dump shows a few, because links count some when they come up after a boot; corrected errors,
    which are normal; a counter that is saturated on every port, which proves nothing.
    Do: clear the counters, let the job run, and look again; replace cable and transceiver; mlxlink -d DEVICE -m -c.
    Sources: infiniband-diags error_thresholds; InfiniBand specification, PortCounters; NCCL documentation, networking.
    """
    limits = {name: limit for name, limit in LINK_LIMITS.items() if name != LINK_DOWNED}
    links = LinkCounters(increased(counter_increase, limits), port_peer)
    findings = []
    for near, far in sorted(links, key=lambda ends: -max(row["increase"] for row in ends[0])):
        peer = links.peer_name(near[0])
        detail = ", ".join(map(increase_text, near)) + period_text(near[0])
        if far:
            detail += f"; at the other end {', '.join(map(increase_text, far))}: the cable or a transceiver"
        elif peer:
            detail += f"; it receives bad data: the cable, or the transmitter of {peer}"
        ends = near + far
        finding = _port_finding(f"the link of {port_name(near[0])} is bad", detail, ends, links.hosts(ends))
        if any(row["name"] == LINK_RETRAINED and row["increase"] >= OFTEN for row in ends):
            finding.severity = Severity.ERROR
        add_failed_transfers(finding, ends, completion_error, rank)
        findings.append(finding)
    findings += _bad_totals(counter_increase, port_peer)
    yield from limit_findings(findings, "more links are bad")


def _bad_totals(counter_increase: pl.DataFrame, port_peer: pl.DataFrame) -> list[Finding]:
    """Report ports with one dump that shows many errors of two kinds, if few ports of that dump show them."""
    is_single = pl.col("dumps") == 1
    counted = counter_increase.filter(is_single & pl.col("name").is_in(list(LINK_LIMITS)) & (pl.col("value") > 0))
    value = {name: pl.col("value").filter(pl.col("name") == name).max().fill_null(0) for name in LINK_LIMITS}
    is_saturated = (pl.col("is_saturated") & (pl.col("name") == SYMBOLS)).any()
    is_much = (
        is_saturated | (value[SYMBOLS] >= LONG_AGO) | (value[RECEIVED] >= LONG_AGO) | (value[LINK_RETRAINED] >= OFTEN)
    )
    # Links count errors when they come up, too, so that a total of one kind proves little.
    kinds = pl.sum_horizontal(value[name] >= limit for name, limit in LINK_LIMITS.items() if name != LINK_DOWNED)
    ports = counted.group_by("key", "source", maintain_order=True).agg(is_bad=is_much & (kinds > 1))
    bad = ports.filter("is_bad").with_columns(bad=pl.len().over("source"))
    if bad.is_empty():
        return []
    of_source = counter_increase[:, ["source", "key", "dumps"]].filter(is_single).group_by("source")
    few = bad.join(of_source.agg(ports=pl.col("key").n_unique()), on="source").filter(
        (pl.col("ports") < PEERS_LEAST) | (pl.col("bad") <= pl.col("ports") / PEERS_LEAST)
    )
    counters = counted.filter(pl.col("key").is_in(few["key"].to_list()))
    links = LinkCounters(counters, port_peer)
    findings = []
    for near, far in links:
        totals = ", ".join(map(_total, near))
        findings.append(
            Finding(
                f"the link of {port_name(near[0])} was bad at some time",
                f"total counts: {totals}; when they were counted is unknown, and a second dump shows whether they "
                "still increase",
                "possible",
                hosts=links.hosts(near),
                nics=nics_of(near + far),
                evidence=counter_lines(near + far),
            )
        )
    return findings


def _total(row: Row) -> str:
    at_most = " (the counter's maximum)" if row["is_saturated"] else ""
    return f"{row['name']} {row['value']:,}{at_most}"


@rule(Category.LINK_ERROR, Severity.INFO, of=("counter_increase",), role=Role.CONTEXT)
def ctr_need_delta(counter_increase: pl.DataFrame) -> Iterator[Finding]:
    """Error counters are not zero, and there is only one dump.

    Means: the counters are totals since they were last cleared, by a restart or by hand: they may be a day or a year
    old.
    Not when: a second dump shows how much they increased.
    Do: dump the counters again while the job runs, with the time (date; perfquery -x, ibqueryerrors --data), and pass
    both dumps to check; or clear them with perfquery -R, ibqueryerrors -k.
    Sources: NCCL documentation, networking (counters that increase while a test runs); nebius/soperator#481.
    """
    single = counter_increase.filter(
        (pl.col("dumps") == 1)
        & pl.col("name").is_in([*LINK_LIMITS, *DEVICE_ERRORS, *PORT_ERRORS, *PROOFS])
        & (pl.col("value") > 0)
    )
    if single.is_empty():
        return
    # Of a large fabric, all columns of all rows in this order would take most of the memory.
    order = single.select("source", "line", "value", is_other=pl.col("name") != LINK_DOWNED).with_row_index("row")
    order = order.sort("is_other", -pl.col("value"), "source", "line")
    worst = single[order["row"].head(SHOWN)]
    lines = single[order.unique(["source", "line"], keep="first", maintain_order=True)["row"].head(SHOWN)]
    totals = [f"{port_name(row)}: {_total(row)}" for row in worst.to_dicts()]
    ports = single["key"].n_unique()
    first = f"{totals[0]}{' and others' * (single.height > 1)}"
    yield Finding(
        f"{ports} {'port has' if ports == 1 else 'ports have'} counted errors, at an unknown time: {first}",
        "totals since the counters were cleared: "
        + "; ".join(totals)
        + ("; and others" if single.height > SHOWN else ""),
        "certain",
        hosts=single["host"].drop_nulls().unique().sort().to_list(),
        evidence=counter_lines(lines.to_dicts()),
    )


@rule(Category.LINK_ERROR, Severity.INFO, of=("counter_increase",))
def ctr_bad_elsewhere(counter_increase: pl.DataFrame, port_peer: pl.DataFrame) -> Iterator[Finding]:
    """A port received packets that a switch on their way had marked as bad.

    Means: the fault is not on this link but earlier on the path, at a port with symbol errors.
    Not when: the same link counts symbol errors or receive errors, which are then the fault.
    Do: follow the path (ibtracert) to a port with symbol errors or receive errors; ibqueryerrors queries all ports.
    Sources: InfiniBand specification, PortRcvRemotePhysicalErrors; infiniband-diags error_thresholds.
    """
    own = increased(counter_increase, LINK_LIMITS)["key"].to_list()
    rows = increased(counter_increase, {REMOTE: REMOTE_LIMIT}).filter(~pl.col("key").is_in(own)).to_dicts()
    if rows:
        links = LinkCounters(pl.DataFrame(rows, schema=counter_increase.schema), port_peer)
        names = ", ".join(port_name(row) for row in rows[:SHOWN]) + (" and others" if len(rows) > SHOWN else "")
        detail = f"{increase_text(rows[0])}{period_text(rows[0])}; their own links count no errors: the fault is "
        detail += "earlier on the path"
        finding = _port_finding(f"bad packets arrived at {names}", detail, rows, links.hosts(rows))
        finding.role = Role.CONSEQUENCE
        yield finding


@rule(Category.LINK_ERROR, Severity.INFO, of=("counter_increase",), role=Role.CONTEXT)
def ctr_contradicts_log(
    counter_increase: pl.DataFrame, port_state: pl.DataFrame, completion_error: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """Transfers got no answer, and the counters of the ports that they used did not increase.

    Means: between these dumps the links were sound and stayed up: look for a peer that died or hangs, for routing, a
    wrong GID or a firewall, not for a cable.
    Not when: the dumps were not taken before and after the failure; the counters of a port of these hosts are missing;
    a port of either host is down, or RDMA packets were lost, which agrees with the log.
    Do: find the process that ended first, and when; compare the times of the dumps with those of the log; dump the
    switch ports at the other end, too.
    Sources: verbs status 12 (rdma-core); NCCL documentation, networking.
    """
    failed = completion_error.filter((pl.col("status") == RETRY_EXCEEDED) & ~pl.col("at_exit"))
    errors = counter_increase.filter(pl.col("name").is_in(list(LINK_LIMITS)) & pl.col("host").is_not_null())
    ports = errors.with_columns(short=short_host("host")).group_by("short", "device", maintain_order=True)
    known = ports.agg(
        is_unchanged=(pl.col("increase").fill_null(1) == 0).all(),
        has_link_downed=(pl.col("name") == LINK_DOWNED).any(),
        line=pl.col("line").first(),
        source=pl.col("source").first(),
    )
    sound = known.filter(pl.col("is_unchanged") & pl.col("has_link_downed"))
    used = failed.select(short_host("host").alias("short"), device="hca").drop_nulls().unique()
    if used.is_empty() or used.join(sound, on=["short", "device"], how="anti").height:
        return
    hosts = {*used["short"], *failed.select(short_host("peer_host")).to_series().drop_nulls()}
    down = port_state.filter(short_host("host").is_in(hosts) & (pl.col("state") == "down"))
    lost = increased(counter_increase, LOSSES).filter(short_host("host").is_in(hosts))
    if down.height or lost.height:
        return
    cited = sound.join(used, on=["short", "device"], how="semi", maintain_order="left")
    processes = rank.join(failed.select("host", "pid").unique(), on=["host", "pid"], how="semi")
    ranks = sorted(processes["rank"].drop_nulls().unique().to_list())
    first = failed.sort("source", "line").select("source", "line").head(2)
    yield Finding(
        "the link counters do not confirm the network failure in the log",
        "the ports of the transfers that got no answer counted no errors and did not go down between the dumps",
        "likely",
        ranks=ranks,
        hosts=cited["short"].unique().sort().to_list(),
        evidence=[
            *(Line(source, line, "counter") for source, line in cited.select("source", "line").head(2).iter_rows()),
            *(Line(source, line, "log") for source, line in first.iter_rows()),
        ],
    )
