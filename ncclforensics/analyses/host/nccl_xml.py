"""NCCL's XML as a tree. Lines are taken as they are: nothing is expanded or fetched, and what is broken is told."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import polars as pl

ROOTS = ("system", "graphs")
BRIDGE = "0x0604"
GPUS = ("0x03", "0x12")  # classes of PCI devices: display controllers, accelerators
NICS = ("0x02",)


@dataclass(slots=True)
class Element:
    """An element, its attributes, and the elements it stands in."""

    tag: str
    attributes: dict[str, str]
    line: int
    parent: Element | None = None
    inside: list[Element] = field(default_factory=list)

    def all(self, *tags: str) -> Iterator[Element]:
        """The elements of these names inside, at any depth."""
        for each in self.inside:
            if each.tag in tags:
                yield each
            yield from each.all(*tags)

    def above(self, tag: str) -> list[Element]:
        """The elements of that name that it stands in, or is itself, the outermost first."""
        outer = self.parent.above(tag) if self.parent else []
        return [*outer, self] if self.tag == tag else outer


@dataclass(slots=True)
class Document:
    """One topology, or the graphs of one."""

    source: int
    root: Element
    node: str | None  # as a launcher names it
    problems: list[tuple[int, str]] = field(default_factory=list)


def documents(xml_line: pl.DataFrame, xml_rest: pl.DataFrame) -> list[Document]:
    """Every document of every source, as far as it can be read."""
    found: list[Document] = []
    both = pl.concat([xml_line, xml_rest], how="diagonal").sort("pos")
    for (source,), rows in both.group_by("source", maintain_order=True):
        found += _documents(int(str(source)), rows)
    return found


def _documents(source: int, rows: pl.DataFrame) -> list[Document]:
    found: list[Document] = []
    here: Element | None = None
    waiting: list[tuple[int, str]] = []  # problems in front of the first element
    is_comment = False

    def problem(line: int, words: str) -> None:
        told = found[-1].problems if found else waiting
        if words not in (other for _, other in told):
            told.append((line, words))

    for row in rows.to_dicts():
        form, line = str(row["form"]), row["line"]
        if form == "comment_end":
            is_comment = False
        elif form == "comment":
            is_comment = True
        elif form == "declaration":
            problem(line, "declares entities, which are not expanded")
        elif form == "reference":
            problem(line, "refers to an entity, which is not expanded")
        elif form == "dump_damage" and not is_comment:
            problem(line, "an element is broken off")
        text = "" if is_comment else row["elements"] or row["others"] or ""
        for tag, attributes, is_end, is_whole in _elements(text):
            if is_end:
                above = here.above(tag) if here else []
                here = above[-1].parent if above else here
                continue
            if tag in ROOTS or not found:
                if here is not None and found:
                    problem(line, f"ends inside <{here.tag}>")
                root = Element(tag if tag in ROOTS else "system", {}, line)
                found.append(Document(source, root, row["launcher_node"], waiting))
                waiting, here = [], root
                if tag in ROOTS:
                    root.attributes = attributes
                    continue
                problem(line, "its beginning is missing")
            here = here or found[-1].root
            made = Element(tag, attributes, line, here)
            here.inside.append(made)
            here = here if is_whole else made
    if here is not None and found:
        found[-1].problems.append((found[-1].root.line, f"ends inside <{here.tag}>"))
    return found


def _elements(text: str) -> Iterator[tuple[str, dict[str, str], bool, bool]]:
    """Name, attributes, whether it is an end, and whether it is whole.

    >>> list(_elements('<gpu dev="0" sm="90"/></pci> <!-- GPU 0 -->'))
    [('gpu', {'dev': '0', 'sm': '90'}, False, True), ('pci', {}, True, False)]
    """
    for piece in text.split(">"):
        inner = piece.strip().removeprefix("<")
        if not inner or inner.startswith("!"):
            continue
        name, _, rest = inner.rstrip("/ ").partition(" ")
        words = rest.split('"')
        pairs = zip(words[::2], words[1::2], strict=False)
        attributes = {key.strip().rstrip("="): value for key, value in pairs}
        yield name.removeprefix("/"), attributes, name.startswith("/") or inner.startswith("/"), inner.endswith("/")


def path(one: Element, other: Element) -> str:
    """How the PCIe devices that two elements stand in reach each other, in the words of nvidia-smi."""
    mine, theirs = one.above("pci"), other.above("pci")
    shared = [a for a, b in zip(mine, theirs, strict=False) if a is b]
    if shared:
        bridges = max(len(mine), len(theirs)) - len(shared)
        return "PIX" if bridges <= 1 else "PXB"
    same_cpu = one.above("cpu")[-1:] and one.above("cpu")[-1:] == other.above("cpu")[-1:]
    return "PHB" if same_cpu else "SYS"


def is_leaf(pci: Element) -> bool:
    """Whether it is a device and no bridge."""
    return not any(each.tag == "pci" for each in pci.inside)
