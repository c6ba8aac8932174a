"""Commands to run now, as text: a line holds a command and nothing else, so that it can be copied."""

from __future__ import annotations

from collections import defaultdict

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from ncclforensics.report.next_steps import Command
from ncclforensics.views.text_layout import heading, indented


def run_now(commands: list[Command], most: int) -> list[RenderableType]:
    """Return the commands below the places where to run them; no more than `most` of them."""
    if not commands:
        return []
    more = f" (-v: {len(commands) - most} more)" if len(commands) > most else ""
    shown: dict[str, list[Command]] = defaultdict(list)
    for command in commands[:most]:
        shown[command.where].append(command)
    if len(shown) == 1:
        ((where, group),) = shown.items()
        return [heading(f"RUN NOW on {where}{more}"), *(indented(Text(command.line)) for command in group)]
    parts: list[RenderableType] = [heading(f"RUN NOW{more}")]
    for where, group in shown.items():
        parts.append(indented(Text(f"on {where}:", style="dim")))
        parts += [Padding(Text(command.line), (0, 0, 0, 4)) for command in group]
    return parts
