"""Pages show what commands really print: of incidents of this repository, written anew by `pytest --update`."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from shlex import split

import pytest

from ncclforensics import cli
from tests.incidents import INCIDENTS, ROOT

# `<!-- output: ARGUMENTS -->`, with `| PORTS | COUNTERS THAT GREW` behind it for some of the sections of a report, or
# with `| HEADINGS` for the parts of a page that it writes.
BLOCK = re.compile(
    r"<!-- output: (?P<arguments>.+?)(?: \| (?P<sections>[A-Z][A-Z |]*))? -->\n.*?<!-- end -->\n", re.DOTALL
)
SECTION = re.compile(r"^([A-Z][A-Z ]+[A-Z])(?: |$)")
OF_THE_TEST = ("case.json", "report.md", "report.html")
SAVED = "one-rank-stops-before-an-allreduce"  # the incident whose size is stated
PAGES = [page.name for page in sorted((ROOT / "docs").glob("*.md")) if BLOCK.search(page.read_text(encoding="utf-8"))]


def sections_of(text: str, names: list[str]) -> str:
    """The sections of a report that begin with one of these headings."""
    kept, is_kept = [], False
    for line in text.splitlines():
        if heading := SECTION.match(line):
            is_kept = heading[1] in names
        if is_kept:
            kept.append(line)
    return "\n".join(kept).strip("\n")


def headings_of(page: Path) -> str:
    """The headings of a page, those of its second level indented; each of neighbours of one name once."""
    found = re.findall(r"<h([23])[^>]*>(.*?)</h", page.read_text(encoding="utf-8"), re.DOTALL)
    lines = [f"{'  ' * (level == '3')}{re.sub('<[^>]*>', '', text).strip()}" for level, text in found]
    return "\n".join(line for line, _ in groupby(lines))


def printed(arguments: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What a command prints in a folder, with the files of the incidents that it names."""
    for word in split(arguments):
        if (INCIDENTS / word).is_dir() and not (folder / word).exists():
            shutil.copytree(INCIDENTS / word, folder / word, ignore=shutil.ignore_patterns(*OF_THE_TEST))
    code = cli.main(split(arguments))
    assert code in (0, 1, 3), arguments
    outputs = capsys.readouterr()
    return (outputs.err + outputs.out).replace(f"{folder}{os.sep}", "")


@pytest.mark.parametrize("page", PAGES)
def test_a_page_shows_what_is_printed(
    page: str,
    golden: Callable[[Path, str], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "96")
    monkeypatch.setattr(tempfile, "tempdir", "/tmp")  # which a plan of a capture names

    def block(found: re.Match[str]) -> str:
        arguments, sections = found["arguments"], found["sections"]
        text = printed(arguments, tmp_path, capsys).rstrip("\n")
        if sections == "HEADINGS":
            text = headings_of(tmp_path / split(arguments)[-1])
        elif sections:
            text = sections_of(text, sections.split(" | "))
        marker = found[0].partition("\n")[0]
        return f"{marker}\n\n```text\n$ ncclforensics {arguments}\n{text}\n```\n\n<!-- end -->\n"

    path = ROOT / "docs" / page
    golden(path, BLOCK.sub(block, path.read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    ("options", "sentence"), [([], r"take (\d+) KB \(incident"), (["--tables"], r"then take (\d+) KB")]
)
def test_saved_runs_are_as_large_as_their_page_says(options: list[str], sentence: str, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "handing-on.md").read_text(encoding="utf-8")
    saved = tmp_path / "run.ncclf"

    assert cli.main(["save", str(INCIDENTS / SAVED / "*.log"), "-o", str(saved), "-q", *options]) == 0

    (stated,) = re.findall(sentence, page)
    assert int(stated) * 1024 == pytest.approx(saved.stat().st_size, rel=0.15)
