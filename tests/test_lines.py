"""Bytes become numbered lines, whatever the bytes."""

from __future__ import annotations

import io
import tracemalloc
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from ncclforensics import analyze
from ncclforensics.inputs import lines
from tests.budget import examples

LOG = b"gpu-a012:41887:42107 [3] NCCL INFO Connected all rings\n"
# Texts made of what makes trouble: ends of lines of all kinds, escapes, cut characters, control bytes.
SCRAPS = [b"\n", b"\r\n", b"\r", b"\x1b", b"\x1b[31m", b"\x1b]0;title\x07", b"\x9b", b"\x00", b"\t", b"\x07", b"\x7f"]
SCRAPS += [b"\xff", b"\xe2\x82", b"\xe2\x82\xac", b"\xc2\x9b31m", b"\xe2\x80\xa8", b"\x0b", b"\x0c", b"word ", LOG]
TROUBLE = st.lists(st.sampled_from(SCRAPS) | st.binary(max_size=6), max_size=40).map(b"".join)


def read(data: bytes, chunk: int = lines.CHUNK) -> pl.DataFrame:
    return lines.cleaned(pl.concat([lines.block(b"", 1), *lines.blocks(io.BytesIO(data), chunk=chunk)])).sort("line")


def texts(data: bytes) -> list[str]:
    return read(data)["text"].to_list()


def test_a_line_is_what_ends_with_a_newline() -> None:
    assert texts(b"one\ntwo\n\nfour\n") == ["one", "two", "", "four"]


def test_a_carriage_return_before_the_newline_belongs_to_it() -> None:
    assert texts(b"one\r\ntwo\r\n") == ["one", "two"]


def test_a_lone_carriage_return_does_not_end_a_line() -> None:
    assert texts(b"10%\r20%\rdone\nnext\n") == ["10% 20% done", "next"]


def test_a_carriage_return_at_the_start_leaves_the_text_at_the_margin() -> None:
    assert texts(b"ValueError: x\n\r 1%|\r 2%|done\n") == ["ValueError: x", " 1%|  2%|done"]


def test_separators_of_unicode_do_not_end_a_line() -> None:
    assert read("a\u2028b\u0085c\vd\fe\n".encode()).height == 1


def test_lines_are_numbered_from_one() -> None:
    assert read(b"a\nb\nc\n")["line"].to_list() == [1, 2, 3]


def test_an_empty_file_has_no_lines() -> None:
    assert read(b"").is_empty()


def test_only_a_last_line_without_its_end_is_cut() -> None:
    assert read(b"whole\ncut her")["cut"].to_list() == [False, True]
    assert read(b"whole\n")["cut"].to_list() == [False]


def test_invalid_utf_8_damages_only_its_line() -> None:
    rows = read(b"before\nhal\xfff\nafter\n")

    assert rows["damaged"].to_list() == [False, True, False]
    assert rows["text"].to_list() == ["before", "hal\ufffdf", "after"]


def test_a_block_of_nul_bytes_is_removed_and_marks_its_line() -> None:
    rows = read(b"before\n" + b"\x00" * 5000 + LOG)

    assert rows["text"].to_list() == ["before", LOG.decode().rstrip()]
    assert rows["damaged"].to_list() == [False, True]


@pytest.mark.parametrize(
    "decorated",
    [
        b"\x1b[31mNCCL\x1b[0m WARN",
        b"\x1b]0;a title\x07NCCL WARN",
        b"\x1b]8;;http://x\x1b\\NCCL WARN\x1b]8;;\x1b\\",
        b"\x1b(BNCCL\x1b[38;5;196m WARN\x1b[K",
        b"NCCL\x08\x07 WARN\x7f",
    ],
)
def test_escape_sequences_leave_nothing_behind(decorated: bytes) -> None:
    assert texts(decorated + b"\n") == ["NCCL WARN"]


@given(TROUBLE)
def test_no_control_character_ever_reaches_the_text(data: bytes) -> None:
    for text in texts(data):
        assert not [character for character in text if ord(character) < 32 or 127 <= ord(character) < 160]


