"""Who waits for whom, as a tree from those that wait for nobody."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar, cast

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.widget import Widget
from textual.widgets import Static, Tree
from textual.widgets.tree import TreeNode

from ncclforensics.tui.screen import At, Page, Place

if TYPE_CHECKING:
    from ncclforensics.tui.content.waiting import Waiters


class Waiting(Page):
    """who waits for whom: at the root who waits for nobody, below each those who wait for it."""

    NAME = "waiting"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "log", "Log", key_display="enter", tooltip="The call they wait in, in the log", priority=True),
        Binding("r", "ranks", "Ranks", tooltip="The first of these ranks among all ranks"),
        Binding("o", "operations", "Operations", tooltip="The call they wait in among those of the others"),
    ]

    def body(self) -> Iterable[Widget]:
        """The tree."""
        tree: Tree[Waiters] = Tree("", id="focus")
        tree.show_root = False
        tree.guide_depth = 3
        yield Static("Below each stand those who wait for it.", id="title", markup=False)
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
        for one in trees:
            _add(tree.root, one)
        tree.root.expand()
        if not trees:
            self.trouble("nobody is seen to wait for anybody")
        elif tree.root.children:
            self.call_after_refresh(tree.move_cursor, tree.root.children[0])

    def on_tree_node_highlighted(self, event: Tree.NodeHighlighted[Waiters]) -> None:
        """All that is known of it."""
        one = event.node.data
        text = Text()
        if one is not None:
            text.append(one.full)
            text.append(f"\n{one.at.place}" if one.at else "", "cyan")
            text.append("\ncycle: they are waited for by themselves" if one.is_cycle else "", "bold red")
            text.append("\nwho waits for them is shown further up" if one.is_above else "", "dim")
        self.tell("#detail", text)

    def here(self) -> At:
        """The tree alone knows."""
        return ()

    def copied(self) -> str:
        """The node."""
        return self._waiters.full if self._waiters else ""

    def action_log(self) -> None:
        """The line they wait in."""
        one = self._waiters
        if one is not None and one.at is not None:
            self.forensics.go(Place("log", (one.at.source, one.at.line)))

    def action_ranks(self) -> None:
        """The first of them."""
        one = self._waiters
        if one is not None and one.rank_ids:
            self.forensics.go(Place("ranks", (one.rank_ids[0],)))

    def action_operations(self) -> None:
        """Their call."""
        one = self._waiters
        if one is not None and one.rank_ids:
            self.forensics.go(Place("operations", ("", one.rank_ids[0])))


def _add(above: TreeNode[Waiters], one: Waiters) -> None:
    label = Text(no_wrap=True)
    if one.is_culprit:
        label.append("X ", "bold red")
    elif one.is_cycle:
        label.append("↻ ", "bold red")
    else:
        label.append("↑ " if one.is_above else "", "dim")
    label.append(one.title, "bold" if one.is_culprit else "")
    label.append("  (cycle)" if one.is_cycle else "  (see above)" if one.is_above else "", "dim")
    node = above.add(label, one, expand=True, allow_expand=bool(one.below))
    for below in one.below:
        _add(node, below)
