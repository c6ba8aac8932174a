"""Outliers among like devices of one machine: NVLinks, PCIe links, paths to NICs, peer access."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import polars as pl

from ncclforensics.analyses.host.machine_devices import CURRENT_SPEED_TOOLS
from ncclforensics.data.names import parse_short_integer, some_of
from ncclforensics.rules.finding import Line, Severity
from ncclforensics.rules.shared.dump_faults import SHOWN, DumpFault

NEAR = ("PIX", "PXB")
PATHS = ("PIX", "PXB", "PHB", "NODE", "SYS")  # the shortest first
FAR = "SYS"
FEWEST_GPUS = 3  # with two, neither is the outlier
FULL_WIDTH = 16
FEWEST_ALIKE = 4  # devices per outlier, for it to be a fault and not the layout of the slots
WITH_NVLINK = ("SXM", "HBM3", "NVIDIA B200", "NVIDIA B300", "GB200", "GB300")  # in the names of GPUs
MOST_NAMED = 8
# NVLink gives reading, writing and NVLink itself. PCIe access (p) and atomics (a) may be absent.
PEER_ACCESS = ("p2p r", "p2p w", "p2p n")

Pairs = dict[tuple[str, str], tuple[str, int]]  # device, other device -> path, line


def dump_pairs(device_pair: pl.DataFrame) -> Iterator[tuple[int, str | None, Pairs]]:
    """Yield source, host and pairs of each dump with a table of paths."""
    rows = device_pair.filter(table="path")
    for (source, _, host), dump in rows.group_by("source", "dump", "host", maintain_order=True):
        cells = dump.select("device", "other", "path", "line").iter_rows()
        pairs = {(device, other): (path, line) for device, other, path, line in cells}
        yield int(str(source)), None if host is None else str(host), pairs


def has_nvlinks(model: object) -> bool:
    """Return whether the board of a GPU connects it by NVLink: not so PCIe cards, which need a bridge for that."""
    return any(name in str(model) for name in WITH_NVLINK)


def _gpus(pairs: Pairs) -> list[str]:
    return list(dict.fromkeys(name for pair in pairs for name in pair if name.startswith("GPU")))


def _nvlinks(path: str) -> int:
    """Number of NVLinks on a path: 18 for NV18, 0 for a path over PCIe."""
    return (parse_short_integer(path[2:]) or 0) if path.startswith("NV") else 0


def fewer_nvlinks(device_pair: pl.DataFrame, gpu_link: pl.DataFrame) -> Iterator[tuple[str | None, DumpFault]]:
    """Find GPUs with fewer NVLinks than the other GPUs, where those have equally many."""
    reported: set[tuple[object, ...]] = set()
    counted = gpu_link.filter((pl.col("tool") == "nvidia-smi nvlink") & pl.col("links").is_not_null())
    for _, alike in counted.group_by("model", maintain_order=True):
        most = max(alike["links"].to_list())
        fewer = alike.filter((pl.col("links") < most) & ((pl.col("down") > 0).fill_null(value=True)))
        is_minority = fewer.height * 2 <= alike.height
        if fewer.is_empty() or not (is_minority or has_nvlinks(alike["model"][0])):
            continue  # without an NVLink bridge all links of a GPU are down
        normal = alike.filter(pl.col("links") == most).row(0, named=True)
        for (source, _, host), rows in fewer.group_by("source", "dump", "host", maintain_order=True):
            names = [str(name) for name in rows["device"]]
            reported.add((source, host, *names))
            down = rows.select(pl.coalesce("down_line", "line")).to_series().to_list()
            lines = [Line(int(str(source)), line, "NVLink") for line in down[:SHOWN]]
            up = ", ".join(map(str, rows["links"].unique().sort()))
            lines.append(Line(normal["source"], normal["line"], "another"))
            yield None if host is None else str(host), DumpFault(
                f"{some_of(names, MOST_NAMED)}: NVLinks are down",
                f"{up} are up, and {most} on other GPUs of this model",
                Severity.WARNING, "certain" if is_minority else "likely", lines,
            )  # fmt: skip
    for source, host, pairs in dump_pairs(device_pair):
        gpus = _gpus(pairs)
        links = {pair: _nvlinks(path) for pair, (path, _) in pairs.items() if pair[0] in gpus and pair[1] in gpus}
        uneven = [(a, b) for a, b in links if a < b and links[a, b] != links.get((b, a), links[a, b])]
        if uneven:
            a, b = uneven[0]
            yield host, DumpFault(
                f"{a} and {b} show different numbers of NVLinks between them",
                f"{pairs[a, b][0]} from {a}, {pairs[b, a][0]} from {b}",
                Severity.WARNING, "likely", [Line(source, pairs[a, b][1], a), Line(source, pairs[b, a][1], b)],
            )  # fmt: skip
            continue
        usual, times = Counter(links.values()).most_common(1)[0] if links else (0, 0)
        lower = [pair for pair, count in links.items() if count < usual]
        if len(gpus) < FEWEST_GPUS or not lower or times * 2 <= len(links):
            continue
        outliers = [gpu for gpu in gpus if all(count < usual for pair, count in links.items() if gpu in pair)]
        if len(outliers) * 2 >= len(gpus) or any(a not in outliers and b not in outliers for a, b in lower):
            continue  # a mesh, or GPUs that bridges connect in pairs
        if (source, host, *outliers) in reported:
            continue
        paths = sorted({pairs[pair][0] for pair in lower})
        normal_pair = next(pair for pair, count in links.items() if count == usual)
        lines = [Line(source, pairs[pair][1], pair[0]) for pair in lower if pair[0] in outliers]
        evidence = [*dict.fromkeys(lines), Line(source, pairs[normal_pair][1], "another")]
        few = ", ".join(outliers[:SHOWN])
        yield host, DumpFault(
            f"{few} {'has' if len(outliers) == 1 else 'have'} fewer NVLinks to the other GPUs than these among them",
            f"{', '.join(paths)} against NV{usual}", Severity.WARNING, "likely", evidence,
        )  # fmt: skip


def narrow_links(machine_device: pl.DataFrame) -> Iterator[tuple[str | None, DumpFault]]:
    """Find PCIe links with fewer lanes, or of an older generation, than those of the same model."""
    devices = machine_device.filter(pl.col("kind").is_in(["gpu", "nic"]) & (pl.col("width") > 0))
    alike = ["source", "dump", "host", "kind", "model"]
    for (dump_source, _, dump_host, kind, _), rows in devices.group_by(alike, maintain_order=True):
        source, host = int(str(dump_source)), None if dump_host is None else str(dump_host)
        noun = "GPU" if kind == "gpu" else "NIC"
        # A GPU at rest lowers its PCIe speed, and lspci and nvidia-smi show that; NCCL's XML holds the maximum.
        may_rest = pl.col("tool").is_in(CURRENT_SPEED_TOOLS) & (pl.col("kind") == "gpu")
        speed = pl.when(may_rest).then(None).otherwise(pl.col("speed"))
        rated = rows.with_columns(rate=pl.col("width") * speed.fill_null(speed.max()).fill_null(1.0), judged=speed)
        best = float(str(rated["rate"].max()))
        slower = rated.filter(pl.col("rate") < best)
        if rows["model"][0] is not None and not slower.is_empty() and slower.height * 2 <= rows.height:
            is_rare = slower.height * FEWEST_ALIKE <= rows.height  # slots may differ: one of two is no fault yet
            outlier, usual = slower.row(0, named=True), rated.filter(pl.col("rate") == best).row(0, named=True)
            yield host, DumpFault(
                f"{_device_names(noun, slower)}: a PCIe link slower than its siblings",
                f"{_link_text(outlier)} against {_link_text(usual)}", Severity.WARNING if is_rare else Severity.INFO,
                "likely" if is_rare and kind == "gpu" else "possible",
                [*(Line(source, line, "PCIe") for line in slower["link_line"].to_list()[:SHOWN]),
                 Line(source, usual["link_line"], "another")],
            )  # fmt: skip
            continue
        half = rows.filter((pl.col("width") * 2 <= pl.col("width_can")) & (pl.col("width_can") == FULL_WIDTH))
        if not half.is_empty():
            yield host, DumpFault(
                f"{_device_names(noun, half)}: fewer PCIe lanes than the device has",
                f"{half['width'][0]} of {FULL_WIDTH} lanes; it may be the slot's width", Severity.INFO, "possible",
                [Line(source, line, "PCIe") for line in half["link_line"].to_list()[:SHOWN]],
            )  # fmt: skip


def _device_names(noun: str, rows: pl.DataFrame) -> str:
    """`GPU 1b:00.0` for PCI addresses; names such as `GPU1` and `mlx5_0` need no noun, and without a name it is all."""
    names = ", ".join(rows["device"].drop_nulls().to_list()[:SHOWN])
    return f"{noun} {names}".rstrip() if ":" in names or not names else names


def _link_text(row: dict[str, Any]) -> str:
    return f"{row['width']} lanes" + (f" at {row['judged']:g} GT/s" if row["judged"] else "")


def far_nics(device_pair: pl.DataFrame) -> Iterator[tuple[str | None, DumpFault]]:
    """Find GPUs whose nearest NIC is on the other socket, where other GPUs have a NIC on their own PCIe switch."""
    for source, host, pairs in dump_pairs(device_pair):
        nearest = nearest_nics(pairs)
        far = [gpu for gpu, (path, _) in nearest.items() if path == FAR]
        near = [gpu for gpu, (path, _) in nearest.items() if path in NEAR]
        if not far or not near:
            continue
        lines = {gpu: pairs[gpu, nics[0]][1] for gpu, (_, nics) in nearest.items()}
        is_outlier = len(far) < len(near)
        yield (
            host,
            DumpFault(
                f"{', '.join(far[:SHOWN])}{' and others' * (len(far) > SHOWN)}: the nearest NIC is on the other socket",
                f"{FAR} for {len(far)} GPUs, {nearest[near[0]][0]} for {len(near)}",
                Severity.WARNING if is_outlier else Severity.INFO,
                "likely" if is_outlier else "possible",
                [*(Line(source, lines[gpu], gpu) for gpu in far[:3]), Line(source, lines[near[0]], near[0])],
            ),
        )


def nearest_nics(pairs: Pairs) -> dict[str, tuple[str, list[str]]]:
    """GPU -> its shortest path to a NIC, and the NICs at that distance."""
    nics_by_path: dict[str, dict[str, list[str]]] = {}
    for (gpu, nic), (path, _) in pairs.items():
        if gpu.startswith("GPU") and not nic.startswith("GPU") and path in PATHS:
            nics_by_path.setdefault(gpu, {}).setdefault(path, []).append(nic)
    return {gpu: next((path, nics[path]) for path in PATHS if path in nics) for gpu, nics in nics_by_path.items()}


def refused_peers(device_pair: pl.DataFrame) -> Iterator[tuple[str | None, DumpFault]]:
    """Find GPUs connected by NVLink between which the driver allows no peer access, both in one dump."""
    access = device_pair.filter(pl.col("table").is_in(PEER_ACCESS) & ~pl.col("path").is_in(["OK", "X", "U"]))
    pair = ["source", "dump", "host", "device", "other"]
    linked = device_pair.filter((pl.col("table") == "path") & pl.col("path").str.starts_with("NV"))
    refused = access.join(
        linked.select(*pair, nvlink="path", nvlink_line="line"), on=pair, how="inner", nulls_equal=True
    ).sort("source", "line", maintain_order=True)
    for (source, _, host), rows in refused.group_by("source", "dump", "host", maintain_order=True):
        row = rows.row(0, named=True)
        yield None if host is None else str(host), DumpFault(
            f"the driver does not allow peer access between GPUs on NVLink ({row['device']} and {row['other']})",
            f"{row['path']} where {row['nvlink']} connects them; {rows.height} cells in all",
            Severity.WARNING, "likely",
            [Line(int(str(source)), row["line"], "peer access"), Line(int(str(source)), row["nvlink_line"], "NVLink")],
        )  # fmt: skip
