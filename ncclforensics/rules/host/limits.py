"""File systems that are full, and limits of a host or a user that are too low for a job."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.data.names import some_of
from ncclforensics.frames.columns import text_of
from ncclforensics.rules.finding import Category, Finding, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.grouping import SHOWN, evidence_lines

SHARED_MEMORY = "/dev/shm"
FULL = 100  # percent
# What is full by design: images that are mounted, and the variables of the firmware.
IMAGES = ("/dev/loop", "/dev/sr", "squashfs", "efivarfs")
IMAGE_MOUNTS = ("/snap/", "/var/lib/snapd/", "/media/", "/cdrom", "/sys/")
SMALL = ("64M", "65536", "62.5M")  # what containers get for shared memory by default
ENOUGH_LOCKED = 1 << 30  # bytes: RDMA registers the buffers of all connections
ENOUGH_FILES = 1024
UNITS = {"locked_kilobytes": 1024, "locked_bytes": 1}


@rule(Category.SHM, Severity.WARNING, of=("file_system",), role=Role.CONTEXT)
def file_system_full(file_system: pl.DataFrame, file_systems: pl.DataFrame) -> Iterator[Finding]:
    """A file system is full, or the shared memory of a container has its small default size.

    Means: what writes there fails with `No space left on device`; on /dev/shm NCCL and data loaders then end with a
    bus error (SIGBUS).
    Not when: the file system is an image that is mounted read-only, which is always full; blocks are free, and no
    inodes are: then it is full nevertheless.
    Do: free space, or look for the largest folders with du -x; for /dev/shm start the container with --shm-size=16g or
    --ipc=host, in Kubernetes with an emptyDir of medium Memory.
    Sources: df(1); NVIDIA NCCL user guide, troubleshooting, shared memory; docker run, --shm-size.
    """
    heads = file_systems.select("source", "pos", counted=text_of("form")).sort("pos")
    rows = file_system.sort("pos").join_asof(heads, on="pos", by="source", check_sortedness=False)
    is_image = pl.any_horizontal(text_of("file_system").str.starts_with(name).fill_null(value=False) for name in IMAGES)
    is_image |= pl.any_horizontal(text_of("mount").str.starts_with(folder) for folder in IMAGE_MOUNTS)
    full = rows.filter((pl.col("percent") >= FULL) & ~is_image)
    for (counted,), alike in full.group_by("counted", maintain_order=True):
        mounts = alike["mount"].cast(pl.String).unique(maintain_order=True).to_list()
        what = "has no inode left" if counted == "inodes" else "is full"
        title = f"the file system {some_of(mounts, SHOWN)} {what}"
        detail = "what writes there fails with “No space left on device”"
        yield Finding(title, detail, "certain", evidence=evidence_lines(alike))
    is_small = (text_of("mount") == SHARED_MEMORY) & text_of("size").is_in(SMALL) & (pl.col("percent") < FULL)
    small = rows.filter(is_small & (pl.col("counted") == "space").fill_null(value=True))
    if not small.is_empty():
        title = f"{SHARED_MEMORY} has the default size of containers, 64 MB"
        detail = "too small for NCCL with many GPUs, and for data loaders that pass batches in it"
        yield Finding(title, detail, "possible", severity=Severity.INFO, evidence=evidence_lines(small))


@rule(Category.ENVIRONMENT, Severity.INFO, of=("host_limit",), role=Role.CONTEXT)
def low_limits(host_limit: pl.DataFrame) -> Iterator[Finding]:
    """A limit of the user is too low for a job with RDMA or many connections.

    Means: a small limit of locked memory lets the registration of memory fail (ibv_reg_mr, ibv_create_cq: Cannot
    allocate memory); a small number of open files lets connections fail (Too many open files).
    Not when: the job uses sockets alone, for the limit of locked memory; systemd, Slurm or the container sets other
    limits for the job than the shell that was asked has.
    Do: ulimit -l unlimited and ulimit -n 1048576 where the job starts; docker run --ulimit memlock=-1; LimitMEMLOCK in
    the unit of slurmd or containerd.
    Sources: limits.conf(5), bash(1), ulimit; NCCL user guide, troubleshooting.
    """
    rows = host_limit.with_columns(
        number=text_of("limit").cast(pl.Int64, strict=False), unit=text_of("form").replace_strict(UNITS, default=None)
    ).filter(pl.col("number") >= 0)
    locked = rows.filter(pl.col("number") < ENOUGH_LOCKED // pl.col("unit")).with_columns(
        kilobytes=pl.col("number") * pl.col("unit") // 1024
    )
    if not locked.is_empty():
        title = f"locked memory is limited to {min(locked['kilobytes']):,} KiB"
        detail = "NCCL registers more with RDMA NICs, which then fails; over sockets it does not matter"
        yield Finding(title, detail, "possible", evidence=evidence_lines(locked))
    files = rows.filter((text_of("form") == "files") & (pl.col("number") < ENOUGH_FILES))
    if not files.is_empty():
        title = f"a process may open {min(files['number']):,} files and connections"
        detail = "a rank opens several for each peer, and fails with “Too many open files”"
        yield Finding(title, detail, "likely", severity=Severity.WARNING, evidence=evidence_lines(files))
