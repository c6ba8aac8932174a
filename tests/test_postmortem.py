"""The attachment to a postmortem: it needs nothing but itself, shows who did it, and text from logs stays text."""

from __future__ import annotations

import re
import struct
import sys
from base64 import b64decode
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from ncclforensics import analyze, cli, views
from ncclforensics.report.build import Report
from ncclforensics.report.timeline import timeline_of
from ncclforensics.simulate.generate import generate
from ncclforensics.simulate.plan import Fault, FaultKind, Plan
from ncclforensics.views import card, charts, markdown, postmortem
from ncclforensics.views.author_note import Cover
from ncclforensics.views.headline import headline, story
from ncclforensics.views.json_report import as_object
from ncclforensics.views.rank_map import HostRanks, Part, RankMap
from tests.browser import CHROMIUM, Browser
from tests.incidents import INCIDENTS, ROOT, Incident, checked

GOLDEN = ROOT / "fixtures" / "postmortems"
TOLD = ["another-broadcast-root", "a-rank-never-starts", "a-healthy-benchmark"]
NOTE = "It was **the loader**. ![x](https://pictures.example/a.png) <img src=//pictures.example/b.png>"
COVER = Cover("Run 4711 stood still", NOTE, "ncclforensics report logs/ -o run-4711.html")
MOST = 3_000_000  # bytes

one_of_each = pytest.mark.parametrize("name", TOLD)


def of(name: str) -> Report:
    report = checked(Incident(INCIDENTS / name)).report
    report.hashes = {reading.number: f"{reading.number:064x}" for reading in report.run.inputs}
    return report


@cache
def reported(name: str) -> str:
    """The page on an incident, made once."""
    return page(of(name))


def page(report: Report) -> str:
    return postmortem.html(report, COVER).decode()


@pytest.fixture(scope="module")
def large_page(large: Report) -> str:
    return page(large)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page on a log that means harm, whose author's note does, too."""
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "<b>rank0\u202e.log").write_text(
        "n1:7:7 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>\n"
        "n1:7:7 [0] init.cc:3 NCCL WARN Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1b000\n"
        "n1:7:7 [0] NCCL INFO NCCL_IB_HCA set by environment to </code><script>alert`1`</script>\x1b[2J.\n"
        "n1:7:7 [0] misc/socket.cc:3 NCCL WARN <script>alert(2)</script>\u202e\x1b]0;owned\x07 [31m & \u200b\n"
        "n1:7:7 [0] NCCL INFO " + "<i>" * 400_000 + "\n"
    )  # fmt: skip
    file = folder / "page.html"
    file.write_bytes(postmortem.html(analyze([str(folder)], everything=True), COVER))
    return file


def without_pictures(text: str) -> str:
    """How a picture is drawn is the library's affair: a release of it must not change what is compared."""
    return re.sub(r"<svg.*?</svg>", "<svg></svg>", text, flags=re.DOTALL)


@one_of_each
def test_the_html_page_is_as_recorded(name: str, golden: Callable[[Path, str], None]) -> None:
    golden(GOLDEN / f"{name}.html", without_pictures(reported(name)))


@one_of_each
def test_the_markdown_page_is_as_recorded(name: str, golden: Callable[[Path, str], None]) -> None:
    golden(GOLDEN / f"{name}.md", markdown.postmortem(of(name), COVER))


