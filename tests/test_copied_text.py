"""Text that was copied out of pages, mails, chats and terminals gives the same findings."""

from __future__ import annotations

import html
import re
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from ncclforensics import analyze
from ncclforensics.grammar import grammar_file
from ncclforensics.inputs import lines
from ncclforensics.parsing.copied_text import REPLACED, has_marks, without_marks
from ncclforensics.parsing.headed_values import have_values_below_paths
from ncclforensics.parsing.learned_tags import learn_tag
from ncclforensics.views import json_report
from tests.incidents import ALL, Incident, answer, each_in_turn

NAMES = ("cuda-refuses-shared-memory", "one-rank-stops-before-an-allreduce")
INCIDENTS = [incident for incident in ALL if incident.name in NAMES]
SITE = re.compile(r"(?<!\S)((?:[\w/]+/)?\w+\.(?:cc|h)):(\d+)")
Copied = Callable[[list[str], int], list[str]]


def by_line(change: Callable[[str], str]) -> Copied:
    return lambda texts, _: [change(text) for text in texts]


def cell(text: str) -> str:
    return text.replace("|", "\\|")


COPIES: Mapping[str, Copied] = {
    "links": by_line(lambda text: SITE.sub(r"[\1:\2](https://example.org/\1#L\2)", text)),
    "cat -n": lambda texts, _: [f"{n:6}\t{text}" for n, text in enumerate(texts, 1)],
    "less -N": lambda texts, _: [f"{n:7} {text}" for n, text in enumerate(texts, 41)],
    "bullets": by_line(lambda text: f"- `{text}`" if text else text),
    "table": lambda texts, _: ["| # | message |", "|---|---|", *(f"| {n} | {cell(t)} |" for n, t in enumerate(texts))],
    "page": lambda texts, _: ["<p>It hangs:</p>", *(f"<span>{html.escape(text)}</span><br/>" for text in texts)],
    "mail": lambda texts, _: ["On Tuesday, A wrote:", *(f"> > {text}" for text in texts)],
    "wrapped mail": lambda texts, _: [f"> {part}" for text in texts for part in textwrap.wrap(text, 76) or [""]],
    "line numbers": lambda texts, _: [f"{number:6d}\t{text}" for number, text in enumerate(texts, 480)],
    "context of grep": lambda texts, place: [
        f"logs/r{place}.log{sign}{number}{sign}{text}"
        for number, text in enumerate(texts)
        for sign in [":" if number % 3 else "-"]
    ],
    "tags": lambda texts, place: [f"[1,mpirank:{place},algo-{place // 8}]<stdout>:{text}" for text in texts],
    "pods": lambda texts, place: [f"train-{place}-x{place:02x}7 pytorch {text}" for text in texts],
    "string": lambda texts, _: ["RayTaskError(RuntimeError): NCCL failed\\n" + "\\n".join(texts)],
    "lost escapes": by_line(lambda text: f"[36m{text.replace('NCCL INFO', '[1;32mNCCL INFO[0m')}[0m"),
    "typography": by_line(lambda text: text.replace(" ", "\u00a0").replace("-", "\u2011").replace("/", "/\u200b")),
}


def copied(incident: Incident, copy: str, folder: Path) -> dict[str, Any]:
    for place, name in enumerate(incident.logs):
        texts = (incident.folder / name).read_text().splitlines()
        (folder / f"{place}.txt").write_text("\n".join(COPIES[copy](texts, place)) + "\n")
    return json_report.as_object(analyze([str(folder)]))


@pytest.mark.parametrize(
    ("incident", "copy"),
    each_in_turn(INCIDENTS, COPIES),
    ids=lambda value: getattr(value, "name", value),
)
def test_copied_text_gives_the_same_findings(incident: Incident, copy: str, tmp_path: Path) -> None:
    found, expected = copied(incident, copy, tmp_path), answer(incident).json

    assert found["hang"]["verdict"] == expected["hang"]["verdict"]
    assert found["hang"]["culprits"] == expected["hang"]["culprits"]
    assert {finding["rule"] for finding in found["findings"]} >= {
        finding["rule"] for finding in expected["findings"] if finding["severity"] in ("warning", "error")
    }


