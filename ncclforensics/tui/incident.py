"""The incident screen: a tree of verdicts and findings, and the explanation of the selected one."""

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

from ncclforensics.report.condensed_lines import condensed
from ncclforensics.tui.key_tree import KeyTree
from ncclforensics.tui.screen import Page, Place, Position

if TYPE_CHECKING:
    from ncclforensics.rules.finding import Finding
    from ncclforensics.tui import content
    from ncclforensics.tui.content.evidence import CitedLine
    from ncclforensics.tui.content.incident import Node

SHORT = 40  # characters of a cited line that fit behind its place in a narrow tree
EXPLAIN_DELAY = 0.05  # seconds that the cursor must rest before the explanation is drawn
WIDE = 120  # columns of a terminal that has room for tree and explanation side by side
STYLE = {"error": "bold red", "warning": "bold yellow", "info": "cyan", "": "bold green"}
NodePath = tuple[int, ...]  # child indices from the root; a line of evidence adds its negative number


class Incident(Page):
    """The verdict, the findings with their evidence, and what to do next."""

    NAME = "incident"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("r", "ranks", "Ranks", tooltip="Go to the first rank that the verdict names"),
        Binding("n", "next_finding(1)", "Next", tooltip="Go to the next finding"),
        Binding("N", "next_finding(-1)", "Previous", show=False, tooltip="Go to the previous finding"),
        Binding(
            "left_square_bracket,right_square_bracket", "scroll", "Scroll", show=False, tooltip="Scroll the explanation"
        ),
    ]

    def compose_body(self) -> Iterable[Widget]:
        """Create the tree and the explanation."""
        tree: KeyTree[NodePath] = KeyTree("", id="focus")
        tree.show_root = False
        tree.guide_depth = 2
        with Container(id="incident"):
            yield tree
            with VerticalScroll(can_focus=False):
                yield Static("reading …", id="explanation", markup=False)

    def on_resize(self) -> None:
        """Put the explanation beside the tree if the terminal is wide enough."""
        self.query_one("#incident").set_class(self.app.size.width >= WIDE, "wide")

    @property
    def _tree(self) -> Tree[NodePath]:
        return cast("Tree[NodePath]", self.query_one(Tree))

    @property
    def _part(self) -> content.incident.Incident | None:
        from ncclforensics.tui.content import FailedPart

        part = self.controller.content.parts[self.NAME] if self.controller.content else None
        return None if isinstance(part, FailedPart) else cast("content.incident.Incident | None", part)

    def draw(self, part: object) -> None:
        """Build the tree; the cursor stays at its position."""
        position = self.cursor_position()
        incident = cast("content.incident.Incident", part)
        tree = self._tree
        tree.clear()
        for number, node in enumerate(incident.nodes):
            self._add(tree.root, node, (number,))
        self.show_problem("\n".join(incident.problems[:3]) if incident.problems else "")
        tree.root.expand()
        self.call_after_refresh(self.go_to, position or (0,))
        self.call_after_refresh(self._explain_again)

    def _add(self, parent: TreeNode[NodePath], node: Node, path: NodePath) -> None:
        label = Text(no_wrap=True)
        if node.label:
            label.append(f"{node.label} ", STYLE[node.severity])
        if node.certainty:
            label.append(f"({node.certainty}) ", "dim")
        label.append(node.title, "bold" if node.label else "green" if node.is_command else "italic")
        is_open = bool(node.severity != "info" and node.label) or not node.label
        branch = parent.add(label, path, expand=is_open, allow_expand=bool(node.evidence or node.children))
        for number, child in enumerate(node.children):
            self._add(branch, child, (*path, number))
        for number, cited in enumerate(node.evidence, 1):
            branch.add_leaf(_line(cited), (*path, -number))

    def _find(self, path: NodePath) -> tuple[Node | None, CitedLine | None]:
        """Return the node at a path, and the line of evidence if the path leads to one."""
        part, node = self._part, None
        children = part.nodes if part else []
        for number in path:
            if number < 0:
                return node, node.evidence[-number - 1] if node and len(node.evidence) >= -number else None
            if number >= len(children):
                return None, None
            node = children[number]
            children = node.children
        return node, None

    def on_tree_node_highlighted(self, event: Tree.NodeHighlighted[NodePath]) -> None:
        """Explain the node once the cursor rests: a key that is held down must not wait for the text."""
        self.set_timer(EXPLAIN_DELAY, self.unless_closed(partial(self._explain, event.node.data or ())))

    def _explain_again(self) -> None:
        """Explain the node under the cursor anew: its text may have changed, though the cursor has not moved."""
        self._explain(cast("NodePath", self.cursor_position()))

    def _explain(self, path: NodePath) -> None:
        if path != self.cursor_position():  # the cursor has moved on
            return
        node, cited = self._find(path)
        if node is not None:
            self.query_one("#explanation", Static).update(Group(*_explanation(node, cited)))
            self.query_one(VerticalScroll).scroll_home(animate=False)

    def on_tree_node_selected(self, event: Tree.NodeSelected[NodePath]) -> None:
        """Open the log at a line of evidence."""
        _, cited = self._find(event.node.data or ())
        if cited is not None:
            self.controller.go(Place("log", (cited.source, cited.line)))

    def go_to(self, position: Position) -> None:
        """Put the cursor on the node with this path."""
        nodes = [self._tree.root]
        while nodes:
            node = nodes.pop()
            if node.data == position:
                parent = node.parent
                while parent is not None:
                    parent.expand()
                    parent = parent.parent
                self.call_after_refresh(self._tree.move_cursor, node)
                return
            nodes += node.children

    def cursor_position(self) -> Position:
        """Return the path of the node under the cursor."""
        node = self._tree.cursor_node
        return (node.data or ()) if node else ()

    def finding(self) -> Finding | None:
        """Return the finding under the cursor, if there is one."""
        node, _ = self._find(cast("NodePath", self.cursor_position()))
        return node.finding if node else None

    def clipboard_text(self) -> str:
        """Return the command, the line of evidence, or the title of the finding."""
        node, cited = self._find(cast("NodePath", self.cursor_position()))
        if cited is not None:
            return f"{cited.location}: {cited.text}"
        return f"{node.label} {node.title}".strip() if node else ""

    def action_ranks(self) -> None:
        """Go to the first rank that the verdict names."""
        path = cast("NodePath", self.cursor_position())[:1]
        node, _ = self._find(path)
        rank_ids = node.rank_ids if node else []
        self.controller.go(Place("ranks", tuple(rank_ids[:1])))

    def action_next_finding(self, by: int) -> None:
        """Go to the next verdict or finding; from the last, to the first."""
        tree = self._tree
        lines = [line for line in range(tree.last_line + 1) if self._is_finding(tree.get_node_at_line(line))]
        later = [line for line in lines[::by] if (line - tree.cursor_line) * by > 0]
        if lines:
            tree.move_cursor(tree.get_node_at_line((later or lines[::by])[0]))

    def _is_finding(self, tree_node: TreeNode[NodePath] | None) -> bool:
        node, cited = self._find(tree_node.data or ()) if tree_node else (None, None)
        return node is not None and cited is None and bool(node.label)

    def action_scroll(self) -> None:
        """Scroll the explanation down; from its end, back to the top."""
        text = self.query_one(VerticalScroll)
        if text.scroll_offset.y >= text.max_scroll_y:
            text.scroll_home(animate=False)
        else:
            text.scroll_page_down(animate=False)


