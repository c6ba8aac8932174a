"""Read NCCL's XML into a tree, line by line. No entity is expanded or fetched; damage is listed as problems."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from ncclforensics.grammar.values import find_values

ROOTS = ("system", "graphs")
GPUS = ("0x03", "0x12")  # PCI classes: display controllers, accelerators
NICS = ("0x02",)
ROWS = 10_000  # of lines, looked at together
MOST_DEPTH = 100  # of elements; bridges below bridges make a dozen


@dataclass(slots=True)
class Element:
    """An XML element with its attributes, its parent and its children."""

    tag: str
    attributes: dict[str, str]
    line: int
    parent: Element | None = None
    children: list[Element] = field(default_factory=list)
    depth: int = 0

    def all(self, *tags: str) -> Iterator[Element]:
        """Yield the descendants with these tags."""
        for child in self.children:
            if child.tag in tags:
                yield child
            yield from child.all(*tags)

    def above(self, tag: str) -> list[Element]:
        """List the ancestors with this tag, outermost first; the element itself counts."""
        ancestors = self.parent.above(tag) if self.parent else []
        return [*ancestors, self] if self.tag == tag else ancestors


@dataclass(slots=True)
class Document:
    """One XML document: a topology (root `system`) or the graphs found in one (root `graphs`)."""

    source: int
    root: Element
    node: str | None  # host in the launcher prefix
    problems: list[tuple[int, str]] = field(default_factory=list)


def read_documents(xml_line: pl.DataFrame, xml_rest: pl.DataFrame) -> Iterator[Document]:
    """Read every document of every source, as far as it is intact. Only one of them is held in memory."""
    lines = pl.concat([xml_line, xml_rest], how="diagonal").sort("pos")
    for (source,), rows in lines.group_by("source", maintain_order=True):
        yield from _documents_of_source(int(str(source)), rows)


def _rows_with_tags(rows: pl.DataFrame) -> Iterator[tuple[dict[str, Any], list[tuple[str, str, dict[str, str]]]]]:
    """The rows in order, each with its tags."""
    for part in rows.iter_slices(ROWS):
        tags_of = _tags(part.select(pl.coalesce(pl.col("elements", "others").cast(pl.String))).to_series())
        yield from ((row, tags_of.get(place, [])) for place, row in enumerate(part.iter_rows(named=True)))


def _documents_of_source(source: int, rows: pl.DataFrame) -> Iterator[Document]:
    document: Document | None = None
    current: Element | None = None  # the innermost element that is open
    leading_problems: list[tuple[int, str]] = []  # those above the first element
    is_comment = False

    def add_problem(line: int, text: str) -> None:
        problems = document.problems if document else leading_problems
        if text not in (other for _, other in problems):
            problems.append((line, text))

    for row, tags in _rows_with_tags(rows):
        form, line = str(row["form"]), row["line"]
        if form == "comment_end":
            is_comment = False
        elif form == "comment":
            is_comment = True
        elif form == "declaration":
            add_problem(line, "declares entities, which are not expanded")
        elif form == "reference":
            add_problem(line, "refers to an entity, which is not expanded")
        elif form == "dump_damage" and not is_comment:
            add_problem(line, "an element is broken off")
        for kind, tag, attributes in () if is_comment else tags:
            if kind == "end":
                open_elements = current.above(tag) if current else []
                current = open_elements[-1].parent if open_elements else current
                continue
            if tag in ROOTS or document is None:
                if current is not None and document:
                    add_problem(line, f"ends inside <{current.tag}>")
                if document:
                    yield document
                root = Element(tag if tag in ROOTS else "system", {}, line)
                document = Document(source, root, row["launcher_node"], leading_problems)
                leading_problems, current = [], root
                if tag in ROOTS:
                    root.attributes = attributes
                    continue
                add_problem(line, "its beginning is missing")
            current = current or document.root
            if current.depth == MOST_DEPTH:
                add_problem(line, f"elements nested more than {MOST_DEPTH} deep are left out")
                continue
            child = Element(tag, attributes, line, current, depth=current.depth + 1)
            current.children.append(child)
            current = current if kind == "empty" else child
    if document:
        if current is not None:
            document.problems.append((document.root.line, f"ends inside <{current.tag}>"))
        yield document


def _tags(texts: pl.Series) -> dict[int, list[tuple[str, str, dict[str, str]]]]:
    """Return the tags of each text, by its row number: kind (start, empty, end), name and attributes.

    >>> _tags(pl.Series(['<gpu dev="0" sm="90"/></pci> <!-- GPU 0 -->']))
    {0: [('empty', 'gpu', {'dev': '0', 'sm': '90'}), ('end', 'pci', {})]}
    """
    found = find_values(texts, "xml_tag")
    attributes: list[dict[str, str]] = [{} for _ in range(found.height)]
    values = find_values(found["attributes"], "xml_attribute").select("text", "name_of_attribute", "content")
    for tag, name, content in values.iter_rows():
        attributes[tag][name] = content or ""
    tags: dict[int, list[tuple[str, str, dict[str, str]]]] = {}
    for (text, kind, name), of_tag in zip(found.select("text", "form", "tag").iter_rows(), attributes, strict=True):
        tags.setdefault(text, []).append((kind, name, of_tag))
    return tags


def pci_path(first: Element, second: Element) -> str | None:
    """Name the path between the PCI devices around two elements as nvidia-smi does: PIX, PXB, PHB or SYS.

    None where a part of a document does not show below which processor they are.
    """
    first_pci, second_pci = first.above("pci"), second.above("pci")
    shared = [a for a, b in zip(first_pci, second_pci, strict=False) if a is b]
    if shared:
        bridges = max(len(first_pci), len(second_pci)) - len(shared)
        return "PIX" if bridges <= 1 else "PXB"
    first_cpu, second_cpu = first.above("cpu")[-1:], second.above("cpu")[-1:]
    if not (first_cpu and second_cpu):
        return None
    return "PHB" if first_cpu == second_cpu else "SYS"


def is_leaf(pci: Element) -> bool:
    """Whether a PCI element is a device and no bridge."""
    return not any(child.tag == "pci" for child in pci.children)
