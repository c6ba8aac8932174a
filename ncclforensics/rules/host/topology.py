"""What lies between GPUs and NICs: peer access, NVLink, PCIe, the rate of ports, and what NCCL could not read of it."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from ncclforensics.data.thresholds import DEGRADED_LINK
from ncclforensics.frames.columns import OWNER, text_of
from ncclforensics.rules.finding import Category, Finding, Line, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.dump_faults import merge_faults
from ncclforensics.rules.shared.environment_settings import environment_settings
from ncclforensics.rules.shared.grouping import shown, together
from ncclforensics.rules.shared.machine_faults import fewer_nvlinks, narrow_links, refused_peers

LOST = 0.97  # of the rate of NVLinks: one of eighteen is missing
RING = 4  # pattern of a search
OVER_PCIE = ["PIX", "PXB", "PHB", "SYS"]
FIRST_CALLS = 1  # a hang at a later call has another cause


@rule(Category.P2P, Severity.WARNING, of=("p2p_failure", "device_pair"))
def p2p_disabled_between_connected(
    p2p_failure: pl.DataFrame, device_pair: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """The driver refuses access between GPUs that a link connects.

    Means: the link exists, and the driver reports peer access as off: fabric manager, driver state, virtualisation or a
    broken link. Over NVLink NCCL stops init for it.
    Not when: NCCL_IGNORE_DISABLED_P2P=1 was chosen knowingly.
    Do: nvidia-smi topo -p2p r; systemctl status nvidia-fabricmanager; nvidia-smi nvlink -s; drain the host.
    Sources: nccl: src/graph/paths.cc.
    """
    refused = p2p_failure.filter(pl.col("form").is_in(["nvlink_disabled", "disabled"]))
    for _, rows in refused.sort("source", "line").group_by("form", maintain_order=True):
        is_fatal = rows["form"].cast(pl.String)[0] == "nvlink_disabled"
        pairs = rows.select("gpu", "other_gpu").unique().sort("gpu", "other_gpu").rows()
        finding = together(
            rows, rank, f"peer access is off between {'NVLink-' if is_fatal else ''}connected GPUs of {{who}}",
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
    """GPUs that NVLink connects talk through shared memory or the network.

    Means: peer access is off: separate containers or IPC namespaces, MIG, CUDA_VISIBLE_DEVICES with one GPU each.
    Not when: a variable turned it off, which is told of by itself; the GPUs are on PCIe: at PHB and SYS distance shared
    memory is the better way; no line shows NVLink.
    Do: run the ranks of a host in one container or with --ipc=host; nvidia-smi topo -p2p r; unset NCCL_P2P_DISABLE.
    Sources: nccl#324, nccl#326, nccl#846, nccl#1511; against a false alarm nccl#896, nccl#1817.
    """
    if not _without_p2p(setting).is_empty():
        return
    media = ["SHM", "NET"] if communicator_placement["nodes"].max() == 1 else ["SHM"]  # several hosts need the network
    yield from _around_nvlink(transport, gpu_interconnect, rank, media, "")


@rule(Category.SHM, Severity.WARNING, of=("gpu_interconnect",))
def shm_in_place_of_nvlink(
    transport: pl.DataFrame, gpu_interconnect: pl.DataFrame, setting: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """A variable turned peer access off, and GPUs that NVLink connects talk through shared memory.

    Means: every byte goes through the host's memory at a fraction of NVLink's rate. It follows from the variable.
    Not when: the GPUs are on PCIe, where shared memory can be the better way; no line shows NVLink.
    Do: unset NCCL_P2P_DISABLE and NCCL_P2P_LEVEL, and mend what they were set for.
    Sources: nccl#631, nccl#846; NCCL user guide, NCCL_P2P_DISABLE.
    """
    given = _without_p2p(setting)
    if not given.is_empty():
        why = f"; {given['variable'][0]}={given['value'][0]} is set"
        for finding in _around_nvlink(transport, gpu_interconnect, rank, ["SHM"], why):
            finding.role, finding.certainty = Role.CONSEQUENCE, "certain"
            yield finding


def _without_p2p(setting: pl.DataFrame) -> pl.DataFrame:
    """Settings that turn peer access off."""
    return environment_settings(setting).filter(
        ((pl.col("variable") == "NCCL_P2P_DISABLE") & (pl.col("value") != "0"))
        | ((pl.col("variable") == "NCCL_P2P_LEVEL") & pl.col("value").is_in(["LOC", "0"]))
    )


def _around_nvlink(
    transport: pl.DataFrame, gpu_interconnect: pl.DataFrame, rank: pl.DataFrame, media: list[str], why: str
) -> Iterator[Finding]:
    """Connections by other means than peer access on hosts where the log shows NVLink."""
    around = transport.filter(pl.col("medium").is_in(media))
    around = around.join(gpu_interconnect.select("host").unique(), on="host", how="semi").sort("source", "line")
    for _, rows in around.group_by("medium", maintain_order=True):
        way = "shared memory" if rows["medium"].cast(pl.String)[0] == "SHM" else "the network"
        hosts = sorted(rows["host"].cast(pl.String).unique())
        of_host = rank.join(rows.select("host").unique(), on="host", how="semi")
        proof = gpu_interconnect.join(rows.select("host").unique(), on="host", how="semi").sort("source", "line")
        yield Finding(
            title=f"GPUs on NVLink talk through {way} on {', '.join(hosts[:4])}",
            detail=f"{rows['connections'].sum()} connections {rows['transport'][0]}{why}",
            certainty="likely",
            ranks=sorted(of_host["rank"].drop_nulls().unique().to_list()),
            hosts=hosts,
            evidence=shown(rows)[:3] + shown(proof, "NVLink")[:1],
        )


@rule(Category.TOPOLOGY, Severity.WARNING, of=("link", "device_pair", "gpu_link"))
def nvlink_count_differs(
    link: pl.DataFrame, device_pair: pl.DataFrame, gpu_link: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """A GPU has fewer NVLinks than the other GPUs.

    Means: links are down; every ring through this GPU is as slow as what is left. NCCL's log, nvidia-smi topo -m,
    nvidia-smi nvlink -s and NCCL's XML show it.
    Not when: the machines are of different kinds on purpose; GPUs form a mesh of unequal links (V100), or bridges join
    them in pairs; a GPU is in MIG mode.
    Do: nvidia-smi nvlink -s and -e, dmesg for Xid 74; drain the host.
    Sources: nccl: src/graph/topo.cc (NVL[…] is the sum of the links); NCCL 2.31, ras.rst, Diagnostics.
    """
    switched = link.filter((pl.col("kind") == "nvswitch") & (pl.col("rate") > 0))
    yield from _slow(switched, rank, LOST, "fewer NVLinks than the other GPUs", "NVLink", "GPU")
    yield from merge_faults(fewer_nvlinks(device_pair, gpu_link))


@rule(Category.TOPOLOGY, Severity.WARNING, of=("link", "machine_device"))
def topo_narrow_pcie(link: pl.DataFrame, machine_device: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """A PCIe link is far narrower or slower than that of its siblings.

    Means: the link was trained to fewer lanes or an older generation, or a virtual machine reports it so; what goes
    over it, GPUDirect above all, is slow.
    Not when: all are alike, which may be the platform; the devices are of different kinds, as NICs for storage are; a
    GPU is at rest and has trained its link down (2.5GT/s).
    Do: lspci -vv (LnkSta against LnkCap); reseat the card, look at the BIOS; in a VM give NCCL a topology file.
    Sources: nccl-tests#256; mlxlink documentation.
    """
    gpus = link.filter((pl.col("kind") == "gpu") & (pl.col("rate") > 0))
    yield from _slow(gpus, rank, DEGRADED_LINK, "a PCIe link far slower than its siblings", "PCIe", "GPU")
    nics = link.filter((pl.col("kind") == "nic") & (pl.col("rate") > 0))
    for _, same in nics.group_by("device", maintain_order=True):
        yield from _slow(same, rank, DEGRADED_LINK, "a PCIe link far slower than its siblings", "PCIe", "NIC")
    yield from merge_faults(narrow_links(machine_device))


@rule(Category.TOPOLOGY, Severity.WARNING, of=("link", "port_change"))
def topo_nic_speed_low(link: pl.DataFrame, port_change: pl.DataFrame, rank: pl.DataFrame) -> Iterator[Finding]:
    """A network port runs below the rate that the same port has on other hosts, or fell while the job ran.

    Means: the link was trained down: a cable, a transceiver or a switch port.
    Not when: NICs of another kind carry the same name on other hosts; a port is virtual.
    Do: ibstat, mlxlink -d DEVICE, perfquery -x; change cable or port.
    Sources: nccl: src/transport/net_ib (speed change detected).
    """
    fallen = port_change.filter((pl.col("form") == "speed") & (pl.col("speed") < pl.col("old_speed"))).sort(
        "source", "line"
    )
    for _, rows in fallen.group_by("device", "port", "old_speed", "speed", maintain_order=True):
        row = rows.row(0, named=True)
        yield together(
            rows, rank, f"port {row['device'] or ''} fell from {row['old_speed']} to {row['speed']} Mb/s on {{who}}",
            "the link was trained again, slower", "certain",
        )  # fmt: skip
    ports = link.filter(pl.col("kind") == "net")
    for _, same in ports.sort("device").group_by("device", maintain_order=True):
        yield from _slow(same, rank, DEGRADED_LINK, "a lower rate than on other hosts", "rate", "port")


def _slow(same: pl.DataFrame, rank: pl.DataFrame, below: float, what: str, label: str, noun: str) -> Iterator[Finding]:
    """One finding on the few among like devices whose rate is below that share of the usual one."""
    if same.height < 2:
        return
    best = max(same["rate"].to_list())
    few = same.filter(pl.col("rate") <= below * best).sort("source", "line")
    if few.is_empty() or few.height * 2 > same.height:
        return
    for _, rows in few.group_by("host", maintain_order=True):
        host, devices = rows["host"].cast(pl.String)[0], sorted(rows["device"])
        bus = rank.filter(pl.col("host") == host).filter(pl.col("busid").is_in(devices))
        other = same.filter(pl.col("rate") == best).row(0, named=True)
        yield Finding(
            title=f"{noun} {', '.join(devices[:4])} on {host}: {what}",
            detail=f"{min(rows['rate'].to_list()):g} against {best:g} GB/s",
            certainty="likely",
            ranks=sorted(bus["rank"].drop_nulls().unique().to_list()),
            hosts=[host],
            evidence=[*shown(rows, label)[:3], Line(other["source"], other["line"], "another")],
        )


@rule(Category.TOPOLOGY, Severity.INFO, of=("topology_detection",))
def topo_sys_not_visible(
    topology_detection: pl.DataFrame, topology_file: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """NCCL could not see how devices are attached, and assumed that all hang on the CPU.

    Means: /sys is hidden or a virtual machine shows a flat PCI tree; NCCL cannot choose the NIC next to a GPU, and its
    estimates of bandwidth are guesses.
    Not when: a topology file tells what /sys does not; single unreadable files are common in containers and harmless.
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
        where = blind.select(names)["target"].n_unique()
        yield together(
            blind, rank, "NCCL could not see how devices are attached on {who}",
            f"{where} devices or files of /sys could not be read, and no topology file was loaded", "likely",
            role=Role.CONTEXT,
        )  # fmt: skip


