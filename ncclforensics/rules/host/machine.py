"""What dumps of a machine show by themselves. A dump is judged against itself: the odd one out among devices alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from ncclforensics.analyses.host.machine import MEASURED_NOW
from ncclforensics.rules.finding import Category, Finding, Line, Role, Severity
from ncclforensics.rules.registry import rule

NEAR = ("PIX", "PXB")
WAYS = ("PIX", "PXB", "PHB", "NODE", "SYS")  # the shortest first
FAR = "SYS"
SHOWN = 4
MANY = 3  # GPUs from which on one is the odd one out
FULL_WIDTH = 16
RARE = 4  # devices alike, for one that is not
# What NVLink gives: reading, writing, NVLink itself. PCIe's own (p) and atomics (a) may be absent beside it.
PEER_ACCESS = ("p2p r", "p2p w", "p2p n")

Dump = tuple[int, int]
Pairs = dict[tuple[str, str], tuple[str, int]]  # both devices -> how the first reaches the second, the line


@dataclass(slots=True)
class Oddity:
    """The same thing about one dump or several."""

    title: str
    detail: str
    severity: Severity
    certainty: str
    evidence: list[Line]
    hosts: set[str] = field(default_factory=set)
    dumps: int = 1


def told_once(found: Iterable[tuple[str | None, Oddity]], role: Role = Role.CAUSE) -> Iterator[Finding]:
    """A finding for all dumps of which the same is to be told."""
    groups: dict[tuple[str, str], Oddity] = {}
    for host, one in found:
        same = groups.setdefault((one.title, one.detail), one)
        if same is not one:
            same.dumps += 1
            same.evidence += one.evidence[:1]
        if host:
            same.hosts.add(host)
    for one in groups.values():
        hosts = sorted(one.hosts)
        where = f" on {', '.join(hosts[:SHOWN])}" if hosts else f" in {one.dumps} dumps" if one.dumps > 1 else ""
        yield Finding(
            title=one.title + where,
            detail=one.detail,
            certainty=one.certainty,
            severity=one.severity,
            role=role,
            hosts=hosts,
            evidence=one.evidence[: SHOWN + 1],
        )


def explained(
    findings: Iterable[Finding], *found: Iterable[tuple[str | None, Oddity]], role: Role = Role.CONSEQUENCE
) -> Iterator[Finding]:
    """What the log shows of a host, joined by what a dump shows that is known to be of the same host."""
    of_host: dict[str, Oddity] = {}
    for host, one in (each for many in found for each in many):
        if host and one.severity is Severity.WARNING:
            of_host.setdefault(host, one)
    for finding in findings:
        for host in finding.hosts:
            if host in of_host:
                finding.detail += f"; a dump of {host} shows: {of_host[host].title} ({of_host[host].detail})"
                finding.evidence += [Line(line.source, line.line, "the dump") for line in of_host[host].evidence[:1]]
                finding.role = role
        yield finding


def _dumps(device_pair: pl.DataFrame, table: str) -> Iterator[tuple[int, str | None, Pairs]]:
    """Source, host, and pairs of each dump that holds such a table."""
    rows = device_pair.filter(pl.col("table") == table)
    for (source, _, host), pairs in rows.group_by("source", "dump", "host", maintain_order=True):
        cells = {(a, b): (way, line) for a, b, way, line in pairs.select("device", "other", "path", "line").iter_rows()}
        yield int(str(source)), None if host is None else str(host), cells


def _gpus(pairs: Pairs) -> list[str]:
    return list(dict.fromkeys(name for pair in pairs for name in pair if name.startswith("GPU")))


def _links(way: str) -> int:
    """NVLinks between two GPUs: NV18 is 18, any other way none."""
    return int(way[2:]) if way.startswith("NV") and way[2:].isdigit() else 0


def fewer_nvlinks(device_pair: pl.DataFrame, gpu_link: pl.DataFrame) -> Iterator[tuple[str | None, Oddity]]:
    """GPUs with fewer NVLinks than the others, where the others have as many as one another."""
    told: set[tuple[object, ...]] = set()
    counted = gpu_link.filter((pl.col("tool") == "nvidia-smi nvlink") & pl.col("links").is_not_null())
    for _, same in counted.group_by("model", maintain_order=True):
        most = max(same["links"].to_list())
        odd_ones = same.filter((pl.col("links") < most) & (pl.col("down") > 0))
        if odd_ones.is_empty() or odd_ones.height * 2 > same.height:
            continue  # without a bridge all links of a GPU are down
        other = same.filter(pl.col("links") == most).row(0, named=True)
        for (source, _, host), few in odd_ones.group_by("source", "dump", "host", maintain_order=True):
            names = [str(name) for name in few["device"]]
            told.add((source, host, *names))
            down = few.select(pl.coalesce("down_line", "line")).to_series().to_list()
            lines = [Line(int(str(source)), line, "NVLink") for line in down[:SHOWN]]
            yield None if host is None else str(host), Oddity(
                f"{', '.join(names[:SHOWN])}: NVLinks are down",
                f"{few['links'].to_list()[0]} are up, and {most} on other GPUs of this model",
                Severity.WARNING, "certain", [*lines, Line(other["source"], other["line"], "another")],
            )  # fmt: skip
    for source, host, pairs in _dumps(device_pair, "path"):
        gpus = _gpus(pairs)
        links = {pair: _links(way) for pair, (way, _) in pairs.items() if pair[0] in gpus and pair[1] in gpus}
        uneven = [(a, b) for a, b in links if a < b and links[a, b] != links.get((b, a), links[a, b])]
        if uneven:
            a, b = uneven[0]
            yield host, Oddity(
                f"{a} and {b} do not agree on the NVLinks between them",
                f"{pairs[a, b][0]} from {a}, {pairs[b, a][0]} from {b}",
                Severity.WARNING, "likely", [Line(source, pairs[a, b][1], a), Line(source, pairs[b, a][1], b)],
            )  # fmt: skip
            continue
        usual, times = Counter(links.values()).most_common(1)[0] if links else (0, 0)
        lower = [pair for pair, count in links.items() if count < usual]
        if len(gpus) < MANY or not lower or times * 2 <= len(links):
            continue
        odd = [gpu for gpu in gpus if all(count < usual for pair, count in links.items() if gpu in pair)]
        if len(odd) * 2 >= len(gpus) or any(a not in odd and b not in odd for a, b in lower):
            continue  # a mesh, or pairs that a bridge connects
        if (source, host, *odd) in told:
            continue
        ways = sorted({pairs[pair][0] for pair in lower})
        normal = next(pair for pair, count in links.items() if count == usual)
        lines = [Line(source, pairs[pair][1], pair[0]) for pair in lower if pair[0] in odd]
        evidence = [*dict.fromkeys(lines), Line(source, pairs[normal][1], "another")]
        yield host, Oddity(
            f"{', '.join(odd[:SHOWN])} reaches the other GPUs over fewer NVLinks than they reach one another"
            if len(odd) == 1
            else f"{', '.join(odd[:SHOWN])} reach the other GPUs over fewer NVLinks than these reach one another",
            f"{', '.join(ways)} against NV{usual}", Severity.WARNING, "likely", evidence,
        )  # fmt: skip


def narrow_links(machine_device: pl.DataFrame) -> Iterator[tuple[str | None, Oddity]]:
    """PCIe links with fewer lanes, or of an older generation, than those of the same model have."""
    ours = machine_device.filter(pl.col("kind").is_in(["gpu", "nic"]) & (pl.col("width") > 0))
    for (source, _, host, kind, _), rows in ours.group_by(
        "source", "dump", "host", "kind", "model", maintain_order=True
    ):
        where, place = int(str(source)), None if host is None else str(host)
        noun = "GPU" if kind == "gpu" else "NIC"
        # At rest a GPU trains its link down, and lspci and nvidia-smi show that; NCCL's XML holds what it is able to.
        may_rest = pl.col("tool").is_in(MEASURED_NOW) & (pl.col("kind") == "gpu")
        speed = pl.when(may_rest).then(None).otherwise(pl.col("speed"))
        rated = rows.with_columns(rate=pl.col("width") * speed.fill_null(speed.max()).fill_null(1.0), judged=speed)
        best = float(str(rated["rate"].max()))
        few = rated.filter(pl.col("rate") < best)
        if rows["model"][0] is not None and not few.is_empty() and few.height * 2 <= rows.height:
            is_rare = few.height * RARE <= rows.height  # slots may differ: one of two is no fault yet
            odd, usual = few.row(0, named=True), rated.filter(pl.col("rate") == best).row(0, named=True)
            yield place, Oddity(
                f"{_named(noun, few)}: a PCIe link slower than its siblings",
                f"{_pcie(odd)} against {_pcie(usual)}", Severity.WARNING if is_rare else Severity.INFO,
                "likely" if is_rare and kind == "gpu" else "possible",
                [*(Line(where, line, "PCIe") for line in few["link_line"].to_list()[:SHOWN]),
                 Line(where, usual["link_line"], "another")],
            )  # fmt: skip
            continue
        half = rows.filter((pl.col("width") * 2 <= pl.col("width_can")) & (pl.col("width_can") == FULL_WIDTH))
        if not half.is_empty():
            yield place, Oddity(
                f"{_named(noun, half)}: fewer PCIe lanes than the device has",
                f"{half['width'][0]} of {FULL_WIDTH} lanes; it may be the slot's width", Severity.INFO, "possible",
                [Line(where, line, "PCIe") for line in half["link_line"].to_list()[:SHOWN]],
            )  # fmt: skip


def _named(noun: str, rows: pl.DataFrame) -> str:
    """`GPU 1b:00.0`; `GPU1` and `mlx5_0` say themselves what they are."""
    names = ", ".join(rows["device"].to_list()[:SHOWN])
    return f"{noun} {names}" if ":" in names else names


def _pcie(row: dict[str, Any]) -> str:
    return f"{row['width']} lanes" + (f" at {row['judged']:g} GT/s" if row["judged"] else "")


def far_nics(device_pair: pl.DataFrame) -> Iterator[tuple[str | None, Oddity]]:
    """GPUs whose nearest NIC is on the other socket, where other GPUs have one beside them."""
    for source, host, pairs in _dumps(device_pair, "path"):
        nearest = _nearest(pairs)
        far = [gpu for gpu, (way, _) in nearest.items() if way == FAR]
        near = [gpu for gpu, (way, _) in nearest.items() if way in NEAR]
        if not far or not near:
            continue
        line = {gpu: pairs[gpu, nics[0]][1] for gpu, (_, nics) in nearest.items()}
        is_odd = len(far) < len(near)
        yield (
            host,
            Oddity(
                f"{', '.join(far[:SHOWN])}{' and others' * (len(far) > SHOWN)}: the nearest NIC is on the other socket",
                f"{FAR} for {len(far)} GPUs, {nearest[near[0]][0]} for {len(near)}",
                Severity.WARNING if is_odd else Severity.INFO,
                "likely" if is_odd else "possible",
                [*(Line(source, line[gpu], gpu) for gpu in far[:3]), Line(source, line[near[0]], near[0])],
            ),
        )


def _nearest(pairs: Pairs) -> dict[str, tuple[str, list[str]]]:
    """GPU -> the shortest way to a NIC, and the NICs at its end."""
    ways: dict[str, dict[str, list[str]]] = {}
    for (gpu, nic), (way, _) in pairs.items():
        if gpu.startswith("GPU") and not nic.startswith("GPU") and way in WAYS:
            ways.setdefault(gpu, {}).setdefault(way, []).append(nic)
    return {gpu: next((way, found[way]) for way in WAYS if way in found) for gpu, found in ways.items()}


def refused_peers(device_pair: pl.DataFrame) -> Iterator[tuple[str | None, Oddity]]:
    """GPUs that NVLink connects and between which the driver does not allow access, as the same dump shows."""
    access = device_pair.filter(pl.col("table").is_in(PEER_ACCESS) & ~pl.col("path").is_in(["OK", "X", "U"]))
    place = ["source", "dump", "host", "device", "other"]
    linked = device_pair.filter((pl.col("table") == "path") & pl.col("path").str.starts_with("NV"))
    both = access.join(
        linked.select(*place, way="path", way_line="line"), on=place, how="inner", nulls_equal=True
    ).sort("source", "line", maintain_order=True)
    for (source, _, host), rows in both.group_by("source", "dump", "host", maintain_order=True):
        row = rows.row(0, named=True)
        yield None if host is None else str(host), Oddity(
            f"the driver does not allow peer access between GPUs on NVLink ({row['device']} and {row['other']})",
            f"{row['path']} where {row['way']} connects them; {rows.height} cells in all", Severity.WARNING, "likely",
            [Line(int(str(source)), row["line"], "peer access"), Line(int(str(source)), row["way_line"], "NVLink")],
        )  # fmt: skip


@rule(Category.TOPOLOGY, Severity.INFO, of=("device_pair",))
def topo_nic_shared(device_pair: pl.DataFrame) -> Iterator[Finding]:
    """Some GPUs share the NIC beside them, while others have one to themselves.

    Means: where every GPU sends at once, those that share a NIC have half of its rate or less, and all ranks wait for
    them. A NIC may be missing, or hang in another slot than the machine was built for.
    Not when: there are fewer NICs than GPUs, as machines are built; NICs are there for storage; the NIC beside a GPU is
    not the one that NCCL uses.
    Do: compare nvidia-smi topo -m with a sound host of the same kind; lspci, ibstat for a NIC that is missing.
    Sources: field guides (rail per GPU); nccl#652.
    """

    def uneven() -> Iterator[tuple[str | None, Oddity]]:
        for source, host, pairs in _dumps(device_pair, "path"):
            nearest = _nearest(pairs)
            nics = {nic for gpu, nic in pairs if gpu.startswith("GPU") and not nic.startswith("GPU")}
            if len(nearest) < MANY or len(nics) < len(nearest) - 1 or any(w not in NEAR for w, _ in nearest.values()):
                continue
            users = Counter(nic for _, near in nearest.values() for nic in near)
            share = {gpu: sum(1 / users[nic] for nic in near) for gpu, (_, near) in nearest.items()}
            least = min(share.values())
            few = [gpu for gpu, rate in share.items() if rate == least]
            if least > max(share.values()) / 2 or least >= 1 or len(few) * 2 >= len(share):
                continue
            shared = nearest[few[0]][1]
            yield host, Oddity(
                f"{', '.join(few[:SHOWN])} share a NIC ({', '.join(shared[:SHOWN])}), the other GPUs do not",
                f"{len(nearest)} GPUs, {len(nics)} NICs", Severity.INFO, "possible",
                [Line(source, pairs[gpu, shared[0]][1], gpu) for gpu in few[:SHOWN]],
            )  # fmt: skip

    yield from told_once(uneven(), Role.CONTEXT)


@rule(Category.TOPOLOGY, Severity.INFO, of=("machine_device",))
def topo_acs_on(machine_device: pl.DataFrame) -> Iterator[Finding]:
    """PCIe bridges redirect what devices send to one another (ACS).

    Means: peer access between GPUs and GPUDirect RDMA go by way of the CPU: slow, and with some machines wrong or
    stuck. The usual cause of hangs and of local protection errors (vendor err 81) on bare metal.
    Not when: a virtual machine needs it (then the NIC's ATS must be on); no GPU or NIC stands behind the bridge.
    Do: turn ACS off in the BIOS, or per bridge at each boot (setpci … ECAP_ACS+6.w=0000); iommu=pt; then compare.
    Sources: nccl#304, nccl#523, nccl#1052, nccl-tests#252; NCCL documentation gpu_troubleshooting.
    """

    def redirecting() -> Iterator[tuple[str | None, Oddity]]:
        for (source, _, host), rows in machine_device.group_by("source", "dump", "host", maintain_order=True):
            bridges = rows.filter((pl.col("kind") == "bridge") & pl.col("is_redirecting").fill_null(value=False))
            if bridges.is_empty() or rows.filter(pl.col("kind") == "gpu").is_empty():
                continue
            lines = [Line(int(str(source)), line, "a bridge") for line in bridges["acs_line"].to_list()[:SHOWN]]
            yield None if host is None else str(host), Oddity(
                "PCIe bridges redirect peer traffic (ACS)", f"{bridges.height} bridges with SrcValid+ and ReqRedir+",
                Severity.INFO, "possible", lines,
            )  # fmt: skip

    yield from told_once(redirecting(), Role.CONTEXT)


@rule(Category.CUDA_ERROR, Severity.WARNING, of=("smi_gpu",))
def gpu_memory_errors(smi_gpu: pl.DataFrame, machine_device: pl.DataFrame) -> Iterator[Finding]:
    """A GPU counts errors of its memory that cannot be corrected.

    Means: a process that reads such a place is killed (Xid 48, 94, 95), and its peers wait for it; data that was not
    noticed in time may be wrong. Where rows can no longer be remapped, the GPU is to be replaced.
    Not when: the errors are in the aggregate alone, which counts a GPU's whole life; they can be corrected; rows wait
    to be remapped, which a reset does.
    Do: drain the host; dmesg -T | grep -i xid; reset the GPU, and dcgmi diag -r 3; replace it if it counts on.
    Sources: NVIDIA, GPU memory error management; nvidia-smi(1).
    """
    hosts = machine_device.filter(pl.col("tool") == "nvidia-smi -q").select("source", "line", "host")
    bad = smi_gpu.filter((pl.col("uncorrectable") > 0) | pl.col("is_unmapped"))
    for row in bad.join(hosts, on=["source", "line"], how="left", maintain_order="left").to_dicts():
        many = row["uncorrectable"] or 0
        told = [f"{many} uncorrectable errors since the driver was loaded"] * (many > 0)
        told += ["no spare row is left for a broken one"] * row["is_unmapped"]
        yield Finding(
            title=f"GPU {row['device']} has errors in its memory" + (f" on {row['host']}" if row["host"] else ""),
            detail="; ".join(told),
            certainty="certain",
            severity=Severity.ERROR if row["is_unmapped"] else None,
            hosts=[row["host"]] if row["host"] else [],
            evidence=[Line(row["source"], row["error_line"], "errors"), Line(row["source"], row["line"], "the GPU")],
        )
