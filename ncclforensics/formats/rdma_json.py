"""Read the JSON of the rdma tool (-j): an array with an object for each link."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ncclforensics.formats import Record
from ncclforensics.inputs.tolerant_json import (
    json_array,
    json_int32,
    json_integer,
    json_object,
    json_text,
    parse_json,
)

MAGIC = b"["
MARKER = b'"ifname"'
NO_STATISTICS = ("ifindex", "port", "lid", "sm_lid", "lmc", "netdev_index")


def records(data: bytes) -> tuple[list[Record], list[str]]:
    """Return the links and their statistics, and problems."""
    document, problems = parse_json(data)
    return [record for link in json_array(document) for record in _link(json_object(link))], problems


def _link(link: Mapping[str, Any]) -> Iterator[Record]:
    device, port = json_text(link.get("ifname")), json_int32(link.get("port"))
    if device is None or port is None:
        return  # of `ip link`, say
    place = {"form": "", "device": device, "port": port}
    if "state" in link:
        texts = {name: json_text(link.get(name)) for name in ("state", "physical_state", "netdev")}
        yield "rdma_link", {**place, **texts, "lid": json_int32(link.get("lid"))}
        return
    counted = {name: json_integer(value) for name, value in link.items() if name not in NO_STATISTICS}
    pairs = (f"{name} {value}" for name, value in counted.items() if value is not None and value >= 0)
    yield "rdma_statistic", {**place, "statistics": " ".join(pairs)}
