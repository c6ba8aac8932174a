"""What dumps of a machine tell: its GPUs and NICs, how they reach one another, their links, the kernel's modules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import polars as pl

from ncclforensics.analyses.host import nccl_xml
from ncclforensics.analyses.host.damaged_dumps import PROBLEM
from ncclforensics.analyses.host.nccl_xml import Document, Element, documents
from ncclforensics.analyses.host.topology_matrix import ITSELF, Matrix, matrices
from ncclforensics.frames.columns import text_of
from ncclforensics.frames.registry import analysis

# A dump is named by its source and its first line. `host`: only where a launcher or a prompt names it, for the name of
# a file proves nothing.
PLACE = {"source": pl.Int32(), "dump": pl.Int32(), "host": pl.String(), "tool": pl.String()}

DUMP = {
    **PLACE,
    "gpus": pl.Int32(),  # null where the dump does not tell
    "nics": pl.Int32(),
    "line": pl.Int32(),
}
DEVICE_PAIR = {
    **PLACE,
    "table": pl.String(),  # path; p2p r, p2p w (peer access); of rocm-smi type, weight, hops, access
    "device": pl.String(),
    "other": pl.String(),
    "path": pl.String(),  # NV18, PIX, PXB, PHB, NODE, SYS; or the table's own words
    "line": pl.Int32(),
}
MACHINE_DEVICE = {
    **PLACE,
    "kind": pl.String(),  # gpu, nic, bridge, switch
    "device": pl.String(),  # GPU0, NIC0, or the place on the bus
    "name": pl.String(),  # of a NIC; model of a device on the bus
    "model": pl.String(),  # vendor and number: devices that may be compared
    "cpus": pl.String(),  # next to it
    "numa": pl.String(),
    "speed": pl.Float64(),  # GT/s of the PCIe link
    "width": pl.Int32(),  # lanes
    "speed_can": pl.Float64(),  # what the device is able to
    "width_can": pl.Int32(),
    "is_redirecting": pl.Boolean(),  # access control sends peer traffic by way of the CPU
    "line": pl.Int32(),
    "link_line": pl.Int32(),
    "acs_line": pl.Int32(),
}
GPU_LINK = {
    **PLACE,
    "device": pl.String(),
    "model": pl.String(),
    "links": pl.Int32(),  # NVLinks that are up
    "down": pl.Int32(),
    "errors": pl.Int64(),  # counted by the driver since it was loaded
    "line": pl.Int32(),
    "down_line": pl.Int32(),  # the first that is down
}
LOADED_MODULE = {
    "source": pl.Int32(),
    "host": pl.String(),
    "module": pl.String(),
    "used_by": pl.String(),
    "is_listing": pl.Boolean(),  # the list it stands in is whole: what is not in it is not loaded
    "line": pl.Int32(),
}

COLUMNS = {
    "dumps": DUMP,
    "pairs": DEVICE_PAIR,
    "devices": MACHINE_DEVICE,
    "links": GPU_LINK,
    "problems": PROBLEM,
}
ASSEMBLY = {name: pl.List(pl.Struct(columns)) for name, columns in COLUMNS.items()}

MEASURED_NOW = ("lspci", "nvidia-smi -q")  # tools that show the speed of a link as it is, at rest or not

NVIDIA, AMD = "10de", "1002"
SWITCH = "0x0680"  # class of an NVSwitch
GRAPHICS = ("NVIDIA", "Advanced Micro Devices")
Columns = dict[str, list[Any]]
MATRICES = ("device_row", "rocm_row")
ALL = (*MATRICES, "xml_line", "pci_device", "pci_branch", "pci_link", "smi_gpu")


def _frame(rows: Iterable[dict[str, Any]], schema: dict[str, Any]) -> pl.DataFrame:
    return pl.DataFrame(list(rows), schema=schema, orient="row")


def _hosts(*commands: pl.DataFrame) -> dict[int, list[tuple[int, str]]]:
    """Source -> line and host of every prompt that names one."""
    told: dict[int, list[tuple[int, str]]] = {}
    for rows in commands:
        named = rows.filter(pl.col("prompt_host").is_not_null()).select("source", "line", "prompt_host")
        for source, line, host in named.iter_rows():
            told.setdefault(source, []).append((line, str(host)))
    return {source: sorted(prompts) for source, prompts in told.items()}


def _host(prompts: dict[int, list[tuple[int, str]]], source: int, line: int, node: str | None) -> str | None:
    """The host that a launcher or the last prompt names."""
    if node:
        return str(node)
    before = [host for at, host in prompts.get(source, []) if at < line]
    return before[-1] if before else None


@analysis(ASSEMBLY, of=(*MATRICES, "rocm_table", "xml_line"))
def dump_assembly(
    device_head: pl.DataFrame,
    device_row: pl.DataFrame,
    rocm_table: pl.DataFrame,
    rocm_row: pl.DataFrame,
    device_alias: pl.DataFrame,
    device_command: pl.DataFrame,
    pci_command: pl.DataFrame,
    xml_line: pl.DataFrame,
    xml_rest: pl.DataFrame,
) -> pl.DataFrame:
    """All matrices and all XML in one row: what the frames on dumps are taken from."""
    prompts = _hosts(device_command, pci_command)
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in ASSEMBLY}
    for tables in matrices(device_head, device_row, rocm_table, rocm_row, device_alias, device_command):
        place = _of_matrix(tables, prompts)
        names = list(dict.fromkeys(name for table in tables for name in table.devices))
        gpus = sum(name.startswith("GPU") for name in names)
        nics = None if place["tool"] == "rocm-smi" else len(names) - gpus
        found["dumps"].append({**place, "gpus": gpus, "nics": nics, "line": place["dump"]})
        found["devices"] += ({**place, **device} for device in _named(tables))
        for table in tables:
            found["pairs"] += (
                {**place, "table": table.kind, "device": row.device, "other": other, "path": cell, "line": row.line}
                for row, other, cell in table.pairs()
                if cell not in ITSELF or table.kind != "path"
            )
            found["problems"] += (
                {"source": table.owner[0], "line": line, "problem": f"matrix at line {line}: {words}"}
                for line, words in table.problems()
            )
    for document in documents(xml_line, xml_rest):
        place = _of_document(document, prompts)
        if document.root.tag == "graphs":
            count = len({gpu.attributes.get("dev") for gpu in document.root.all("gpu")})
            found["dumps"].append({**place, "gpus": count or None, "nics": None, "line": place["dump"]})
        if document.root.tag == "system":
            found["devices"] += ({**place, **device} for device in _attached(document.root))
            found["links"] += ({**place, **link} for link in _nvlinks(document.root))
        found["pairs"] += ({**place, "table": "path", **pair} for pair in _ways(document.root))
        found["problems"] += (
            {"source": document.source, "line": line, "problem": f"XML at line {line}: {words}"}
            for line, words in document.problems
        )
    whole = {
        name: [{column: row.get(column) for column in COLUMNS[name]} for row in rows] for name, rows in found.items()
    }
    return pl.DataFrame([whole], schema=ASSEMBLY)


def _taken(dump_assembly: pl.DataFrame, name: str) -> pl.DataFrame:
    """The rows of one kind."""
    if dump_assembly.is_empty():
        return pl.DataFrame(schema=COLUMNS[name])
    return dump_assembly.select(name).explode(name).drop_nulls().unnest(name)


@analysis(DUMP, of=ALL)
def dump(
    dump_assembly: pl.DataFrame,
    pci_branch: pl.DataFrame,
    device_command: pl.DataFrame,
    pci_command: pl.DataFrame,
    machine_device: pl.DataFrame,
) -> pl.DataFrame:
    """One row for each description of a machine: how many GPUs and NICs it names."""
    prompts = _hosts(device_command, pci_command)
    rows: list[dict[str, Any]] = []
    counted = (
        machine_device.filter(~pl.col("tool").is_in(["nvidia-smi", "rocm-smi"]))
        .group_by("source", "dump", "host", "tool", maintain_order=True)
        .agg(
            gpus=(pl.col("kind") == "gpu").sum().cast(pl.Int32),
            nics=(pl.col("kind") == "nic").sum().cast(pl.Int32),
        )
        .with_columns(nics=pl.when(pl.col("tool") != "nvidia-smi -q").then("nics"), line="dump")
    )
    # The tree of lspci does not say what a device is.
    first = pl.col("line", "launcher_node").sort_by("pos").first()
    drawn = pci_branch.group_by("source", maintain_order=True).agg(first)
    for source, line, node in drawn.iter_rows():
        place = {"source": source, "dump": line, "host": _host(prompts, source, line, node), "tool": "lspci -t"}
        rows.append({**place, "gpus": None, "nics": None, "line": line})
    assembled = _taken(dump_assembly, "dumps")
    return pl.concat([assembled, _frame(rows, DUMP), counted.select(list(DUMP))]).sort("source", "line")


def _of_matrix(tables: list[Matrix], prompts: dict[int, list[tuple[int, str]]]) -> dict[str, Any]:
    (source, _, node), line = tables[0].owner, tables[0].line
    tool = "nvidia-smi" if tables[0].kind.startswith(("path", "p2p")) else "rocm-smi"
    return {"source": source, "dump": line, "host": _host(prompts, source, line, node), "tool": tool}


def _of_document(document: Document, prompts: dict[int, list[tuple[int, str]]]) -> dict[str, Any]:
    line = document.root.line
    host = _host(prompts, document.source, line, document.node)
    return {"source": document.source, "dump": line, "host": host, "tool": f"NCCL {document.root.tag}"}


@analysis(DEVICE_PAIR, of=("dump_assembly",))
def device_pair(dump_assembly: pl.DataFrame) -> pl.DataFrame:
    """How each device of a dump reaches each other one: the cells of a matrix, or the shortest way in NCCL's XML."""
    return _taken(dump_assembly, "pairs")


