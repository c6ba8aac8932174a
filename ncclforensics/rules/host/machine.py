"""What dumps of a machine show by themselves: shared NICs, ACS, memory errors of GPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import polars as pl

from ncclforensics.data.names import count_of, some_of
from ncclforensics.frames.columns import text_of
from ncclforensics.rules.finding import Category, Finding, Line, Role, Severity
from ncclforensics.rules.registry import rule
from ncclforensics.rules.shared.dump_faults import SHOWN, DumpFault, merge_faults
from ncclforensics.rules.shared.grouping import evidence_lines
from ncclforensics.rules.shared.machine_faults import FEWEST_GPUS, NEAR, dump_pairs, nearest_nics


@rule(Category.TOPOLOGY, Severity.INFO, of=("device_pair",))
def topo_nic_shared(device_pair: pl.DataFrame) -> Iterator[Finding]:
    """Some GPUs share their nearest NIC, while other GPUs have one to themselves.

    Means: when all GPUs send at once, those that share a NIC get half of its rate or less, and all ranks wait for them.
    A NIC may be missing, or be in another slot than the machine was built for.
    Not when: there are fewer NICs than GPUs by design; NICs are for storage; NCCL uses another NIC than the nearest.
    Do: compare nvidia-smi topo -m with a healthy host of the same kind; look for a missing NIC with lspci and ibstat.
    Sources: field guides (rail per GPU); nccl#652.
    """
    yield from merge_faults(_shared_nics(device_pair), Role.CONTEXT)


def _shared_nics(device_pair: pl.DataFrame) -> Iterator[tuple[str | None, DumpFault]]:
    for source, host, pairs in dump_pairs(device_pair):
        nearest = nearest_nics(pairs)
        nics = {nic for gpu, nic in pairs if gpu.startswith("GPU") and not nic.startswith("GPU")}
        is_far = any(path not in NEAR for path, _ in nearest.values())
        if len(nearest) < FEWEST_GPUS or len(nics) < len(nearest) - 1 or is_far:
            continue
        users = Counter(nic for _, near in nearest.values() for nic in near)
        share = {gpu: sum(1 / users[nic] for nic in near) for gpu, (_, near) in nearest.items()}
        least = min(share.values())
        sharing = [gpu for gpu, rate in share.items() if rate == least]
        if least > max(share.values()) / 2 or least >= 1 or len(sharing) * 2 >= len(share):
            continue
        shared = nearest[sharing[0]][1]
        yield host, DumpFault(
            f"{', '.join(sharing[:SHOWN])} share a NIC ({', '.join(shared[:SHOWN])}), the other GPUs do not",
            f"{len(nearest)} GPUs, {len(nics)} NICs", Severity.INFO, "possible",
            [Line(source, pairs[gpu, shared[0]][1], gpu) for gpu in sharing[:SHOWN]],
        )  # fmt: skip


@rule(Category.TOPOLOGY, Severity.INFO, of=("machine_device", "pci_acs"))
def topo_acs_on(machine_device: pl.DataFrame, pci_acs: pl.DataFrame) -> Iterator[Finding]:
    """PCIe bridges redirect traffic between devices (ACS).

    Means: peer access between GPUs and GPUDirect RDMA pass through the CPU: slow, and on some machines wrong data or a
    hang. The usual cause of hangs and of local protection errors (vendor err 81) on bare metal.
    Not when: a virtual machine needs it (then the NIC's ATS must be on); no GPU or NIC is behind the bridge.
    Do: turn ACS off in the BIOS, or per bridge at each boot (setpci … ECAP_ACS+6.w=0000); iommu=pt; then compare.
    Sources: nccl#304, nccl#523, nccl#1052, nccl-tests#252; NCCL documentation gpu_troubleshooting.
    """
    yield from merge_faults(_redirecting_bridges(machine_device), Role.CONTEXT)
    # `lspci -vvv | grep ACSCtl` shows the settings, and not whose they are.
    unnamed = pci_acs.join(machine_device.select("source").unique(), on="source", how="anti").drop_nulls("src_valid")
    for _, rows in unnamed.group_by("source", maintain_order=True):
        on = rows.filter((text_of("src_valid") == "+") & (text_of("req_redir") == "+"))
        if on.height:
            yield Finding(
                f"{on.height} of {rows.height} PCIe bridges and devices redirect peer traffic (ACS)",
                "SrcValid+ and ReqRedir+; the lines do not name them: only those above GPUs and NICs matter",
                "possible",
                role=Role.CONTEXT,
                evidence=evidence_lines(on),
            )


def _redirecting_bridges(machine_device: pl.DataFrame) -> Iterator[tuple[str | None, DumpFault]]:
    for (source, _, host), rows in machine_device.group_by("source", "dump", "host", maintain_order=True):
        bridges = rows.filter((pl.col("kind") == "bridge") & pl.col("is_redirecting").fill_null(value=False))
        if bridges.is_empty() or rows.filter(pl.col("kind") == "gpu").is_empty():
            continue
        lines = [Line(int(str(source)), line, "a bridge") for line in bridges["acs_line"].to_list()[:SHOWN]]
        yield None if host is None else str(host), DumpFault(
            "PCIe bridges redirect peer traffic (ACS)", f"{bridges.height} bridges with SrcValid+ and ReqRedir+",
            Severity.INFO, "possible", lines,
        )  # fmt: skip


MOST_RETIRED = 60  # NVIDIA, dynamic page retirement: from then on the GPU is replaced


@rule(Category.CUDA_ERROR, Severity.WARNING, of=("smi_gpu",))
def gpu_memory_errors(smi_gpu: pl.DataFrame, machine_device: pl.DataFrame) -> Iterator[Finding]:
    """A GPU counts uncorrectable memory errors.

    Means: a process that reads the damaged memory is killed (Xid 48, 94, 95), and its peers wait for it; data read
    before the error was detected may be wrong. If row remapping failed, or 60 pages are retired (GPUs before the
    A100, which have room for 64), the GPU must be replaced.
    Not when: the errors are in the aggregate count alone, which covers the lifetime of the GPU; the errors are
    correctable; fewer pages are retired; row remapping is only pending, which a reset completes.
    Do: drain the host; dmesg -T | grep -i xid; reset the GPU, and dcgmi diag -r 3; replace it if the count grows.
    Sources: NVIDIA, GPU memory error management; nvidia-smi(1).
    """
    hosts = machine_device.filter(pl.col("tool") == "nvidia-smi -q").select("source", "line", "host")
    is_full = (pl.col("retired") >= MOST_RETIRED).fill_null(value=False)
    failing = smi_gpu.filter((pl.col("uncorrectable") > 0) | pl.col("is_unmapped") | is_full)
    for row in failing.join(hosts, on=["source", "line"], how="left", maintain_order="left").to_dicts():
        errors = row["uncorrectable"] or 0
        details = [f"{count_of(errors, 'uncorrectable error')} since the driver was loaded"] * (errors > 0)
        details += ["row remapping failed: no spare row is left"] * row["is_unmapped"]
        is_worn_out = row["is_unmapped"] or (row["retired"] or 0) >= MOST_RETIRED
        details += [f"{row['retired']} pages are retired, of at most 64"] * ((row["retired"] or 0) >= MOST_RETIRED)
        yield Finding(
            title=(f"GPU {row['device']}" if row["device"] else "a GPU that the lines do not name")
            + " has memory errors"
            + (f" on {row['host']}" if row["host"] else ""),
            detail="; ".join(details),
            certainty="certain",
            severity=Severity.ERROR if is_worn_out else None,
            remedy="Drain the host and replace the GPU." if is_worn_out else "",
            hosts=[row["host"]] if row["host"] else [],
            evidence=[
                Line(row["source"], row["error_line"] or row["line"], "errors"),
                Line(row["source"], row["line"], "the GPU"),
            ],
        )


@rule(Category.LINK_DEGRADED, Severity.WARNING, of=("pci_link",), role=Role.CONTEXT)
def pci_link_of_unnamed_device(
    pci_link: pl.DataFrame, pci_device: pl.DataFrame, pci_address: pl.DataFrame
) -> Iterator[Finding]:
    """A PCIe link is slower or narrower than its device can, in lines of lspci that do not name the device.

    Means: fewer lanes: the card sits badly, a riser or the slot has fewer, or shares them with another slot. A lower
    speed alone: mostly a GPU at rest, which lowers it to save power; under load it is a fault of riser or BIOS.
    Not when: the device is named, where other rules compare it with its like; the slot has fewer lanes by design.
    Do: read LnkSta again while the GPU works (nvidia-smi -q -d PCIE); reseat the card; try it without a riser.
    Sources: pciutils, ls-caps.c (downgraded); PCI Express specification.
    """
    nameless = pci_link.join(pci_device.select("source").unique(), on="source", how="anti", maintain_order="left")
    is_narrow = (text_of("width_note") == "downgraded").fill_null(False)
    is_slow = (text_of("speed_note") == "downgraded").fill_null(False)
    above = pci_address.select("source", "line", address=text_of("bus")).sort("line")
    named = nameless.sort("line").join_asof(above, on="line", by="source", check_sortedness=False)
    links = named.filter(form="does").sort("source", "line").with_columns(narrow=is_narrow)
    marked = links.filter(is_narrow | is_slow)
    are_alike = links.height > 1 and links["width"].n_unique() == 1
    for (narrow,), rows in marked.group_by("narrow", maintain_order=True):
        row = rows.row(0, named=True)
        addresses = some_of(rows["address"].drop_nulls().unique(maintain_order=True).to_list(), SHOWN)
        unnamed = f"of {addresses}" if addresses else "the lines do not name the device"
        alike = f"; all {links.height} links shown are alike, as the slots of a board may be" * are_alike
        yield Finding(
            f"a PCIe link runs at {row['speed']}, x{row['width']}: "
            + ("fewer lanes than its device has" if narrow else "a lower speed than its device can"),
            unnamed + alike + "; GPUs at rest lower the speed" * (not narrow),
            "certain" if narrow else "possible",
            severity=Severity.WARNING if narrow and not are_alike else Severity.INFO,
            evidence=evidence_lines(rows),
        )


@rule(Category.LINK_DEGRADED, Severity.WARNING, of=("lshca_port",), role=Role.CONTEXT)
def lshca_marks_port(lshca_port: pl.DataFrame) -> Iterator[Finding]:
    """The list of lshca marks a cell of a port as an error.

    Means: `LnkStaWidth`: the PCIe link of the card has fewer lanes, or an older generation, than the card can use
    (`LnkCapWidth`): the slot is narrower, or the link trained down. `IpStat` down: the port is active and its interface
    is not. All of its traffic is limited by the former.
    Not when: nothing is marked with >!<; a slot that is meant to be narrower.
    Do: lspci -vv -s ADDRESS for LnkCap and LnkSta; move or reseat the card, and reboot; ip link set INTERFACE up.
    Sources: lshca, lshca.py (error_sign).
    """
    marked = lshca_port.filter(pl.col("wrong").list.len() > 0)
    for (wrong,), rows in marked.with_columns(pl.col("wrong").list.join(", ")).group_by("wrong", maintain_order=True):
        names = some_of([f"{row['rdma'] or row['netdev']} ({row['busid']})" for row in rows.to_dicts()], SHOWN)
        could = rows["pci_capability"].drop_nulls().unique(maintain_order=True).to_list()
        title = f"lshca marks {names}: {wrong}"
        detail = f"LnkCapWidth, what the card can use, is {could[0]}" if could else "its sign is >!<"
        yield Finding(title, detail, "certain", evidence=evidence_lines(rows))
