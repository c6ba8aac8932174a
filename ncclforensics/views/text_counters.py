"""Ports and counters as text: port states, increases between dumps, and nonzero counters."""

from __future__ import annotations

from ipaddress import IPv6Address
from math import log10

import polars as pl
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ncclforensics.analyses.fabric.counters import IS_PLANE, PORT
from ncclforensics.data.counters import LINK_LIMITS
from ncclforensics.data.names import printable
from ncclforensics.data.networks import NVLINK
from ncclforensics.data.roce import PAUSES
from ncclforensics.frames.columns import Row
from ncclforensics.report.build import Report
from ncclforensics.rules.finding import Severity
from ncclforensics.rules.shared.port_text import port_name, port_names, ports_by_node
from ncclforensics.views.text_layout import STYLE, heading, indented, table_with_header

MOST, FEW = 12, 4  # rows shown without -v, and where there is little room
FEW_PORTS = 2  # named of those that share a row
LEVELS = "▁▂▃▄▅▆▇█"
DRAWN = 3  # with so many dumps, increases are drawn over time
BAR = 8  # characters of the longest bar
LONGEST = 16  # pairs of dumps in a line over time
TRAFFIC = ("bytes", "packets")
NOTIFICATIONS = ("np_cnp_sent", "rp_cnp_handled", "np_ecn_marked_roce_packets")  # of congestion, in packets
SLOWING = ("pfc", "pause", "cnp")  # in the names of counters of packets
FIGURES = (3, 4, 5)  # columns of numbers


def ports(report: Report) -> list[RenderableType]:
    """List the ports by state and rate, and their GIDs."""
    parts: list[RenderableType] = []
    if states := [*_states(report.run["port_state"]), *_planes(report), *_ipoib(report)]:
        parts += [heading("PORTS"), *(indented(Text(line)) for line in states)]
    if gids := _gids(report.run["port_gid"]):
        parts += [heading("GIDS"), *(indented(Text(line)) for line in gids[:MOST]), *_more(len(gids) - MOST)]
    return parts


def _planes(report: Report) -> list[str]:
    """Name the ports that are not counted, because no data goes through them."""
    planes = pl.concat([report.run["fabric_port"], report.run["host_port"]]).filter(IS_PLANE)
    return [f"not counted: {port_names(planes)}, for management alone"] if planes.height else []


def _ipoib(report: Report) -> list[str]:
    """Name the ports of which only the state of their IPoIB interface is known."""
    unknown = report.run["host_port"].filter(pl.col("state").is_null() & pl.col("netdev").str.starts_with("ib"))
    names = f"not judged: {port_names(unknown)}: their interfaces are of IPoIB, whose state is not the port's (ibstat)"
    return [names] if unknown.height else []


def counters(report: Report, most: int | None) -> list[RenderableType]:
    """List the counters of errors and congestion, increases first: at most so many rows of each table."""
    parts: list[RenderableType] = []
    if grew := increased_counters(report):
        parts += [heading("COUNTERS THAT GREW"), indented(_grown(grew[:most], report))]
        parts += _more(len(grew) - len(grew[:most]))
    return parts + _once(report, most)


def increased_counters(report: Report) -> list[Row]:
    """Return the counters that increased between the dumps, link errors first (columns COUNTER_INCREASE)."""
    counters = _error_counters(report, pl.col("increase") > 0)
    return counters.sort(~pl.col("name").is_in(list(LINK_LIMITS)), -pl.col("increase"), "key", "name").to_dicts()


def _error_counters(report: Report, condition: pl.Expr) -> pl.DataFrame:
    """Return the counters for which a condition holds, except those of delivered traffic."""
    is_traffic = pl.col("unit").is_in(TRAFFIC) & (pl.col("name") != "port_xmit_discards")
    return report.run["counter_increase"].filter(~is_traffic, condition)


def congestion_and_errors(report: Report) -> pl.DataFrame:
    """Return the counters of errors, and of the packets by which ports slow one another down, zero or not."""
    slowing = report.run["counter_increase"].filter(pl.col("name").cast(pl.String).str.contains_any(SLOWING))
    return pl.concat([_error_counters(report, pl.lit(value=True)), slowing]).unique(maintain_order=True)


