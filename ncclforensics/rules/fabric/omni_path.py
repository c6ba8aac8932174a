"""Links of Omni-Path that go on with fewer lanes, or of which the quality is poor."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.data.names import count_of
from ncclforensics.rules.finding import Category, Finding, Line, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.grouping import evidence_lines
from ncclforensics.rules.shared.port_text import nics_of, port_names

POOR = 2  # of five


@rule(Category.LINK_DEGRADED, Severity.WARNING, of=("omni_path_port", "opa_degraded"))
def opa_link_degraded(omni_path_port: pl.DataFrame, opa_degraded: pl.DataFrame) -> Iterator[Finding]:
    """A link of Omni-Path goes on with fewer lanes than it was trained with, or its quality is poor.

    Means: each lane carries a quarter of the bandwidth; a lane is shut down when it needs too many retransmissions, and
    quality falls with them: a cable, its plugs, or the port at the other end.
    Not when: the port is down, which is another matter; quality is good or better; no link is degraded.
    Do: look at opaextractbadlinks or opareport -o errors for the port at the other end; reseat or exchange the cable; a
    lane comes back only when the link is trained again (opaportconfig bounce).
    Sources: cornelisnetworks/opa-ff, opainfo and opafabricinfo (IbPrint).
    """
    is_narrow = (pl.min_horizontal("sending", "receiving") < pl.col("lanes")).fill_null(value=False)
    narrow = omni_path_port.filter(is_narrow)
    for row in narrow.to_dicts():
        yield Finding(
            f"{port_names(narrow.filter(line=row['line'], source=row['source']))} goes on with fewer lanes",
            f"{row['sending']} to send and {row['receiving']} to receive, of {row['lanes']}",
            "certain",
            hosts=[row["host"]] if row["host"] else [],
            nics=nics_of([row]),
            evidence=[Line(row["source"], row["lanes_line"])],
        )
    is_active = (pl.col("state") == "Active").fill_null(value=True)
    poor = omni_path_port.filter(is_active & pl.col("quality").is_between(1, POOR) & ~is_narrow)
    if poor.height:
        yield Finding(
            f"the link of {port_names(poor)} is of poor quality",
            f"{min(poor['quality'])} of 5: packets have to be sent again",
            "likely",
            hosts=sorted(poor["host"].drop_nulls().unique()),
            nics=nics_of(poor.to_dicts()),
            evidence=[Line(*at) for at in poor.select("source", "quality_line").head(4).rows()],
        )
    links = opa_degraded.filter(pl.col("degraded") > 0).unique("source", keep="last", maintain_order=True)
    for row in links.to_dicts():
        yield Finding(
            f"the fabric has {count_of(row['degraded'], 'degraded link')}: {row['host_links']} of hosts, "
            f"{row['switch_links']} between switches",
            "as opafabricinfo counts them; opaextractbadlinks names them",
            "certain",
            evidence=evidence_lines(links.filter(source=row["source"]).select("source", "line")),
        )
