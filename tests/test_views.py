"""A report fits on a screen, survives narrow terminals, and text from logs cannot break out of it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from ncclforensics import analyze
from ncclforensics.report.build import Report
from ncclforensics.views import json_report, markdown, text_report
from ncclforensics.views.text_layout import quoted
from tests.incidents import ALL, HANGS, INCIDENTS, Incident, answer

SCREEN = 66  # lines, as on a printed page

every_incident = pytest.mark.parametrize("incident", ALL, ids=lambda incident: incident.name)


def of(name: str) -> Report:
    return answer(Incident(INCIDENTS / name)).report


def test_512_ranks_fit_on_one_screen(large: Report) -> None:
    shown = text_report.text(large).splitlines()

    assert "512 ranks on 64 hosts" in shown[0]
    assert len(shown) <= SCREEN
    assert any("ranks 137, 400" in line for line in shown)
    assert shown[2].endswith("ranks 137, 400 never called ReduceScatter #9 (262,144 x bfloat16, sum)")  # of two groups


def test_a_large_report_says_how_much_it_leaves_out(large: Report) -> None:
    assert "more hosts" in text_report.text(large)
    assert "64 hosts: 2 with a culprit, 62 where ranks wait" in markdown.markdown(large)


def test_verbose_leaves_no_rank_out(large: Report) -> None:
    shown = text_report.text(large, verbose=True).partition("LAST CALL OF EVERY RANK")[2]

    assert {int(rank) for rank in re.findall(r"^  (\d+) ", shown, re.MULTILINE)} >= set(range(512))


@pytest.mark.parametrize("incident", HANGS, ids=lambda incident: incident.name)
def test_the_report_on_each_job_fits_on_one_screen(incident: Incident, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the texts of the lines that it cites, which PyTorch makes as long as a paragraph each."""
    monkeypatch.setattr(text_report, "quoted", lambda line: "")
    shown = answer(incident)

    assert len(text_report.text(shown.report).splitlines()) <= SCREEN * len(shown.jobs)


@pytest.mark.parametrize("width", [60, 80, 100, 200])
@pytest.mark.parametrize("name", ["an-extra-call", "two-jobs-in-one-folder", "the-network-fails-for-all"])
def test_no_line_is_wider_than_the_terminal(name: str, width: int) -> None:
    shown = text_report.text(of(name), width=width)

    commands = {step.line for row in of(name).verdicts for step in of(name).run_now(row)}  # never broken
    assert all(len(line) <= width or line.strip() in commands for line in shown.splitlines())
    assert all(line == line.rstrip() for line in shown.splitlines())
    assert shown.endswith("\n")


def test_the_width_changes_no_word() -> None:
    report = of("one-rank-stops-before-an-allreduce")

    narrow, wide = (sorted(text_report.text(report, width=width).split()) for width in (100, 250))

    assert narrow == wide


@every_incident
def test_evidence_is_not_truncated(incident: Incident) -> None:
    shown = "".join(text_report.text(answer(incident).report).split())

    for finding in answer(incident).json["findings"]:
        if finding["severity"] != "info":
            for line in finding["evidence"][: text_report.MOST_LINES]:
                assert "".join(quoted(line).split()) in shown


def test_files_of_one_name_are_shown_with_their_folders() -> None:
    shown = text_report.text(of("two-jobs-in-one-folder"))

    assert "job-4711/nccl_rank5.log:" in shown
    assert "job-4712/nccl_rank6.log:" in shown


def test_ranks_of_several_jobs_are_not_counted_against_one() -> None:
    shown = text_report.text(of("two-jobs-in-one-folder"))

    assert shown.startswith("16 ranks in 2 jobs on 1 host")
    assert "Job 1 of 2: 8 ranks" in shown
    assert "Job 2 of 2: 8 ranks" in shown


