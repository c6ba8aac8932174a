"""What the kernel says of links, beside a network that failed."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.analyses.job.failure_events import LOST, NETWORK
from ncclforensics.frames.columns import short_host, text_of
from ncclforensics.rules.finding import Category, Finding, Line, Severity
from ncclforensics.rules.registry import rule

OF_NETWORK = ["link", "port", "cable", "fatal"]
DOWN = "DOWN"
FATAL = "Fatal"


@rule(Category.LINK_ERROR, Severity.ERROR, of=("hardware_event",), hang=True)
def kernel_link_event(
    hardware_event: pl.DataFrame,
    failure_event: pl.DataFrame,
    completion_error: pl.DataFrame,
    process: pl.DataFrame,
    process_exit: pl.DataFrame,
    rank: pl.DataFrame,
) -> Iterator[Finding]:
    """The kernel logged that a port lost its link, that a NIC died, or that an NVSwitch failed, and the job failed.

    Means: a cable, a transceiver, a switch or the device itself; transfers that fail on that host, or to it, follow.
    Not when: the job shows no failure of its network or of a process, for a kernel's log tells of other days too; the
    host is none of this job's; the link came up, or an NVSwitch speaks of an error that is not fatal.
    Do: compare the times of both logs; mlxlink -d DEVICE -m, ibstat and link_downed counters; for NVSwitch drain the
    node and run NVIDIA's field diagnostic.
    Sources: mlx5_core and nvidia-nvswitch kernel messages; NVIDIA, XID errors; knowledge of first causes: NVRx, Aegis.
    """
    hosts = {str(host).split(".")[0] for host in process["host"].drop_nulls()}
    failed = failure_event.filter(pl.col("kind").is_in([NETWORK, LOST]) & ~pl.col("at_exit"))
    named = {
        *failed["host"].drop_nulls().to_list(),
        *completion_error["host"].drop_nulls().to_list(),
        *completion_error["peer_host"].drop_nulls().to_list(),
    }
    form = pl.col("form")
    lost_one = not process_exit.filter(pl.col("is_final")).is_empty()
    of_network = hardware_event.filter(
        form.is_in(["cable", "fatal"]) | (form.is_in(OF_NETWORK) & (text_of("state").str.to_uppercase() == DOWN))
    )
    of_switch = hardware_event.filter((form == "sxid") & (pl.col("severity") == FATAL))
    both = [(of_network, bool(named)), (of_switch, bool(named) or lost_one)]
    for events, is_asked in both:
        told = events.with_columns(short=short_host("node")).filter(
            pl.lit(is_asked) & (pl.col("short").is_null() | pl.col("short").is_in(hosts))
        )
        if told.is_empty():
            continue
        where = sorted(told["short"].drop_nulls().unique().to_list())
        proven = sorted(set(where) & {name.split(".")[0] for name in named})
        lines = told.sort("source", "line").select("source", "line")
        yield Finding(
            f"{_what(told)} on {', '.join(where) or 'a host that the line does not name'}",
            _why(proven, failed),
            "likely" if proven else "possible",
            ranks=sorted(rank.filter(short_host("host").is_in(proven or where))["rank"].drop_nulls().to_list()),
            hosts=where,
            evidence=[Line(source, line, "kernel") for source, line in lines.head(3).iter_rows()]
            + [Line(source, line, "failed") for source, line in failed.select("source", "line").head(1).iter_rows()],
        )


def _what(told: pl.DataFrame) -> str:
    """What happened to which device, by the first line."""
    row = told.sort("source", "line").row(0, named=True)
    match row["form"]:
        case "sxid":
            return f"an NVSwitch reported a fatal error (SXid {row['xid']}: {row['fault']})"
        case "cable":
            return f"the module of NIC {row['busid']} reported: {row['fault']}"
        case "fatal":
            return f"NIC {row['busid']} died"
    return f"the link of {row['netdev']} went down"


def _why(proven: list[str], failed: pl.DataFrame) -> str:
    if proven:
        return f"transfers of {', '.join(proven)} failed; compare the times of both logs"
    if failed.is_empty():
        return "a process of this run was lost; the line may be of another day"
    return "transfers failed on other hosts; the line may be of another day"