def _ways(root: Element) -> Iterator[dict[str, Any]]:
    gpus = [gpu for gpu in root.all("gpu") if gpu.above("pci")]
    nics = {name: nic for nic in root.all("net") if nic.above("pci") and (name := nic.attributes.get("name"))}
    links = {id(gpu): _links(gpu) for gpu in gpus}
    ends = {(id(gpu), link.attributes.get("target")): link.line for gpu in gpus for link in gpu.all("nvlink", "xgmi")}
    for gpu in gpus:
        switched, direct, kind = links[id(gpu)]
        for other in gpus:
            if other is gpu:
                continue
            busid = other.above("pci")[-1].attributes.get("busid", "")
            through = min(switched, links[id(other)][0])
            count = direct.get(busid, 0) or through
            way = (f"{kind}{count}" if kind == "NV" else kind) if count else nccl_xml.path(gpu, other)
            line = ends.get((id(gpu), busid), gpu.line)
            yield {"device": _gpu(gpu), "other": _gpu(other), "path": way, "line": line}
        for name, nic in nics.items():
            yield {"device": _gpu(gpu), "other": name, "path": nccl_xml.path(gpu, nic), "line": gpu.line}


def _gpu(gpu: Element) -> str:
    return f"GPU{gpu.attributes.get('dev', '?')}"


