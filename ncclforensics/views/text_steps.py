"""Commands to run now, as text: a line holds a command and nothing else, so that it can be copied."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from ncclforensics.report.next_steps import Command, by_place, split_step
from ncclforensics.views.text_layout import heading, indented


def run_now(commands: list[Command], most: int) -> list[RenderableType]:
    """Return the commands below the places where to run them; no more than `most` of them."""
    if not commands:
        return []
    more = f" (-v: {len(commands) - most} more)" if len(commands) > most else ""
    shown = by_place(commands[:most])
    if len(shown) == 1:
        ((where, group),) = shown.items()
        return [heading(f"RUN NOW on {where}{more}"), *(_unbroken(line, 2) for line in group)]
    parts: list[RenderableType] = [heading(f"RUN NOW{more}")]
    for where, group in shown.items():
        parts.append(indented(Text(f"on {where}:", style="dim")))
        parts += [_unbroken(line, 4) for line in group]
    return parts


def other_steps(title: str, steps: list[str]) -> list[RenderableType]:
    """Return what else helps, below a title: each step in words, and its command on a line of its own."""
    parts: list[RenderableType] = []
    for step in steps:
        text, command = split_step(step)
        parts += [indented(Text(text + ":" * bool(command))), *([_unbroken(command, 4)] if command else [])]
    return [heading(title), *parts] if parts else []


def _unbroken(line: str, indent: int) -> Text:
    """Return a command as one line, however long, which the terminal wraps: copied, it is still one line."""
    return Text(" " * indent + line, no_wrap=True, overflow="ignore")
