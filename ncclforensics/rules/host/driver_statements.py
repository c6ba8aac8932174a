"""What drivers of NICs, GPUs, switches and disks say that failed, where no other rule knows their words."""

from __future__ import annotations

import os
from collections.abc import Iterator

import polars as pl

from ncclforensics.data.driver_topics import DEVICE_KINDS, DRIVER_TOPICS
from ncclforensics.data.names import count_of, pci_address, some_of
from ncclforensics.frames.columns import text_of
from ncclforensics.rules.finding import Category, Finding, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.kernel_log import OF_LINES, JobBeside, kernel_log_findings, times_text

SHOWN = 3  # devices in a title
MOST_QUOTED = 2  # other statements
MAX_STATEMENT = 160  # characters
OF_ANSWER = ("source", "busid", "form")
OF_AMD = ("amd_init", "amd_reset", "amd_not_reset", "amd_timeout", "amd_ring", "amd_power", "amd_reset_end", "amd_bus")
OF_NVIDIA = ("gpu_init", "gpu_probe", "gpu_status", "lost", "xid")
# Forms of `kernel_report` and `hardware_event` whose findings say more of a device than its other lines; and those that
# answer lines without an address, by the kind of device.
GRAVE = (*OF_AMD, *OF_NVIDIA, "probe", "command_timeout", "bus_lost", "fatal", "contained")
GRAVE_BESIDE = {"amd": OF_AMD, "nvidia": OF_NVIDIA}
OF_DEVICE = ["node", "device_kind", "busid", "device"]


@rule(Category.LINK_ERROR, Severity.WARNING, of=("driver_report",), hang=True, fallback=True)
def kernel_driver_statements(
    driver_report: pl.DataFrame,
    kernel_message: pl.DataFrame,
    kernel_event: pl.DataFrame,
    storage_report: pl.DataFrame,
    rank: pl.DataFrame,
    verdict: pl.DataFrame,
) -> Iterator[Finding]:
    """A driver in the kernel says that something of its device failed, in words that no other rule knows.

    Means: the title says what the words are about, and quotes them. That the driver said so is certain; what it means
    for a job is known of the kind of words alone. Statements on settings, and those of which the words say no more than
    that there was an error, are notes.
    Not when: the words are of what healthy hosts print, too: features that are missing, diagnostics, clocks, what is
    tried again; another finding explains the lines, or tells of a graver fault of the same device, or of the servers
    of Lustre.
    Do: look at the lines before it, and whether the device works: its ports, its GPU, its file system.
    Sources: Linux: drivers/net/ethernet, drivers/infiniband, drivers/gpu/drm/amd, drivers/nvme, drivers/pci, fs/ext4,
    fs/xfs, drivers/md; NVIDIA open-gpu-kernel-modules; amzn-drivers; opa-hfi1; compute-virtual-ethernet-linux.
    """
    job = JobBeside.of(rank, verdict)
    order = {name: place for place, name in enumerate(DRIVER_TOPICS)}
    answered = pl.concat([kernel_message.select(*OF_ANSWER), kernel_event.select(*OF_ANSWER)])
    answered = answered.with_columns(text_of("form"))
    lustre = storage_report.filter(text_of("form").str.starts_with("lustre_"))["source"]
    beside = {kind: answered.filter(pl.col("form").is_in(forms))["source"] for kind, forms in GRAVE_BESIDE.items()}
    disks = storage_report.select("source", device=text_of("disk")).drop_nulls()
    is_answered = pl.any_horizontal(
        (pl.col("device_kind") == kind) & pl.col("source").is_in(sources.implode())
        for kind, sources in {**beside, "lustre": lustre}.items()
    )
    grave = answered.filter(pl.col("form").is_in(GRAVE))
    rows = driver_report.filter(~is_answered).join(grave, on=["source", "busid"], how="anti", maintain_order="left")
    rows = rows.join(disks, on=["source", "device"], how="anti", maintain_order="left")
    rows = rows.with_columns(place=pl.col("topic").replace_strict(order, return_dtype=pl.Int8))
    firsts = rows.sort("place", *OF_LINES).unique(OF_DEVICE, keep="first", maintain_order=True)
    heads = firsts.select(*OF_DEVICE, head="alike", head_topic="topic")
    of_heads = rows.join(heads, on=OF_DEVICE, nulls_equal=True, maintain_order="left")
    alike = ["node", "device_kind", "head_topic", "head"]
    for (_, kind, topic, head), group in of_heads.group_by(alike, maintain_order=True):
        yield from _stated(group, str(kind), str(topic), str(head), job)


def _stated(rows: pl.DataFrame, kind: str, topic_name: str, head: str, job: JobBeside) -> Iterator[Finding]:
    """Yield the finding on devices of one host whose gravest statements are alike."""
    topic, device_kind = DRIVER_TOPICS[topic_name], DEVICE_KINDS[kind]
    own = rows.filter((pl.col("alike") == head) & (pl.col("topic") == topic_name))
    first = own.row(0, named=True)
    others = rows.filter(pl.col("alike") != head)["statement"].unique(maintain_order=True).to_list()
    names = [_device_name(row) for row in rows.unique(OF_DEVICE, maintain_order=True).iter_rows(named=True)]
    named = some_of([name for name in names if name], SHOWN)
    device = f"{device_kind.noun} {named}" if named else device_kind.unnamed
    number = first["error_number"]
    details = [
        topic.meaning,
        f"error {number} is: {os.strerror(number).lower()}" if number and number < KERNEL_ONLY else "",
        f"it also says {' and '.join(f'“{_cut(text)}”' for text in others[:MOST_QUOTED])}" if others else "",
        count_of(rows.height, "line") if rows.height > 1 else "",
        times_text(rows),
    ]
    title = f"the driver of {device}{{where}} {topic.text}: {_cut(first['statement'])}"
    severity = Severity.WARNING if topic.is_failure else Severity.INFO
    remedy = "; ".join(filter(None, [topic.remedy, device_kind.remedy]))
    cited = pl.concat([own, rows.join(own, on=OF_LINES, how="anti")])
    for finding in kernel_log_findings(cited, title, details, severity, remedy, job):
        finding.category = Category(device_kind.category)
        yield finding


KERNEL_ONLY = 512  # numbers from here on are no errno of programs


def _device_name(row: dict[str, object]) -> str:
    """The name of a device, and its address behind it; what a line leaves out is left out."""
    name, address = row["device"], pci_address(str(row["busid"])) if row["busid"] else ""
    if name and address:
        return f"{name} ({address})"
    return str(name or address)


def _cut(text: str) -> str:
    return text if len(text) <= MAX_STATEMENT else f"{text[:MAX_STATEMENT]} …"