# What has no line of NCCL or PyTorch, by which a tag is learned.
OUTPUTS = ("a-benchmark-drops-at-large-sizes", "all-stacks-stand-in-one-all-reduce")
SET_OFF: Mapping[str, Callable[[str], str]] = {
    "indentation": lambda text: f"    {text}",
    "tab": lambda text: f"\t{text}",
    "box": lambda text: f"│ {text.ljust(120)} │",
    "container": lambda text: f"2026-03-01T03:00:00.123456789Z stdout F {text}",
    "journal": lambda text: f"Mar  1 03:00:00 gpu-a012 train[41887]: {text}",
}


@pytest.mark.parametrize(("name", "way"), [(name, way) for name in OUTPUTS for way in SET_OFF])
def test_a_whole_output_that_is_set_off_gives_the_same_answer(name: str, way: str, tmp_path: Path) -> None:
    (incident,) = (incident for incident in ALL if incident.name == name)
    for log in incident.logs:
        texts = (incident.folder / log).read_text().splitlines()
        (tmp_path / log).write_text("\n".join(map(SET_OFF[way], texts)) + "\n")
    report, expected = analyze([str(tmp_path)], everything=True), incident.answer(everything=True).report

    assert [finding.rule for finding in report.findings] == [finding.rule for finding in expected.findings]
    assert [(a.verdict, a.certainty) for a in report.verdicts] == [(a.verdict, a.certainty) for a in expected.verdicts]


def test_lines_that_are_known_by_their_indentation_keep_it(tmp_path: Path) -> None:
    part_of_report = ["  time      : 2026-03-02_11:04:57", "  host      : gpu-a012.cluster"]
    (tmp_path / "rank0.err").write_text("\n".join([*part_of_report, ""]))

    assert analyze([str(tmp_path)]).run.tally["recognised"].sum() == 2


PROCESS = "gpu-a012:77:177 [0] NCCL INFO Connected all rings"


@pytest.mark.parametrize(
    ("front", "rank"),
    [
        ("[1,mpirank:3,algo-1]<stdout>:", "3"),
        ("job-17/task-3# ", None),
        ("rank=3 | ", "3"),
        ("(worker, local_rank: 3) ", None),
        ("<14:03:11> global_rank 3: ", "3"),
    ],
)
def test_a_tag_is_learned_with_the_rank_that_it_names(front: str, rank: str | None) -> None:
    pattern = learn_tag(pl.Series([front + PROCESS] * 3 + ["step 3"]))

    assert pattern is not None
    fields = pl.Series([front + "Traceback"]).str.extract_groups(pattern.regex)[0]
    assert (fields["rest"], fields.get("launcher_rank")) == ("Traceback", rank)


def test_a_time_in_a_table_that_is_glued_to_a_host_is_no_part_of_its_name(tmp_path: Path) -> None:
    line = PROCESS.removeprefix("gpu-a012")
    stamp = "2025-05-16T16:39:51.208-07:00"
    rows = [f"  | {stamp} | gpu-a012{line}", f"  | {stamp}gpu-a012{line} | gpu-a012{line}"]
    (tmp_path / "table.log").write_text("\n".join([*rows, *rows, ""]))

    assert set(analyze([str(tmp_path)]).run["speaker"]["host"]) == {"gpu-a012"}


def test_the_rank_that_pytorch_prints_stays_with_its_line_behind_a_tag() -> None:
    pattern = learn_tag(
        pl.Series([f"18:11:06.680 [rank{rank}]:Traceback (most recent call last):" for rank in range(3)])
    )

    assert pattern is not None
    fields = pl.Series(["18:11:07.001 [rank3]:ValueError"]).str.extract_groups(pattern.regex)[0]
    assert fields == {"rest": "[rank3]:ValueError"}


