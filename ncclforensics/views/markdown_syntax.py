"""Markdown as GitHub and GitLab read it; text from logs stays text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ncclforensics.data.names import INVISIBLE, printable

_SPECIAL = str.maketrans({character: f"\\{character}" for character in "\\`*_{}[]<>|"})
# With a letter or a digit behind them: references to people, issues, merge requests, snippets, milestones, labels.
_REFERENCES = "@#!$%~&"


def inline(text: str) -> str:
    r"""Escape text for the flow of a paragraph or a cell, so that `#13` is no link to an issue and `@x` no person.

    >>> inline("AllReduce #13 <b>")
    'AllReduce <span>#</span>13 \\<b\\>'
    """
    plain = _visible(text)
    escaped = []
    for before, character, after in zip(["", *plain], plain, [*plain[1:], ""], strict=False):
        if character in _REFERENCES and (after.isalnum() or after == '"'):
            escaped.append(f"<span>{'&amp;' if character == '&' else character}</span>")
        elif character == "_" and before.isalnum() and after.isalnum():  # emphasises nothing
            escaped.append(character)
        else:
            escaped.append(character.translate(_SPECIAL))
    return "".join(escaped)


def code(text: str) -> str:
    """Return text as code in a line or a cell.

    >>> code("a b"), code("`x`")
    ('`a b`', '`` `x` ``')
    """
    plain = _visible(text)
    if not plain:
        return ""
    marks = "`" * (_longest_run(plain) + 1)
    space = " " if plain[0] == "`" or plain[-1] == "`" else ""
    return f"{marks}{space}{plain}{space}{marks}"


def fenced(body: str) -> str:
    """Return lines of text as a block of code that they cannot end, invisible characters as escapes."""
    body = "".join(f"{_visible(line)}\n" for line in body.removesuffix("\n").split("\n"))
    fence = "`" * max(3, _longest_run(body) + 1)
    return f"{fence}text\n{body}{fence}\n"


def section(title: str, body: str) -> str:
    """Return a title with a fenced text."""
    return f"## {title}\n\n{fenced(body)}"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; the cells are Markdown already."""
    lines = [heads, ["---"] * len(heads), *([_cell(cell) for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _cell(text: str) -> str:
    """Escape what divides cells, in code too."""
    return text.replace("\\|", "|").replace("|", "\\|")


def details(summary: str, body: str) -> str:
    """Return Markdown that is shown on request."""
    return f"<details><summary>{inline(summary)}</summary>\n\n{body}\n</details>\n"


def _visible(text: str) -> str:
    return printable(text.replace("\t", " ").translate(INVISIBLE))


def _longest_run(text: str) -> int:
    longest = run = 0
    for character in text:
        run = run + 1 if character == "`" else 0
        longest = max(longest, run)
    return longest
