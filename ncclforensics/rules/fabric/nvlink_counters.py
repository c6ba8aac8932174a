"""NVLinks and NVSwitches, by the counters and logs of their drivers; and links by their bit error rate."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.data.kernel_faults import RESET_TEXT, SXIDS, SXIDS_OF_RESETS, SXIDS_THAT_STOP
from ncclforensics.data.names import printable, some_of
from ncclforensics.data.roce import LEAST_MINUTES, NVLINK_ERRORS, NVLINK_EVER, NVLINK_FATAL, WORST_RATE
from ncclforensics.frames.columns import Row
from ncclforensics.rules.finding import Category, Finding, Line, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.port_counters import SHOWN, counter_finding, increased
from ncclforensics.rules.shared.port_text import host_counters_text, period_text

BUS_ADDRESS = 12  # characters of a PCI address with four digits of its domain


def _nvlink_name(row: Row) -> str:
    """Return `gpu-a012 GPU3 NVLink 5`, or `gpu-a012 GPU3 NVLinks` for a counter of all of them."""
    link = "NVLinks" if row["port"] is None else f"NVLink {row['port']}"
    return printable(" ".join(filter(None, (row["host"], row["device"], link))))


@rule(Category.LINK_ERROR, Severity.WARNING, of=("counter_increase",))
def nvlink_errors(counter_increase: pl.DataFrame) -> Iterator[Finding]:
    """An NVLink corrupts data, or had to be recovered.

    Means: replays and CRC errors are repaired at a cost in bandwidth; a link transfers nothing while it is recovered,
    and a failed recovery ends the process (Xid 74). One link of many: its connector, the GPU, or the NVSwitch behind
    it.
    Not when: a hundred replays or fewer between two dumps; a single dump shows a few, because the counters start when
    the driver is loaded; all links count alike.
    Do: run nvidia-smi nvlink -e before and after a run; look in dmesg for Xid 74 and SXid; drain the host, reset the
    GPU, and replace it if the errors come back.
    Sources: DCGM documentation (NVLink counters); NVIDIA Xid catalogue (74); nvidia-smi documentation.
    """
    fatal = increased(counter_increase, dict.fromkeys(NVLINK_FATAL, 1))
    bad = pl.concat([fatal, increased(counter_increase, NVLINK_ERRORS)])
    if bad.height:
        rows = bad.to_dicts()
        names = list(dict.fromkeys(map(_nvlink_name, rows)))
        detail = host_counters_text(bad) + period_text(rows[0])
        title = f"{', '.join(names[:SHOWN])}{' and others' if len(names) > SHOWN else ''}: errors"
        severity = Severity.ERROR if fatal.height else Severity.WARNING
        yield counter_finding(bad, title, detail, severity=severity)
        return
    yield from _error_totals(counter_increase)


def _error_totals(counter_increase: pl.DataFrame) -> Iterator[Finding]:
    """Report a link for which a single dump shows many errors, where it shows none for most other links."""
    names = [*NVLINK_FATAL, *NVLINK_ERRORS]
    single = counter_increase.filter((pl.col("dumps") == 1) & pl.col("name").is_in(names))
    is_rare = (pl.col("value") > 0).mean().over("name") < 0.5
    worst = single.filter((pl.col("value") >= NVLINK_EVER) & is_rare).sort(-pl.col("value"), "source", "line")
    if worst.height:
        # Dumps of which it is not known that they are of one host, at two times, are not added up.
        links = worst.partition_by("key", maintain_order=True)
        totals = [f"{_nvlink_name(link.row(0, named=True))} {host_counters_text(link)}" for link in links[:SHOWN]]
        detail = f"{'; '.join(totals)}; since the driver was loaded, and none on most other links"
        title = f"{_nvlink_name(worst.row(0, named=True))}: errors at some time"
        yield counter_finding(worst, title, detail, severity=Severity.WARNING, certainty="possible")


@rule(Category.LINK_ERROR, Severity.ERROR, of=("switch_error",))
def nvswitch_error(switch_error: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """An NVSwitch reported an error to Fabric Manager.

    Means: a fatal error takes links of several GPUs down: all processes on that host that use NVLink end. The log names
    switch and port; the SXid identifies the error.
    Not when: the log calls it non-fatal, which is a note; where no job is in these files, those SXids that stop
    programs are warnings. It was logged on another day than the job ran.
    Do: look for SXid in dmesg at that time; restart the host (or Fabric Manager after a reset of all GPUs); have the
    baseboard replaced if the error comes back.
    Sources: NVIDIA Fabric Manager user guide (SXid errors); NVIDIA Xid catalogue.
    """
    for (gravity, sxid), rows in switch_error.sort("gravity", "source", "line").group_by(
        "gravity", "sxid", maintain_order=True
    ):
        number, is_fatal = int(str(sxid)), gravity == "fatal"
        places = rows.select("switch", "switch_bus", "switch_port").unique(maintain_order=True)
        ports = [f"{switch} ({str(bus)[-BUS_ADDRESS:]}) port {port}" for switch, bus, port in places.rows()]
        hosts = sorted({str(host) for host in rows["launcher_node"].drop_nulls()})
        where = f" on {some_of(hosts, SHOWN)}" if hosts else ""
        fault = f", {SXIDS[number]}" if number in SXIDS else ""
        details = [*filter(None, [rows["manager_time"][0]]), *([RESET_TEXT] if number in SXIDS_OF_RESETS else [])]
        is_warning = number in SXIDS_THAT_STOP and rank.is_empty()  # beside a job, it says nothing of its ranks
        yield Finding(
            f"NVSwitch {some_of(ports, SHOWN)}{where}: SXid {number}{fault} ({gravity})",
            "; ".join(["reported to Fabric Manager", *details]),
            "certain",
            hosts=hosts,
            severity=Severity.ERROR if is_fatal else Severity.WARNING if is_warning else Severity.INFO,
            role=Role.CAUSE if is_fatal else Role.CONTEXT,
            evidence=[Line(source, line) for source, line in rows.select("source", "line").head(SHOWN).iter_rows()],
        )


@rule(Category.LINK_ERROR, Severity.WARNING, of=("link_quality",))
def link_bit_errors(link_quality: pl.DataFrame) -> Iterator[Finding]:
    """A link receives more bit errors than error correction can repair.

    Means: packets are lost on that link: the cable, a transceiver, dust.
    Not when: the counters were cleared less than ten minutes before, which is too short to judge; there are many raw
    errors and no effective ones, which is normal for links with error correction; the tool prints 15E-255, which is
    zero.
    Do: run mlxlink -d DEVICE -m -c again after a while; clean or replace cable and transceiver; check the other end.
    Sources: NVIDIA practice for mlxlink (effective BER above 1E-12); ibdiagnet (threshold of BER).
    """
    judged = link_quality.filter(pl.col("minutes").fill_null(0) >= LEAST_MINUTES)
    for row in judged.filter(pl.col("effective_ber") > WORST_RATE).to_dicts():
        advice = row["recommendation"]
        hint = f"; mlxlink recommends: {printable(advice)}" if advice and row["opcode"] else ""
        name = printable(" ".join(filter(None, (row["host"], row["device"] or "a link"))))
        yield Finding(
            f"{name} receives too many bit errors",
            f"effective bit error rate {row['effective_ber']:.0e} over {row['minutes']:.0f} minutes{hint}",
            "likely",
            hosts=[row["host"]] if row["host"] else [],
            evidence=[Line(row["source"], row["ber_line"])],
        )
