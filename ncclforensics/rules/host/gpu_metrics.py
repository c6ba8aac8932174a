"""Faults of GPUs in the samples of an exporter, and the errors that tools of AMD count of their memory."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.data.gpu_metrics import GPU_FAULTS, PASSING, WELL, XID, GpuFault
from ncclforensics.data.kernel_faults import UNKNOWN_XID, XIDS, Origin
from ncclforensics.data.names import count_of, some_of
from ncclforensics.frames.columns import text_of
from ncclforensics.rules.finding import Category, Finding, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.grouping import evidence_lines

SEVERITIES = {GpuFault.PENDING: Severity.INFO}
AMD_FAMILY, UNCORRECTED = "rocm_ras_", "_uncorrectable_count"
MOST_NAMED = 8
BAD_PAGES = {
    "PENDING": ("of bad memory that the next reset takes out of use", Severity.INFO),
    "UNRESERVABLE": ("of bad memory that cannot be taken out of use", Severity.WARNING),
}


@rule(Category.CUDA_ERROR, Severity.WARNING, of=("metric_value",))
def gpu_metric_faults(metric_value: pl.DataFrame) -> Iterator[Finding]:
    """An exporter of metrics shows a fault of a GPU: an Xid, errors of its memory, or a state that a reset ends.

    Means: of memory errors that were not corrected: the process that reads the memory is ended, and its peers wait
    for it. A value of DCGM_FI_DEV_XID_ERRORS is the number of the last Xid; when it came, the metric does not tell.
    Not when: the values are zero, or the errors were corrected; an Xid that NVIDIA calls harmless is a note.
    Do: dmesg -T | grep -e NVRM -e amdgpu on the host, for the time; drain it, reset the GPU, and dcgmi diag -r 3.
    Sources: DCGM, dcgm_fields.h; NVIDIA, GPU memory error management; nvidia_gpu_exporter; omnistat.
    """
    sample = ["host", "device", "family", "name"]
    is_well = pl.col("value") == pl.col("name").replace_strict(WELL, default=None)
    faulty = (pl.col("value") > 0) & ~is_well.fill_null(value=False)
    is_last = pl.int_range(pl.len()).over(sample) == pl.len().over(sample) - 1
    ordered = metric_value.sort("moment", "source", "line").with_columns(is_last=is_last)
    above = ordered.filter(faulty).unique(sample, keep="last", maintain_order=True)
    base = pl.col("name").str.strip_suffix("_total")
    is_amd = (pl.col("family") == AMD_FAMILY) & pl.col("name").str.ends_with(UNCORRECTED)
    fault = pl.when(is_amd).then(pl.lit(GpuFault.MEMORY)).otherwise(
        base.replace_strict({name: str(kind) for name, kind in GPU_FAULTS.items()}, default=None)
    )  # fmt: skip
    faults = above.with_columns(fault=fault).drop_nulls("fault")
    faults = faults.filter(pl.col("is_last") | ~pl.col("fault").is_in([str(kind) for kind in PASSING]))
    for (kind, _), rows in faults.group_by("fault", "host", maintain_order=True):
        severity = SEVERITIES.get(GpuFault(str(kind)), Severity.WARNING)
        yield _fault(rows, f"{_gpus(rows)}: {kind}", f"{_metrics(rows)}", severity)
    for (number, _), rows in above.filter(pl.col("name") == XID).group_by("value", "host", maintain_order=True):
        xid = XIDS.get(int(float(str(number))), UNKNOWN_XID)
        is_harmless = xid.origin is Origin.HARMLESS
        title = f"{_gpus(rows)}: Xid {int(float(str(number)))}, {xid.meaning}"
        detail = "the last one by the exporter, at an unknown time"
        finding = _fault(rows, title, detail, Severity.INFO if is_harmless else Severity.WARNING)
        finding.remedy = f"dmesg -T | grep NVRM on the host, for the time; {xid.remedy}"
        yield finding


def _gpus(rows: pl.DataFrame) -> str:
    names = rows["device"].drop_nulls().unique(maintain_order=True).to_list()
    return some_of(names, MOST_NAMED) or "a GPU that the samples do not name"


def _metrics(rows: pl.DataFrame) -> str:
    return "by " + ", ".join(f"{name} {value:,.0f}" for name, value in rows.select("name", "value").head(3).iter_rows())


def _fault(rows: pl.DataFrame, title: str, detail: str, severity: Severity) -> Finding:
    hosts = rows["host"].drop_nulls().unique(maintain_order=True).to_list()
    return Finding(
        title=title + "".join(f" ({host})" for host in hosts),
        detail=detail,
        certainty="certain",
        severity=severity,
        role=Role.CAUSE if severity is Severity.WARNING else Role.CONTEXT,
        hosts=hosts,
        evidence=evidence_lines(rows.drop("host")),
    )


@rule(Category.CUDA_ERROR, Severity.WARNING, of=("amd_errors", "amd_page"))
def amd_memory_errors(amd_errors: pl.DataFrame, amd_page: pl.DataFrame) -> Iterator[Finding]:
    """A tool of AMD counts errors of a GPU's memory that could not be corrected (amd-smi, rocm-smi).

    Means: since the driver was loaded, data was lost; the process that used it was ended, and the driver takes the
    page out of use at the next reset.
    Not when: all counts of uncorrected errors are zero.
    Do: amd-smi metric --ecc-blocks and dmesg -T | grep amdgpu for the block and the time; drain the host and reset the
    GPU; if it comes back, ask the vendor.
    Sources: ROCm, amd-smi metric --ecc; rocm-smi --showrasinfo; Linux, drivers/gpu/drm/amd/amdgpu/amdgpu_ras.c.
    """
    rows = amd_errors.sort("source", "line").with_columns(gpu=pl.col("gpu").forward_fill().over("source"))
    shown = text_of("shown_block").forward_fill().over("source")
    rows = rows.with_columns(block=pl.when(text_of("form") == "of_named").then(shown).otherwise(text_of("block")))
    counted = rows.filter(pl.col("errors").fill_null(0) > 0)
    for _, of_gpu in counted.group_by("source", "gpu", maintain_order=True):
        gpu = of_gpu["gpu"][0]
        blocks = of_gpu.filter(pl.col("block").is_not_null()).select(text_of("block"), "errors").rows()
        number = max(of_gpu["errors"].to_list())
        yield Finding(
            title=f"AMD GPU {'of unknown number' if gpu is None else gpu}: "
            f"{count_of(number, 'memory error')} that could not be corrected",
            detail=", ".join(f"{block}: {errors:,}" for block, errors in blocks) or "since the driver was loaded",
            certainty="certain",
            evidence=evidence_lines(of_gpu),
        )
    yield from _bad_pages(amd_errors, amd_page)


def _bad_pages(amd_errors: pl.DataFrame, amd_page: pl.DataFrame) -> Iterator[Finding]:
    """Pages that are not yet out of use, and those that cannot be taken out; those that were are no fault."""
    lines = pl.concat([amd_errors, amd_page], how="diagonal_relaxed").sort("source", "line")
    rows = lines.with_columns(gpu=pl.col("gpu").forward_fill().over("source"), status=text_of("page_status"))
    for (_, gpu, status), pages in rows.filter(pl.col("status").is_in(list(BAD_PAGES))).group_by(
        "source", "gpu", "status", maintain_order=True
    ):
        words, severity = BAD_PAGES[str(status)]
        yield Finding(
            title=f"AMD GPU {'of unknown number' if gpu is None else gpu}: {count_of(pages.height, 'page')} {words}",
            detail="by amd-smi bad-pages",
            certainty="certain",
            severity=severity,
            role=Role.CAUSE if severity is Severity.WARNING else Role.CONTEXT,
            evidence=evidence_lines(pages.select("source", "line")),
        )


@rule(Category.LINK_ERROR, Severity.WARNING, of=("amd_state",))
def amd_gpu_conditions(amd_state: pl.DataFrame, amd_errors: pl.DataFrame) -> Iterator[Finding]:
    """A tool of AMD shows errors of the links between GPUs (XGMI), or a GPU that is slowed down by heat.

    Means: RCCL moves data between the GPUs of a host over XGMI: damaged packets are sent again, and more of them end
    the driver's trust in the link. A hot GPU lowers its clocks, and all ranks wait for it in every step.
    Not when: no errors were counted since the counter was last read; only the power limit (PPT) is active, as in every
    busy GPU.
    Do: dmesg -T | grep -e amdgpu -e xgmi for the time of errors, and reset the GPUs of that hive together; for heat
    look at fans, air flow and power supplies (amd-smi metric --temperature --clock --throttle).
    Sources: ROCm: amdsmi.h, amdsmi_xgmi_status_t; amd-smi metric --throttle; rocm_smi.py, showXgmiErr.
    """
    lines = pl.concat([amd_state, amd_errors], how="diagonal_relaxed").sort("source", "line")
    rows = lines.with_columns(gpu=pl.col("gpu").forward_fill().over("source"), form=text_of("form"))
    for form, title, category in (
        ("xgmi", "links to other GPUs (XGMI) counted errors", Category.LINK_ERROR),
        ("hot", "slowed down by heat or by its board", Category.STRAGGLER),
    ):
        for _, shown in rows.filter(form=form).group_by("source", maintain_order=True):
            numbers = [str(number) for number in shown["gpu"].drop_nulls().unique(maintain_order=True)]
            yield Finding(
                title=f"AMD GPU {some_of(numbers, MOST_NAMED) or 'of unknown number'}: {title}",
                detail="by amd-smi or rocm-smi, when they were called",
                certainty="certain",
                category=category,
                hosts=sorted(shown["launcher_node"].drop_nulls().cast(pl.String).unique()),
                evidence=evidence_lines(shown.select("source", "line")),
            )
