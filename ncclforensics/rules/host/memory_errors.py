"""What the kernel, mcelog and rasdaemon tell of errors of memory and processors of a host."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.analyses.verdict.sources.machines import UNCORRECTABLE
from ncclforensics.data.kernel_faults import WATCH
from ncclforensics.data.names import count_of, some_of
from ncclforensics.frames.columns import text_of
from ncclforensics.rules.finding import Category, Finding, Line, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.kernel_log import (
    MANY,
    OF_LINES,
    JobBeside,
    kernel_log_findings,
    named_devices,
    rate_text,
    times_text,
)

SEVERITIES = {"fatal": Severity.ERROR, "recoverable": Severity.WARNING, "corrected": Severity.INFO}
DECODE = (
    "look at the lines around it and at the BMC's event log for the part; rasdaemon (ras-mc-ctl --errors) decodes it"
)


def firmware_findings(kernel_event: pl.DataFrame, kernel_message: pl.DataFrame, job: JobBeside) -> Iterator[Finding]:
    """Yield a finding for each severity; the lines below an event name what failed (drivers/firmware/efi/cper.c)."""
    events = kernel_message.filter(text_of("severity").is_in(list(SEVERITIES)))
    of_firmware = kernel_event.filter(text_of("form").is_in(["firmware_section", "firmware_part"]))
    below = of_firmware.select(*OF_LINES, text_of("section"), text_of("part"))
    named = pl.concat([events.with_columns(text_of("severity")), below], how="diagonal_relaxed").sort(OF_LINES)
    named = named.with_columns(pl.col("severity").forward_fill().over("source"))
    for (severity_text,), rows in events.sort(OF_LINES).group_by(text_of("severity"), maintain_order=True):
        title = f"the firmware{{where}} reported {count_of(rows.height, f'{severity_text} hardware error')}"
        of_these = named.filter(severity=str(severity_text))
        sections, parts = (of_these[name].drop_nulls().unique(maintain_order=True) for name in ("section", "part"))
        title += f": {', '.join(sections)}" * bool(len(sections))
        title += f" of {some_of(parts.to_list(), SHOWN)}" * bool(len(parts))
        detail = "" if len(sections) else "the lines below it name the section: memory, PCIe or processor"
        if severity_text == "recoverable":
            detail = "; ".join(filter(None, ["it was not corrected: the program that needs the data is ended", detail]))
        yield from kernel_log_findings(
            rows, title, [detail, times_text(rows)], SEVERITIES[str(severity_text)], DECODE, job
        )


SHOWN = 2  # parts
UNNAMED = ("unknown memory", "any memory")  # for EDAC: its location stands behind
REPLACE = "drain the host; replace the module that EDAC or the BMC's event log names"
CHECK_LINES = 12  # from the line of the bank to the one of its status, by mcelog
OF_PCIE = "look at the device (lspci -vv -s ADDRESS) and at dmesg -T | grep AER; reseat or replace the card"
# The code in the low bits of a status: 000F 0000 1MMM CCCC is an error of a memory controller (Intel SDM, 15.9.2).
CODE_BITS, MEMORY_MASK, MEMORY_CODE = 16, 0xEF80, 0x0080
NOT_RECOVERED = "Failed"  # outcome of a damaged page
LOST = "the processor's state was corrupt: what ran there could not go on"
# A corrupt state stops the host, unless its report was not enabled: on that Linux takes no action
# (arch/x86/kernel/cpu/mce/severity.c: not enabled).
LEFT = "its report was not enabled, so that it stopped nothing: mostly firmware left it before the kernel began"
# Of a bank's status (Intel SDM, IA32_MCi_STATUS; AMD APM, MCA_STATUS).
UNCORRECTED_BIT, ENABLED_BIT, CORRUPT_BIT = 61, 60, 57


@rule(
    Category.APPLICATION_ERROR,
    Severity.WARNING,
    of=("kernel_event", "kernel_message", "ras_record", "edac_count", "ras_count"),
    hang=True,
    fallback=True,
)
def kernel_memory_errors(
    kernel_event: pl.DataFrame,
    kernel_message: pl.DataFrame,
    ras_record: pl.DataFrame,
    edac_count: pl.DataFrame,
    ras_count: pl.DataFrame,
    rank: pl.DataFrame,
    verdict: pl.DataFrame,
) -> Iterator[Finding]:
    """The kernel logged errors of the memory or the processors of a host, or of the memory of an AMD GPU.

    Means: an uncorrected one loses data: the program that reads them is ended, or the host stops. Corrected ones cost
    nothing, but many of one module announce others.
    Not when: another finding explains the lines; a few corrected errors.
    Do: replace the module that EDAC, or the event log of the BMC, names; for a GPU see rocm-smi --showras.
    Sources: Linux: drivers/edac/edac_mc.c, arch/x86/kernel/cpu/mce/core.c, mm/memory-failure.c,
    drivers/firmware/efi/cper.c, drivers/gpu/drm/amd/amdgpu/amdgpu_ras.c.
    """
    job = JobBeside.of(rank, verdict)
    memory = kernel_event.filter(pl.col("form") == "memory").sort(OF_LINES)
    for (kind,), rows in memory.group_by(text_of("memory_error"), maintain_order=True):
        number = int(rows["errors"].fill_null(1).sum())
        is_uncorrected = kind == UNCORRECTABLE
        faults = rows["memory_fault"].cast(pl.String).str.split(" (").list.first().str.split(" on ")
        named: pl.Expr = pl.when(faults.list.len() > 1).then(faults.list.last())
        location = rows["memory_fault"].cast(pl.String).str.split(" (").list.get(1, null_on_oob=True)
        row_of_bank = location.str.split(" page:").list.first().str.split(" row:").list.first()
        named = pl.when(named.is_in(UNNAMED)).then(pl.concat_str(named, pl.lit(" at "), row_of_bank)).otherwise(named)
        place = pl.coalesce(text_of("part"), named, pl.lit("an unnamed module"))
        places = rows.select(place).to_series().unique(maintain_order=True)
        word = "uncorrected" if is_uncorrected else "corrected"
        title = f"memory of the host{{where}}: {count_of(number, f'{word} error')} of {', '.join(places[:SHOWN])}"
        title += f" and {len(places) - SHOWN} other modules" * (len(places) > SHOWN)
        details = [times_text(rows), "" if is_uncorrected else rate_text(rows, number)]
        severity = Severity.ERROR if is_uncorrected else Severity.WARNING if number >= MANY else Severity.INFO
        yield from kernel_log_findings(
            rows, title, details, severity, REPLACE if severity is not Severity.INFO else WATCH, job
        )
    status = text_of("mce_status").str.to_integer(base=16, dtype=pl.UInt64, strict=False)
    checks = kernel_message.filter(pl.col("form") == "machine_check").with_columns(status=status).drop_nulls("status")
    checks = checks.with_columns(is_uncorrected=(pl.col("status") // (1 << UNCORRECTED_BIT)) % 2 == 1)
    is_enabled = (pl.col("status") // (1 << ENABLED_BIT)) % 2 == 1
    checks = checks.with_columns(is_lost=(pl.col("status") // (1 << CORRUPT_BIT)) % 2 == 1, was_disabled=~is_enabled)
    checks = pl.concat([checks, _worded(kernel_message, checks)], how="diagonal_relaxed")
    checks = _unrepeated(_placed(checks, kernel_message), memory)
    yield from _recorded(ras_record, job)
    yield from _counted(_counts(edac_count, ras_count), job)
    yield from _undecoded(kernel_event, kernel_message, ras_record, job)
    of_memory = (pl.col("status") % (1 << CODE_BITS) & MEMORY_MASK == MEMORY_CODE).fill_null(value=False)
    checks = checks.with_columns(is_memory=of_memory).sort(OF_LINES)
    is_left = pl.all_horizontal("is_uncorrected", "is_lost", "was_disabled").fill_null(value=False)
    kinds = ["is_uncorrected", "is_memory", is_left.alias("is_left")]
    for (is_uncorrected, is_memory, was_left), rows in checks.group_by(kinds, maintain_order=True):
        word = "uncorrected" if is_uncorrected else "corrected"
        reporter = "memory controllers" if is_memory else "processors"
        banks = ", ".join(map(str, rows["bank"].drop_nulls().unique().sort().head(6)))
        title = f"the {reporter}{{where}} reported {count_of(rows.height, f'{word} machine check')}"
        cpus = some_of([f"CPU {cpu}" for cpu in rows["cpu"].drop_nulls().unique().sort()], SHOWN)
        title += f" ({', '.join(filter(None, [cpus, f'bank {banks}' * bool(banks)]))})" * bool(cpus or banks)
        lost = LOST if rows["is_lost"].any() else ""
        severity = Severity.ERROR if is_uncorrected else Severity.WARNING if rows.height >= MANY else Severity.INFO
        if was_left:
            lost, severity = LEFT, Severity.WARNING
        decoded = _decoded(rows, kernel_message)
        decoded_faults = [f"“{fault}”" for fault in decoded["check_fault"].drop_nulls().unique(maintain_order=True)]
        details = [lost, some_of(decoded_faults, SHOWN), times_text(rows)]
        remedy = f"{REPLACE}; {DECODE}" if is_memory and severity is not Severity.INFO else DECODE
        for finding in kernel_log_findings(rows, title, details, severity, remedy, job):
            finding.about += [Line(source, line) for source, line in decoded.select(OF_LINES).iter_rows()]
            yield finding
    yield from firmware_findings(kernel_event, kernel_message, job)
    pages = kernel_message.filter(pl.col("form") == "page_recovery").sort(OF_LINES)
    for (outcome,), rows in pages.group_by(text_of("outcome"), maintain_order=True):
        title = f"memory of the host{{where}}: {count_of(rows.height, 'damaged page')} ({str(outcome).lower()})"
        detail = "a page with an error that was not corrected is taken out of use; a program that needs it is ended"
        severity = Severity.ERROR if outcome == NOT_RECOVERED else Severity.WARNING
        yield from kernel_log_findings(rows, title, [detail, times_text(rows)], severity, REPLACE, job)
    used = kernel_message.filter(pl.col("form") == "user_access").sort(OF_LINES)
    if not used.is_empty():
        addresses = [f"0x{place}" for place in used["memory_place"].cast(pl.String).unique(maintain_order=True)]
        shown = some_of(addresses, SHOWN)
        title = f"memory of the host{{where}}: a program used data with an uncorrected error (at {shown})"
        yield from kernel_log_findings(used, title, [times_text(used)], Severity.ERROR, REPLACE, job)
    of_gpus = kernel_message.filter((pl.col("form") == "amd_ras") & (pl.col("errors").fill_null(1) > 0)).sort(OF_LINES)
    for (kind, block), rows in of_gpus.group_by(text_of("correctability"), text_of("block"), maintain_order=True):
        number = max(rows["errors"].fill_null(1).to_list())  # totals repeat what was counted before
        word = "uncorrected" if kind == "uncorrectable" else "corrected"
        title = f"AMD GPU {named_devices(rows)}{{where}}: at least {count_of(number, f'{word} error')} in {block}"
        severity = Severity.ERROR if word == "uncorrected" else Severity.WARNING if number >= MANY else Severity.INFO
        yield from kernel_log_findings(rows, title, [times_text(rows)], severity, OF_AMD, job)


def _unrepeated(checks: pl.DataFrame, memory: pl.DataFrame) -> pl.DataFrame:
    """Leave out machine checks of which EDAC tells the module on a line below."""
    below = memory.select("source", "line", memory_line="line").sort("line")
    found = checks.sort("line").join_asof(below, on="line", by="source", strategy="forward", check_sortedness=False)
    is_repeated = (pl.col("memory_line") - pl.col("line") <= CHECK_LINES).fill_null(value=False)
    return found.filter(~is_repeated).drop("memory_line")


def _worded(kernel_message: pl.DataFrame, checks: pl.DataFrame) -> pl.DataFrame:
    """Return machine checks of which mcelog's words alone are there: its line of the status was left out."""
    words = kernel_message.filter(form="check_kind").sort("line")
    below = checks.select("source", "line", status_line="line").sort("line")
    found = words.join_asof(below, on="line", by="source", strategy="forward", check_sortedness=False)
    is_alone = ~(pl.col("status_line") - pl.col("line") <= CHECK_LINES).fill_null(value=False)
    rows = found.filter(is_alone).drop("status_line")
    return rows.with_columns(is_uncorrected=text_of("check_kind") == "Uncorrected", is_lost=pl.lit(value=False))