def _once(report: Report, most: int | None) -> list[RenderableType]:
    """List the nonzero counters of ports with a single dump, worst ports first; ports with equal ones share a row."""
    is_shown = (pl.col("dumps") == 1) & (pl.col("value") > 0)
    slowing = [*NOTIFICATIONS, *PAUSES["rx"], *PAUSES["tx"]]
    notified = report.run["counter_increase"].filter(is_shown & pl.col("name").is_in(slowing))
    old = pl.concat([_error_counters(report, is_shown), notified]).unique(maintain_order=True)
    if old.is_empty():
        return []
    old = old.select("key", *PORT, "name", "value", "is_saturated").sort("key", "name")
    worst = pl.col("value").filter(pl.col("name").is_in(list(LINK_LIMITS))).max()
    of_port = old.group_by("key", maintain_order=True).agg(
        pl.col(*PORT).first(), worst=worst, names="name", values="value", stuck="is_saturated"
    )
    ports = of_port.sort("worst", descending=True, nulls_last=True, maintain_order=True)
    alike = ports.group_by("names", "values", "stuck", maintain_order=True).agg("key", *PORT)
    shown = alike.head(alike.height if most is None else most)
    title = heading("COUNTERS IN ONE DUMP (totals since they were cleared; a second dump shows growth)")
    left = ports.height - shown["key"].explode().len()
    return [title, indented(_totals(shown, most)), *_more(left)]


WITHOUT_PEER = "with no port at the other end"  # of a map, in which such a port is down, or its peer gave no answer


def _more(left: int) -> list[RenderableType]:
    return [indented(Text(f"and {left} more (-v shows all)", style="dim"))] if left > 0 else []


def _states(port_state: pl.DataFrame) -> list[str]:
    """Summarise the last state of every port, `38 active at 400 Gb/s, 3 down`, and name those that are down."""
    last_states = port_state.with_columns(
        key=pl.concat_str(["guid", "lid", "host", "device", "port"], separator=" ", ignore_nulls=True)
    ).unique("key", keep="last", maintain_order=True)
    is_down = (pl.col("state") == "down").fill_null(value=False)
    has_peer = pl.col("peer_port").is_not_null() | pl.col("peer_node").is_not_null()
    is_without_peer = pl.col("state").is_null() & ~has_peer
    rate = pl.when(~is_down & ~is_without_peer).then("rate_Gbps")  # that of a port without a link means nothing
    # An interface has its own state; the list of a host that was cut above the state of a port shows none.
    is_of_list = pl.col("device").is_not_null() & pl.col("node").is_null()
    shown = last_states.filter(pl.col("state").is_not_null() | (pl.col("netdev").is_null() & ~is_of_list))
    word = pl.coalesce("state", pl.when(is_without_peer).then(pl.lit(WITHOUT_PEER)).otherwise(pl.lit("linked")))
    word = pl.when(pl.col("link_layer") == NVLINK).then(pl.format("{} (NVLink)", word)).otherwise(word)
    kinds = shown.group_by(word.alias("word"), rate=rate, maintain_order=True).len()
    words = []
    for state, rate, many in kinds.sort("len", descending=True, maintain_order=True).iter_rows():
        at = f" at {rate:g} Gb/s" if rate is not None else ""
        words.append(f"{many} {state}{at}")
    is_named = pl.any_horizontal(pl.col("device", "node", "guid", "lid").is_not_null())
    if len(words) == 1 and shown.height <= FEW_PORTS and shown.filter(is_down | is_without_peer | ~is_named).is_empty():
        words[0] += f": {ports_by_node(shown)}"  # others are named below
    lines = [", ".join(words)] if words else []
    if (unlinked := shown.filter(is_without_peer)).height:
        lines.append(f"{WITHOUT_PEER}: {ports_by_node(unlinked)}")
    for (physical,), rows in last_states.filter(is_down).group_by("physical_state", maintain_order=True):
        lines.append(f"down{f' ({physical})' if physical else ''}: {ports_by_node(rows)}")
    return lines