@given(TROUBLE)
def test_the_count_of_lines_is_the_count_of_newlines(data: bytes) -> None:
    assert read(data).height == data.count(b"\n") + (data != b"" and not data.endswith(b"\n"))


@given(TROUBLE, st.integers(1, 50))
def test_any_chunk_size_gives_the_same_lines(data: bytes, chunk: int) -> None:
    assert_frame_equal(read(data, chunk), read(data))


@examples(6)
@given(
    st.integers(-3, 3), st.sampled_from([b"\n", b"\r\n", b""]), st.integers(500, 1 << 17), st.sampled_from(["x", "é"])
)
def test_any_chunk_size_gives_the_same_lines_around_the_longest_line(
    beyond: int, end: bytes, chunk: int, letter: str
) -> None:
    data = b"short\n" + (letter.encode() * lines.LONGEST)[: lines.LONGEST + beyond].ljust(lines.LONGEST + beyond, b"y")

    assert_frame_equal(read(data + end + b"next\n", chunk), read(data + end + b"next\n"))


@given(st.lists(TROUBLE.map(lambda data: data + b"\n").filter(lines.is_plain), min_size=1, max_size=6))
@examples(20)
def test_lines_of_several_sources_split_together_are_those_split_one_by_one(texts: list[bytes]) -> None:
    firsts = [1 if number % 2 else -text.count(b"\n") for number, text in enumerate(texts)]
    stretches = [lines.Stretch(text, number, firsts[number], text.count(b"\n")) for number, text in enumerate(texts)]

    together = lines.of_stretches(stretches)

    alone = [lines.block(text, firsts[number], number) for number, text in enumerate(texts)]
    assert_frame_equal(together, pl.concat(alone))


@pytest.mark.parametrize("data", [b"", b"a", b'{"log": "a"}\n', b'a\n{"log": "a"}\n', b"a\n" + lines.BLANK_RUN])
def test_cut_lines_records_and_runs_of_blank_lines_are_split_by_themselves(data: bytes) -> None:
    assert not lines.is_plain(data)


def test_a_line_too_long_to_be_kept_keeps_its_beginning_and_is_marked() -> None:
    rows = read(b"x" * (lines.LONGEST + 1) + b"\nnext\n")

    assert rows["text"].str.len_bytes().to_list() == [lines.LONGEST, 4]
    assert rows["damaged"].to_list() == [True, False]


def test_a_huge_line_is_read_in_bounded_memory() -> None:
    chunk = 1 << 16
    endless = io.BytesIO(b"x" * (20 << 20) + b"\n" + LOG)

    tracemalloc.start()
    rows = pl.concat(lines.blocks(endless, chunk=chunk))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak < 6 * (chunk + lines.LONGEST)
    assert rows["line"].to_list() == [1, 2]
    assert rows["damaged"].to_list() == [True, False]


def test_evidence_keeps_tabs_and_no_other_control_character() -> None:
    assert lines.shown(b"\x1b[4mGPU0\tNV18\r 50%\r\x07100%\r\n") == "GPU0\tNV18 50%100%"


def test_of_a_long_line_that_a_progress_bar_wrote_again_the_end_is_shown(tmp_path: Path) -> None:
    end = "slurmstepd: error: *** JOB 88123 ON node1 CANCELLED AT 2026-11-22T12:00:00 ***"
    bars = "".join(f"\r{step}it [00:00, 5.31s/it]" for step in range(900))
    (tmp_path / "job.err").write_text(f"{bars}{end}\n", encoding="utf-8")

    report = analyze([str(tmp_path)])

    assert report.cited(0, 1)["text"] == f"899it [00:00, 5.31s/it]{end}" == lines.shown(f"{bars}{end}\n".encode())


def test_what_is_shown_of_a_line_is_safe_and_short() -> None:
    shown = lines.shown(b"\x1b[31m" + b"x" * 3000 + b"\r\n")

    assert shown == "x" * lines.SHOWN
