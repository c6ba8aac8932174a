"""Whether the network reaches the GPUs' memory itself."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.data.networks import PEERMEM_UNSEEN
from ncclforensics.data.versions import releases
from ncclforensics.frames.columns import OWNER
from ncclforensics.rules.finding import Category, Finding, Line, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.dump_faults import explain_by_dumps
from ncclforensics.rules.shared.grouping import shown, together
from ncclforensics.rules.shared.machine_faults import far_nics

OFF = ["LOC", "0"]  # levels, and values of NCCL_IB_CUDA_SUPPORT, that switch it off
FORCED = ["SYS", "5"]


def _staged(gdr_connections: pl.DataFrame) -> pl.DataFrame:
    """Processes none of whose receives goes into GPU memory."""
    return gdr_connections.filter((pl.col("receives") > 0) & (pl.col("direct") == 0))


def _is_switched_off() -> pl.Expr:
    return pl.col("level").str.split("=").list.last().is_in(OFF).fill_null(value=False)


@rule(Category.GDR_MISSING, Severity.WARNING, of=("gdr_connections",))
def gdr_disabled_hca(
    gdr_connections: pl.DataFrame, version: pl.DataFrame, loaded_module: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """NCCL found no way for the NIC to reach GPU memory: neither a kernel module nor DMA-BUF.

    Means: every byte between nodes is copied through host memory, which costs a third to two thirds of the throughput.
    Not when: DMA-BUF is available on the GPU, or some connection says /GDRDMA; the network is not RDMA; the job runs on
    one host; the GPU does not support it (GeForce); lsmod shows the module and this NCCL does not look for it, which
    is a finding of its own.
    Do: load nvidia-peermem (modprobe) on that host, again after each boot, with OFED installed before the GPU driver;
    or use the open kernel driver with a kernel that offers DMA-BUF. Up to NCCL 2.22.3 a loaded nvidia-peermem may go
    unseen: upgrade to 2.23.4.
    Sources: nccl#1537, nccl#1343, nccl#897, nccl#1939, nccl#1676; NCCL documentation gpu_troubleshooting.
    """
    closed = _closed(gdr_connections)
    loaded = _with_peermem(loaded_module)
    if _is_old(version):
        closed = closed.join(loaded, on="host", how="anti")
    if closed.height:
        detail = "NCCL found neither nvidia-peermem nor DMA-BUF there; data is copied through host memory"
        if _is_old(version):
            detail += "; this version of NCCL may fail to see a module that is loaded"
        reasons = shown(closed.select(*OWNER, source="reason_source", line="reason_line"), "why")
        finding = together(closed, rank, "{who}: GPUDirect RDMA is off", detail, "certain")
        finding.evidence = [*reasons[:2], *finding.evidence[:2]]
        of_hosts = closed.select("host").unique()
        present = loaded.join(of_hosts, on="host", how="semi")
        # A list without the module, but with the driver, of one of these hosts.
        listed = loaded_module.filter(pl.col("is_listing") & (pl.col("module") == "nvidia"))
        absent = listed.join(of_hosts.cast(pl.String), on="host", how="semi").join(
            loaded.cast({"host": pl.String}), on="host", how="anti"
        )
        if not present.is_empty():
            finding.detail += "; lsmod shows the module: loaded later, or not taken by the RDMA driver"
            finding.evidence += shown(present, "lsmod")[:1]
        elif not absent.is_empty():
            finding.detail += "; the host's lsmod lists no nvidia_peermem"
            finding.evidence += [Line(row["source"], row["line"], "lsmod") for row in absent.head(1).to_dicts()]
        yield finding


@rule(Category.GDR_MISSING, Severity.WARNING, of=("gdr_connections",))
def gdr_false_negative_old_nccl(
    gdr_connections: pl.DataFrame, version: pl.DataFrame, loaded_module: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """This NCCL says that GPUDirect RDMA is off, on a host where nvidia_peermem is loaded.

    Means: up to 2.22.3 NCCL looks for the entry of the older nv_peer_mem only, and stages all data through host memory
    although the NIC could reach GPU memory: 10 in place of 180 GB/s in one report.
    Not when: nv_peer_mem is loaded as well; lsmod is of another host, or of one that nobody names; the module was
    loaded after the job had started.
    Do: NCCL 2.23.4 or later; until then load nv_peer_mem, or use DMA-BUF (open kernel driver).
    Sources: nccl#1676; release notes of 2.23.4.
    """
    unseen = _closed(gdr_connections) if _is_old(version) else gdr_connections.clear()
    loaded = _with_peermem(loaded_module)
    rows = unseen.join(loaded, on="host", how="semi")
    if rows.height:
        detail = "nvidia_peermem is loaded there, and NCCL up to 2.22.3 looks for nv_peer_mem only"
        finding = together(rows, rank, "{who}: GPUDirect RDMA is off for no reason", detail, "likely")
        reasons = shown(rows.select(*OWNER, source="reason_source", line="reason_line"), "why")
        proof = shown(loaded.join(rows, on="host", how="semi"), "lsmod")
        finding.evidence = [*reasons[:2], *proof[:1], *finding.evidence[:1]]
        yield finding


def _closed(gdr_connections: pl.DataFrame) -> pl.DataFrame:
    """Processes that NCCL found no kernel module nor DMA-BUF for."""
    return _staged(gdr_connections).filter(pl.col("is_closed") & pl.col("is_open").not_() & _is_switched_off().not_())


def _is_old(version: pl.DataFrame) -> bool:
    """Every version seen looks for the older module's entry only."""
    versions = releases(version["version"])
    return bool(versions) and versions[-1] <= PEERMEM_UNSEEN