def _decoded(rows: pl.DataFrame, kernel_message: pl.DataFrame) -> pl.DataFrame:
    """Return what the kernel decoded below these machine checks."""
    faults = kernel_message.filter(form="check_fault").select(*OF_LINES, text_of("check_fault")).sort("line")
    above = rows.select("source", "line", check_line="line").sort("line")
    found = faults.join_asof(above, on="line", by="source", check_sortedness=False)
    return found.filter(pl.col("line") - pl.col("check_line") <= CHECK_LINES).sort(OF_LINES)


def _placed(checks: pl.DataFrame, kernel_message: pl.DataFrame) -> pl.DataFrame:
    """Return machine checks with the processor and the bank that mcelog prints on a line above the status."""
    above = kernel_message.filter(form="check_place").sort("line").select("source", "line", "cpu", "bank", at="line")
    found = checks.sort("line").join_asof(above, on="line", by="source", suffix="_above", check_sortedness=False)
    is_near = pl.col("line") - pl.col("at") <= CHECK_LINES
    return found.with_columns(pl.coalesce(name, pl.when(is_near).then(f"{name}_above")) for name in ("cpu", "bank"))


def _recorded(ras_record: pl.DataFrame, job: JobBeside) -> Iterator[Finding]:
    """Yield the findings on what rasdaemon recorded; a machine check has no host in its records."""
    rows = ras_record.filter(text_of("ras_kind").is_not_null()).with_columns(node=pl.lit(None, pl.String))
    is_uncorrected = text_of("ras_kind") != "Corrected"
    for (is_bad,), alike in rows.sort("source", "line").group_by(is_uncorrected, maintain_order=True):
        number = int(alike["ras_count"].fill_null(1).sum())
        parts = alike.select(pl.coalesce(text_of("ras_label"), text_of("ras_device"))).to_series().drop_nulls()
        word = "uncorrected" if is_bad else "corrected"
        title = f"rasdaemon recorded {count_of(number, f'{word} error')}"
        title += f" of {some_of(parts.unique(maintain_order=True).to_list(), SHOWN)}" * bool(len(parts))
        severity = Severity.ERROR if is_bad else Severity.WARNING if number >= MANY else Severity.INFO
        detail = "" if is_bad else "corrected errors cost nothing, but many of one part announce others"
        remedy = OF_PCIE if alike["ras_device"].count() else REPLACE
        yield from kernel_log_findings(
            alike, title, [detail], severity, remedy if severity is not Severity.INFO else WATCH, job
        )