@pytest.mark.parametrize(
    "texts",
    [
        [PROCESS] * 3,
        ["[2026-03-02 11:04:57] " + PROCESS] * 3,
        ["[rank3]: Traceback (most recent call last):"] * 3,
        ["[3] " + "NCCL INFO Connected all rings"] * 3,
        ["it fails with " + PROCESS, "and then " + PROCESS, PROCESS],
    ],
)
def test_what_belongs_to_a_line_is_no_tag(texts: list[str]) -> None:
    assert learn_tag(pl.Series(texts)) is None


def test_marks_outside_of_texts_on_nccl_are_left_alone() -> None:
    assert not has_marks(pl.Series(["the loss is \u201cgood\u201d", "a <b>bold</b> step 7", PROCESS]))


def test_the_number_of_a_line_is_no_part_of_it() -> None:
    gutter = '<div class="line"><span class="ln">12</span><span>'
    rows = lines.block(f"{gutter}n1:7:7 [0] NCCL WARN <b>a</b> &lt;0&gt;</span></div>\n".encode(), 1)

    assert without_marks(rows)["text"].to_list() == ["n1:7:7 [0] NCCL WARN a <0>"]


def test_a_tag_that_ends_with_a_tab_is_removed_from_other_lines_too(tmp_path: Path) -> None:
    texts = [PROCESS, PROCESS, "Traceback (most recent call last):", "ValueError: 3"]
    numbered = "".join(f"{number:6d}\t{text}\n" for number, text in enumerate(texts))
    (tmp_path / "job.log").write_text(numbered)
    plain = tmp_path / "plain"
    plain.mkdir()
    (plain / "job.log").write_text("\n".join([*texts, ""]))
    counts = [analyze([str(path)]).run.tally.drop("source").rows() for path in (tmp_path / "job.log", plain)]

    assert counts[0] == counts[1]


def test_a_record_that_is_cut_inside_its_text_is_split_into_its_lines() -> None:
    cut = '{"log":"[rank3]: Traceback (most recent call last):\\n[rank3]: ValueError: batch of size 0'
    rows = pl.DataFrame({"text": [cut], "line": [7]})

    assert without_marks(rows)["text"][-1] == "[rank3]: ValueError: batch of size 0"


def test_the_tag_of_a_launcher_in_front_of_pytorchs_own_is_learned() -> None:
    texts = ["[rank0]:[rank0]: Traceback (most recent call last):", '[rank0]:[rank0]:   File "a.py", line 1, in main']
    tag = learn_tag(pl.Series([*texts, "[rank0]:[rank0]: ValueError: no batch"]))

    assert tag is not None
    assert re.sub(tag.regex, r"\g<rest>", texts[0]) == "[rank0]: Traceback (most recent call last):"


def test_a_line_that_holds_several_keeps_its_number() -> None:
    rows = lines.block(b"NCCL error: a\\nb<br>c\nstep 7\n", 1)

    assert without_marks(rows).select("line", "text").rows() == [
        (1, "NCCL error: a"),
        (1, "b"),
        (1, "c"),
        (2, "step 7"),
    ]


def test_a_log_that_begins_deep_in_a_file_is_read_with_its_tags(tmp_path: Path) -> None:
    other = "".join(f"epoch {number}: loss 0.25 and some more text that says nothing\n" for number in range(2000))
    texts = [
        f"[1,mpirank:3,algo-1]<stdout>:{PROCESS}",
        "[1,mpirank:3,algo-1]<stdout>:Traceback (most recent call last):",
    ]
    (tmp_path / "job.log").write_text(other + "\n".join([*texts * 3, ""]) + other)
    run = analyze([str(tmp_path)], everything=True).run

    assert run["milestone"]["launcher_rank"].to_list() == [3, 3, 3]