def _with_peermem(loaded_module: pl.DataFrame) -> pl.DataFrame:
    """Hosts whose lsmod shows the module that newer drivers bring, and where it does."""
    named = loaded_module.filter((pl.col("module") == "nvidia_peermem") & pl.col("host").is_not_null())
    return named.select(pl.col("host").cast(pl.Categorical), "source", "line")


@rule(Category.GDR_MISSING, Severity.WARNING, of=("gdr_connections",))
def gdr_missing_suffix(gdr_connections: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """Connections over an RDMA network do not go into GPU memory, though no line says that they could not.

    Means: NCCL staged the data through host memory. Where only some hosts do, the kernel module is missing there; where
    all do, it is missing everywhere, or a plugin asks for NCCL_NET_GDR_LEVEL=PHB (Slingshot).
    Not when: only sends lack it: NCCL reads GPU memory over PCIe only where that pays; another receive of the same
    process has it; sockets carry the data; the GPU and the NIC are far apart (a rule of its own).
    Do: on those hosts see lsmod | grep peermem, and look for "DMA-BUF is available"; NCCL_DEBUG_SUBSYS=INIT,NET,GRAPH
    prints the reason per NIC and GPU.
    Sources: nccl#897, Mellanox/nv_peer_memory#56; NCCL user guide, NCCL_NET_GDR_LEVEL.
    """
    staged = _staged(gdr_connections)
    unexplained = (pl.col("is_closed").not_() | pl.col("is_open")) & pl.col("is_far").not_() & _is_switched_off().not_()
    for (job, network), rows in staged.filter(unexplained).group_by("job", "network", maintain_order=True):
        of_job = gdr_connections.filter((pl.col("job") == job) if job is not None else pl.col("job").is_null())
        others = of_job.filter(pl.col("direct") > 0).join(rows.select("host"), on="host", how="anti")
        if others.height:
            detail = "the other hosts receive into GPU memory: the kernel module is missing here"
        else:
            detail = "no receive goes into GPU memory; these logs do not show why"
        title = f"{{who}}: no GPUDirect RDMA over {network}"
        finding = together(rows, rank, title, f"data is copied through host memory; {detail}", "certain")
        finding.evidence = [*finding.evidence[:3], *shown(others, "another host")[:1]]
        yield finding


@rule(Category.GDR_MISSING, Severity.WARNING, of=("gdr_connections",))
def gdr_disabled_by_distance(
    gdr_connections: pl.DataFrame, device_pair: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """A GPU receives through host memory because the NIC in use is too far away in the PCI tree.

    Means: not a matter of drivers: the path from the NIC to the GPU crosses more of the machine than NCCL allows.
    Not when: the lines merely name far pairs of GPU and NIC, as on every machine with several NICs, and the connections
    in use say /GDRDMA.
    Do: give the GPU the NIC on its own PCI switch (nvidia-smi topo -m; NCCL_IB_HCA); raise NCCL_NET_GDR_LEVEL only
    where ACS is known to be off.
    Sources: nccl: src/graph/paths.cc; nccl#412.
    """
    far = _staged(gdr_connections).filter(
        pl.col("is_far") & (pl.col("is_closed").not_() | pl.col("is_open")) & _is_switched_off().not_()
    )
    if far.height:
        reasons = shown(far.select(*OWNER, source="reason_source", line="reason_line"), "why")
        title = "{who}: no GPUDirect RDMA, GPU and NIC are too far apart"
        finding = together(far, rank, title, "data is copied through host memory", "likely")
        finding.evidence = [*reasons[:2], *finding.evidence[:2]]
        yield from explain_by_dumps([finding], far_nics(device_pair))


@rule(Category.GDR_MISSING, Severity.INFO, of=("gdr_connections",))
def gdr_switched_off(gdr_connections: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """A variable switches GPUDirect RDMA off.

    Means: NCCL_NET_GDR_LEVEL=LOC (or 0), or NCCL_IB_CUDA_SUPPORT=0, sends all data through host memory; a usual test
    for faults of the PCIe bus that was perhaps left over.
    Not when: connections say /GDRDMA all the same.
    Do: unset it on all ranks, also in /etc/nccl.conf, once the test is done.
    Sources: NCCL user guide, environment variables; nccl#304.
    """
    off = _staged(gdr_connections).filter(_is_switched_off())
    for (level,), rows in off.group_by("level", maintain_order=True):
        finding = together(
            rows, rank, f"{{who}}: {level} switches GPUDirect RDMA off", "data is copied through host memory", "certain"
        )
        finding.role = Role.CONTEXT
        why = shown(rows.select(*OWNER, source="reason_source", line="reason_line").drop_nulls(), "set")
        finding.evidence = [*why[:2], *finding.evidence[:2]]
        yield finding


@rule(Category.ENVIRONMENT, Severity.INFO, of=("setting",))
def gdr_forced_level(setting: pl.DataFrame, chosen_network: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """GPUDirect RDMA is forced at any distance of GPU and NIC.

    Means: NCCL_NET_GDR_LEVEL=SYS lets the NIC reach GPUs on the other socket, usually slower than a copy through host
    memory. Only a hint: compare the rates with and without it.
    Not when: the level is a nearer one (PIX, PXB, PHB); the network is sockets; the job runs on one host.
    Do: unset it and compare; before 2.27 some platforms needed it.
    Sources: nccl#652, Megatron-Bridge#1638.
    """
    apart = chosen_network.filter("is_rdma", "spans_nodes").select(OWNER).unique()
    is_forced = (pl.col("variable") == "NCCL_NET_GDR_LEVEL") & pl.col("value").is_in(FORCED)
    forced = setting.filter(is_forced).join(apart, on=OWNER, how="semi")
    if forced.height:
        title = "{who}: GPUDirect RDMA is forced across the sockets of a host"
        detail = "NCCL_NET_GDR_LEVEL allows any distance, usually slower than NCCL's own choice"
        yield together(forced, rank, title, detail, "possible", role=Role.CONTEXT)
