"""What the first screen of a hang shows of a few pasted lines, and what it does not claim."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ncclforensics import analyze
from ncclforensics.views.text_screen import screen

WIDTH = 100
FILE = Path(__file__).parent / "pasted_excerpts.txt"


def excerpts() -> Iterator[object]:
    """Read the excerpts: a name, the words that the screen shows and hides, and the text."""
    for block in FILE.read_text().split("#### ")[1:]:
        head, _, text = block.partition("----\n")
        name, *words = head.splitlines()
        shown, hidden = ([line[7:] for line in words if line.startswith(key)] for key in ("shows: ", "hides: "))
        yield pytest.param(text, shown, hidden, id=name)


@pytest.mark.parametrize(("text", "shown", "hidden"), list(excerpts()))
def test_the_first_screen_of_an_excerpt_shows(text: str, shown: list[str], hidden: list[str], tmp_path: Path) -> None:
    (log := tmp_path / "log.txt").write_text(text)
    seen = " ".join(screen(analyze(log), width=WIDTH).split())

    assert [words for words in shown if words not in seen] == []
    assert [words for words in hidden if words in seen] == []
