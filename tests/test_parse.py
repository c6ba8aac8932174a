"""Lines times shapes: every line is counted, nothing is invented, and nothing makes the program fall over."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclforensics.formats import nccl
from ncclforensics.frames.columns import MADE_UP
from ncclforensics.frames.open_run import open_run
from ncclforensics.frames.run import Run
from ncclforensics.grammar.dialect import LITTLE, words_in
from ncclforensics.inputs import lines
from ncclforensics.inputs.read_policy import ReadPolicy
from ncclforensics.inputs.sources import find
from ncclforensics.parsing import parser
from ncclforensics.parsing.parser import COUNTS, Parsed, parse, parse_by_template
from ncclforensics.parsing.templates import are_repeated
from tests.budget import examples, sample

LANGUAGE = nccl.dialect()
EXAMPLES = sorted({example for shape in LANGUAGE.shapes for example in shape.examples})
HEADED = pl.Series(EXAMPLES).filter(pl.Series(EXAMPLES).str.contains(f"^{LANGUAGE.prefix_regex}")).to_list()
CALL = (
    "{host}:77:77 [0] NCCL INFO AllReduce: opCount 1a sendbuff 0x7f recvbuff 0x7f count {n} datatype 7 op 0 root 0 "
    "comm 0x55d1c3e0 [nranks=8] stream 0x55d1b0"
)
DIRT = st.sampled_from(
    [b"\x1b[31m", b"\x1b]0;t\x07", b"\x00", b"\xff", b"\r", b"\t", b"\n", b"\r\n", b":", b"[", b" NCCL "]
)

Row = tuple[object, ...]


@st.composite
def mutated(draw: st.DrawFn, examples: Sequence[str] = EXAMPLES) -> bytes:
    """Some lines, cut, joined, interleaved and soiled."""
    text = b""
    for example in draw(st.lists(st.sampled_from(examples), max_size=8)):
        line = example.encode()
        start = draw(st.sampled_from([0, 0, draw(st.integers(0, len(line)))]))
        stop = draw(st.sampled_from([len(line), len(line), draw(st.integers(0, len(line)))]))
        line = line[start:stop]
        if draw(st.booleans()):
            place = draw(st.integers(0, len(line)))
            line = line[:place] + draw(DIRT | st.binary(max_size=5)) + line[place:]
        text += line + draw(st.sampled_from([b"\n", b"\n", b"\r\n", b"", b"\n\n"]))
    return text


def rows_of(*texts: str | bytes) -> pl.DataFrame:
    """The lines of some sources."""
    data = [text.encode() if isinstance(text, str) else text for text in texts]
    return pl.concat([lines.block(each, 1, source) for source, each in enumerate(data)])


def joined(*parts: Parsed) -> dict[str, pl.DataFrame]:
    pieces: dict[str, list[pl.DataFrame]] = {}
    for part in parts:
        for name, frames in part.frames.items():
            pieces.setdefault(name, []).extend(frames)
        if part.encoded:
            pieces.setdefault("operation", []).append(part.encoded.decode())
    return {name: pl.concat(frames, how="diagonal") for name, frames in pieces.items()}


def found(*texts: str | bytes) -> dict[str, pl.DataFrame]:
    return joined(parse(rows_of(*texts), LANGUAGE))


def facts(frames: dict[str, pl.DataFrame]) -> Counter[tuple[str, frozenset[Row]]]:
    """What is said, wherever it stands: without the hosts that are named after the number of their file.

    Of lines that nothing knows, only the ends are kept, so they are left out.
    """
    kept = {name: frame for name, frame in frames.items() if name != LANGUAGE.catch_all}
    return Counter(
        (name, frozenset((column, value) for column, value in row.items() if not is_of_place(value)))
        for name, frame in kept.items()
        for row in frame.drop("source", "line", "pos", strict=False).iter_rows(named=True)
    )


def is_of_place(value: object) -> bool:
    return value is None or str(value).startswith(MADE_UP)


def counts(*texts: str | bytes) -> dict[str, int]:
    return parse(rows_of(*texts), LANGUAGE).tally.select(COUNTS).sum().row(0, named=True)


def run_over(folder: Path, texts: Sequence[bytes], *, whole: bool = True) -> Run:
    paths = [folder / f"{number}.log" for number in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_bytes(text)
    return open_run(find(map(str, paths)), ReadPolicy(full=whole))


def facts_of(run: Run) -> Counter[tuple[str, frozenset[Row]]]:
    return facts({shape.frame: run[shape.frame] for shape in LANGUAGE.shapes})


# Counting.


@given(st.lists(mutated(), min_size=1, max_size=3))
@examples(6)
def test_every_line_is_counted_exactly_once(texts: list[bytes]) -> None:
    rows = rows_of(*texts)

    tally = parse(rows, LANGUAGE).tally

    per_source = dict(tally.select("source", pl.sum_horizontal(COUNTS)).rows())
    assert per_source == dict(rows.group_by("source").len().rows())


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (CALL.format(host="node1", n=8), "recognised"),
        ("node1:77:77 [0] NCCL INFO a text that no grammar knows", "unrecognised"),
        ("step 7: loss 0.25", "application"),
        ("", "application"),
        ("see NCCL INFO in the manual", "application"),
        ("half\xff a line".encode("latin-1"), "damaged"),
    ],
)
def test_a_line_is_counted_in_its_category(line: str | bytes, kind: str) -> None:
    text = (line if isinstance(line, bytes) else line.encode()) + b"\n"

    assert counts(text) == {**dict.fromkeys(COUNTS, 0), kind: 1}


def test_two_lines_torn_into_one_count_as_one_line() -> None:
    torn = CALL.format(host="node1", n=1) + CALL.format(host="node1", n=2) + "\n"

    assert counts(torn) == {**dict.fromkeys(COUNTS, 0), "recognised": 1}


# What is behind a head is found as if the line had not been cut there.


def test_the_first_matching_alternative_gets_the_line() -> None:
    text, first = pl.Series(EXAMPLES), dict[int, tuple[str, str]]()
    for candidate in LANGUAGE.candidates:
        near = text.str.contains(candidate.pattern.anchor, literal=True).arg_true()
        for place in near.filter(text[near].str.contains(candidate.pattern.regex)):
            first.setdefault(place, (candidate.shape.frame, candidate.pattern.form))

    shown = {
        place: (name, form)
        for name, rows in found(*(f"{example}\n" for example in EXAMPLES)).items()
        for place, form in rows.select("source", "form").iter_rows()
    }

    assert shown == {place: pair for place, pair in first.items() if pair[0] != LANGUAGE.catch_all}


def test_of_few_short_texts_only_the_words_in_them_are_searched_for() -> None:
    few, long = pl.Series(["an error", None]), pl.Series([" " * LITTLE])

    assert words_in(few, ["fault", "error"]).to_list() == ["error"]
    assert words_in(pl.concat([few, long]), ["fault", "error"]).to_list() == ["error", "fault"]


@given(st.lists(st.sampled_from(EXAMPLES), min_size=1, max_size=12))
@examples(6)
def test_lines_parsed_together_give_the_rows_of_lines_parsed_separately(examples: list[str]) -> None:
    together = found("\n".join(examples) + "\n")

    assert facts(together) == sum((facts(found(example + "\n")) for example in examples), Counter())


# Lines torn into one another.


@pytest.mark.parametrize("end", [len(CALL.format(host="node1", n=1)), 170, 100, 60, 28])
def test_a_line_torn_into_another_is_recovered(end: int) -> None:
    whole = CALL.format(host="node2", n=9)
    first = CALL.format(host="node1", n=1)

    calls = found(f"{whole}\n{first[:end]}{CALL.format(host='node2', n=2)}\n")["operation"]

    assert ("node2", 2) in calls.select("host", "count").rows()


def test_two_complete_lines_without_a_newline_between_them_are_recovered() -> None:
    torn = CALL.format(host="node1", n=1) + CALL.format(host="node2", n=2)

    calls = found(f"{CALL.format(host='node2', n=9)}\n{torn}\n")["operation"]

    assert sorted(calls.select("host", "count").rows()) == [("node1", 1), ("node2", 2), ("node2", 9)]


@given(first=st.sampled_from(HEADED), second=st.sampled_from(EXAMPLES), data=st.data())
@examples(5)
def test_a_torn_line_never_invents_a_host(first: str, second: str, data: st.DataObject) -> None:
    """From behind its own prefix on, a line may be torn anywhere."""
    torn = first[: data.draw(st.integers(first.index(LANGUAGE.prefix_marker), len(first)))] + second

    frames = found(f"{torn}\n{first}\n{second}\n").values()
    hosts = {host for frame in frames if "host" in frame for host in frame["host"].drop_nulls()}

    assert hosts <= {"gpu-a012", "node1"}


def test_a_torn_line_is_recovered_in_a_file_of_calls_only(tmp_path: Path) -> None:
    calls = [CALL.format(host="node1", n=1), CALL.format(host="node2", n=2)]
    torn = CALL.format(host="node1", n=3)[:100] + CALL.format(host="node2", n=4)

    run = run_over(tmp_path, ["\n".join([*calls, torn, ""]).encode()])

    assert run["operation"].select("host", "count").rows() == [("node1", 1), ("node2", 2), ("node2", 4)]


def test_lines_torn_into_one_keep_their_order(tmp_path: Path) -> None:
    torn = "".join(CALL.format(host="node1", n=n) for n in range(4))

    run = run_over(tmp_path, [f"{torn}\n{torn}\n".encode()])

    assert run["operation"]["count"].to_list() == [0, 1, 2, 3, 0, 1, 2, 3]


def test_a_host_named_only_in_torn_lines_is_ignored() -> None:
    torn = CALL.format(host="node1", n=1)[:100] + CALL.format(host="node2", n=2)

    frames = found(f"{CALL.format(host='node1', n=9)}\n{torn}\n")

    assert frames["operation"]["host"].unique().to_list() == ["node1"]


def test_a_torn_line_is_split_by_the_hosts_of_its_own_file() -> None:
    torn = CALL.format(host="node1", n=1)[:100] + CALL.format(host="node2", n=2) + "\n"
    other = CALL.format(host="node2", n=9) + "\n"

    alone = found(torn).get("operation", pl.DataFrame({"source": []}))
    together = found(torn, other)["operation"]

    assert together.filter(source=0).height == alone.height


# Text in front of a line.


@pytest.mark.parametrize(
    "decoration",
    [
        "0: ",
        "[1,3]<stdout>:",
        "[rank3]: ",
        "node1: ",
        "2026-03-02T11:04:57.034 ",
        "2026-03-02 11:04:57,034 INFO stdout: ",
        "\x1b[36m(worker pid=77, ip=10.0.0.1)\x1b[0m ",
        "[default0]:",
        "worker-0 | ",
        "[02/Mar/2026 11:04:57] ",
        "1741000000.123 ",
    ],
)
def test_text_in_front_of_a_line_does_not_hide_it(decoration: str) -> None:
    plain = "".join(f"{CALL.format(host='node1', n=n)}\n" for n in range(3))
    decorated = "".join(f"{decoration}{line}\n" for line in plain.splitlines())

    seen = found(decorated)["operation"]

    assert seen.drop("stamp", strict=False).rows() == found(plain)["operation"].rows()
    assert counts(decorated)["recognised"] == 3


# What does not matter.


@given(st.lists(mutated(), min_size=1, max_size=4), st.randoms(use_true_random=False))
@examples(5)
def test_the_order_of_files_does_not_change_the_rows(texts: list[bytes], order: object) -> None:
    shuffled = sorted(texts, key=lambda _: order.random())  # type: ignore[attr-defined]
    with tempfile.TemporaryDirectory() as here, tempfile.TemporaryDirectory() as there:
        assert facts_of(run_over(Path(here), texts)) == facts_of(run_over(Path(there), shuffled))


@given(st.lists(st.sampled_from(EXAMPLES), min_size=2, max_size=20), st.integers(1, 19))
@examples(6)
def test_the_distribution_of_lines_over_files_does_not_change_the_rows(texts: list[str], place: int) -> None:
    upper, lower = ("".join(f"{text}\n" for text in part) for part in (texts[:place], texts[place:]))

    assert facts(found(upper, lower)) == facts(found(upper + lower))


@given(st.lists(mutated(), min_size=1, max_size=3))
@examples(5)
def test_parsing_files_together_does_not_change_the_rows(texts: list[bytes]) -> None:
    apart = sum((facts(found(text)) for text in texts), Counter[tuple[str, frozenset[Row]]]())

    assert facts(found(*texts)) == apart


# No input makes the program fall over.


def _survives(text: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for whole in (True, False):
            run = run_over(Path(folder), [text, text], whole=whole)

            for shape in LANGUAGE.shapes:
                assert run[shape.frame].columns[:3] == ["source", "line", "pos"]
            assert run["source"].height == 2


@given(mutated() | st.binary(max_size=300) | st.text(max_size=100).map(lambda text: text.encode("utf-16")))
@examples(6)
def test_no_input_raises(text: bytes) -> None:
    _survives(text)


@given(data=st.data())
@examples(5, with_fixtures=True)
def test_distorted_real_logs_raise_no_error(corpus: Path, data: st.DataObject) -> None:
    logs = sorted(path for path in (corpus / "nccl-logs").rglob("*") if path.is_file())
    log = data.draw(st.sampled_from(logs))
    beginning = log.read_bytes()[:20_000].decode("utf-8", "replace").split("\n")

    _survives(data.draw(mutated(beginning)))


def test_the_counts_of_real_logs_sum_to_their_lines(corpus: Path) -> None:
    logs = sample((path for path in (corpus / "nccl-logs").rglob("*") if path.is_file()), 12)
    run = open_run(find(map(str, logs)), ReadPolicy(full=True))
    counted = dict(run.tally.select("source", pl.sum_horizontal(COUNTS)).rows())

    for reading in run.inputs:
        if not reading.problems and reading.source.seekable:
            text = Path(reading.source.path).read_bytes()
            assert counted.get(reading.number, 0) == len(text.removesuffix(b"\n").split(b"\n"))


def test_many_lines_joined_into_one_are_recovered_and_count_as_one() -> None:
    tag = "(Worker pid=7) "
    pasted = "it says: " + " ".join([tag + CALL.format(host="node1", n=n) for n in range(20)]) + " what now?\n"

    parsed = parse(rows_of(pasted), LANGUAGE)

    counts = [n for piece in parsed.frames["operation"] for n in piece["count"].to_list()]
    assert sorted(counts) == list(range(19))  # the last one has text behind it that nobody can tell from its own
    assert parsed.tally.select(COUNTS).row(0) == (1, 0, 0, 0)


def test_a_line_without_its_prefix_is_matched_by_its_message() -> None:
    reported = "[Service thread] Error encountered progressing operation=Connect, res=3, closing connection"
    text = f"proxy.cc:1501 NCCL WARN {reported}\nNCCL INFO Connected all rings\nI wish NCCL INFO were on\n"

    parsed = parse(rows_of(text), LANGUAGE)

    (failure,) = parsed.frames["failure"]
    assert failure["form"].to_list() == ["service_failed"]
    assert failure["host"].to_list() == ["?"]  # named when it is known which processes the input has
    assert parsed.speakers["host"].to_list() == ["?"]
    assert parsed.tally.select(COUNTS).row(0) == (2, 1, 0, 0)


# What is sifted out of a block is what parsing it line by line would have found.

COUNTED = [
    CALL.format(host=host, n=n).replace("opCount 1a", f"opCount {counter}") + end
    for host in ("node1", "node2")
    for n in (1, 1024)
    for counter in ("0", "ff", "+1", "-1", "1G", "1A", "10000000000000000", "1 opCount 2", "é")
    for end in ("", " ", "0", "\x1b[0m")
]
WITH_BUFFERS = [
    CALL.format(host="node1", n=n).replace("recvbuff 0x7f", f"recvbuff {buffer}").replace("] stream 0x55d1b0", end)
    for n in (1, 1024)
    for buffer in ("0x7f2a", "0x...", "(nil)", "0xg", "0x1 recvbuff 0x2", "0x1 count 3", "é")
    for end in ("] stream 0x5", "] stream (nil)", "] stream 0x1 stream 0x2", "] stream é", " stream 0x1", "] stream ")
]


DRAWN = COUNTED, WITH_BUFFERS, EXAMPLES, ["é: opCount 1 sendbuff ", " count 1] stream : opCount 1 sendbuff 0x1"]


@pytest.mark.parametrize("are_repeated", [False, True])
@given(st.lists(st.one_of(*map(st.sampled_from, DRAWN)), max_size=30))
@examples(12)
def test_parsing_by_template_gives_the_rows_of_parsing_line_by_line(are_repeated: bool, texts: list[str]) -> None:
    rows = rows_of("\n".join([*texts, ""]))
    with patch.object(parser, "are_repeated", lambda *_: are_repeated):
        sifted, rest = parse_by_template(rows, LANGUAGE)
    after, whole = parse(rest, LANGUAGE), parse(rows, LANGUAGE)

    assert rest.height + (sifted.encoded.occurrences.height if sifted.encoded else 0) == rows.height
    assert facts(joined(sifted, after)) == facts(joined(whole))
    both = pl.concat([sifted.tally, after.tally]).select(COUNTS).sum()
    assert both.row(0) == whole.tally.select(COUNTS).sum().row(0)


def test_calls_that_differ_in_their_buffers_share_a_template() -> None:
    texts = [CALL.format(host="node1", n=8).replace("buff 0x7f", f"buff 0x{number:x}") for number in range(99)]

    parsed, rest = parse_by_template(rows_of("\n".join([*texts, ""])), LANGUAGE)

    assert parsed.encoded is not None
    assert (parsed.encoded.templates.height, parsed.encoded.height, rest.height) == (1, 99, 0)


@pytest.mark.parametrize(("buffers", "repeated"), [(3, True), (5_000, False)])
def test_many_calls_are_repeated_if_they_differ_in_their_counter_alone(buffers: int, repeated: bool) -> None:
    calls = [
        CALL.format(host="node1", n=8).replace("1a", f"{n:x}").replace("buff 0x7f", f"buff 0x{n % buffers:x}")
        for n in range(5_000)
    ]
    rows = rows_of("\n".join([*calls, "an application's line", ""]))

    parsed, rest = parse_by_template(rows, LANGUAGE)

    assert are_repeated(rows, LANGUAGE.template) is repeated
    assert parsed.encoded is not None
    assert (parsed.encoded.templates.height, rest.height) == (1, 1)
    assert parsed.encoded.occurrences["opcount"].to_list() == list(range(5_000))
