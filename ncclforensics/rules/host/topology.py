"""Links of GPUs and NICs: peer access, NVLink, PCIe, port rates; and topologies that NCCL cannot read."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.data.thresholds import DEGRADED_LINK
from ncclforensics.frames.columns import OWNER, text_of
from ncclforensics.rules.finding import Category, Finding, Line, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.dump_faults import merge_faults
from ncclforensics.rules.shared.environment_settings import environment_settings
from ncclforensics.rules.shared.grouping import evidence_lines, group_finding
from ncclforensics.rules.shared.machine_faults import fewer_nvlinks, narrow_links, refused_peers

LINK_MISSING = 0.97  # share of the NVLink rate; below it at least one of 18 links is missing
RING = 4  # pattern of the graph search
OVER_PCIE = ["PIX", "PXB", "PHB", "SYS"]
GRAPH_FILE = "NCCL_GRAPH_FILE"
GRAPH_FILE_REMEDY = (
    "unset NCCL_GRAPH_FILE, so that NCCL searches its graphs itself; or name a file that exists on every host, and "
    "that NCCL_GRAPH_DUMP_FILE wrote on such machines with this version of NCCL"
)
FIRST_CALLS = 1  # highest ordinal; a hang at a later call has another cause


@rule(Category.P2P, Severity.WARNING, of=("p2p_failure", "device_pair"))
def p2p_disabled_between_connected(
    p2p_failure: pl.DataFrame, device_pair: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """The driver disables peer access between connected GPUs.

    Means: the link exists, and the driver reports peer access as disabled: Fabric Manager, driver state, virtualisation
    or a broken link. Between GPUs on NVLink it makes NCCL's init fail.
    Not when: NCCL_IGNORE_DISABLED_P2P=1 is set on purpose.
    Do: check nvidia-smi topo -p2p r, systemctl status nvidia-fabricmanager, nvidia-smi nvlink -s; drain the host.
    Sources: nccl: src/graph/paths.cc.
    """
    refused = p2p_failure.filter(pl.col("form").is_in(["nvlink_disabled", "disabled"]))
    for _, rows in refused.sort("source", "line").group_by("form", maintain_order=True):
        is_fatal = rows["form"].cast(pl.String)[0] == "nvlink_disabled"
        pairs = rows.select("gpu", "other_gpu").unique().sort("gpu", "other_gpu").rows()
        finding = group_finding(
            rows, rank, f"peer access is off between {'NVLink-' if is_fatal else ''}connected GPUs of {{processes}}",
            "GPUs " + ", ".join(f"{a} and {b}" for a, b in pairs[:4]), "certain",
        )  # fmt: skip
        if is_fatal:
            finding.severity = Severity.ERROR
        yield finding
    yield from merge_faults(refused_peers(device_pair))


@rule(Category.P2P, Severity.WARNING, of=("gpu_interconnect",))
def p2p_nvlink_pair_on_shm_or_net(
    transport: pl.DataFrame,
    gpu_interconnect: pl.DataFrame,
    communicator_placement: pl.DataFrame,
    setting: pl.DataFrame,
    rank: pl.DataFrame,
) -> Iterator[Finding]:
    """GPUs connected by NVLink use shared memory or the network.

    Means: peer access is off: separate containers or IPC namespaces, MIG, CUDA_VISIBLE_DEVICES with one GPU each.
    Not when: a variable turns it off, which is a finding of its own; the GPUs are on PCIe: at PHB and SYS distance
    shared memory is faster; no line shows NVLink.
    Do: run the ranks of a host in one container or with --ipc=host; nvidia-smi topo -p2p r; unset NCCL_P2P_DISABLE.
    Sources: nccl#324, nccl#326, nccl#846, nccl#1511; against a false alarm nccl#896, nccl#1817.
    """
    if not _without_p2p(setting).is_empty():
        return
    media = ["SHM", "NET"] if communicator_placement["nodes"].max() == 1 else ["SHM"]  # several hosts need the network
    yield from _bypassing_nvlink(transport, gpu_interconnect, rank, media, "")


@rule(Category.SHM, Severity.WARNING, of=("gpu_interconnect",))
def shm_in_place_of_nvlink(
    transport: pl.DataFrame, gpu_interconnect: pl.DataFrame, setting: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """A variable turns peer access off, and GPUs connected by NVLink use shared memory.

    Means: all data goes through host memory at a fraction of the rate of NVLink. It is a consequence of the variable.
    Not when: the GPUs are on PCIe, where shared memory can be faster; no line shows NVLink.
    Do: unset NCCL_P2P_DISABLE and NCCL_P2P_LEVEL, and fix the fault that they were set for.
    Sources: nccl#631, nccl#846; NCCL user guide, NCCL_P2P_DISABLE.
    """
    settings = _without_p2p(setting)
    if not settings.is_empty():
        cause = f"; {settings['variable'][0]}={settings['value'][0]} is set"
        for finding in _bypassing_nvlink(transport, gpu_interconnect, rank, ["SHM"], cause):
            finding.role, finding.certainty = Role.CONSEQUENCE, "certain"
            yield finding


def _without_p2p(setting: pl.DataFrame) -> pl.DataFrame:
    """Settings that turn peer access off."""
    return environment_settings(setting).filter(
        ((pl.col("variable") == "NCCL_P2P_DISABLE") & (pl.col("value") != "0"))
        | ((pl.col("variable") == "NCCL_P2P_LEVEL") & pl.col("value").is_in(["LOC", "0"]))
    )


def _bypassing_nvlink(
    transport: pl.DataFrame, gpu_interconnect: pl.DataFrame, rank: pl.DataFrame, media: list[str], cause: str
) -> Iterator[Finding]:
    """Find connections over these media on hosts where the log shows NVLink."""
    bypassing = transport.filter(pl.col("medium").is_in(media))
    bypassing = bypassing.join(gpu_interconnect.select("host").unique(), on="host", how="semi").sort("source", "line")
    for _, rows in bypassing.group_by("medium", maintain_order=True):
        medium = "shared memory" if rows["medium"].cast(pl.String)[0] == "SHM" else "the network"
        hosts = sorted(rows["host"].cast(pl.String).unique())
        of_host = rank.join(rows.select("host").unique(), on="host", how="semi")
        proof = gpu_interconnect.join(rows.select("host").unique(), on="host", how="semi").sort("source", "line")
        yield Finding(
            title=f"GPUs on NVLink use {medium} on {', '.join(hosts[:4])}",
            detail=f"{rows['connections'].sum()} connections {rows['transport'][0]}{cause}",
            certainty="likely",
            ranks=sorted(of_host["rank"].drop_nulls().unique().to_list()),
            hosts=hosts,
            evidence=evidence_lines(rows)[:3] + evidence_lines(proof, "NVLink")[:1],
        )


@rule(Category.TOPOLOGY, Severity.WARNING, of=("link", "device_pair", "gpu_link"))
def nvlink_count_differs(
    link: pl.DataFrame, device_pair: pl.DataFrame, gpu_link: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """A GPU has fewer NVLinks than the other GPUs.

    Means: links are down; every ring through this GPU is limited to the remaining links. NCCL's log, nvidia-smi topo
    -m, nvidia-smi nvlink -s and NCCL's XML show it.
    Not when: the machines are of different kinds by design; GPUs form a mesh of unequal links (V100), or bridges
    connect them in pairs; a GPU is in MIG mode.
    Do: run nvidia-smi nvlink -s and -e, look in dmesg for Xid 74; drain the host.
    Sources: nccl: src/graph/topo.cc (NVL[…] is the sum of the links); NCCL 2.31, ras.rst, Diagnostics.
    """
    switched = link.filter((pl.col("kind") == "nvswitch") & (pl.col("rate") > 0))
    yield from _slower_devices(switched, rank, LINK_MISSING, "fewer NVLinks than the other GPUs", "NVLink", "GPU")
    yield from merge_faults(fewer_nvlinks(device_pair, gpu_link))


@rule(Category.TOPOLOGY, Severity.WARNING, of=("link", "machine_device"))
def topo_narrow_pcie(link: pl.DataFrame, machine_device: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """A PCIe link is far narrower or slower than those of similar devices.

    Means: the link was trained to fewer lanes or an older generation, or a virtual machine reports it so; traffic over
    it, such as GPUDirect RDMA, is slow.
    Not when: all links are equal, which may be the platform; the devices are of different kinds, such as NICs for
    storage; a GPU is at rest and has lowered its speed (2.5GT/s).
    Do: compare LnkSta with LnkCap (lspci -vv); reseat the card, check the BIOS; in a VM give NCCL a topology file.
    Sources: nccl-tests#256; mlxlink documentation.
    """
    gpus = link.filter((pl.col("kind") == "gpu") & (pl.col("rate") > 0))
    yield from _slower_devices(gpus, rank, DEGRADED_LINK, "a PCIe link far slower than its siblings", "PCIe", "GPU")
    nics = link.filter((pl.col("kind") == "nic") & (pl.col("rate") > 0))
    for _, similar in nics.group_by("device", maintain_order=True):
        yield from _slower_devices(
            similar, rank, DEGRADED_LINK, "a PCIe link far slower than its siblings", "PCIe", "NIC"
        )
    yield from merge_faults(narrow_links(machine_device))


@rule(Category.TOPOLOGY, Severity.WARNING, of=("link", "port_change"))
def topo_nic_speed_low(link: pl.DataFrame, port_change: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """A network port has a lower rate than the same port on other hosts, or its rate fell while the job ran.

    Means: the link was trained to a lower rate: a cable, a transceiver or a switch port.
    Not when: NICs of another kind have the same name on other hosts; a port is virtual.
    Do: check ibstat, mlxlink -d DEVICE, perfquery -x; replace cable or port.
    Sources: nccl: src/transport/net_ib (speed change detected).
    """
    slowed = port_change.filter((pl.col("form") == "speed") & (pl.col("speed") < pl.col("old_speed"))).sort(
        "source", "line"
    )
    for _, rows in slowed.group_by("device", "port", "old_speed", "speed", maintain_order=True):
        row = rows.row(0, named=True)
        yield group_finding(
            rows, rank,
            f"port {row['device'] or ''} fell from {row['old_speed']} to {row['speed']} Mb/s on {{processes}}",
            "the link was retrained to a lower rate", "certain",
        )  # fmt: skip
    ports = link.filter(pl.col("kind") == "net")
    for _, similar in ports.sort("device").group_by("device", maintain_order=True):
        yield from _slower_devices(similar, rank, DEGRADED_LINK, "a lower rate than on other hosts", "rate", "port")


def _slower_devices(
    devices: pl.DataFrame,
    rank: pl.DataFrame,
    below: float,
    fault: str,
    label: str,
    noun: str,
) -> Iterator[Finding]:
    """One finding per host with devices whose rate is below a share of the best, if at most half of them are."""
    devices = devices.drop_nulls(["host", "device", "rate"])
    if devices.height < 2:
        return
    best = max(devices["rate"].to_list())
    slower = devices.filter(pl.col("rate") <= below * best).sort("source", "line")
    if slower.is_empty() or slower.height * 2 > devices.height:
        return
    for _, rows in slower.group_by("host", maintain_order=True):
        host, names = rows["host"].cast(pl.String)[0], sorted(rows["device"])
        affected = rank.filter(pl.col("host") == host).filter(pl.col("busid").is_in(names))
        other = devices.filter(pl.col("rate") == best).row(0, named=True)
        yield Finding(
            title=f"{noun} {', '.join(names[:4])} on {host}: {fault}",
            detail=f"{min(rows['rate'].to_list()):g} against {best:g} GB/s",
            certainty="likely",
            ranks=sorted(affected["rank"].drop_nulls().unique().to_list()),
            hosts=[host],
            evidence=[*evidence_lines(rows, label)[:3], Line(other["source"], other["line"], "another")],
        )


@rule(Category.TOPOLOGY, Severity.INFO, of=("topology_detection",))
def topo_sys_not_visible(
    topology_detection: pl.DataFrame, topology_file: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """NCCL could not read the PCI topology, and assumed that all devices are attached to the CPU.

    Means: /sys is hidden or a virtual machine shows a flat PCI tree; NCCL cannot choose the NIC next to a GPU, and its
    estimates of bandwidth are unreliable.
    Not when: a topology file is loaded; single unreadable files are common in containers and harmless.
    Do: mount /sys in the container; set NCCL_TOPO_FILE to the vendor's file for this machine.
    Sources: nccl#977, nccl#326; nccl-tests#182; NCCL user guide, topology detection.
    """
    loaded = topology_file.filter(pl.col("form").is_in(["file", "named", "unnamed"]))
    form, file = pl.col("form"), text_of("file")
    is_link = file.str.contains_any(["max_link_speed", "max_link_width"]).fill_null(value=False)
    blind = topology_detection.filter(
        ((form == "no_parent") | ((form == "unreadable") & is_link)) & ~pl.col("host").is_in(loaded["host"].implode())
    )
    if not blind.is_empty():
        names = pl.coalesce(pl.col("target", "file").cast(pl.String), pl.col("path"))
        unreadable = blind.select(names)["target"].n_unique()
        yield group_finding(
            blind, rank, "NCCL could not read the PCI topology on {processes}",
            f"{unreadable} devices or files of /sys could not be read, and no topology file was loaded", "likely",
            role=Role.CONTEXT,
        )  # fmt: skip


@rule(Category.TOPOLOGY, Severity.WARNING, of=("topology_file", "xml_error", "limit"), hang=True)
def topo_file_bad(
    topology_file: pl.DataFrame, xml_error: pl.DataFrame, limit: pl.DataFrame, setting: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """The configured topology file, or the file of the graphs, cannot be used.

    Means: it does not exist, is malformed, contains names unknown to NCCL, or describes more devices than NCCL
    supports; NCCL stops, or continues with defaults. An element or attribute may also be absent because the file, or
    the plugin that brings one, describes devices that this process cannot see, as in a container.
    Not when: a virtual machine hides the value, and no file is configured.
    Do: if NCCL_TOPO_FILE is set, unset it, or compare that file with the one that NCCL_TOPO_DUMP_FILE writes on this
    machine; if it is not, take a later NCCL, which may have room for more devices.
    Sources: nccl: src/graph/xml.cc, src/graph/topo.h; nccl#2304.
    """
    with_file = topology_file.filter(pl.col("form") == "file")["host"].unique()
    form, value = pl.col("form"), pl.col("value")
    unknown = topology_file.filter(
        form.is_in(["unknown_word"]) & (value.fill_null("") != "") & pl.col("host").is_in(with_file.implode())
    )
    absent = topology_file.filter(form == "not_opened")
    full = limit.filter(form.is_in(["topology_nodes", "topology_type"]))
    unusable = xml_error.filter(form != "more_attributes")  # NCCL does without these
    of_graphs = _of_graph_file(unusable, setting)
    of_topology = unusable.join(of_graphs, on=["source", "line"], how="anti", maintain_order="left")
    for rows, title, detail, is_error in (
        (
            absent,
            "the topology file cannot be opened on {processes}",
            "NCCL continues with the topology that it detects",
            False,
        ),
        (unknown, "the topology file has names unknown to NCCL on {processes}", "NCCL uses defaults for them", False),
        (
            of_topology,
            "the topology description is incomplete or malformed on {processes}",
            "an element or attribute is absent or invalid",
            True,
        ),
        (full, "the topology has more devices than NCCL supports on {processes}", "init fails", True),
    ):
        if not rows.is_empty():
            finding = group_finding(rows, rank, title, detail, "certain")
            finding.severity = Severity.ERROR if is_error else Severity.WARNING
            yield finding
    if not of_graphs.is_empty():
        path, error = (next(iter(of_graphs[name].drop_nulls()), "") for name in ("path", "error"))
        detail = f"{path}: {error}" if path else "an element, attribute, device or rank in it is absent or invalid"
        finding = group_finding(of_graphs, rank, "the graph file cannot be used on {processes}", detail, "certain")
        finding.severity, finding.remedy = Severity.ERROR, GRAPH_FILE_REMEDY
        yield finding


def _of_graph_file(xml_error: pl.DataFrame, setting: pl.DataFrame) -> pl.DataFrame:
    """Return the errors of the file that NCCL_GRAPH_FILE names: those that say so, or where no other file is set."""
    files = environment_settings(setting).filter(pl.col("variable").is_in([GRAPH_FILE, "NCCL_TOPO_FILE"]))
    of_process = files.group_by(OWNER).agg(is_only=(pl.col("variable") == GRAPH_FILE).all())
    is_named = pl.col("form").is_in(["graph_file", "graph_version", "import", "export"])
    return (
        xml_error.join(of_process, on=OWNER, how="left", maintain_order="left")
        .filter(is_named | pl.col("is_only").fill_null(value=False))
        .drop("is_only")
    )


@rule(Category.TOPOLOGY, Severity.ERROR, of=("unreadable_node",), hang=True)
def topo_kfd_node_unreadable(unreadable_node: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """RCCL cannot read nodes of the GPU topology that the kernel presents.

    Means: the process sees only some of the GPUs of the host, because a container, a virtual machine or the cgroup of
    one task gives it no more, and the topology in /sys/class/kfd names them all: RCCL finds no XGMI links to them, and
    init mostly fails with an unhandled HIP error. No GPU is broken.
    Not when: the node is that of a CPU, and init completed.
    Do: give every process all GPUs of its host (Slurm: --gpus-per-node instead of --gpus-per-task; the container: all
    of /dev/dri and /dev/kfd) and select one by local rank; compare with ls /sys/class/kfd/kfd/topology/nodes.
    Sources: rccl: src/misc/alt_rsmi.cc; rccl#1728; amd-smi: read_node_properties.
    """
    if not unreadable_node.is_empty():
        nodes = ", ".join(map(str, sorted(unreadable_node["node_id"].drop_nulls().unique())))
        detail = (
            "these nodes of /sys/class/kfd/kfd/topology are hidden from the process, and with them their XGMI links"
        )
        title = f"{{processes}}: RCCL cannot read the GPU topology: KFD nodes {nodes}"
        yield group_finding(unreadable_node, rank, title, detail, "certain")


@rule(Category.NVLS, Severity.WARNING, of=("mnnvl",))
def mnnvl_unused(
    placement: pl.DataFrame, mnnvl: pl.DataFrame, setting: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """Hosts share an NVLink domain, and the communicator between them does not use it.

    Means: the GPUs report a fabric, but its UUID, clique or state differs between ranks, or IMEX does not work; data
    goes over the slower network.
    Not when: NCCL_MNNVL_ENABLE=0; the ranks are on one host, or in several domains by design.
    Do: compare `fabric UUID … cliqueId … state … healthMask` of the ranks; nvidia-imex-ctl -H -N must show all nodes
    READY.
    Sources: nccl: src/mnnvl.cc; NCCL user guide, multi-node NVLink.
    """
    off = environment_settings(setting).filter((pl.col("variable") == "NCCL_MNNVL_ENABLE") & (pl.col("value") == "0"))
    fabrics = mnnvl.filter((pl.col("form") == "fabric") & pl.col("uuid").is_not_null())
    fabrics = fabrics.filter(text_of("uuid").str.strip_chars("0.") != "")  # all zeros: no fabric
    idle = placement.filter((pl.col("nnodes") > 1) & (pl.col("mnnvl") == 0)).sort("source", "line")
    idle = idle.unique(OWNER, keep="first", maintain_order=True)
    fabrics = fabrics.join(idle.select("host", "pid"), on=OWNER, how="semi").sort("source", "line")
    if not off.is_empty() or fabrics["host"].n_unique() < 2 or fabrics["uuid"].n_unique() > 1:
        return
    parts = {"clique": "cliques", "state": "states", "health_mask": "health masks"}
    unequal = [text for name, text in parts.items() if fabrics[name].n_unique() > 1]
    detail = f"one fabric with unequal {' and '.join(unequal)}" if unequal else "one fabric; check that IMEX works"
    finding = group_finding(idle, rank, "multi-node NVLink is not used between {processes}", detail, "likely")
    finding.evidence = evidence_lines(fabrics.unique(["host", *parts], keep="first", maintain_order=True), "fabric")[:3]
    finding.evidence += evidence_lines(idle)[:1]
    yield finding


@rule(Category.P2P, Severity.WARNING, of=("graph",))
def p2p_hang_acs_iommu(
    verdict: pl.DataFrame,
    work: pl.DataFrame,
    transport: pl.DataFrame,
    graph: pl.DataFrame,
    gpu_interconnect: pl.DataFrame,
    rank: pl.DataFrame,
) -> Iterator[Finding]:
    """GPUs on PCIe use peer access, and the first collective hangs.

    Means: peer access is available but does not work: the IOMMU or access control (ACS) redirects transfers between
    devices. Ranks hang, or data is wrong.
    Not when: NVLink connects the GPUs; the job runs on several hosts; earlier collectives completed; the calls of the
    ranks differ.
    Do: to confirm, run once with NCCL_P2P_DISABLE=1; then boot with iommu=pt or off, and turn ACS off (BIOS, setpci).
    Sources: nccl#2079, nccl#257, nccl#631, nccl#667, nccl#606.
    """
    # A verdict from watchdog messages has no ordinal; their sequence numbers count from 1.
    sequence = max(work["sequence"].drop_nulls().to_list(), default=FIRST_CALLS + 2)
    ordinal = pl.col("ordinal").fill_null(sequence - 1)
    early = verdict.filter((pl.col("verdict") == "stuck-together") & (ordinal <= FIRST_CALLS))
    direct = transport.filter(pl.col("medium") == "P2P").sort("source", "line")
    others = transport.filter(pl.col("medium") == "NET")
    over_pcie = graph.filter(
        (pl.col("pattern") == RING) & pl.col("type_intra").is_in(OVER_PCIE)
    ).sort("source", "line")  # fmt: skip
    if early.is_empty() or direct.is_empty() or over_pcie.is_empty() or rank["host"].n_unique() > 1:
        return
    if gpu_interconnect.is_empty() and others.is_empty():
        yield Finding(
            title=f"peer access over PCIe on {rank['host'].cast(pl.String)[0]}, and the first call hangs",
            detail="the usual cause is an IOMMU or ACS that redirects transfers between GPUs",
            certainty="possible",
            ranks=sorted(rank["rank"].drop_nulls().unique().to_list()),
            hosts=sorted(rank["host"].cast(pl.String).unique()),
            evidence=[*evidence_lines(direct, "peer access")[:2], *evidence_lines(over_pcie, "PCIe")[:1]],
        )
