"""Textual's tree with the keys of the other screens."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.widgets import Tree
from textual.widgets.tree import TreeDataType


class KeyTree(Tree[TreeDataType]):
    """A tree whose cursor also goes by `j`, `k`, to the first line by `g` and `home`, to the last by `G` and `end`."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("k", "cursor_up", show=False),
        Binding("j", "cursor_down", show=False),
        Binding("home,g", "edge(0)", show=False),
        Binding("end,G", "edge(1)", show=False),
    ]

    def action_edge(self, last: int) -> None:
        """Move to the first or the last line."""
        self.move_cursor(self.get_node_at_line(self.last_line * last))