def _counts(edac_count: pl.DataFrame, ras_count: pl.DataFrame) -> pl.DataFrame:
    """Return the counts of EDAC above zero: of its files and edac-util, and of the table of ras-mc-ctl."""
    kind = pl.coalesce(text_of("edac_kind").replace({"ce": "Corrected", "ue": "Uncorrected"}), text_of("edac_word"))
    errors = text_of("edac_errors").cast(pl.Int64, strict=False).fill_null(1)
    place = ("source", "line", text_of("launcher_node").alias("node"))
    names = (text_of("controller"), text_of("module"), text_of("label"))
    filed = edac_count.drop_nulls("edac_errors").select(*place, *names, kind=kind, errors=errors)
    listed = [
        ras_count.select(*place, controller=text_of("ras_module"), kind=pl.lit(word), errors=pl.col(column))
        for word, column in (("Corrected", "ras_corrected"), ("Uncorrected", "ras_uncorrected"))
    ]
    return pl.concat([filed, *listed], how="diagonal_relaxed").filter(pl.col("errors") > 0).sort("source", "line")


def _counted(rows: pl.DataFrame, job: JobBeside) -> Iterator[Finding]:
    """Yield the findings on the counts of EDAC: those of a controller hold those of its modules."""
    owner = ("source", "node", "controller", "kind")
    for (kind_of_all,), alike in rows.group_by("kind", maintain_order=True):
        total = pl.col("errors").filter(pl.col("module").is_null()).max()
        counted = alike.group_by(owner, maintain_order=True).agg(pl.coalesce(total, pl.col("errors").sum()))
        number, word = int(counted["errors"].sum()), str(kind_of_all).lower()
        place = pl.concat_str("controller", "module", "label", separator=" ", ignore_nulls=True)
        places = alike.filter(pl.col("module").is_not_null() | ~pl.col("module").is_not_null().any().over(owner))
        names = some_of(places.select(place).to_series().unique(maintain_order=True).to_list(), SHOWN)
        is_bad = word == "uncorrected"
        severity = Severity.ERROR if is_bad else Severity.WARNING if number >= MANY else Severity.INFO
        title = f"memory of the host{{where}}: the kernel counts {count_of(number, f'{word} error')} ({names})"
        detail = "since the driver EDAC was loaded; a second look shows whether they increase"
        yield from kernel_log_findings(
            alike, title, [detail], severity, REPLACE if severity is not Severity.INFO else WATCH, job
        )


def _undecoded(
    kernel_event: pl.DataFrame, kernel_message: pl.DataFrame, ras_record: pl.DataFrame, job: JobBeside
) -> Iterator[Finding]:
    """Yield the finding on machine checks of which a log has only the lines around those that say how bad they are."""
    rows = kernel_event.filter(pl.col("form") == "machine_check").sort(OF_LINES)
    for decoded in (
        kernel_message.filter(pl.col("form").is_in(["machine_check", "firmware_event"])),
        kernel_event.filter(pl.col("form") == "memory"),
        ras_record.filter(pl.col("ras_kind").is_not_null()),
    ):
        rows = rows.join(decoded, on="source", how="anti", maintain_order="left")
    if not rows.is_empty():
        title = "the processors{where} reported machine checks, and these lines do not show whether they were corrected"
        yield from kernel_log_findings(rows, title, [times_text(rows)], Severity.WARNING, DECODE, job)


OF_AMD = "look at rocm-smi --showras; for uncorrected errors drain the host and reset the GPU"