def test_a_sentence_goes_on_behind_a_quoted_error(tmp_path: Path) -> None:
    text = (
        "NCCL says transport/p2p.cc:275 NCCL WARN Cuda failure 101 'invalid device ordinal'. Where does it come from?\n"
    )
    (tmp_path / "report.txt").write_text(text)

    titles = [finding.title for finding in analyze(tmp_path).findings]

    assert "a GPU is not visible to a process: invalid device ordinal" in titles


PADDED = (
    "torchfrtrace-prints-another-call-of-one-rank", "a-rank-waits-for-its-data-loader", "a-gpu-with-broken-memory",
    "a-host-pauses-the-network",
)  # fmt: skip


@pytest.mark.parametrize("incident", [incident for incident in ALL if incident.name in PADDED], ids=str)
def test_a_blank_at_the_end_of_every_line_changes_nothing(incident: Incident, tmp_path: Path) -> None:
    for name in incident.logs:
        (tmp_path / name).write_bytes((incident.folder / name).read_bytes().replace(b"\n", b" \n"))

    found = json_report.as_object(analyze([str(tmp_path)], everything=True))

    assert {f["rule"] for f in found["findings"]} == {f["rule"] for f in answer(incident).json["findings"]}
    assert found["hang"]["verdict"] == answer(incident).json["hang"]["verdict"]


def test_single_lines_with_blanks_at_their_end_are_recognised(tmp_path: Path) -> None:
    unwound = [f"gpu-a:191:191 [0] NCCL INFO group.cc:{number} -> 2" for number in (64, 422, 106)]
    (tmp_path / "job.log").write_text("\n".join([*unwound[:2], unwound[2] + "  ", ""]))

    (read,) = json_report.as_object(analyze([str(tmp_path)]))["inputs"]

    assert (read["recognised"], read["unrecognised"]) == (3, 0)


BAR = "Epoch 0:  48%|████▊     | 12/25 [00:08<00:08,  1.45it/s, loss=0.3]"
WATCHDOG = (
    "[rank3]:[E1122 09:00:24.907568527 ProcessGroupNCCL.cpp:632] [Rank 3] Watchdog caught collective operation timeout:"
    " WorkNCCL(SeqNum=42, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600010 milliseconds"
    " before timing out."
)


@pytest.mark.parametrize(
    "text",
    [
        WATCHDOG,
        "[rank1]: RuntimeError: loss is NaN in layer 7",
        "`Trainer.fit` stopped: `max_epochs=1` reached.",
        "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
    ],
)
def test_what_stands_right_behind_a_progress_bar_is_a_line_of_its_own(text: str, tmp_path: Path) -> None:
    def found(log: str) -> tuple[Any, ...]:
        path = tmp_path / "train.log"
        path.write_text(log)
        report = analyze([str(path)], everything=True)
        hang = json_report.as_object(report)["hang"]
        titles = [(finding.rule, finding.certainty) for finding in report.findings]
        return hang["verdict"], hang["certainty"], hang["culprits"], titles

    alone, behind = found(f"{BAR}\n{text}\n"), found(f"{BAR}\r{BAR}{text}\n")

    assert behind == alone
    assert found(f"{BAR}\n") != alone


def test_a_path_that_ends_an_input_has_no_value_in_the_next_one() -> None:
    path = "/sys/devices/system/edac/mc/mc0/ce_count"
    together = pl.DataFrame({"source": [1, 1, 1, 1], "text": [path, "0", f"==> {path} <==", "3"]})
    apart = together.with_columns(source=pl.Series([1, 2, 2, 3]))

    assert have_values_below_paths(together) == [1]
    assert have_values_below_paths(apart) == []


def test_every_character_that_is_replaced_has_a_hint_by_which_it_is_looked_for() -> None:
    hint = grammar_file.load("copied").part_regex("_hint")

    assert [text for text in REPLACED if not re.search(hint, text)] == []