class Outline(HTMLParser):
    """What a page is made of: its elements in order, and each with its attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in ("meta", "br", "path", "line"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("path", "line"):
            assert self.open.pop() == tag

    def named(self, tag: str) -> Iterator[dict[str, str | None]]:
        return (attributes for name, attributes in self.elements if name == tag)


@one_of_each
def test_the_page_loads_nothing_and_has_no_script(name: str) -> None:
    outline = Outline(reported(name))
    tags = Counter(tag for tag, _ in outline.elements)

    assert outline.open == []
    assert not {"script", "link", "img", "iframe", "object", "base", "form"} & set(tags)
    assert tags["style"] == 1
    assert not [key for _, attributes in outline.elements for key in attributes if key.startswith("on") or key == "src"]
    (policy,) = (each["content"] for each in outline.named("meta") if each.get("http-equiv"))
    assert policy is not None
    assert policy.startswith("default-src 'none'; style-src 'sha256-")


@one_of_each
def test_the_page_is_accessible_to_screen_readers(name: str) -> None:
    text = reported(name)
    outline = Outline(text)
    tags = Counter(tag for tag, _ in outline.elements)
    names = [attributes["id"] for _, attributes in outline.elements if "id" in attributes]

    assert tags["main"] == tags["header"] == tags["nav"] == tags["h1"] == 1
    assert tags["caption"] == tags["table"]
    assert all(each.get("scope") in ("row", "col") for each in outline.named("th"))
    assert max(Counter(names).values()) == 1
    assert {(each["href"] or "")[1:] for each in outline.named("a") if (each["href"] or "").startswith("#")} <= set(
        names
    )
    assert all(each.get("aria-label") for each in outline.named("figure"))


def test_the_story_says_what_failed_where_who_waited_and_what_to_do_first() -> None:
    parts = dict(story(of("one-rank-stops-before-an-allreduce")))

    assert (
        parts["What"] == "Rank 11 on gpu-node-01 never called AllReduce #13 (1,179,648 x bfloat16, sum) of ranks 8-11."
    )
    assert parts["Where"] == "rank 11 on gpu-node-01"
    assert parts["Waiting"] == "15 of 16 ranks: ranks 0-10, 12-15"
    assert parts["Do first"] == "on gpu-node-01: py-spy dump --native --pid 23904"
    assert list(parts) == ["What", "Why", "Where", "State", "Waiting", "Do first"]


def test_the_timeline_shows_calls_last_calls_and_the_first_silence(tmp_path: Path) -> None:
    generate(Plan(nodes=2, gpus_per_node=2, tp=2, fault=Fault(FaultKind.LAGGING, (1,), "world")), tmp_path)
    for file in tmp_path.iterdir():
        lines = file.read_text().splitlines()
        seconds = [number * (1 if file.stem.endswith("1") else 2) for number in range(len(lines))]
        times = [f"[2026-03-02 11:{second // 60:02}:{second % 60:02}.000000]" for second in seconds]
        file.write_text("".join(f"{time} {line}\n" for time, line in zip(times, lines, strict=True)))
    report = analyze([str(tmp_path)], everything=True)

    events = timeline_of(report.run, 0)
    assert events.calls["rank_id"].n_unique() == 4
    assert events.first_silence == events.ends.filter(rank_id=1)["time"].item()
    assert "first rank silent" in page(report)


def test_the_page_says_when_it_was_made() -> None:
    made = postmortem.html(of("one-rank-stops-before-an-allreduce"), replace(COVER, made="2026-03-02 11:04 UTC"))

    assert "run on 2026-03-02 11:04 UTC with this command" in made.decode()


def test_a_healthy_benchmark_has_no_headline_on_a_hang() -> None:
    report = of("a-healthy-benchmark")

    assert headline(report) == "the program reports that it came to its end, and nothing failed, 2 ranks on 1 host"
    assert "hang" not in story(report)[0][1]
    assert "Dashed: the range that such a machine is expected to reach" in reported("a-healthy-benchmark")


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("one-rank-comes-late-to-every-step", "rank 4 on h100-02 calls 2.0 s after the others, 2026-"),
        ("the-network-fails-for-all", "it does not complete, 4 ranks on 2 hosts"),
    ],
)
def test_the_headline_says_what_happened_where_and_when(name: str, title: str) -> None:
    assert title in headline(of(name))


def test_the_calls_are_side_by_side_at_the_first_difference() -> None:
    text = reported("one-rank-stops-before-an-allreduce")

    (difference,) = re.findall(r'<tr class="difference">.*?</tr>', text)
    assert '<th scope="row">13</th><td class="differs">not called' in difference
    assert difference.count("AllReduce (1,179,648 x bfloat16, sum)") == 2


def test_a_rank_without_a_log_is_in_the_grid() -> None:
    assert '<th scope="row" class="name">no log</th><td><span class="rank culprit"' in reported("a-rank-never-starts")


def test_the_waiting_graph_points_at_the_culprit() -> None:
    nodes, edges = charts._groups(
        of("one-rank-stops-before-an-allreduce"), of("one-rank-stops-before-an-allreduce").verdicts[0]
    )

    assert {end for _, end in edges} == {(11,)}
    assert sorted(rank_id for node in nodes for rank_id in node) == list(range(16))


def test_512_ranks_make_a_small_file(large_page: str) -> None:
    assert len(large_page) < MOST
    assert large_page.count('class="rank culprit"') == 2
    assert len(re.findall(r'<i class="(?:waits|culprit)" title="gpu-d\d+: ranks', large_page)) == 64
    assert "transports from each host to each other one" in large_page.lower()


def test_many_hosts_are_cells_and_those_with_culprits_rows() -> None:
    waiting = [HostRanks(f"n{host}", [(host, Part.WAITS)]) for host in range(1249)]
    hosts = RankMap([*waiting, HostRanks("last", [(1249, Part.CULPRIT), (1250, Part.WAITS)])])

    assert [host.name for host in hosts.rows] == ["last"]
    assert hosts.text() == "1250 hosts: 1 with a culprit, 1249 where ranks wait"
    assert hosts.rows[0].text(Part.CULPRIT) == "rank 1249"


def test_the_card_names_verdict_title_and_command() -> None:
    drawn = ElementTree.fromstring(card.svg(of("one-rank-stops-before-an-allreduce"), COVER))
    texts = ["".join(text.itertext()) for text in drawn.iter("{http://www.w3.org/2000/svg}text")]
    squares = [square.get("fill") for square in drawn.iter("{http://www.w3.org/2000/svg}rect")]

    assert "Run 4711 stood still" in texts
    assert "lagging-rankslikely" in texts
    assert "on gpu-node-01: py-spy dump --native --pid 23904" in texts
    assert squares.count("#b3261e") == 2  # the culprit's, and the bar of a verdict that is an error
    assert squares.count("#f0c48a") == 15


def test_a_sure_cause_stands_beside_the_verdict_that_followed_from_it() -> None:
    report = of("a-cable-goes-bad-under-a-job")
    title = "the link of node-b mlx5_0 port 1 went down (to leaf-1 port 2)"

    assert f"<dt>Cause</dt><dd>T{title[1:]}." in page(report)
    assert "**Cause**: The link of node-b mlx5_0 port 1 went down" in markdown.markdown(report)
    assert f"Cause: {title}" in card.svg(report, COVER).decode()


def test_a_card_is_a_picture_of_the_size_that_chats_show() -> None:
    picture = card.png(of("a-healthy-benchmark"), COVER)

    assert picture.startswith(b"\x89PNG\r\n")
    assert struct.unpack(">II", picture[16:24]) == (1200, 630)


def test_text_from_logs_is_escaped(hostile: Path) -> None:
    text = hostile.read_text(encoding="utf-8")

    assert "<script" not in text
    assert "&lt;script&gt;alert`1`&lt;/script&gt;" in text
    assert [character for character in text if not (character.isprintable() or character == "\n")] == []
    assert len(text) < MOST
    Outline(text)


def test_a_saved_page_in_a_folder_of_logs_is_skipped(hostile: Path) -> None:
    (hostile.parent / "card.svg").write_bytes(card.svg(of("a-healthy-benchmark"), COVER))
    problems = [one["problems"] for one in as_object(analyze([str(hostile.parent)]))["inputs"]]

    assert sorted(problems) == [[], ["is a report of this program, skipped"], ["is a report of this program, skipped"]]


def test_html_and_images_in_a_note_are_escaped() -> None:
    text = reported("a-healthy-benchmark")

    assert "<strong>the loader</strong>" in text
    assert "&lt;img src=//pictures.example/b.png&gt;" in text


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not on this machine")
def test_a_browser_opens_the_page_without_requests_or_errors(tmp_path: Path, hostile: Path, large_page: str) -> None:
    (tmp_path / "large.html").write_text(large_page, encoding="utf-8")
    (tmp_path / "hang.html").write_text(reported("one-rank-stops-before-an-allreduce"), encoding="utf-8")

    with Browser() as browser:
        for file in (hostile, tmp_path / "large.html", tmp_path / "hang.html"):
            browser.open(file)
            assert browser.requests() == [file.as_uri()]
            assert browser.complaints() == []
        culprit = "document.querySelector('.rank.culprit')"
        assert browser.value(f"{culprit}.textContent") == "11"
        assert browser.value(f"{culprit}.checkVisibility()") is True
        papers = []
        for scheme in ("light", "dark"):
            browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
            papers.append(browser.value("getComputedStyle(document.body).backgroundColor"))
        assert papers == ["rgb(255, 255, 255)", "rgb(20, 23, 26)"]
        browser.open(tmp_path / "large.html")
        pages = b64decode(browser.call("Page.printToPDF")["data"])
        assert len(re.findall(rb"/Type /Page\b", pages)) < 10
        grow = "for (let n = 32; n < 1250; n++) line.append(line.children[n % 32].cloneNode())"
        browser.value(f"const line = document.querySelector('.map div'); {grow}")
        assert browser.value("line.children.length") == 1250
        assert browser.value("line.clientHeight") < 600
        browser.call("Emulation.setEmulatedMedia", media="print")
        shown = "getComputedStyle(document.querySelector('details{}'), '::details-content').contentVisibility"
        assert browser.value(shown.format(":not(.bulk)")) == "visible"
        assert browser.value(shown.format(".bulk")) == "hidden"
        breaks = "[...document.querySelectorAll('{}')].map(part => getComputedStyle(part).{})"
        assert {*browser.value(breaks.format("caption, thead", "breakAfter"))} == {"avoid"}
        assert "avoid" in browser.value(breaks.format("table", "breakInside"))  # a short one stays in one piece
        browser.call("Emulation.setEmulatedMedia", media="")
        for width in (1280, 400):
            browser.call(
                "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False
            )
            assert browser.value("document.documentElement.scrollWidth") <= width


def test_the_suffix_sets_the_format(tmp_path: Path) -> None:
    logs = str(INCIDENTS / "a-healthy-benchmark" / "*.log")
    note = tmp_path / "note.md"
    note.write_text("see *here*", encoding="utf-8")

    for name, begins in (
        ("a.html", b"<!DOCTYPE html>"),
        ("a.md", b"## ncclforensics: T"),
        ("a.json", b'{\n  "schema'),
        ("a.svg", b"<svg "),
    ):
        file = tmp_path / name
        assert cli.main(["report", logs, "-o", str(file), "--title", "T", "--note", str(note), "-q"]) == 0
        assert file.read_bytes().lstrip().startswith(begins)
    assert "see *here*" in (tmp_path / "a.md").read_text(encoding="utf-8")
    assert cli.main(["report", logs, "-o", str(tmp_path / "a.pdf"), "-q"]) == 2


def test_missing_libraries_for_html_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delattr(views, "postmortem")
    monkeypatch.delitem(sys.modules, "ncclforensics.views.postmortem")
    monkeypatch.setitem(sys.modules, "jinja2", None)

    code = cli.main(["report", str(INCIDENTS / "init-only" / "*.log"), "-o", str(tmp_path / "a.html"), "-q"])

    assert code == 2
    assert "pip install 'ncclforensics[report]'" in capsys.readouterr().err


def test_a_benchmark_without_a_name_is_shown(tmp_path: Path) -> None:
    table = (INCIDENTS / "a-healthy-benchmark" / "all_reduce.log").read_text(encoding="utf-8")
    bare = table.replace("all_reduce", "").replace("     sum ", "    none ")
    (tmp_path / "table.log").write_text(bare, encoding="utf-8")

    report = analyze([str(tmp_path)], everything=True)

    assert report.run["benchmark"]["collective"].to_list() == [None]
    assert '<th scope="row">?</th>' in page(report)