def _gids(port_gid: pl.DataFrame) -> list[str]:
    """Name the GIDs of every RoCE port by index, those first that packets can be routed with."""
    lines = []
    for (host, device, port), rows in port_gid.filter(pl.col("version").is_not_null()).group_by(
        "host", "device", "port", maintain_order=True
    ):
        routed = rows.filter((pl.col("version") == 2) & ~pl.col("is_link_local"))
        words = [f"index {row['index']} is RoCE v2, {_address(row['gid'])}" for row in routed.to_dicts()[:2]]
        others = rows.join(routed.head(2), on=["source", "line"], how="anti")
        local = others.filter("is_link_local")["index"].to_list()
        first = others.filter(~pl.col("is_link_local") & (pl.col("version") == 1))["index"].to_list()
        words += [f"link-local: {', '.join(map(str, local))}"] * bool(local)
        words += [f"RoCE v1: {', '.join(map(str, first))}"] * bool(first)
        name = " ".join(filter(None, (host, device, "" if port is None else f"port {port}")))
        lines.append(printable(f"{name or 'a port'}: {'; '.join(words)}"))
    return lines


def _address(gid: str) -> str:
    """Return a GID as the address that it is made from.

    >>> _address("0000:0000:0000:0000:0000:ffff:0a00:040c"), _address("2001:0db8::1")
    ('10.0.4.12', '2001:db8::1')
    """
    try:
        address = IPv6Address(gid)
    except ValueError:  # a pseudonym
        return gid
    return str(address.ipv4_mapped or address)


def _grown(rows: list[Row], report: Report) -> Table:
    """List increases: with a logarithmic bar, or with a level for each pair of dumps."""
    deltas, cited = report.run["counter_delta"], _cited(report)
    is_series = any(row["dumps"] >= DRAWN for row in rows)
    table = table_with_header("", "port", "counter", "before", "after", "grew", "over time" if is_series else "")
    for number in FIGURES:
        table.columns[number].justify, table.columns[number].no_wrap = "right", True
    table.columns[-1].no_wrap = True
    most = max(row["increase"] for row in rows)
    for row in rows:
        steps = deltas.filter((pl.col("key") == row["key"]) & (pl.col("name") == row["name"]))
        bound = "≥ " if row["is_lower_bound"] else ""
        bar = _levels(_rates(steps)) if is_series else _bar(row["increase"], most)
        severity = cited.get((row["source"], row["line"]), "")
        table.add_row(
            Text(severity, style=STYLE.get(severity, "")), port_name(row), printable(row["name"]),
            f"{steps['before'][0]:,}", f"{row['value']:,}", f"{bound}{row['increase']:,}", Text(bar, style="yellow"),
        )  # fmt: skip
    return table


def _cited(report: Report) -> dict[tuple[int, int], str]:
    """Return the severity of the worst finding for each cited line."""
    order = list(Severity)
    worst_last = sorted(report.findings, key=lambda finding: -order.index(finding.severity or Severity.INFO))
    return {(line.source, line.line): str(finding.severity) for finding in worst_last for line in finding.evidence}


def _bar(value: int, most: int) -> str:
    """Draw a bar whose length is logarithmic.

    >>> _bar(10, 1000), _bar(1000, 1000)
    ('███', '████████')
    """
    return LEVELS[-1] * max(1, round(BAR * log10(max(value, 1)) / max(log10(max(most, 2)), 1e-9)))


def _rates(steps: pl.DataFrame) -> list[float]:
    """The increases from dump to dump; in a second, where all times are known: dumps may be unequally far apart."""
    increases = steps["increase"].fill_null(0).cast(pl.Float64)
    is_timed = bool((steps["seconds"] > 0).fill_null(False).all())
    return (increases / steps["seconds"] if is_timed else increases).to_list()


def _levels(steps: list[float]) -> str:
    """Draw the increases from dump to dump; only the last ones if there are too many.

    >>> _levels([0, 0, 1, 8])
    '▁▁▁█'
    """
    last = [max(step, 0) for step in steps[-LONGEST:]]
    most = max(last, default=0) or 1
    return "".join(LEVELS[int((len(LEVELS) - 1) * (step / most))] for step in last)


def _totals(alike: pl.DataFrame, most: int | None) -> Table:
    table = table_with_header("port", "not zero")
    for row in alike.to_dicts():
        counters = zip(row["names"], row["values"], row["stuck"], strict=True)
        ports = pl.DataFrame({name: row[name] for name in PORT})
        table.add_row(
            port_names(ports, ports.height if most is None else FEW_PORTS),
            ", ".join(f"{printable(name)} {'≥ ' * stuck}{value:,}" for name, value, stuck in counters),
        )
    return table