def test_both_calls_of_a_mismatch_stand_side_by_side() -> None:
    shown = text_report.text(of("another-broadcast-root"))

    assert re.search(r"≠ root +rank 4 +rank 3$", shown, re.MULTILINE)
    assert re.search(r"^ +count +65,536 +65,536$", shown, re.MULTILINE)


def test_colour_is_off_by_default() -> None:
    report = of("a-healthy-run")

    plain, coloured = text_report.text(report), text_report.text(report, color=True)

    assert "\x1b[" not in plain
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain


def test_markdown_names_the_verdict_once() -> None:
    title, verdict, _ = markdown.markdown(of("a-rank-is-killed")).split("\n\n", maxsplit=2)

    assert title == "## ncclforensics: rank 12 on gpu-node-01 ended before the run was over"
    assert verdict.startswith("**rank-died** (")
    assert "ended before the run was over" not in verdict


def test_markdown_of_many_ranks_is_not_longer_than_github_takes(large: Report) -> None:
    page = markdown.markdown(large, everything=True)

    assert len(page) <= markdown.LONGEST
    assert page.count("more are in the HTML page and in the JSON report") >= 2
    assert page.count("<details>") == page.count("</details>")
    assert "| 137 |" in page.partition("Culprits:")[2]
    few = markdown.markdown(of("one-rank-stops-before-an-allreduce"), everything=True)
    assert "more are in the HTML page" not in few, "nothing is left out of what fits"


def test_markdown_is_tables_and_folded_details() -> None:
    page = markdown.markdown(of("one-rank-stops-before-an-allreduce"), everything=True)
    rendered = MarkdownIt("commonmark").enable("table").render(page)

    assert "<td>11</td>\n<td><code>gpu-node-01</code></td>" in rendered
    assert rendered.count("<table>") > rendered.count("<details>") > 2
    assert page.count("<details>") == page.count("</details>")
    assert " #" not in "".join(line for line in page.splitlines() if not line.startswith(("#", "gpu-")))


def test_text_from_logs_stays_text_in_markdown(tmp_path: Path) -> None:
    (tmp_path / "rank0.log").write_text(
        "n1:7:7 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>\n"
        "n1:7:7 [0] transport.cc:33 NCCL WARN Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1b000\n"
        "n1:7:7 [0] init.cc:3 NCCL WARN ```` </details> @all <script>alert(1)</script> | x\n"
    )
    (tmp_path / "```.log").write_text("")

    page = markdown.markdown(analyze([str(tmp_path), str(tmp_path / "`````.log")], everything=True), everything=True)
    rendered = MarkdownIt("commonmark").enable("table").render(page)
    outside_code = re.sub(r"<code.*?</code>", "", rendered, flags=re.DOTALL)

    assert "<script" not in rendered
    assert "&lt;script&gt;" in rendered
    assert "@all" not in outside_code
    assert "`````.log</code> does not exist" in rendered
    assert rendered.count("<details>") == rendered.count("</details>")


@every_incident
def test_json_holds_no_control_character(incident: Incident) -> None:
    text = json_report.json(answer(incident).report).decode()

    assert [character for character in text if character != "\n" and not character.isprintable()] == []
    assert json.loads(text)["schema_version"] == 1


def test_an_info_finding_is_shown_as_a_note() -> None:
    assert "note  no log of rank 11" in text_report.text(of("the-culprits-log-is-absent"))


def test_text_that_is_turned_around_or_invisible_shows_as_escapes(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("host:1:1 [0] init.cc:100 NCCL WARN Some\u202ething\u2066 ha\u200bppened\n", encoding="utf-8")
    report = analyze([str(log)], everything=True)

    in_text, in_json = text_report.text(report, everything=True), json_report.json(report).decode()

    for shown in (in_text, in_json):
        assert r"Some\u202ething\u2066 ha\u200bppened" in shown
        assert not {"\u202e", "\u2066", "\u200b"} & set(shown)
    assert json.loads(in_json)["findings"][0]["evidence"][0]["text"] in log.read_text(encoding="utf-8")
