"""Devices, NVLinks and paths of a machine in NCCL's topology XML."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from ncclforensics.analyses.host.nccl_xml import GPUS, NICS, Element, is_leaf, pci_path
from ncclforensics.analyses.host.numbers import parse_transfer_rate
from ncclforensics.data.names import parse_short_integer

NVSWITCH_CLASS = "0x0680"
MOST_PATHS = 1 << 16  # from GPUs to GPUs and NICs: 144 GPUs that share NVLink have 41,000


def device_rows(root: Element) -> Iterator[dict[str, Any]]:
    """List the GPUs and NICs of a topology.

    A file that describes a kind of machine names no GPU or NIC: there, leaf PCI devices count by their class.
    """
    for gpu in root.all("gpu"):
        yield {"kind": "gpu", "device": _gpu_name(gpu), "line": gpu.line, **_pci_columns(gpu)}
    nets = [net for net in root.all("net") if net.attributes.get("name")]
    on_pci = [net for net in nets if net.above("pci")] or nets  # those off PCI are interfaces such as bridges
    listed: set[str] = set()
    for net in on_pci:
        name = net.attributes["name"]
        if name not in listed:
            listed.add(name)
            yield {"kind": "nic", "device": name, "name": name, "line": net.line, **_pci_columns(net)}
    for pci in root.all("pci"):
        pci_class = pci.attributes.get("class", "")
        is_unlisted = is_leaf(pci) and not any(pci.all("gpu", "net", "nic"))
        kind = "gpu" if pci_class.startswith(GPUS) else "nic" if pci_class.startswith(NICS) else None
        if is_unlisted and kind:
            yield {"kind": kind, "device": pci.attributes.get("busid"), "line": pci.line, **_pci_columns(pci)}


def _ends_of_paths(root: Element) -> tuple[list[Element], dict[str, Element]]:
    """The GPUs of a topology, and its NICs by their names."""
    gpus = [gpu for gpu in root.all("gpu") if gpu.above("pci")]
    return gpus, {name: nic for nic in root.all("net") if nic.above("pci") and (name := nic.attributes.get("name"))}


def _are_too_many(gpus: list[Element], nics: dict[str, Element]) -> bool:
    return len(gpus) * (len(gpus) + len(nics)) > MOST_PATHS


def is_too_large(root: Element) -> bool:
    """Whether a topology has more paths than those of any machine: it is damaged, or put together of many."""
    return _are_too_many(*_ends_of_paths(root))


def path_rows(root: Element) -> Iterator[dict[str, Any]]:
    """List the best path from each GPU to every other GPU and NIC: NVLink where there is one, else PCIe.

    Nothing where there are more than MOST_PATHS.
    """
    gpus, nics = _ends_of_paths(root)
    if _are_too_many(gpus, nics):
        return
    links = {id(gpu): _link_counts(gpu) for gpu in gpus}
    lines = {(id(gpu), link.attributes.get("target")): link.line for gpu in gpus for link in gpu.all("nvlink", "xgmi")}
    for gpu in gpus:
        switched, direct, kind = links[id(gpu)]
        for other in gpus:
            if other is gpu:
                continue
            busid = other.above("pci")[-1].attributes.get("busid", "")
            through_switch = min(switched, links[id(other)][0])
            count = direct.get(busid, 0) or through_switch
            path = (f"{kind}{count}" if kind == "NV" else kind) if count else pci_path(gpu, other)
            line = lines.get((id(gpu), busid), gpu.line)
            if path is not None:
                yield {"device": _gpu_name(gpu), "other": _gpu_name(other), "path": path, "line": line}
        for name, nic in nics.items():
            if (path := pci_path(gpu, nic)) is not None:
                yield {"device": _gpu_name(gpu), "other": name, "path": path, "line": gpu.line}


def nvlink_rows(root: Element) -> Iterator[dict[str, Any]]:
    """Count the NVLinks of each GPU."""
    for gpu in root.all("gpu"):
        switched, direct, kind = _link_counts(gpu)
        if kind == "NV":
            model = _pci_columns(gpu).get("model")
            links = switched + sum(direct.values())
            yield {"device": _gpu_name(gpu), "model": model, "links": links, "line": gpu.line}


def _gpu_name(gpu: Element) -> str:
    return f"GPU{gpu.attributes.get('dev', '?')}"


def _link_counts(gpu: Element) -> tuple[int, dict[str, int], str]:
    """Count NVLinks to switches, and links to other devices by PCI address; with the kind of link, NV or XGMI."""
    switched, direct, kind = 0, Counter[str](), "NV"
    for link in gpu.all("nvlink", "xgmi"):
        kind = "NV" if link.tag == "nvlink" else "XGMI"
        count = parse_short_integer(link.attributes.get("count")) or 0
        if link.attributes.get("tclass", "").startswith(NVSWITCH_CLASS):
            switched += count
        else:
            direct[link.attributes.get("target", "")] += count
    return switched, dict(direct), kind


def _pci_columns(element: Element) -> dict[str, Any]:
    """Model, NUMA node and PCIe link of the innermost PCI device around an element."""
    above = element.above("pci")
    if not above:
        return {}
    attributes, cpu = above[-1].attributes, element.above("cpu")
    # Without a device number, GPUs of one class count as one model. NICs do not: hosts have NICs of their own besides.
    is_gpu = attributes.get("class", "").startswith(GPUS)
    model = attributes["class"] if is_gpu else None
    if "device" in attributes:
        model = f"{attributes.get('vendor', '?')}:{attributes['device']}"
    return {
        "model": model,
        "numa": cpu[-1].attributes.get("numaid") if cpu else None,
        "speed": parse_transfer_rate(attributes.get("link_speed")),
        "width": parse_short_integer(attributes.get("link_width")),
        "link_line": above[-1].line,
    }
