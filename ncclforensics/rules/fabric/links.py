"""Links of the fabric by their counters: those that went down, those that corrupt what they carry."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import polars as pl

from ncclforensics.data.counters import LINK_LIMITS, LONG_AGO, OFTEN, REMOTE_LIMIT, SIBLINGS, WHAT
from ncclforensics.data.names import printable
from ncclforensics.data.roce import LOSSES
from ncclforensics.data.verbs import RETRY_EXCEEDED
from ncclforensics.frames.columns import short_host, text_of
from ncclforensics.rules.finding import Category, Finding, Line, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.grouping import who

Row = dict[str, Any]
MOST = 5  # findings on single links; what is left is one
SHOWN = 4  # lines of evidence
MANY = 3  # ports that lose their link with others of the same node
CERTAINTY = {"time": "certain", "place": "certain", "name": "likely", "traffic": "likely"}
DOWN, RECOVERED, SYMBOLS, RECEIVED, REMOTE = (
    "link_downed", "link_error_recovery", "symbol_error", "port_rcv_errors", "port_rcv_remote_physical_errors",
)  # fmt: skip


def port_name(row: Row, prefix: str = "") -> str:
    """`gpu-a012 mlx5_0 port 1`, `leaf-4 port 7`, `LID 12 port 1`: as much as is known of a port."""
    host, device, node, lid, guid, port = (
        row.get(f"{prefix}{name}") for name in ("host", "device", "node", "lid", "guid", "port")
    )
    switch = str(node).removeprefix("MF0;").split(":")[0] if node else None
    known = " ".join(filter(None, (host, device))) if host else switch or device
    owner = known or (f"LID {lid}" if lid is not None else guid) or "a port of nobody"
    return printable(f"{owner} port {'?' if port is None else port}")


def times(row: Row) -> str:
    """` between 11:04:00 and 11:05:00`, of the dumps between which it began; or how long they are apart."""
    if row["onset"] is not None and row["quiet"] is not None:
        return f" between {row['quiet']} and {row['onset']}"
    return ""


def amount(row: Row) -> str:
    """`12 symbol errors more`, `at least 65,532 …` where the counter stuck or was reset."""
    least = "at least " if row["is_least"] else ""
    what = WHAT[row["name"]]
    if row["name"] in (DOWN, RECOVERED):
        return f"{what} {least}{row['growth']:,} times" if row["growth"] != 1 or least else f"{what} once"
    return f"{least}{row['growth']:,} {what}"


def lines(rows: Iterable[Row]) -> list[Line]:
    """Where a counter stands in the last dump, and where it stood in the first."""
    shown: list[Line] = []
    for row in rows:
        shown.append(Line(row["source"], row["line"], "after" if row["before_line"] is not None else ""))
        if row["before_line"] is not None:
            shown.append(Line(row["before_source"], row["before_line"], "before"))
    return list(dict.fromkeys(shown))[:SHOWN]


def grown(counter_growth: pl.DataFrame, limits: dict[str, int]) -> pl.DataFrame:
    """The counters that grew by as much as tells of a fault."""
    limit = pl.col("name").replace_strict(limits, default=None, return_dtype=pl.Int64)
    return counter_growth.filter(pl.col("growth") >= limit)


class Links:
    """The links on which something grew, each with what grew at either end."""

    def __init__(self, rows: pl.DataFrame, port_peer: pl.DataFrame) -> None:
        self.peers = {row["key"]: row for row in port_peer.to_dicts()}
        self.ports: dict[str, list[Row]] = {}
        for row in rows.to_dicts():
            self.ports.setdefault(row["key"], []).append(row)

    def __iter__(self) -> Iterator[tuple[list[Row], list[Row]]]:
        """The rows of a port, and those of the port at the other end if something grew there, too."""
        told: set[str] = set()
        for key, rows in self.ports.items():
            if key in told:
                continue
            other = self.peers.get(key, {}).get("peer_key")
            told |= {key, str(other)}
            yield rows, self.ports.get(str(other), [])

    def opposite(self, row: Row) -> str | None:
        """What is known of the port at the other end."""
        peer = self.peers.get(row["key"])
        return port_name(peer, "peer_") if peer else None

    def hosts(self, rows: Iterable[Row]) -> list[str]:
        """The hosts at the ends of these ports."""
        ends = [row["host"] for row in rows]
        ends += [self.peers[row["key"]]["peer_host"] for row in rows if row["key"] in self.peers]
        return sorted({end for end in ends if end})


def told_by_log(finding: Finding, rows: list[Row], completion_error: pl.DataFrame, rank: pl.DataFrame) -> None:
    """Add the transfers that failed on the hosts at the ends of a link, unless the times forbid it."""
    log = completion_error.filter(~pl.col("at_exit")).with_columns(
        here=short_host("host"), there=text_of("peer_host").str.split(".").list.first()
    )
    short = {host.split(".")[0] for host in finding.hosts}
    devices = {row["host"].split(".")[0]: row["device"] for row in rows if row["host"] and row["device"]}
    near = log.filter(pl.col("here").is_in(short))
    # A line names its own device: one of another device on this host is not of this link.
    other_device = pl.any_horizontal(
        False, *((pl.col("here") == host) & (pl.col("hca") != device) for host, device in devices.items())
    )
    near = near.filter(~other_device.fill_null(value=False))
    related = pl.concat([near, log.filter(pl.col("there").is_in(short))]).unique(["source", "line"])
    quiet, onset = _since(rows)
    if quiet and onset:
        within = pl.col("moment").is_between(quiet, onset)
        related = related.filter(within.fill_null(value=True))
    if related.is_empty():
        return
    processes = rank.join(related.select("host", "pid").unique(), on=["host", "pid"], how="semi")
    finding.ranks = sorted(processes["rank"].drop_nulls().unique().to_list())
    named = who(finding.ranks, [], rank) if finding.ranks else f"{related.height} transfers"
    first = related.sort("source", "line")
    when = first["moment"].drop_nulls().sort().head(1)
    at = f" at {when[0]}" if when.len() and quiet else ""
    finding.detail += f"; in the log, transfers of {named} with this host failed{at}: " + (
        "in that time" if at else "if the times agree, this link is why"
    )
    finding.evidence += [
        Line(source, line, "log") for source, line in first.select("source", "line").head(2).iter_rows()
    ]


def _since(rows: list[Row]) -> tuple[Any, Any]:
    """The times between which the counters of a link began to grow, where they are told."""
    told = [(row["quiet"], row["onset"]) for row in rows if row["quiet"] and row["onset"]]
    return (min(quiet for quiet, _ in told), max(onset for _, onset in told)) if told else (None, None)


@rule(Category.LINK_ERROR, Severity.ERROR, of=("counter_growth",))
def ctr_link_downed(
    counter_growth: pl.DataFrame, port_peer: pl.DataFrame, completion_error: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """A link went down between two dumps of counters.

    Means: the link was lost and trained again. While a job runs, each time may end it: transfers get no answer until
    the retries are used up. At both ends alike: cable or transceiver; on many ports of one node: that node restarted.
    Not when: there is only one dump, for then nobody knows when it was; the total did not grow between the dumps.
    Do: reseat or exchange cable and transceiver; see the switch's log and dmesg of the host for the same moment.
    Sources: InfiniBand specification, PortCounters; NCCL documentation, networking; nebius/soperator#481.
    """
    rows = grown(counter_growth, {DOWN: 1})
    yield from _restarted(rows, counter_growth)
    links = Links(_of_single_links(rows, counter_growth, port_peer), port_peer)
    findings = []
    for near, far in links:
        both = near + far
        title = f"the link of {port_name(near[0])} went down"
        other = links.opposite(near[0])
        detail = amount(near[0]) + times(near[0])
        if other:
            title += f" (to {other})"
            detail += "; both ends counted it: the cable or a transceiver" if far else ""
        findings.append(_of_ports(title, detail, both, links.hosts(both)))
        told_by_log(findings[-1], both, completion_error, rank)
    yield from at_most(findings, "more links went down")


def _nodes(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.with_columns(_of=pl.coalesce("host", "node", "guid", pl.format("LID {}", "lid")))


def _restarted_nodes(rows: pl.DataFrame, counter_growth: pl.DataFrame) -> list[str]:
    """The nodes of which most ports lost their link, three at least: they restarted."""
    counted = _nodes(counter_growth.filter((pl.col("name") == DOWN) & pl.col("growth").is_not_null()))
    lost = _nodes(rows).group_by("_of").agg(lost=pl.col("key").n_unique())
    shares = counted.group_by("_of").agg(ports=pl.col("key").n_unique()).join(lost, on="_of")
    gone = shares.filter((pl.col("lost") >= MANY) & (pl.col("lost") * 2 > pl.col("ports")))
    return gone["_of"].sort().to_list()


def _of_single_links(rows: pl.DataFrame, counter_growth: pl.DataFrame, port_peer: pl.DataFrame) -> pl.DataFrame:
    """Without the links of nodes that restarted, at both their ends."""
    gone = _nodes(rows).filter(pl.col("_of").is_in(_restarted_nodes(rows, counter_growth)))["key"].to_list()
    theirs = port_peer.filter(pl.col("key").is_in(gone))["peer_key"].drop_nulls().to_list()
    return rows.filter(~pl.col("key").is_in([*gone, *theirs]))


def _restarted(rows: pl.DataFrame, counter_growth: pl.DataFrame) -> Iterator[Finding]:
    for node in _restarted_nodes(rows, counter_growth):
        ports = _nodes(rows).filter(pl.col("_of") == node).to_dicts()
        name = ports[0]["host"] or port_name(ports[0]).rpartition(" port ")[0]
        detail = f"{len(ports)} of its ports lost their link{times(ports[0])}: it restarted, or lost its power"
        hosts = sorted({row["host"] for row in ports if row["host"]})
        yield _of_ports(f"{name} lost most of its links at once", detail, ports, hosts)


def _of_ports(title: str, detail: str, rows: list[Row], hosts: list[str]) -> Finding:
    orders = [row["order"] for row in rows]
    order = next((each for each in ("traffic", "name") if each in orders), orders[0])
    if order == "traffic":
        detail += "; which dump is the earlier one is told by the traffic only"
    return Finding(title, detail, CERTAINTY.get(order, "possible"), hosts=hosts, evidence=lines(rows))


def at_most(findings: list[Finding], more: str) -> Iterator[Finding]:
    """The worst few, and one for all that are left."""
    yield from findings[:MOST]
    rest = findings[MOST:]
    if rest:
        names = "; ".join(finding.title for finding in rest[:SHOWN]) + ("; and others" if len(rest) > SHOWN else "")
        yield Finding(
            f"{len(rest)} {more}",
            names,
            min((finding.certainty for finding in rest), key=["possible", "likely", "certain"].index),
            hosts=sorted({host for finding in rest for host in finding.hosts}),
            evidence=[finding.evidence[0] for finding in rest[:SHOWN]],
            severity=rest[0].severity,
        )


@rule(Category.LINK_ERROR, Severity.WARNING, of=("counter_growth",))
def ctr_link_quality(
    counter_growth: pl.DataFrame, port_peer: pl.DataFrame, completion_error: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """A link corrupts what it carries: symbol errors, packets received in error, or it is trained again and again.

    Means: what comes in at this port is bad: the cable, or the transmitter at the other end; errors at both ends: the
    cable or a transceiver. With error correction (EDR and later) symbol errors are what could not be corrected.
    Not when: a single dump shows a few, for links count some when they come up after a boot; corrected errors are
    normal; a counter that is full on every port alike tells nothing.
    Do: clear the counters, let the job run, and look again; exchange cable and transceiver; mlxlink -d DEVICE -m -c.
    Sources: infiniband-diags error_thresholds; InfiniBand specification, PortCounters; NCCL documentation, networking.
    """
    limits = {name: limit for name, limit in LINK_LIMITS.items() if name != DOWN}
    links = Links(grown(counter_growth, limits), port_peer)
    findings = []
    for near, far in sorted(links, key=lambda ends: -max(row["growth"] for row in ends[0])):
        other = links.opposite(near[0])
        detail = ", ".join(map(amount, near)) + times(near[0])
        if far:
            detail += f"; at the other end {', '.join(map(amount, far))}: the cable or a transceiver"
        elif other:
            detail += f"; it receives what is bad: the cable, or the transmitter of {other}"
        finding = _of_ports(f"the link of {port_name(near[0])} is bad", detail, near + far, links.hosts(near + far))
        if any(row["name"] == RECOVERED and row["growth"] >= OFTEN for row in near + far):
            finding.severity = Severity.ERROR
        told_by_log(finding, near + far, completion_error, rank)
        findings.append(finding)
    findings += _long_ago(counter_growth, port_peer)
    yield from at_most(findings, "more links are bad")


def _long_ago(counter_growth: pl.DataFrame, port_peer: pl.DataFrame) -> list[Finding]:
    """Ports of which a single dump tells much, by two signs, and which are few among those that it tells of."""
    once = counter_growth.filter(pl.col("dumps") == 1)
    value = {name: pl.col("value").filter(pl.col("name") == name).max().fill_null(0) for name in LINK_LIMITS}
    stuck = (pl.col("is_saturated") & (pl.col("name") == SYMBOLS)).any()
    is_much = stuck | (value[SYMBOLS] >= LONG_AGO) | (value[RECEIVED] >= LONG_AGO) | (value[RECOVERED] >= OFTEN)
    # Links count when they come up, too, so that a total of one kind proves little.
    signs = pl.sum_horizontal(value[name] >= limit for name, limit in LINK_LIMITS.items() if name != DOWN)
    is_bad = is_much & (signs > 1)
    ports = once.group_by("key", "source", maintain_order=True).agg(is_bad=is_bad)
    few = ports.filter(
        pl.col("is_bad")
        & ((pl.len().over("source") < SIBLINGS) | (pl.col("is_bad").mean().over("source") <= 1 / SIBLINGS))
    )
    told = once.filter(
        pl.col("key").is_in(few["key"].to_list()) & pl.col("name").is_in(list(LINK_LIMITS)) & (pl.col("value") > 0)
    )
    links = Links(told, port_peer)
    findings = []
    for near, far in links:
        counts = ", ".join(f"{row['name']} {row['value']:,}{' or more' if row['is_saturated'] else ''}" for row in near)
        findings.append(
            Finding(
                f"the link of {port_name(near[0])} was bad at some time",
                f"it counts {counts}, since nobody knows when; a second dump tells whether it still is",
                "possible",
                hosts=links.hosts(near),
                evidence=lines(near + far),
            )
        )
    return findings


@rule(Category.LINK_ERROR, Severity.INFO, of=("counter_growth",))
def ctr_need_delta(counter_growth: pl.DataFrame) -> Iterator[Finding]:
    """Counters of errors are not zero, and there is one dump only.

    Means: they are totals since they were last cleared, by a restart or by somebody: of today or of last year.
    Not when: a second dump shows how they grew.
    Do: dump the counters again while the job runs, with the time (date; perfquery -x, ibqueryerrors --data), and give
    both dumps to check; or clear them with perfquery -R, ibqueryerrors -k.
    Sources: NCCL documentation, networking (counters that increase while a test runs); nebius/soperator#481.
    """
    once = counter_growth.filter(
        (pl.col("dumps") == 1) & pl.col("name").is_in(list(LINK_LIMITS)) & (pl.col("value") > 0)
    )
    if once.is_empty():
        return
    worst = once.sort(pl.col("name") != DOWN, -pl.col("value"), "source", "line").to_dicts()
    named = "; ".join(
        f"{port_name(row)}: {row['name']} {row['value']:,}{' or more' if row['is_saturated'] else ''}"
        for row in worst[:SHOWN]
    )
    ports = once["key"].n_unique()
    yield Finding(
        f"{ports} {'port has' if ports == 1 else 'ports have'} counted errors, since nobody knows when",
        "they are totals: " + named + ("; and others" if len(worst) > SHOWN else ""),
        "certain",
        hosts=sorted({row["host"] for row in worst if row["host"]}),
        role=Role.CONTEXT,
        evidence=lines(worst),
    )


@rule(Category.LINK_ERROR, Severity.INFO, of=("counter_growth",))
def ctr_bad_elsewhere(counter_growth: pl.DataFrame, port_peer: pl.DataFrame) -> Iterator[Finding]:
    """Packets arrived that had been marked as bad on their way.

    Means: the fault is farther away than this link: on the path to here, at a port with symbol errors.
    Not when: the same link counts symbol errors or errors of its own, which is then the fault.
    Do: follow the path (ibtracert) to a port with symbol errors or receive errors; ibqueryerrors asks all of them.
    Sources: InfiniBand specification, PortRcvRemotePhysicalErrors; infiniband-diags error_thresholds.
    """
    own = grown(counter_growth, LINK_LIMITS)["key"].to_list()
    rows = grown(counter_growth, {REMOTE: REMOTE_LIMIT}).filter(~pl.col("key").is_in(own)).to_dicts()
    if rows:
        links = Links(pl.DataFrame(rows, schema=counter_growth.schema), port_peer)
        names = ", ".join(port_name(row) for row in rows[:SHOWN]) + (" and others" if len(rows) > SHOWN else "")
        detail = f"{amount(rows[0])}{times(rows[0])}; their own links are sound, the fault is on the way to them"
        finding = _of_ports(f"bad packets arrived at {names}", detail, rows, links.hosts(rows))
        finding.role = Role.CONSEQUENCE
        yield finding


@rule(Category.LINK_ERROR, Severity.INFO, of=("counter_growth",))
def ctr_contradicts_log(
    counter_growth: pl.DataFrame, port_state: pl.DataFrame, completion_error: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """Transfers got no answer, and the counters of the ports that they used did not grow.

    Means: between these dumps the links were sound and stayed up: look for a peer that died or hangs, for routing, a
    wrong GID or a firewall, not for a cable.
    Not when: the dumps were not taken before and after the failure; the counters of a port of these hosts are not told;
    a port of either host is down, or RDMA packets were lost, which bears the log out.
    Do: see which process ended first, and when; compare the times of the dumps with those of the log; ask the switch
    ports at the other end, too.
    Sources: verbs status 12 (rdma-core); NCCL documentation, networking.
    """
    failed = completion_error.filter((pl.col("status") == RETRY_EXCEEDED) & ~pl.col("at_exit"))
    errors = counter_growth.filter(pl.col("name").is_in(list(LINK_LIMITS)) & pl.col("host").is_not_null())
    ports = errors.with_columns(short=short_host("host")).group_by("short", "device", maintain_order=True)
    known = ports.agg(
        quiet=(pl.col("growth").fill_null(1) == 0).all(),
        has_downs=(pl.col("name") == DOWN).any(),
        line=pl.col("line").first(),
        source=pl.col("source").first(),
    )
    sound = known.filter(pl.col("quiet") & pl.col("has_downs"))
    used = failed.select(short_host("host").alias("short"), device="hca").drop_nulls().unique()
    if used.is_empty() or used.join(sound, on=["short", "device"], how="anti").height:
        return
    ends = {*used["short"], *failed.select(short_host("peer_host")).to_series().drop_nulls()}
    down = port_state.filter(short_host("host").is_in(ends) & (pl.col("state") == "down"))
    lost = grown(counter_growth, LOSSES).filter(short_host("host").is_in(ends))
    if down.height or lost.height:
        return
    shown = sound.join(used, on=["short", "device"], how="semi", maintain_order="left")
    processes = rank.join(failed.select("host", "pid").unique(), on=["host", "pid"], how="semi")
    ranks = sorted(processes["rank"].drop_nulls().unique().to_list())
    first = failed.sort("source", "line").select("source", "line").head(2)
    yield Finding(
        "the counters of the links do not bear out what the log says of the network",
        "the ports of the transfers that got no answer counted no error and did not go down between the dumps",
        "likely",
        ranks=ranks,
        hosts=shown["short"].unique().sort().to_list(),
        role=Role.CONTEXT,
        evidence=[
            *(Line(source, line, "counter") for source, line in shown.select("source", "line").head(2).iter_rows()),
            *(Line(source, line, "log") for source, line in first.iter_rows()),
        ],
    )
