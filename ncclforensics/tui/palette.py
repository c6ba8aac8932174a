"""What search and the palette find: findings, ranks, communicators, files, and all commands."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, cast

from rich.text import Text
from textual.command import DiscoveryHit, Hit, Hits, Provider

from ncclforensics.tui.screen import Place

if TYPE_CHECKING:
    from ncclforensics.tui.app import Forensics
    from ncclforensics.tui.content.calls import Calls
    from ncclforensics.tui.content.incident import Incident, Node
    from ncclforensics.tui.content.logs import Log
    from ncclforensics.tui.content.ranks import RankRow

MOST = 40  # hits of a search among thousands of ranks
Entry = tuple[str, str, Place]


class Finder(Provider):
    """Searches what the screens show."""

    async def discover(self) -> Hits:
        """Before anything is typed: the screens and what can be done."""
        for command in self.app.get_system_commands(self.screen):
            yield DiscoveryHit(Text(command.title), command.callback, text=command.title, help=command.help)

    async def search(self, query: str) -> Hits:
        """What fits to what is typed."""
        matcher = self.matcher(query)
        for command in self.app.get_system_commands(self.screen):
            if (score := matcher.match(command.title)) > 0:
                yield Hit(score, Text(command.title), command.callback, text=command.title, help=command.help)
        app = cast("Forensics", self.app)
        words = query.lower().split()
        found = 0
        for title, told, place in _entries(app):
            if found < MOST and all(word in f"{title} {told}".lower() for word in words):
                found += 1
                yield Hit(1 - found / 1000, Text(title), partial(app.go, place), text=title, help=told)


def _entries(app: Forensics) -> Iterator[Entry]:
    from ncclforensics.tui.content import Failed

    made = app.facts.parts if app.facts else {}
    parts = {name: part for name, part in made.items() if not isinstance(part, Failed)}
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
        for one in cast("Calls", parts["operations"]).communicators:
            yield f"communicator {one.key}", f"{one.nranks} ranks", Place("operations", (one.key,))
    for log in cast("list[Log]", parts.get("log", [])):
        yield f"file {log.name}", log.speakers, Place("log", (log.number, 1))


def _findings(nodes: list[Node], path: tuple[int, ...]) -> Iterator[Entry]:
    for number, node in enumerate(nodes):
        if node.mark:
            yield f"{node.mark} {node.title}", node.certainty, Place("incident", (*path, number))
        yield from _findings(node.below, (*path, number))