def _line(cited: CitedLine, *, is_wrapped: bool = False) -> Text:
    text = Text(no_wrap=not is_wrapped)
    text.append(f"{cited.label}  " if cited.label else "", "dim")
    text.append(cited.location, "cyan")
    return text.append(f"  {cited.text if is_wrapped else condensed(cited.text, SHORT)}")


def _explanation(node: Node, cited: CitedLine | None) -> list[RenderableType]:
    """Render the sections and the evidence of a node; for a line of evidence, the line comes first."""
    parts: list[RenderableType] = []
    if cited is not None:
        parts += [
            Text(cited.location, "cyan"),
            Text(cited.text or "(open the log to see the line)"),
            Text("enter opens the log\n", "dim"),
        ]
    head = Text(f"{node.label}  " if node.label else "", STYLE[node.severity])
    if node.certainty:
        head.append(f"({node.certainty})  ", "dim")
    parts.append(head.append(node.title, "bold"))
    for section in node.sections:
        if section.title:
            parts.append(Text(f"\n{section.title}", "bold"))
        parts += [Padding(Text(line), (0, 0, 0, 2 if section.title else 0)) for line in section.lines]
    if not node.sections:
        parts += [Text(f"{child.label} {child.title}".strip()) for child in node.children]
    if node.evidence and cited is None:
        parts.append(Text("\nEvidence", "bold"))
        for line in node.evidence:
            parts.append(Padding(_line(line, is_wrapped=True), (0, 0, 0, 2)))
    return parts
