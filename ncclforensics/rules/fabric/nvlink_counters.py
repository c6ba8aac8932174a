"""NVLinks and NVSwitches by what their drivers count and log, and links by their bit errors."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.data.names import printable
from ncclforensics.data.roce import LEAST_MINUTES, NVLINK_ERRORS, NVLINK_EVER, NVLINK_FATAL, WORST_RATE
from ncclforensics.rules.fabric.links import SHOWN, Row, grown, times
from ncclforensics.rules.fabric.roce_counters import on_ports, summed
from ncclforensics.rules.finding import Category, Finding, Line, Role, Severity
from ncclforensics.rules.registry import rule


def _link(row: Row) -> str:
    """`gpu-a012 GPU3 NVLink 5`."""
    link = "NVLinks" if row["port"] is None else f"NVLink {row['port']}"
    return printable(" ".join(filter(None, (row["host"], row["device"], link))))


@rule(Category.LINK_ERROR, Severity.WARNING, of=("counter_growth",))
def nvlink_errors(counter_growth: pl.DataFrame) -> Iterator[Finding]:
    """An NVLink garbles what it carries, or had to be recovered.

    Means: replays and CRC errors are repaired at a cost in bandwidth; a link that is recovered stands still meanwhile,
    and one that is not ends the process (Xid 74). One link of many: its connector, the GPU, or the NVSwitch behind it.
    Not when: a hundred replays or fewer between two dumps; a single dump shows a few, for the counters are as old as
    the driver's start; all links count alike.
    Do: run nvidia-smi nvlink -e before and after a run; dmesg for Xid 74 and SXid; drain the host, reset
    the GPU, exchange it if it comes again.
    Sources: DCGM documentation (NVLink counters); NVIDIA Xid catalogue (74); nvidia-smi documentation.
    """
    fatal = grown(counter_growth, dict.fromkeys(NVLINK_FATAL, 1))
    bad = pl.concat([fatal, grown(counter_growth, NVLINK_ERRORS)])
    if bad.height:
        told = bad.to_dicts()
        names = list(dict.fromkeys(map(_link, told)))
        detail = summed(bad) + times(told[0])
        title = f"{', '.join(names[:SHOWN])}{' and others' if len(names) > SHOWN else ''}: errors"
        severity = Severity.ERROR if fatal.height else Severity.WARNING
        yield on_ports(bad, title, detail, severity=severity)
        return
    yield from _once(counter_growth)


def _once(counter_growth: pl.DataFrame) -> Iterator[Finding]:
    """What a single dump tells: many on one link, and none on most of the others."""
    names = [*NVLINK_FATAL, *NVLINK_ERRORS]
    once = counter_growth.filter((pl.col("dumps") == 1) & pl.col("name").is_in(names))
    few = (pl.col("value") > 0).mean().over("name") < 0.5
    worst = once.filter((pl.col("value") >= NVLINK_EVER) & few).sort(-pl.col("value"), "source", "line")
    if worst.height:
        told = worst.to_dicts()
        detail = f"{summed(worst)} since the driver was loaded, and none on most other links"
        title = f"{_link(told[0])}: errors at some time"
        yield on_ports(worst, title, detail, severity=Severity.WARNING, certainty="possible")


@rule(Category.LINK_ERROR, Severity.ERROR, of=("switch_error",))
def nvswitch_error(switch_error: pl.DataFrame) -> Iterator[Finding]:
    """An NVSwitch reported an error to Fabric Manager.

    Means: a fatal one takes links of several GPUs down: all processes on that host that use NVLink end. The log tells
    switch and port; the SXid tells what it was.
    Not when: it is called non-fatal, which is told as a note; it was logged on another day than the job ran.
    Do: look for SXid in dmesg at that time; restart the host (or Fabric Manager after a reset of all GPUs); have the
    baseboard exchanged if it comes again.
    Sources: NVIDIA Fabric Manager user guide (SXid errors); NVIDIA Xid catalogue.
    """
    for gravity, severity, role in (("fatal", Severity.ERROR, Role.CAUSE), ("non-fatal", Severity.INFO, Role.CONTEXT)):
        rows = switch_error.filter(pl.col("gravity") == gravity).sort("source", "line")
        if rows.is_empty():
            continue
        first = rows.row(0, named=True)
        hosts = sorted({str(host) for host in rows["launcher_node"].drop_nulls()})
        where = f" on {', '.join(hosts[:SHOWN])}" if hosts else ""
        yield Finding(
            f"an NVSwitch reported a {gravity} error{where}",
            f"SXid {first['sxid']} on switch {first['switch']} port {first['switch_port']}, {first['manager_time']}",
            "certain",
            hosts=hosts,
            severity=severity,
            role=role,
            evidence=[Line(source, line) for source, line in rows.select("source", "line").head(SHOWN).iter_rows()],
        )


@rule(Category.LINK_ERROR, Severity.WARNING, of=("link_quality",))
def link_bit_errors(link_quality: pl.DataFrame) -> Iterator[Finding]:
    """A link receives more wrong bits than error correction can repair.

    Means: packets are lost on that link: the cable, a transceiver, dust.
    Not when: the counters were cleared less than ten minutes before, for so few bits say nothing; raw errors are many
    and effective ones are none, which is how links with error correction work; the tool says 15E-255, which is none.
    Do: run mlxlink -d DEVICE -m -c again after a while; clean or exchange cable and transceiver; look at the other end.
    Sources: NVIDIA practice for mlxlink (effective BER above 1E-12); ibdiagnet (threshold of BER).
    """
    judged = link_quality.filter(pl.col("minutes").fill_null(0) >= LEAST_MINUTES)
    for row in judged.filter(pl.col("effective_ber") > WORST_RATE).to_dicts():
        advice = row["recommendation"]
        said = f"; mlxlink says: {printable(advice)}" if advice and row["opcode"] else ""
        name = printable(" ".join(filter(None, (row["host"], row["device"] or "a link"))))
        yield Finding(
            f"{name} receives too many wrong bits",
            f"effective errors per bit {row['effective_ber']:.0e} over {row['minutes']:.0f} minutes{said}",
            "likely",
            hosts=[row["host"]] if row["host"] else [],
            evidence=[Line(row["source"], row["ber_line"])],
        )
