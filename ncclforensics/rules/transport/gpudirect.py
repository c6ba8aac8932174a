"""GPUDirect RDMA: missing, switched off, or forced."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.data.networks import PEERMEM_UNSEEN, SOCKET
from ncclforensics.data.versions import releases
from ncclforensics.frames.columns import OWNER
from ncclforensics.rules.finding import Category, Finding, Line, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.dump_faults import explain_by_dumps
from ncclforensics.rules.shared.grouping import evidence_lines, group_finding
from ncclforensics.rules.shared.machine_faults import far_nics

OFF = ["LOC", "0"]  # values of NCCL_NET_GDR_LEVEL and NCCL_IB_CUDA_SUPPORT that switch it off
UNSHOWN = "these logs do not show whether data goes over them"
FORCED = ["SYS", "5"]  # values of NCCL_NET_GDR_LEVEL that allow any distance


def _staged(gdr_connections: pl.DataFrame) -> pl.DataFrame:
    """Processes with receive connections of which none uses GPUDirect RDMA."""
    return gdr_connections.filter((pl.col("receives") > 0) & (pl.col("direct") == 0))


def _is_switched_off() -> pl.Expr:
    return pl.col("level").str.split("=").list.last().is_in(OFF).fill_null(value=False)


@rule(Category.GDR_MISSING, Severity.WARNING, of=("gdr_connections",))
def gdr_disabled_hca(
    gdr_connections: pl.DataFrame, version: pl.DataFrame, loaded_module: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """GPUDirect RDMA is off because NCCL found neither a kernel module nor DMA-BUF.

    Means: all data between nodes is copied through host memory, which costs a third to two thirds of the throughput.
    Not when: DMA-BUF is available on the GPU, or some connection shows /GDRDMA; the network is not RDMA; the job runs
    on one host; the GPU does not support it (GeForce); lsmod shows the module and this NCCL cannot detect it: a finding
    of its own.
    Do: load nvidia-peermem (modprobe) on that host, again after each boot, with OFED installed before the GPU driver;
    or, on a GPU since Turing, use the open kernel driver with a kernel that supports DMA-BUF.
    Sources: nccl#1537, nccl#1343, nccl#897, nccl#1939, nccl#1676; NCCL documentation gpu_troubleshooting.
    """
    closed = _closed(gdr_connections)
    loaded = _with_peermem(loaded_module)
    if _is_old(version):
        closed = closed.join(loaded, on="host", how="anti")
    if closed.height:
        detail = "NCCL found neither nvidia-peermem nor DMA-BUF; data is copied through host memory"
        if _is_old(version):
            detail += "; this version of NCCL may not detect a loaded module, as 2.23.4 and later do"
        reasons = evidence_lines(closed.select(*OWNER, source="reason_source", line="reason_line"), "why")
        finding = group_finding(closed, rank, "{processes}: GPUDirect RDMA is off", detail, "certain")
        finding.evidence = [*reasons[:2], *finding.evidence[:2]]
        of_hosts = closed.select("host").unique()
        present = loaded.join(of_hosts, on="host", how="semi")
        # Complete module lists of these hosts that contain the driver but not the module.
        listed = loaded_module.filter(pl.col("is_listing") & (pl.col("module") == "nvidia"))
        absent = listed.join(of_hosts.cast(pl.String), on="host", how="semi").join(
            loaded.cast({"host": pl.String}), on="host", how="anti"
        )
        if not present.is_empty():
            finding.detail += "; lsmod shows the module: it was loaded later, or the RDMA driver does not use it"
            finding.evidence += evidence_lines(present, "lsmod")[:1]
        elif not absent.is_empty():
            finding.detail += "; the host's lsmod lists no nvidia_peermem"
            finding.evidence += [Line(row["source"], row["line"], "lsmod") for row in absent.head(1).to_dicts()]
        yield finding


@rule(Category.GDR_MISSING, Severity.WARNING, of=("gdr_connections",))
def gdr_false_negative_old_nccl(
    gdr_connections: pl.DataFrame, version: pl.DataFrame, loaded_module: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """NCCL does not use GPUDirect RDMA although nvidia_peermem is loaded.

    Means: up to 2.22.3 NCCL detects only the older nv_peer_mem, and copies all data through host memory although the
    NIC could access GPU memory: 10 instead of 180 GB/s in one report.
    Not when: nv_peer_mem is loaded as well; lsmod is of another or an unknown host; the module was loaded after the
    start of the job.
    Do: use NCCL 2.23.4 or later; until then load nv_peer_mem, or use DMA-BUF (open kernel driver).
    Sources: nccl#1676; release notes of 2.23.4.
    """
    undetected = _closed(gdr_connections) if _is_old(version) else gdr_connections.clear()
    loaded = _with_peermem(loaded_module)
    rows = undetected.join(loaded, on="host", how="semi")
    if rows.height:
        detail = "nvidia_peermem is loaded, and NCCL up to 2.22.3 detects only nv_peer_mem"
        finding = group_finding(
            rows, rank, "{processes}: GPUDirect RDMA is off although nvidia_peermem is loaded", detail, "likely"
        )
        reasons = evidence_lines(rows.select(*OWNER, source="reason_source", line="reason_line"), "why")
        proof = evidence_lines(loaded.join(rows, on="host", how="semi"), "lsmod")
        finding.evidence = [*reasons[:2], *proof[:1], *finding.evidence[:1]]
        yield finding


def _closed(gdr_connections: pl.DataFrame) -> pl.DataFrame:
    """Processes for which NCCL found neither a kernel module nor DMA-BUF."""
    return _staged(gdr_connections).filter(pl.col("is_closed") & pl.col("is_open").not_() & _is_switched_off().not_())


def _is_old(version: pl.DataFrame) -> bool:
    """Whether all NCCL versions in the logs detect only the older module."""
    versions = releases(version["version"])
    return bool(versions) and versions[-1] <= PEERMEM_UNSEEN


def _with_peermem(loaded_module: pl.DataFrame) -> pl.DataFrame:
    """Hosts on which lsmod lists nvidia_peermem, with the line."""
    named = loaded_module.filter((pl.col("module") == "nvidia_peermem") & pl.col("host").is_not_null())
    return named.select(pl.col("host").cast(pl.Categorical), "source", "line")


@rule(Category.GDR_MISSING, Severity.WARNING, of=("gdr_connections",))
def gdr_missing_suffix(gdr_connections: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """Connections over an RDMA network do not use GPUDirect RDMA, and the log shows no reason.

    Means: NCCL copies the data through host memory. On some hosts only: the kernel module is missing there; on all
    hosts: it is missing everywhere, or a plugin needs NCCL_NET_GDR_LEVEL=PHB (Slingshot).
    Not when: only sends lack it: NCCL uses it for sends only where that is faster; another receive of the same process
    uses it; the network is sockets; GPU and NIC are far apart (a rule of its own); an AWS instance with one EFA
    adapter, which mostly does not support it (g4dn, g5, p3dn): noted only.
    Do: run lsmod | grep peermem on those hosts, and look for "DMA-BUF is available" in the log;
    NCCL_DEBUG_SUBSYS=INIT,NET,GRAPH prints the reason per NIC and GPU.
    Sources: nccl#897, Mellanox/nv_peer_memory#56; NCCL user guide, NCCL_NET_GDR_LEVEL; AWS: EFA, supported instances.
    """
    staged = _staged(gdr_connections)
    is_unexplained = (
        (pl.col("is_closed").not_() | pl.col("is_open")) & pl.col("is_far").not_() & _is_switched_off().not_()
    )
    for (job, network, is_small), rows in staged.filter(is_unexplained).group_by(
        "job", "network", "is_small_instance", maintain_order=True
    ):
        of_job = gdr_connections.filter((pl.col("job") == job) if job is not None else pl.col("job").is_null())
        others = of_job.filter(pl.col("direct") > 0).join(rows.select("host"), on="host", how="anti")
        if others.height:
            detail = "the other hosts use it for receives: the kernel module is probably missing here"
        elif is_small:
            detail = (
                "these instances have one EFA adapter: of such types, only those with H100 GPUs or later can use it"
            )
        else:
            detail = "no receive uses it; no line that was read shows why"
        title = f"{{processes}}: no GPUDirect RDMA over {network}"
        finding = group_finding(rows, rank, title, f"data is copied through host memory; {detail}", "certain")
        finding.evidence = [*finding.evidence[:3], *evidence_lines(others, "another host")[:1]]
        if is_small and others.is_empty():
            finding.severity, finding.role = Severity.INFO, Role.CONTEXT
        yield finding


@rule(Category.GDR_MISSING, Severity.WARNING, of=("gdr_connections",))
def gdr_disabled_by_distance(
    gdr_connections: pl.DataFrame, device_pair: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """GPUDirect RDMA is off because GPU and NIC are too far apart in the PCI topology.

    Means: the drivers are not at fault: the path between NIC and GPU is longer than NCCL allows.
    Not when: the lines name distant pairs of GPU and NIC, as on every machine with several NICs, but the connections in
    use show /GDRDMA.
    Do: assign the GPU a NIC on its own PCI switch (nvidia-smi topo -m; NCCL_IB_HCA); raise NCCL_NET_GDR_LEVEL only if
    ACS is off.
    Sources: nccl: src/graph/paths.cc; nccl#412.
    """
    far = _staged(gdr_connections).filter(
        pl.col("is_far") & (pl.col("is_closed").not_() | pl.col("is_open")) & _is_switched_off().not_()
    )
    if far.height:
        reasons = evidence_lines(far.select(*OWNER, source="reason_source", line="reason_line"), "why")
        title = "{processes}: no GPUDirect RDMA because GPU and NIC are too far apart"
        finding = group_finding(far, rank, title, "data is copied through host memory", "likely")
        finding.evidence = [*reasons[:2], *finding.evidence[:2]]
        yield from explain_by_dumps([finding], far_nics(device_pair))


@rule(Category.GDR_MISSING, Severity.INFO, of=("gdr_connections",))
def gdr_switched_off(gdr_connections: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """A variable switches GPUDirect RDMA off.

    Means: with NCCL_NET_GDR_LEVEL=LOC (or 0), or NCCL_IB_CUDA_SUPPORT=0, all data is copied through host memory; often
    a setting left over from a test for PCIe faults.
    Not when: connections show /GDRDMA.
    Do: unset it on all ranks, also in /etc/nccl.conf, once the test is done.
    Sources: NCCL user guide, environment variables; nccl#304.
    """
    off = _staged(gdr_connections).filter(_is_switched_off())
    for (level,), rows in off.group_by("level", maintain_order=True):
        finding = group_finding(
            rows,
            rank,
            f"{{processes}}: {level} switches GPUDirect RDMA off",
            "data is copied through host memory",
            "certain",
        )
        finding.role = Role.CONTEXT
        reasons = evidence_lines(rows.select(*OWNER, source="reason_source", line="reason_line").drop_nulls(), "set")
        finding.evidence = [*reasons[:2], *finding.evidence[:2]]
        yield finding


@rule(Category.ENVIRONMENT, Severity.INFO, of=("setting",))
def gdr_forced_level(setting: pl.DataFrame, chosen_network: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """GPUDirect RDMA is forced at any distance between GPU and NIC.

    Means: with NCCL_NET_GDR_LEVEL=SYS the NIC accesses GPUs on the other socket, usually slower than a copy through
    host memory. Only a hint: compare the rates with and without it.
    Not when: the level is lower (PIX, PXB, PHB); the network is sockets; the job runs on one host.
    Do: unset it and compare; before 2.27 some platforms needed it.
    Sources: nccl#652, Megatron-Bridge#1638.
    """
    spanning = chosen_network.filter("is_rdma", "spans_nodes").select(OWNER).unique()
    is_forced = (pl.col("variable") == "NCCL_NET_GDR_LEVEL") & pl.col("value").is_in(FORCED)
    forced = setting.filter(is_forced).join(spanning, on=OWNER, how="semi")
    if forced.height:
        title = "{processes}: GPUDirect RDMA is allowed at any distance, also across the sockets of a host"
        detail = "NCCL_NET_GDR_LEVEL allows any distance, usually slower than NCCL's default"
        yield group_finding(forced, rank, title, detail, "possible", role=Role.CONTEXT)


@rule(Category.GDR_MISSING, Severity.WARNING, of=("gpu_direct", "connection"))
def gdr_disabled_in_excerpt(
    gpu_direct: pl.DataFrame,
    transport: pl.DataFrame,
    chosen_network: pl.DataFrame,
    connection: pl.DataFrame,
    gdr_connections: pl.DataFrame,
    milestone: pl.DataFrame,
    rank: pl.DataFrame,
) -> Iterator[Finding]:
    """NCCL says of NICs that GPUDirect RDMA is disabled, or connections do without, in a log that shows little else.

    Means: NCCL found neither a kernel module for peer memory nor DMA-BUF, or the GPUs are too far from these NICs; what
    goes over them is copied through host memory.
    Not when: the logs show which nodes the job has, and its connections: findings of their own; a connection of the
    process uses it; only sends were read, unless NCCL says "GDR 0" of its rings; the network is sockets; the job runs
    on one host.
    Do: load nvidia-peermem on that host, or use a kernel and driver with DMA-BUF; where the distance is the reason, see
    nvidia-smi topo -m for a nearer NIC, and which ones the container and NCCL_IB_HCA leave. GPUs that share the memory
    of the host (GB10) do without it.
    Sources: nccl#307, nccl#1537, nccl#1676, nccl#1939; nccl: src/graph/topo.cc, src/transport/net.cc.
    """
    is_off, form = pl.col("state") == "Disabled", pl.col("form").cast(pl.String)
    if transport.height:
        rows = _unused(connection, chosen_network, gdr_connections, milestone)
        if rows.height:
            title = "{processes}: no connection that was read uses GPUDirect RDMA"
            detail = "what they carry is copied through host memory"
            yield group_finding(rows, rank, title, detail, "possible", severity=Severity.INFO, role=Role.CONTEXT)
        return
    if chosen_network.filter(network=SOCKET).height:
        return
    disabled = gpu_direct.filter(is_off & (form == "hca") & (pl.col("net") != SOCKET)).sort("source", "line")
    others = gpu_direct.filter(form.is_in(["hca", "hca_module", "dmabuf"]) & is_off.fill_null(value=False).not_())
    if disabled.height and others.is_empty():
        nics = sorted(disabled["device"].cast(pl.String).drop_nulls().unique().to_list())
        title = "{processes}: GPUDirect RDMA is disabled for the NICs"
        detail = f"it is disabled for {', '.join(nics[:4])}; {UNSHOWN}"
        yield group_finding(disabled, rank, title, detail, "possible")
    pairs = gpu_direct.filter(form.is_in(["gpu", "gpu_rank"]) & pl.col("via").is_null()).sort("source", "line")
    if pairs.height and pairs.filter(is_off.not_()).is_empty():
        title = "{processes}: GPUDirect RDMA is off, because GPU and NIC are too far apart"
        detail = f"NCCL gives distance {pairs['distance'][0]} and the limit {pairs['level'][0]}; {UNSHOWN}"
        yield group_finding(pairs, rank, title, detail, "possible", severity=Severity.INFO, role=Role.CONTEXT)


def _unused(
    connection: pl.DataFrame, chosen_network: pl.DataFrame, gdr_connections: pl.DataFrame, milestone: pl.DataFrame
) -> pl.DataFrame:
    """One connection of each process of a job of unknown nodes that shows none with GPUDirect RDMA."""
    rdma = chosen_network.filter("is_rdma", ~pl.col("is_on_one_node")).join(gdr_connections, on=OWNER, how="anti")
    over = connection.filter(pl.col("form") == "net").join(rdma, on=OWNER, how="semi")
    over = over.join(over.filter(pl.col("gdr").is_not_null()), on=OWNER, how="anti").sort("source", "line")
    # NCCL sets it to 0 for the first connection without, and sends may be without by its choice.
    without = milestone.filter(pl.col("gdr") == 0).select(OWNER)
    received = over.filter(pl.col("direction").fill_null("receive") == "receive")
    return pl.concat([received, over.join(without, on=OWNER, how="semi")]).unique(
        OWNER, keep="first", maintain_order=True
    )