def _links(gpu: Element) -> tuple[int, dict[str, int], str]:
    """NVLinks to switches, links to other devices by their place on the bus, and the kind of link."""
    switched, direct, kind = 0, Counter[str](), "NV"
    for link in gpu.all("nvlink", "xgmi"):
        kind = "NV" if link.tag == "nvlink" else "XGMI"
        count = _whole(link.attributes.get("count")) or 0
        if link.attributes.get("tclass", "").startswith(SWITCH):
            switched += count
        else:
            direct[link.attributes.get("target", "")] += count
    return switched, dict(direct), kind


def _whole(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 10 else None


def _rate(text: str | None) -> float | None:
    """GT/s.

    >>> _rate("16.0 GT/s PCIe"), _rate("32GT/s"), _rate("Unknown speed"), _rate("")
    (16.0, 32.0, None, None)
    """
    number = (text or "").removesuffix("PCIe").strip().removesuffix("GT/s").strip()
    return float(number) if number.replace(".", "", 1).isascii() and number.replace(".", "", 1).isdigit() else None


@analysis(MACHINE_DEVICE, of=ALL)
def machine_device(
    dump_assembly: pl.DataFrame,
    pci_device: pl.DataFrame,
    pci_link: pl.DataFrame,
    pci_acs: pl.DataFrame,
    smi_gpu: pl.DataFrame,
    device_command: pl.DataFrame,
    pci_command: pl.DataFrame,
) -> pl.DataFrame:
    """The GPUs, NICs, bridges and NVSwitches that a dump names, each with its PCIe link where the dump shows it."""
    prompts = _hosts(device_command, pci_command)
    on_bus = _frame(_on_bus(pci_device, pci_link, pci_acs, prompts), MACHINE_DEVICE)
    queried = _frame(_queried(smi_gpu, prompts), MACHINE_DEVICE)
    return pl.concat([_taken(dump_assembly, "devices"), on_bus, queried])


def _queried(smi_gpu: pl.DataFrame, prompts: dict[int, list[tuple[int, str]]]) -> Iterator[dict[str, Any]]:
    """The GPUs of nvidia-smi -q."""
    for row in smi_gpu.to_dicts():
        host = _host(prompts, row["source"], row["dump"], row["launcher_node"])
        told = {column: row[column] for column in MACHINE_DEVICE if column in row}
        yield {**told, "host": host, "tool": "nvidia-smi -q", "kind": "gpu", "name": row["model"]}


def _named(tables: list[Matrix]) -> Iterator[dict[str, Any]]:
    """The devices of the matrices of one dump, each once."""
    names = {number: name for table in tables for number, name in table.names.items()}
    seen: set[str] = set()
    for table in tables:
        for device in table.devices:
            if device in seen:
                continue
            seen.add(device)
            row = next((each for each in table.rows if each.device == device), None)
            near = [word for word in row.rest if word != "N/A"] if row else []
            is_gpu = device.startswith("GPU")
            yield {
                "kind": "gpu" if is_gpu else "nic",
                "device": device,
                "name": names.get(device, None if is_gpu or device.startswith("NIC") else device),
                "cpus": near[0] if near else None,
                "numa": near[1] if len(near) > 1 else None,
                "line": row.line if row else table.line,
            }


def _attached(root: Element) -> Iterator[dict[str, Any]]:
    """The devices of NCCL's XML; where it is a file for a kind of machine, they are only known by their class."""
    for gpu in root.all("gpu"):
        yield {"kind": "gpu", "device": _gpu(gpu), "line": gpu.line, **_pcie(gpu)}
    nets = [net for net in root.all("net") if net.attributes.get("name")]
    attached = [net for net in nets if net.above("pci")] or nets  # without: interfaces of the host, such as bridges
    told: set[str] = set()
    for net in attached:
        name = net.attributes["name"]
        if name not in told:
            told.add(name)
            yield {"kind": "nic", "device": name, "name": name, "line": net.line, **_pcie(net)}
    for pci in root.all("pci"):
        kind = pci.attributes.get("class", "")
        is_bare = nccl_xml.is_leaf(pci) and not any(pci.all("gpu", "net", "nic"))
        bare = "gpu" if kind.startswith(nccl_xml.GPUS) else "nic" if kind.startswith(nccl_xml.NICS) else None
        if is_bare and bare:
            yield {"kind": bare, "device": pci.attributes.get("busid"), "line": pci.line, **_pcie(pci)}


def _pcie(element: Element) -> dict[str, Any]:
    above = element.above("pci")
    if not above:
        return {}
    told, cpu = above[-1].attributes, element.above("cpu")
    # Without numbers, GPUs of one class are taken for alike; NICs are not, for there are those of the host's own.
    is_gpu = told.get("class", "").startswith(nccl_xml.GPUS)
    model = f"{told.get('vendor', '?')}:{told['device']}" if "device" in told else told["class"] if is_gpu else None
    return {
        "model": model,
        "numa": cpu[-1].attributes.get("numaid") if cpu else None,
        "speed": _rate(told.get("link_speed")),
        "width": _whole(told.get("link_width")),
        "link_line": above[-1].line,
    }


def _on_bus(
    pci_device: pl.DataFrame, pci_link: pl.DataFrame, pci_acs: pl.DataFrame, prompts: dict[int, list[tuple[int, str]]]
) -> list[dict[str, Any]]:
    """The devices of lspci, with what stands below each."""
    lines = [(row, "device") for row in pci_device.to_dicts()] + [(row, "link") for row in pci_link.to_dicts()]
    lines += [(row, "acs") for row in pci_acs.filter(pl.col("src_valid").is_not_null()).to_dicts()]
    rows: list[dict[str, Any]] = []
    first: dict[tuple[int, object], int] = {}
    seen: set[tuple[int, object, str]] = set()
    here: dict[tuple[int, object], dict[str, Any] | None] = {}
    for row, what in sorted(lines, key=lambda each: each[0]["pos"]):
        owner, line = (row["source"], row["launcher_node"]), row["line"]
        if what == "device":
            if (*owner, row["bus"]) in seen:  # the list again
                seen = {each for each in seen if each[:2] != owner}
                first.pop(owner, None)
            seen.add((*owner, row["bus"]))
            start = first.setdefault(owner, line)
            kind = _kind(row)
            here[owner] = device = {
                "source": owner[0],
                "dump": start,
                "host": _host(prompts, owner[0], line, row["launcher_node"]),
                "tool": "lspci",
                "kind": kind,
                "device": row["bus"],
                "name": row["device"],
                "model": f"{row['vendor']}:{row['model']}" if row["vendor"] else row["device"],
                "line": line,
            }
            if kind:
                rows.append(device)
        elif (device_here := here.get(owner)) is not None:
            if what == "acs":
                device_here["is_redirecting"] = row["src_valid"] == "+" and row["req_redir"] == "+"
                device_here["acs_line"] = line
            else:
                can = "_can" if str(row["form"]) == "can" else ""
                device_here[f"speed{can}"] = _rate(row["speed"])
                device_here[f"width{can}"] = row["width"]
                if not can:
                    device_here["link_line"] = line
    return rows


def _kind(row: dict[str, Any]) -> str | None:
    """What a device of lspci is, by its class; without numbers by the words."""
    code, vendor = row["class"] or "", row["vendor"] or ""
    words, device = row["named_kind"] or row["kind"] or "", row["device"] or ""
    is_ours = vendor in (NVIDIA, AMD) if vendor else device.startswith(GRAPHICS)
    if code.startswith(("03", "12")) or words in ("3D controller", "VGA compatible controller", "Display controller"):
        return "gpu" if is_ours else None
    if words == "Processing accelerators":
        return "gpu" if is_ours else None
    if code.startswith("02") or words.endswith(("Ethernet controller", "niband controller", "Network controller")):
        return "nic"
    if code == "0680" or words == "Bridge":
        return "switch" if vendor == NVIDIA or device.startswith("NVIDIA") else None
    return "bridge" if code == "0604" or words == "PCI bridge" else None


@analysis(GPU_LINK, of=("nvlink_port", "xml_line"))
def gpu_link(nvlink_port: pl.DataFrame, device_command: pl.DataFrame, dump_assembly: pl.DataFrame) -> pl.DataFrame:
    """The NVLinks of each GPU: how many are up, how many down, what the driver has counted of errors."""
    prompts = _hosts(device_command)
    rows: list[dict[str, Any]] = []
    here: dict[tuple[int, object], dict[str, Any]] = {}
    first: dict[tuple[int, object], tuple[int, set[str]]] = {}
    for row in nvlink_port.sort("pos").to_dicts():
        owner, form, line = (row["source"], row["launcher_node"]), str(row["form"]), row["line"]
        if form == "gpu":
            device = f"GPU{row['gpu']}"
            start, seen = first.get(owner, (line, set()))
            if device in seen:
                start, seen = line, set()
            first[owner] = start, {*seen, device}
            here[owner] = {
                "source": owner[0], "dump": start, "host": _host(prompts, owner[0], line, row["launcher_node"]),
                "tool": "nvidia-smi nvlink", "device": device, "model": row["model"],
                "links": None, "down": None, "errors": None, "line": line, "down_line": None,
            }  # fmt: skip
            rows.append(here[owner])
        elif gpu := here.get(owner):
            if form == "errors":
                gpu["errors"] = (gpu["errors"] or 0) + (_whole(row["errors"]) or 0)
            elif form in ("active", "inactive"):
                is_up = form == "active" and float(row["port_rate"]) > 0
                gpu["links"], gpu["down"] = (gpu["links"] or 0) + is_up, (gpu["down"] or 0) + (not is_up)
                if not is_up and gpu["down_line"] is None:
                    gpu["down_line"] = line
    return pl.concat([_frame(rows, GPU_LINK), _taken(dump_assembly, "links")])


def _nvlinks(root: Element) -> Iterator[dict[str, Any]]:
    """The NVLinks of each GPU of a topology."""
    for gpu in root.all("gpu"):
        switched, direct, kind = _links(gpu)
        if kind == "NV":
            model = _pcie(gpu).get("model")
            yield {"device": _gpu(gpu), "model": model, "links": switched + sum(direct.values()), "line": gpu.line}


@analysis(LOADED_MODULE, of=("kernel_module",))
def loaded_module(
    kernel_module: pl.DataFrame,
    other_module: pl.DataFrame,
    module_head: pl.DataFrame,
    module_command: pl.DataFrame,
    device_command: pl.DataFrame,
    pci_command: pl.DataFrame,
) -> pl.DataFrame:
    """The kernel's modules that matter to GPUs and networks, as lsmod lists them."""
    prompts = _hosts(module_command, device_command, pci_command)
    headed = set(module_head["source"])  # filtered by grep, a list has no head
    others = dict(other_module.group_by("source").len().iter_rows())
    rows = (
        {
            "source": row["source"],
            "host": _host(prompts, row["source"], row["line"], row["launcher_node"]),
            "module": row["module"],
            "used_by": row["used_by"],
            "is_listing": row["source"] in headed and row["source"] in others,
            "line": row["line"],
        }
        for row in kernel_module.sort("pos").to_dicts()
    )
    return _frame(rows, LOADED_MODULE)


@analysis(PROBLEM, of=("dump_assembly", "rocm_table"))
def dump_problem(dump_assembly: pl.DataFrame, rocm_table: pl.DataFrame) -> pl.DataFrame:
    """What is broken in a dump, in words: rows that are missing, cells out of place, XML that ends too early."""
    failed = rocm_table.filter(pl.col("error").is_not_null()).select(
        "source", "line", problem=pl.format("line {}: rocm-smi: {}", "line", text_of("error"))
    )
    return pl.concat([_taken(dump_assembly, "problems"), failed]).unique(maintain_order=True)