@rule(Category.TOPOLOGY, Severity.WARNING, of=("topology_file", "xml_error", "limit"))
def topo_file_bad(
    topology_file: pl.DataFrame, xml_error: pl.DataFrame, limit: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """The topology file that was given cannot be used.

    Means: it does not exist, does not parse, has words that NCCL does not know, or describes more than NCCL can hold;
    NCCL stops, or goes on with values of its own.
    Not when: the value missing is one that a virtual machine hides, and no file was given.
    Do: compare with what NCCL_TOPO_DUMP_FILE writes on this machine, or unset NCCL_TOPO_FILE.
    Sources: nccl: src/graph/xml.cc, src/graph/topo.h; nccl#2304.
    """
    given = topology_file.filter(pl.col("form") == "file")["host"].unique()
    form, value = pl.col("form"), pl.col("value")
    unknown = topology_file.filter(
        form.is_in(["unknown_word"]) & (value.fill_null("") != "") & pl.col("host").is_in(given.implode())
    )
    absent = topology_file.filter(form == "not_opened")
    full = limit.filter(form.is_in(["topology_nodes", "topology_type"]))
    for rows, title, detail, is_error in (
        (absent, "the topology file cannot be opened on {who}", "NCCL goes on with what it detects", False),
        (unknown, "the topology file has words that NCCL does not know on {who}", "a default takes their place", False),
        (xml_error, "the topology file is malformed on {who}", "an element or attribute is not as NCCL needs it", True),
        (full, "the topology has more devices than NCCL can hold on {who}", "init ends here", True),
    ):
        if not rows.is_empty():
            finding = together(rows, rank, title, detail, "certain")
            finding.severity = Severity.ERROR if is_error else Severity.WARNING
            yield finding


@rule(Category.NVLS, Severity.WARNING, of=("mnnvl",))
def mnnvl_unused(
    placement: pl.DataFrame, mnnvl: pl.DataFrame, setting: pl.DataFrame, rank: pl.DataFrame
) -> Iterator[Finding]:
    """Hosts share an NVLink domain, and the communicator between them does not use it.

    Means: the GPUs report a fabric, but its UUID, clique or state is not equal on all ranks, or IMEX does not work;
    data goes over the slower network.
    Not when: NCCL_MNNVL_ENABLE=0; the ranks are in one host, or in several domains on purpose.
    Do: compare `fabric UUID … cliqueId … state … healthMask` over the ranks; nvidia-imex-ctl -H -N: all nodes READY.
    Sources: nccl: src/mnnvl.cc; NCCL user guide, multi-node NVLink.
    """
    off = environment_settings(setting).filter((pl.col("variable") == "NCCL_MNNVL_ENABLE") & (pl.col("value") == "0"))
    told = mnnvl.filter((pl.col("form") == "fabric") & pl.col("uuid").is_not_null())
    told = told.filter(text_of("uuid").str.strip_chars("0.") != "")  # all zeros: there is no fabric
    idle = placement.filter((pl.col("nnodes") > 1) & (pl.col("mnnvl") == 0)).sort("source", "line")
    idle = idle.unique(OWNER, keep="first", maintain_order=True)
    told = told.join(idle.select("host", "pid"), on=OWNER, how="semi").sort("source", "line")
    if not off.is_empty() or told["host"].n_unique() < 2 or told["uuid"].n_unique() > 1:
        return
    parts = {"clique": "cliques", "state": "states", "health_mask": "health masks"}
    unequal = [what for name, what in parts.items() if told[name].n_unique() > 1]
    detail = f"one fabric, with unequal {' and '.join(unequal)}" if unequal else "one fabric; see whether IMEX works"
    finding = together(idle, rank, "multi-node NVLink is not used between {who}", detail, "likely")
    finding.evidence = shown(told.unique(["host", *parts], keep="first", maintain_order=True), "fabric")[:3]
    finding.evidence += shown(idle)[:1]
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
    """GPUs on PCIe access each other directly, and the first collective does not come to its end.

    Means: peer access is offered and does not work: the IOMMU or access control (ACS) turns transfers between devices
    round. Ranks hang, or data is wrong.
    Not when: NVLink connects the GPUs; several hosts take part; collectives came to their end before; ranks called
    different things.
    Do: run once with NCCL_P2P_DISABLE=1 as a proof; then iommu=pt or off at boot, and ACS off (BIOS, setpci).
    Sources: nccl#2079, nccl#257, nccl#631, nccl#667, nccl#606.
    """
    # A verdict on the words of watchdogs has no place in the log; they count from 1.
    sequence = max(work["sequence"].drop_nulls().to_list(), default=FIRST_CALLS + 2)
    nth = pl.col("ordinal").fill_null(sequence - 1)
    early = verdict.filter((pl.col("verdict") == "stuck-together") & (nth <= FIRST_CALLS))
    direct = transport.filter(pl.col("medium") == "P2P").sort("source", "line")
    others = transport.filter(pl.col("medium") == "NET")
    over_pcie = graph.filter(
        (pl.col("pattern") == RING) & pl.col("type_intra").is_in(OVER_PCIE)
    ).sort("source", "line")  # fmt: skip
    if early.is_empty() or direct.is_empty() or over_pcie.is_empty() or rank["host"].n_unique() > 1:
        return
    if gpu_interconnect.is_empty() and others.is_empty():
        yield Finding(
            title=f"direct access over PCIe on {rank['host'].cast(pl.String)[0]}, and the first call hangs",
            detail="the usual cause is an IOMMU or ACS that turns transfers between GPUs round",
            certainty="possible",
            ranks=sorted(rank["rank"].drop_nulls().unique().to_list()),
            hosts=sorted(rank["host"].cast(pl.String).unique()),
            evidence=[*shown(direct, "direct access")[:2], *shown(over_pcie, "PCIe")[:1]],
        )
