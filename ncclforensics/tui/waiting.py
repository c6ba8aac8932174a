"""The waiting screen: a tree of waiting ranks; the roots are the ranks that do not wait."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar, cast

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.widget import Widget
from textual.widgets import Static, Tree
from textual.widgets.tree import TreeNode

from ncclforensics.tui.key_tree import KeyTree
from ncclforensics.tui.screen import Page, Place, Position

if TYPE_CHECKING:
    from ncclforensics.tui.content.waiting import Waiters


class Waiting(Page):
    """Which ranks wait for which: below each entry are the ranks that wait for it."""

    NAME = "waiting"
    EMPTY = "no waiting rank found in these logs"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "enter",
            "log",
            "Log",
            key_display="enter",
            tooltip="Open the log at this call",
            priority=True,
        ),
        Binding("r", "ranks", "Ranks", tooltip="Go to the first of these ranks"),
        Binding("o", "operations", "Calls", tooltip="Compare this call with the calls of other ranks"),
    ]

    def compose_body(self) -> Iterable[Widget]:
        """Create the title, the tree and the details."""
        tree: KeyTree[Waiters] = KeyTree("", id="focus")
        tree.show_root = False
        tree.guide_depth = 3
        yield Static("Below each entry are the ranks that wait for it.", id="title", markup=False)
        yield tree
        yield Static("", id="detail", markup=False)

    @property
    def _tree(self) -> Tree[Waiters]:
        return cast("Tree[Waiters]", self.query_one(Tree))

    @property
    def _waiters(self) -> Waiters | None:
        node = self._tree.cursor_node
        return node.data if node else None

    def draw(self, part: object) -> None:
        """Build the tree."""
        trees = cast("list[Waiters]", part)
        tree = self._tree
        tree.clear()
        for waiters in trees:
            _add(tree.root, waiters)
        tree.root.expand()
        if tree.root.children:
            self.call_after_refresh(tree.move_cursor, tree.root.children[0])

    def on_tree_node_highlighted(self, event: Tree.NodeHighlighted[Waiters]) -> None:
        """Show the details of the node."""
        waiters = event.node.data
        text = Text()
        if waiters is not None:
            text.append(waiters.full_title)
            text.append(f"\n{waiters.cited.location}" if waiters.cited else "", "cyan")
            text.append("\ncycle: these ranks wait for themselves" if waiters.is_cycle else "", "bold red")
            text.append("\nthe ranks that wait for them are listed above" if waiters.is_listed_above else "", "dim")
        self.set_text("#detail", text)

    def cursor_position(self) -> Position:
        """Return no position: the tree is rebuilt on every visit."""
        return ()

    def clipboard_text(self) -> str:
        """Return the title of the node with all rank numbers."""
        return self._waiters.full_title if self._waiters else ""

    def action_log(self) -> None:
        """Open the log at the call in which the ranks wait."""
        waiters = self._waiters
        if waiters is not None and waiters.cited is not None:
            self.controller.go(Place("log", (waiters.cited.source, waiters.cited.line)))

    def action_ranks(self) -> None:
        """Go to the first of these ranks."""
        waiters = self._waiters
        if waiters is not None and waiters.rank_ids:
            self.controller.go(Place("ranks", (waiters.rank_ids[0],)))

    def action_operations(self) -> None:
        """Go to the call in which the ranks wait."""
        waiters = self._waiters
        if waiters is not None and waiters.rank_ids:
            self.controller.go(Place("operations", ("", waiters.rank_ids[0])))


def _add(parent: TreeNode[Waiters], waiters: Waiters) -> None:
    label = Text(no_wrap=True)
    if waiters.is_culprit:
        label.append("X ", "bold red")
    elif waiters.is_cycle:
        label.append("↻ ", "bold red")
    else:
        label.append("↑ " if waiters.is_listed_above else "", "dim")
    label.append(waiters.title, "bold" if waiters.is_culprit else "")
    label.append("  (cycle)" if waiters.is_cycle else "  (see above)" if waiters.is_listed_above else "", "dim")
    node = parent.add(label, waiters, expand=True, allow_expand=bool(waiters.children))
    for child in waiters.children:
        _add(node, child)
