"""The command palette and the search: findings, ranks, hosts, communicators, rules, files and commands."""

from __future__ import annotations

from asyncio import sleep
from collections.abc import Iterator
from functools import partial
from heapq import nlargest
from typing import TYPE_CHECKING, cast

from rich.text import Text
from textual.command import DiscoveryHit, Hit, Hits, Provider

from ncclforensics.data.names import ranks_text
from ncclforensics.tui.prompts import TextPage
from ncclforensics.tui.screen import Controller, Place

if TYPE_CHECKING:
    from ncclforensics.rules.registry import Rule
    from ncclforensics.tui.content.calls import Calls
    from ncclforensics.tui.content.incident import Incident, Node
    from ncclforensics.tui.content.logs import Log
    from ncclforensics.tui.content.ranks import RankRow

ENTRIES_AT_ONCE = 50  # entries compared before keys are handled
MOST_HITS = 40
MOST_SCORED = 1000  # entries that the matcher compares
Entry = tuple[str, str, "Place | Rule"]  # title, details, where it is shown; of a rule without findings, its page


class Finder(Provider):
    """Searches the content of all screens."""

    async def startup(self) -> None:
        """List what can be found, once for each time that the palette is opened."""
        self._entries = list(_entries(cast("Controller", self.app)))

    async def discover(self) -> Hits:
        """List all commands, before anything is typed."""
        for command in self.app.get_system_commands(self.screen):
            yield DiscoveryHit(Text(command.title), command.callback, text=command.title, help=command.help)

    async def search(self, query: str) -> Hits:
        """List the commands and entries that match the query: letters in its order, best match first."""
        matcher = self.matcher(query)
        for command in self.app.get_system_commands(self.screen):
            if (score := matcher.match(command.title)) > 0:
                yield Hit(
                    score, matcher.highlight(command.title), command.callback, text=command.title, help=command.help
                )
        controller = cast("Controller", self.app)
        words = query.lower().split()
        # A text that holds the words themselves is the better match, and the matcher costs a hundred times as much.
        matching = [entry for entry in self._entries if all(word in entry[0].lower() for word in words)]
        if len(matching) < MOST_HITS:
            letters = "".join(words)
            matching = [entry for entry in self._entries if _has_in_order(entry[0].lower(), letters)]
        found: list[tuple[float, int, Entry]] = []  # the number decides between equal scores
        for number, entry in enumerate(matching[:MOST_SCORED]):
            if number % ENTRIES_AT_ONCE == 0:
                await sleep(0)  # keys come first
            if (score := matcher.match(entry[0])) > 0:
                found.append((score, -number, entry))
        for score, _, (title, details, place) in nlargest(MOST_HITS, found):
            go = partial(controller.go, place) if isinstance(place, Place) else partial(self._show_page, place)
            yield Hit(score, matcher.highlight(title), go, text=title, help=details)

    def _show_page(self, rule: Rule) -> None:
        from ncclforensics.views.explain_text import of_rule

        self.app.push_screen(TextPage(of_rule(rule)))


def _has_in_order(text: str, letters: str) -> bool:
    """Whether a text contains these letters in this order: what the matcher needs, and cheaper to ask first."""
    rest = iter(text)
    return all(letter in rest for letter in letters)


def _entries(controller: Controller) -> Iterator[Entry]:
    from ncclforensics.tui.content import FailedPart

    all_parts = controller.content.parts if controller.content else {}
    parts = {name: part for name, part in all_parts.items() if not isinstance(part, FailedPart)}
    if "incident" in parts:
        yield from _findings(cast("Incident", parts["incident"]).nodes, ())
    rank_rows = cast("list[RankRow]", parts.get("ranks", []))
    hosts: dict[str, list[RankRow]] = {}
    for rank_row in rank_rows:
        if rank_row.rank_id is not None:
            hosts.setdefault(rank_row.host, []).append(rank_row)
    for host, on_host in hosts.items():
        yield (
            f"host {host}",
            ranks_text(row.rank for row in on_host if row.rank is not None),
            Place("ranks", (on_host[0].rank_id,)),
        )
    for rank_row in rank_rows:
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
    if controller.content is not None:
        found = {finding.rule for finding in controller.content.report.findings}
        for rule in controller.content.report.rules:
            if rule.name not in found:
                yield f"rule {rule.name}", "no finding; shows what the rule means", rule


def _findings(nodes: list[Node], path: tuple[int, ...]) -> Iterator[Entry]:
    for number, node in enumerate(nodes):
        if node.label:
            rule = f"rule {node.finding.rule}" if node.finding else ""
            title = " ".join(filter(None, (node.label, node.title, rule)))
            yield title, node.certainty, Place("incident", (*path, number))
        yield from _findings(node.children, (*path, number))
