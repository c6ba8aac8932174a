"""Findings on hardware errors that the firmware of a host reported to its kernel, by section and part."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.data.names import count_of, some_of
from ncclforensics.frames.columns import text_of
from ncclforensics.rules.finding import Finding, Severity
from ncclforensics.rules.shared.kernel_log import JobBeside, kernel_log_findings, times_text

OF_LINES = ["source", "line"]
SHOWN = 2  # parts
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
