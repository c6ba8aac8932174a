"""File systems and disks that fail or do not answer, as the kernel logs them."""

from __future__ import annotations

import os
from collections.abc import Iterator

import polars as pl

from ncclforensics.data.names import count_of, some_of
from ncclforensics.frames.columns import text_of
from ncclforensics.rules.finding import Category, Finding, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.kernel_log import JobBeside, kernel_log_findings, times_text

BACK = "back"  # how the form of a line ends that tells of an answer
SYSTEMS = {"nfs": "NFS", "lustre": "Lustre", "beegfs": "BeeGFS", "ceph": "Ceph", "smb": "SMB"}
SHOWN = 3
WAITING = "processes that read or write there stand still, and cannot be interrupted, until it answers"
EVICTED = "a server gave this host up, so that what was being read or written failed"
TEST_SERVER = (
    "look whether the server answers (ping, showmount -e, lfs check servers, beegfs-check-servers, ceph -s), and at "
    "the network between them; py-spy dump or /proc/PID/stack shows whether a rank waits for a file"
)
# The errors of an ATA disk that tell what failed (Linux, drivers/ata/libata-eh.c).
OF_ATA = {
    "UNC": "it holds data that it cannot read",
    "AMNF": "it holds data that it cannot read",
    "IDNF": "it does not find the place that was asked for",
    "ICRC": "what went over its cable was damaged",
}
UNANSWERED = "it did not carry out commands, or not in time"
TEST_DISK = (
    "look at dmesg -T, smartctl -a and nvme smart-log: replace the disk where its own counts (media errors, pending or "
    "reallocated sectors) rose, else look at its cable, its controller, or the server of a volume over the network"
)


@rule(Category.ENVIRONMENT, Severity.WARNING, of=("storage_report",), hang=True, fallback=True)
def kernel_storage(storage_report: pl.DataFrame, rank: pl.DataFrame, verdict: pl.DataFrame) -> Iterator[Finding]:
    """The kernel logged that a server of a file system does not answer, or that a disk failed.

    Means: a rank that reads data or writes a checkpoint there waits in the kernel, and the other ranks wait for it in
    their next call.
    Not when: another finding explains the lines; the server answered later: then it is a note.
    Do: see whether the server answers; look at the network to it; for a disk look at its own health.
    Sources: Linux, net/sunrpc/clnt.c, fs/ceph/mds_client.c, fs/smb/client/connect.c, drivers/nvme/host/pci.c,
    drivers/ata/libata-eh.c; Lustre,
    lustre/ptlrpc/import.c and recover.c, lnet/klnds/o2iblnd/o2iblnd_cb.c; BeeGFS, client_module.
    """
    job, form = JobBeside.of(rank, verdict), text_of("form").str
    rows = storage_report.sort("source", "line").with_columns(
        system=form.split("_").list.first(),
        server=pl.coalesce(text_of(name) for name in ("server", "ceph_server", "volume")),
        is_back=form.ends_with(BACK),
    )
    of_server = ["source", "node", "system", "server"]
    servers = rows.filter(pl.col("system").is_in(list(SYSTEMS)))
    servers = servers.with_columns(is_open=~pl.col("is_back").last().over(of_server))
    for (_, system, is_open), alike in servers.group_by("node", "system", "is_open", maintain_order=True):
        lost = alike.filter(~pl.col("is_back"))
        if not lost.is_empty():
            yield from _of_servers(SYSTEMS[str(system)], lost, bool(is_open), job)
    disks = rows.with_columns(disk=pl.coalesce(text_of("disk"), text_of("ata_disk"))).drop_nulls("disk")
    of_parts = _disks_of_parts(disks["disk"].unique().to_list())
    disks = disks.with_columns(pl.col("disk").replace_strict(of_parts, return_dtype=pl.String))
    for (_, disk), alike in disks.group_by("node", "disk", maintain_order=True):
        title = f"the disk {disk}{{where}}, or the file system on it, failed"
        errors = text_values(alike, "ata_error")
        meanings = [OF_ATA[error] for error in errors if error in OF_ATA]
        if not errors and "ata_command" in text_of_forms(alike):
            meanings = [UNANSWERED]
        details = [*meanings, count_of(alike.height, "line"), times_text(alike)]
        yield from kernel_log_findings(alike, title, details, Severity.WARNING, TEST_DISK, job)


def _disks_of_parts(names: list[str]) -> dict[str, str]:
    """Map partitions, and namespaces of a controller, to the disk that is named, too.

    >>> _disks_of_parts(["sda", "sda1", "nvme1n1p2", "nvme1", "nvme12", "sdb1"])
    {'sda': 'sda', 'sda1': 'sda', 'nvme1n1p2': 'nvme1', 'nvme1': 'nvme1', 'nvme12': 'nvme12', 'sdb1': 'sdb1'}
    """
    known = set(names)
    return {name: next(disk for disk in _beginnings(name) if disk in known and _is_part(name, disk)) for name in names}


def _beginnings(name: str) -> Iterator[str]:
    """Yield every beginning of a name, the shortest first."""
    return (name[:length] for length in range(1, len(name) + 1))


def _is_part(name: str, disk: str) -> bool:
    """Whether a name is that of a disk, or of a part of it: `sda1`, `nvme0n1p2`."""
    rest = name.removeprefix(disk) if name.startswith(disk) else "?"
    is_numbered = rest[:1] in "np" if disk[-1].isdigit() else rest.isdigit()
    return rest == "" or (is_numbered and not rest.strip("np0123456789"))


def _of_servers(system: str, lost: pl.DataFrame, is_open: bool, job: JobBeside) -> Iterator[Finding]:
    """Yield the finding on servers of one kind that one host gets no answer from, or did not for a time."""
    names = lost["server"].drop_nulls().unique(maintain_order=True).to_list()
    volumes = some_of([name for name in text_values(lost, "volume") if name not in names], SHOWN)
    errors = {os.strerror(number).lower(): None for number in lost["errno"].drop_nulls().unique(maintain_order=True)}
    noun = "server" if len(names) <= 1 else "servers"
    verb = ("does" if len(names) <= 1 else "do") if is_open else "did"
    span = "" if is_open else " for a time"
    title = f"the {system} {noun} {some_of(names, SHOWN)} {verb} not answer{span}{{where}}".replace("  ", " ")
    details = [
        f"it serves {volumes}" if volumes and len(names) == 1 else f"they serve {volumes}" if volumes else "",
        f"the error is {', '.join(errors)}" if errors else "",
        WAITING if is_open else "it answered later",
        EVICTED if (text_of_forms(lost) & {"lustre_evicted"}) else "",
        count_of(lost.height, "line"),
        times_text(lost),
    ]
    severity = Severity.WARNING if is_open else Severity.INFO
    yield from kernel_log_findings(lost, title, details, severity, TEST_SERVER, job)


def text_values(rows: pl.DataFrame, column: str) -> list[str]:
    """Return the distinct texts of a column, in the order of the lines."""
    return rows.select(text_of(column)).to_series().drop_nulls().unique(maintain_order=True).to_list()


def text_of_forms(rows: pl.DataFrame) -> set[str]:
    """Return the forms of these rows."""
    return set(text_values(rows, "form"))
