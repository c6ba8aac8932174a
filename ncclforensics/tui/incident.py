"""The verdict and what led to it: findings as a tree, and each with its meaning, remedy and evidence."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, ClassVar, cast

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text
from textual.binding import Binding, BindingType
from textual.containers import Container, VerticalScroll
from textual.widget import Widget
from textual.widgets import Static, Tree
from textual.widgets.tree import TreeNode

from ncclforensics.tui.screen import At, Page, Place

if TYPE_CHECKING:
    from ncclforensics.rules.finding import Finding
    from ncclforensics.tui import content
    from ncclforensics.tui.content.evidence import Cited
    from ncclforensics.tui.content.incident import Node

AT_REST = 0.05  # seconds
WIDE = 120  # columns from which on the tree stands beside what it is about
STYLE = {"error": "bold red", "warning": "bold yellow", "info": "cyan", "": "bold green"}
Data = tuple[int, ...]  # the path of a node; a line of evidence has one number more, below zero


class Incident(Page):
    """what happened, why it is thought so, and what to do."""

    NAME = "incident"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("r", "ranks", "Its ranks", tooltip="Show the first rank that the verdict names among all ranks"),
        Binding("left_square_bracket,right_square_bracket", "scroll", "Scroll", show=False, tooltip="Scroll the text"),
    ]

    def body(self) -> Iterable[Widget]:
        """The tree, and what is to be said of the node under the cursor."""
        tree: Tree[Data] = Tree("", id="focus")
        tree.show_root = False
        tree.guide_depth = 2
        with Container(id="incident"):
            yield tree
            with VerticalScroll(can_focus=False):
                yield Static("reading …", id="told", markup=False)

    def on_resize(self) -> None:
        """Use the room that there is."""
        self.query_one("#incident").set_class(self.app.size.width >= WIDE, "wide")

    @property
    def _tree(self) -> Tree[Data]:
        return cast("Tree[Data]", self.query_one(Tree))

    @property
    def _part(self) -> content.incident.Incident | None:
        from ncclforensics.tui.content import Failed

        part = self.forensics.facts.parts[self.NAME] if self.forensics.facts else None
        return None if isinstance(part, Failed) else cast("content.incident.Incident | None", part)

    def draw(self, part: object) -> None:
        """Build the tree; the cursor stays where it was."""
        here = self.here()
        incident = cast("content.incident.Incident", part)
        tree = self._tree
        tree.clear()
        for number, node in enumerate(incident.nodes):
            self._add(tree.root, node, (number,))
        self.trouble("\n".join(incident.problems[:3]) if incident.problems else "")
        tree.root.expand()
        self.call_after_refresh(self.show, here or (0,))

    def _add(self, above: TreeNode[Data], node: Node, path: Data) -> None:
        label = Text(no_wrap=True)
        if node.mark:
            label.append(f"{node.mark} ", STYLE[node.severity])
        label.append(node.title, "bold" if node.mark else "italic")
        if node.certainty:
            label.append(f" ({node.certainty})", "dim")
        is_open = bool(node.severity != "info" and node.mark) or not node.mark
        made = above.add(label, path, expand=is_open, allow_expand=bool(node.evidence or node.below))
        for number, below in enumerate(node.below):
            self._add(made, below, (*path, number))
        for number, cited in enumerate(node.evidence, 1):
            made.add_leaf(_line(cited), (*path, -number))

    def _at(self, path: Data) -> tuple[Node | None, Cited | None]:
        """The node at a path, and the line of evidence, if it is one."""
        part, node = self._part, None
        below = part.nodes if part else []
        for number in path:
            if number < 0:
                return node, node.evidence[-number - 1] if node and len(node.evidence) >= -number else None
            if number >= len(below):
                return None, None
            node = below[number]
            below = node.below
        return node, None

    def on_tree_node_highlighted(self, event: Tree.NodeHighlighted[Data]) -> None:
        """Say all about it, once the cursor has come to rest: a key that is held down must not wait for texts."""
        self.set_timer(AT_REST, partial(self._say, event.node.data or ()))

    def _say(self, path: Data) -> None:
        if path != self.here():  # the cursor has moved on
            return
        node, cited = self._at(path)
        if node is not None:
            self.query_one("#told", Static).update(Group(*_told(node, cited)))
            self.query_one(VerticalScroll).scroll_home(animate=False)

    def on_tree_node_selected(self, event: Tree.NodeSelected[Data]) -> None:
        """Evidence opens the log."""
        _, cited = self._at(event.node.data or ())
        if cited is not None:
            self.forensics.go(Place("log", (cited.source, cited.line)))

    def show(self, at: At) -> None:
        """Put the cursor on a node of the tree."""
        nodes = [self._tree.root]
        while nodes:
            node = nodes.pop()
            if node.data == at:
                above = node.parent
                while above is not None:
                    above.expand()
                    above = above.parent
                self.call_after_refresh(self._tree.move_cursor, node)
                return
            nodes += node.children

    def here(self) -> At:
        """The path of the node under the cursor."""
        node = self._tree.cursor_node
        return (node.data or ()) if node else ()

    def finding(self) -> Finding | None:
        """The finding under the cursor."""
        node, _ = self._at(cast("Data", self.here()))
        return node.finding if node else None

    def copied(self) -> str:
        """The line of evidence, or the finding."""
        node, cited = self._at(cast("Data", self.here()))
        if cited is not None:
            return f"{cited.place}: {cited.text}"
        return f"{node.mark} {node.title}".strip() if node else ""

    def action_ranks(self) -> None:
        """Show the first rank that the verdict names."""
        path = cast("Data", self.here())[:1]
        node, _ = self._at(path)
        rank_ids = node.rank_ids if node else []
        self.forensics.go(Place("ranks", tuple(rank_ids[:1])))

    def action_scroll(self) -> None:
        """Scroll the text; at its end, from the beginning."""
        text = self.query_one(VerticalScroll)
        if text.scroll_offset.y >= text.max_scroll_y:
            text.scroll_home(animate=False)
        else:
            text.scroll_page_down(animate=False)


def _line(cited: Cited, *, is_whole: bool = False) -> Text:
    text = Text(no_wrap=not is_whole)
    text.append(f"{cited.what}  " if cited.what else "", "dim")
    text.append(cited.place, "cyan")
    return text.append(f"  {cited.text}")


def _told(node: Node, cited: Cited | None) -> list[RenderableType]:
    """All that is to be said of a node; of a line of evidence first the line itself."""
    parts: list[RenderableType] = []
    if cited is not None:
        parts += [
            Text(cited.place, "cyan"),
            Text(cited.text or "(the log shows it)"),
            Text("enter opens the log\n", "dim"),
        ]
    head = Text(f"{node.mark}  " if node.mark else "", STYLE[node.severity])
    parts.append(head.append(node.title, "bold"))
    for section in node.sections:
        if section.title:
            parts.append(Text(f"\n{section.title}", "bold"))
        parts += [Padding(Text(line), (0, 0, 0, 2 if section.title else 0)) for line in section.lines]
    if not node.sections:
        parts += [Text(f"{below.mark} {below.title}") for below in node.below]
    if node.evidence and cited is None:
        parts.append(Text("\nEvidence", "bold"))
        for each in node.evidence:
            parts.append(Padding(_line(each, is_whole=True), (0, 0, 0, 2)))
    return parts
