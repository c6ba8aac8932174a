"""The site of the documentation builds without a warning, and the tutorial shows what the program prints."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from shlex import split
from urllib.parse import unquote, urlsplit

import pytest

from ncclforensics import cli
from tests.incidents import ROOT

DOCS = ROOT / "docs"
pytestmark = pytest.mark.xdist_group("site")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` does, but for the examples, which take a minute."""
    for library in ("sphinx", "furo", "myst_parser"):
        pytest.importorskip(library, reason="the extra `docs` is not installed")
    folder = tmp_path_factory.mktemp("site")
    options = ["-W", "--keep-going", "-q", "-D", "rule_examples=0"]
    command = [sys.executable, "-m", "sphinx", *options, "-d", str(folder / "trees"), str(DOCS), str(folder / "html")]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return folder / "html"


class Links(HTMLParser):
    """What a page links to, what it loads, and the names that links lead to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.linked: list[str] = []
        self.loaded: list[str] = []
        self.names: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.names |= {name for name in (given.get("id"), given.get("name")) if name}
        if tag == "a" and given.get("href"):
            self.linked.append(str(given["href"]))
        elif tag in ("script", "img", "iframe") and given.get("src"):
            self.loaded.append(str(given["src"]))
        elif tag == "link" and given.get("rel") in ("stylesheet", "icon", "preload"):
            self.loaded.append(str(given.get("href")))


def pages_of(site: Path) -> dict[Path, Links]:
    return {path: Links(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}


def broken(page: Path, target: str, pages: dict[Path, Links]) -> bool:
    parts = urlsplit(target)
    file = (page.parent / unquote(parts.path)).resolve() if parts.path else page
    return not file.exists() or bool(parts.fragment and file in pages and parts.fragment not in pages[file].names)


@pytest.mark.nightly
def test_the_site_loads_nothing_from_elsewhere_and_its_links_lead_somewhere(site: Path) -> None:
    pages = pages_of(site)
    elsewhere = {target for links in pages.values() for target in links.loaded if urlsplit(target).netloc}
    wrong = [
        f"{page.relative_to(site)}: {target}"
        for page, links in pages.items()
        for target in links.linked
        if not urlsplit(target).scheme and broken(page, target, pages)
    ]

    assert len(pages) > 250
    assert elsewhere == set()
    assert wrong == []
    for style in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?(?:https?:)?//|@import", style.read_text(encoding="utf-8")), style


@pytest.mark.nightly
def test_the_site_has_an_index_of_rules_with_linked_sources(site: Path) -> None:
    index = (site / "rules.html").read_text(encoding="utf-8")
    page = (site / "rules" / "coll-lagging-ranks.html").read_text(encoding="utf-8")

    assert 'href="rules/coll-lagging-ranks.html"' in index
    assert 'href="https://github.com/NVIDIA/nccl/issues/1911"' in page
    assert "The incident" in page


@pytest.mark.nightly
def test_messages_variables_and_rules_lead_to_each_other(site: Path) -> None:
    pages = pages_of(site)
    family, rule = site / "messages" / "failure.html", site / "rules" / "connection-to-peer-lost.html"

    assert "../rules/connection-to-peer-lost.html" in pages[family].linked
    assert "../messages/failure.html" in pages[site / "frames" / "warning.html"].linked
    assert "variables/NCCL_IB_HCA.html" in pages[site / "variables.html"].linked
    assert any(target.startswith("../messages/") for target in pages[rule].linked)


FIND = """
const fs = require("fs");
globalThis.FIND = JSON.parse(fs.readFileSync(process.argv[1], "utf8"));
const { pagesFor } = new Function(fs.readFileSync(process.argv[2], "utf8") + "; return { pagesFor };")();
const asked = JSON.parse(fs.readFileSync(process.argv[3], "utf8"));
console.log(JSON.stringify(asked.map((text) => pagesFor(text).map(([page]) => page))));
"""


@pytest.mark.nightly
def test_a_pasted_line_leads_to_its_family(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no JavaScript here")
    pytest.importorskip("sphinx", reason="the extra `docs` is not installed")
    monkeypatch.syspath_prepend(str(DOCS / "_sphinx"))
    pages = importlib.import_module("message_pages")
    examples = [(frame, line) for frame, shapes in pages.families().items() for s in shapes for line in s.examples]
    asked = [*(f"worker-3 | {line}" for _, line in examples), "what is NCCL_IB_HCA", "a line of some program"]
    asked.append("Connected all rings")
    data, lines = tmp_path / "data.json", tmp_path / "lines.json"
    data.write_text(json.dumps(pages.find_data()), encoding="utf-8")
    lines.write_text(json.dumps(asked), encoding="utf-8")

    command = [node, "-e", FIND, str(data), str(DOCS / "_sphinx" / "find.js"), str(lines)]
    *found, variable, nothing, bare = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)

    lost = [line for (frame, line), own in zip(examples, found, strict=True) if f"messages/{frame}.html" not in own]
    assert lost == []
    assert variable == ["variables/NCCL_IB_HCA.html"]
    assert nothing == []
    assert bare == ["messages/milestone.html"]


@pytest.mark.nightly
def test_the_site_describes_the_python_interface(site: Path) -> None:
    page = Links((site / "api.html").read_text(encoding="utf-8"))

    assert {"ncclforensics.analyze", "ncclforensics.report.build.Report.verdicts"} <= page.names


def excerpt(printed: str, shown: str) -> str:
    """As many lines of what was printed as are shown, from the first that begins with the same word."""
    lines, word = printed.splitlines(keepends=True), shown.split()[0]
    first = next((number for number, line in enumerate(lines) if line.split()[:1] == [word]), len(lines))
    return "".join(lines[first : first + shown.count("\n")])


def test_the_tutorial_shows_what_the_program_prints(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    golden: Callable[[Path, str], None],
) -> None:
    monkeypatch.chdir(tmp_path)
    tutorial = DOCS / "tutorial.md"
    first, *parts = re.split(r"^(    ncclforensics .+\n)", tutorial.read_text(encoding="utf-8"), flags=re.MULTILINE)
    page, reports = first, ""
    for command, rest in zip(parts[::2], parts[1::2], strict=True):
        code = cli.main(split(command)[1:])
        printed = capsys.readouterr().out
        shown = partial(_shown, printed)
        rule = command.split()[2] if command.split()[1] == "explain" else ""
        assert not rule or f"explain {rule}" in reports  # which its own job names
        reports += printed
        assert code in (0, 1), command
        page += command + re.sub(r"(?<=```text\n).*?(?=```)", shown, rest, flags=re.DOTALL)

    golden(tutorial, page)
    assert page.count("```text") >= 4
    assert (tmp_path / "incident.html").exists()


def _shown(printed: str, block: re.Match[str]) -> str:
    return excerpt(printed, block[0])
