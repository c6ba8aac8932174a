"""`mcp`: a real client asks the server over stdio; it reads its folders only, and answers are bounded."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from ncclforensics.cli import main
from ncclforensics.data.names import VERDICTS
from ncclforensics.mcp import answers
from tests.fuzz.invariants import CONTROLS
from tests.incidents import INCIDENTS, ROOT

if TYPE_CHECKING:  # to import the server's library takes half a second, which only the worker of these tests needs
    from mcp import Client
    from mcp.types import CallToolResult

pytestmark = pytest.mark.usefixtures("shared_analyses")
LAGGING = "one-rank-stops-before-an-allreduce"
CULPRIT = "nccl_rank11.log"
Ask = Callable[..., Any]


def asked(work: Callable[[Client], Awaitable[Any]], folder: Path) -> Any:
    """Run some questions against a server in this process."""
    from mcp import Client

    from ncclforensics.mcp.server import server

    async def session() -> Any:
        async with Client(server([folder])) as client:
            return await work(client)

    return anyio.run(session)


def answer_of(result: CallToolResult) -> dict[str, Any]:
    from mcp.types import TextContent

    (content,) = result.content
    assert isinstance(content, TextContent)
    assert not result.is_error, content.text
    answer: dict[str, Any] = json.loads(content.text)
    return answer


@pytest.fixture
def ask() -> Ask:
    """`ask("verdict", folder, paths=[...])`: the answer of a tool."""

    def call(tool: str, folder: Path = INCIDENTS, **arguments: object) -> dict[str, Any]:
        return answer_of(asked(lambda client: client.call_tool(tool, arguments), folder))

    return call


def refusal(folder: Path, tool: str, **arguments: object) -> str:
    result = asked(lambda client: client.call_tool(tool, arguments), folder)
    assert result.is_error
    text: str = result.content[0].text
    return text


def test_a_client_over_stdio_gets_the_verdict() -> None:
    from mcp import Client, StdioServerParameters

    command = ["-c", "from ncclforensics.cli import run; run()", "mcp", str(INCIDENTS)]
    started = StdioServerParameters(command=sys.executable, args=command, cwd=str(ROOT))

    async def session() -> tuple[set[str], dict[str, Any]]:
        async with Client(started) as client:
            tools = (await client.list_tools()).tools
            assert all(tool.annotations is not None and tool.annotations.read_only_hint for tool in tools)
            result = await client.call_tool("verdict", {"paths": [LAGGING]})
            return {tool.name for tool in tools}, answer_of(result)

    names, answer = anyio.run(session)
    assert names == {"folder", "verdict", "slow", "findings", "lines", "calls", "diff", "explain"}
    assert (answer["hang"]["verdict"], answer["hang"]["culprits"]) == ("lagging-ranks", [11])


def test_findings_are_chosen_by_category_and_severity(ask: Ask) -> None:
    chosen = ask("findings", paths=[LAGGING], category="socket-fallback")
    serious = ask("findings", paths=[LAGGING], severity="error")

    assert {row["category"] for row in chosen["findings"]} == {"socket-fallback"}
    assert {row["severity"] for row in serious["findings"]} <= {"error"}


def test_lines_around_a_cited_place_are_those_of_the_file(ask: Ask) -> None:
    path = INCIDENTS / LAGGING / CULPRIT
    shown = ask("lines", path=str(path), line=60, around=2)

    written = path.read_text(encoding="utf-8").splitlines()
    assert [(row["line"], row["text"]) for row in shown["lines"]] == [
        (number, written[number - 1]) for number in range(58, min(62, len(written)) + 1)
    ]


def test_the_calls_of_a_rank_end_with_its_last(ask: Ask) -> None:
    group = ask("verdict", paths=[LAGGING])["hang"]["communicator"]
    made = ask("calls", paths=[LAGGING], rank=11, communicator=group)
    earlier = ask("calls", paths=[LAGGING], rank=11, communicator=group, before=12)

    assert made["calls"][-1]["ordinal"] == 12
    assert earlier["calls"][-1] == made["calls"][-2]


def test_two_runs_are_compared(ask: Ask) -> None:
    answer = ask("diff", good=["a-healthy-run"], bad=[LAGGING])

    assert {"differs", "differences", "compared", "not_compared"} == set(answer)


def test_a_rule_is_explained(ask: Ask) -> None:
    assert "Not when:" in ask("explain", rule="coll-lagging-ranks")["page"]


@pytest.mark.parametrize("verdict", VERDICTS)
def test_every_verdict_is_explained(ask: Ask, verdict: str) -> None:
    assert "Not when:" in ask("explain", rule=verdict)["page"]


@pytest.mark.parametrize("path", ["../a.log", "/etc/passwd", "link", "-"])
def test_nothing_outside_the_folders_is_read(path: str, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("secret\n")
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path / "a.log")

    for tool, arguments in (("verdict", {"paths": [path]}), ("lines", {"path": path, "line": 1})):
        said = refusal(folder, tool, **arguments)
        assert "outside of the folders" in said or "belongs to the protocol" in said
        assert "secret" not in said


def test_a_link_in_a_folder_does_not_lead_out_of_it(tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "logs"
    shutil.copytree(INCIDENTS / LAGGING, outside)
    folder.mkdir()
    (folder / "link").symlink_to(outside)

    assert "no file" in refusal(folder, "verdict", paths=["."]) or "outside" in refusal(folder, "verdict", paths=["."])


@pytest.mark.parametrize("path", ["lin*", "dir*", "d*/a.log", "*/*", "**/a.log"])
def test_no_pattern_leads_out_of_the_folders(path: str, tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "logs"
    outside.mkdir()
    folder.mkdir()
    (outside / "a.log").write_text("secret\n")
    (folder / "link.log").symlink_to(outside / "a.log")
    (folder / "dir").symlink_to(outside)

    for tool, arguments in (("verdict", {"paths": [path]}), ("lines", {"path": path, "line": 1})):
        assert "outside of the folders" in refusal(folder, tool, **arguments)


def test_a_link_that_leads_out_hides_no_other_file(tmp_path: Path) -> None:
    outside, folder = tmp_path / "secret.log", tmp_path / "logs"
    shutil.copytree(INCIDENTS / LAGGING, folder)
    outside.write_text("n9:12:12 [0] a.cc:1 NCCL WARN secret\n")
    (folder / "link.log").symlink_to(outside)
    (folder / "loop.log").symlink_to(folder / "loop.log")

    answer = asked(lambda client: client.call_tool("findings", {"paths": ["."]}), folder)

    text = json.dumps(answer_of(answer))
    assert "coll-lagging-ranks" in text
    assert "secret" not in text


def test_a_file_that_grew_is_read_again(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("n1:12:12 [0] NCCL INFO Bootstrap: Using eth0:10.0.0.1<0>\n")

    async def twice(client: Client) -> list[int]:
        totals = []
        for addition in ("", "n1:12:12 [0] a.cc:1 NCCL WARN Something terrible happened\n"):
            with log.open("a") as stream:
                stream.write(addition)
            totals.append(answer_of(await client.call_tool("findings", {"paths": ["a.log"], "severity": "warning"})))
        return [answer["total"] for answer in totals]

    before, after = asked(twice, tmp_path)
    assert after > before


def test_one_path_needs_no_list_and_a_folder_is_listed(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "rank0.log").write_text("loss 2.1\n")
    (tmp_path / "elsewhere").symlink_to("/")

    assert ask("folder", tmp_path) == {"folders": ["job"], "files": [], "left_out": 0}
    assert ask("folder", tmp_path, path="job")["files"] == [{"name": "rank0.log", "bytes": 9}]
    assert ask("verdict", tmp_path, paths="job") == ask("verdict", tmp_path, paths=["job"])
    assert "outside of the folders" in refusal(tmp_path, "folder", path="..")
    assert "rank0.log is not a folder" in refusal(tmp_path, "folder", path="job/rank0.log")


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    assert "unknown rule" in refusal(tmp_path, "explain", rule="nonsense")
    assert "does not exist" in refusal(tmp_path, "verdict", paths=["missing.log"])


def test_long_lists_and_texts_are_cut_and_counted() -> None:
    cut = answers.bounded({"ranks": list(range(100)), "text": "x" * 1000})

    assert cut["ranks"] == [*range(answers.MOST_ITEMS), f"({100 - answers.MOST_ITEMS} more)"]
    assert cut["text"] == "x" * answers.MOST_CHARACTERS + f"… ({1000 - answers.MOST_CHARACTERS} more characters)"


def test_the_folder_must_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mcp", "no-such-folder"]) == 2
    assert "is not a folder" in capsys.readouterr().err


LONG = "x" * 1_000_000
HOSTILE_CALLS: tuple[tuple[str, dict[str, Any]], ...] = (
    *(("verdict", {"paths": [path]}) for path in ("no\nsuch", "\0", "\ud800", "\x1b[31m", "\u202e", LONG, "/" + LONG)),
    *(("lines", {"path": "escape.log", "line": line}) for line in (0, -1, 2**63, 10**40, 1.5, "x", None, [1], LONG)),
    *(("lines", {"path": "escape.log", "line": 1, "around": around}) for around in (-1, 10**40, "\x1b[31m")),
    *(("calls", {"paths": ["escape.log"], "rank": rank}) for rank in (-1, 2**64, True, {"a": 1})),
    ("calls", {"paths": ["escape.log"], "rank": 1, "communicator": LONG}),
    ("findings", {"paths": ["escape.log"], "category": LONG}),
    ("findings", {"paths": ["escape.log"], "offset": 2**70}),
    ("explain", {"rule": LONG}),
    ("explain", {"rule": "\x1b[31m"}),
    ("verdict", {"paths": ["."] * 2000}),
    ("verdict", {"paths": "."}),
    ("verdict", {}),
    ("verdict", {"paths": ["escape.log"], "\x1b[31m": LONG}),
    ("\x1b[31m" + LONG, {}),
    ("diff", {"good": ["."], "bad": ["escape.log"]}),
)  # fmt: skip


def test_hostile_questions_and_logs_get_short_answers_without_escapes(tmp_path: Path) -> None:
    warning = "n1:12:12 [0] a.cc:1 NCCL WARN \x1b[31mred\x1b]0;title\x07 \u202e end\n"
    (tmp_path / "escape.log").write_text(warning * 3)
    (tmp_path / "\x1b[31m\nname.log").write_text(warning)
    (tmp_path / "long.log").write_text("n1:12:12 [0] NCCL INFO " + LONG + "\n")

    async def all_answers(client: Client) -> list[str]:
        return [(await client.call_tool(tool, given)).content[0].text for tool, given in HOSTILE_CALLS]

    for (tool, given), answer in zip(HOSTILE_CALLS, asked(all_answers, tmp_path), strict=True):
        case = tool[:20], str(given)[:80], answer[:500]
        assert len(answer) < 100_000, case
        assert "Traceback" not in answer, case
        assert "the program failed" not in answer, case
        assert not CONTROLS.search(answer.replace("\\n", "")), case
        assert not any(CONTROLS.search(text) for text in texts_of(answer)), case


def texts_of(answer: str) -> list[str]:
    """Return the texts of an answer that is JSON, without ends of lines."""
    if not answer.startswith("{"):
        return [answer]
    found: list[str] = []
    json.loads(answer, object_hook=lambda row: found.extend(map(str, (*row, *row.values()))))
    return [text.replace("\n", "") for text in found]
