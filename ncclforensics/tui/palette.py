"""The command palette and the search: findings, ranks, communicators, files and commands."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, cast

from rich.text import Text
from textual.command import DiscoveryHit, Hit, Hits, Provider

from ncclforensics.tui.screen import Controller, Place

if TYPE_CHECKING:
    from ncclforensics.tui.content.calls import Calls
    from ncclforensics.tui.content.incident import Incident, Node
    from ncclforensics.tui.content.logs import Log
    from ncclforensics.tui.content.ranks import RankRow

MOST_HITS = 40
Entry = tuple[str, str, Place]  # title, details, where it is shown


class Finder(Provider):
    """Searches the content of all screens."""

    async def discover(self) -> Hits:
        """List all commands, before anything is typed."""
        for command in self.app.get_system_commands(self.screen):
            yield DiscoveryHit(Text(command.title), command.callback, text=command.title, help=command.help)

    async def search(self, query: str) -> Hits:
        """List the commands and entries that match the query."""
        matcher = self.matcher(query)
        for command in self.app.get_system_commands(self.screen):
            if (score := matcher.match(command.title)) > 0:
                yield Hit(score, Text(command.title), command.callback, text=command.title, help=command.help)
        controller = cast("Controller", self.app)
        words = query.lower().split()
        hits = 0
        for title, details, place in _entries(controller):
            if hits < MOST_HITS and all(word in f"{title} {details}".lower() for word in words):
                hits += 1
                yield Hit(1 - hits / 1000, Text(title), partial(controller.go, place), text=title, help=details)


def _entries(controller: Controller) -> Iterator[Entry]:
    from ncclforensics.tui.content import FailedPart

    all_parts = controller.content.parts if controller.content else {}
    parts = {name: part for name, part in all_parts.items() if not isinstance(part, FailedPart)}
    if "incident" in parts:
        yield from _findings(cast("Incident", parts["incident"]).nodes, ())
    for rank_row in cast("list[RankRow]", parts.get("ranks", [])):
        if rank_row.rank_id is not None:
            yield (
                f"{rank_row.name} on {rank_row.host}",
                str(rank_row.state),
                Place("ranks", (rank_row.rank_id,)),
            )
    if "operations" in parts:
        for communicator in cast("Calls", parts["operations"]).communicators:
            yield (
                f"communicator {communicator.key}",
                f"{communicator.nranks} ranks",
                Place("operations", (communicator.key,)),
            )
    for log in cast("list[Log]", parts.get("log", [])):
        yield f"file {log.name}", log.rank_text, Place("log", (log.number, 1))


def _findings(nodes: list[Node], path: tuple[int, ...]) -> Iterator[Entry]:
    for number, node in enumerate(nodes):
        if node.label:
            yield f"{node.label} {node.title}", node.certainty, Place("incident", (*path, number))
        yield from _findings(node.children, (*path, number))
