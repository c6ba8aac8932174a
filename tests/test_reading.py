"""A file is read whole, or by windows at both ends that grow until they meet: the lines are the same."""

from __future__ import annotations

import gzip
import io
import pickle
import tempfile
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from ncclforensics import analyze
from ncclforensics.cli import main
from ncclforensics.formats import nccl
from ncclforensics.frames.open_run import open_run
from ncclforensics.frames.run import Run
from ncclforensics.inputs import lines
from ncclforensics.inputs.read_policy import ReadPolicy
from ncclforensics.inputs.sources import find
from ncclforensics.inputs.unpacked import measure, positioned
from ncclforensics.inputs.windows import InputReader
from ncclforensics.parsing import kept_calls
from ncclforensics.parsing.parser import parse
from ncclforensics.report.build import build_report
from ncclforensics.rules.registry import select_rules
from ncclforensics.simulate.generate import Fault, FaultKind, Plan, generate
from ncclforensics.views.json_report import as_object
from tests.budget import drawn, examples
from tests.incidents import INCIDENTS

LOG = b"gpu-a012:41887:42107 [3] NCCL INFO Connected all rings\n"
CALL = (
    "node1:77:{tid} [0] NCCL INFO AllReduce: opCount {n:x} sendbuff 0x7f recvbuff 0x7f count {n} datatype 7 op 0 "
    "root 0 comm 0x55d1c3e0 [nranks=8] stream 0x55d1"
)
INIT = (
    "node1:77:310 [0] NCCL INFO comm 0x55d1c3e0 rank {n} nranks 8 cudaDev 0 nvmlDev 0 busId 1b000 "
    "commId 0x1c5 - Init START"
)
WARN = "node1:77:310 [0] misc/socket.cc:49 NCCL WARN Net : Connection closed by remote peer node2<{n}>"

LINE = st.one_of(
    st.builds(CALL.format, tid=st.integers(77, 79), n=st.integers(0, 99)),
    st.builds(INIT.format, n=st.integers(0, 7)),
    st.builds(WARN.format, n=st.integers(0, 99)),
    st.sampled_from(["", "step 7", "\x1b[31mloss\x1b[0m 0.3", "caf\u00e9", "x" * 300]),
)
TEXTS = st.builds(
    lambda texts, end: ("\n".join(texts) + end).encode(),
    st.lists(LINE, min_size=1, max_size=40),
    st.sampled_from(["\n", ""]),
)
FRAMES = ("operation", "communicator", "failure", "warning")


WHOLE = ReadPolicy(full=True)


def tiny(window: int = 200, chunk: int = 150, **more: int) -> ReadPolicy:
    """Windows of a few lines, chunks of less than one."""
    return ReadPolicy(window=window, small_file=0, chunk=chunk, **more)


def written(path: Path, data: bytes) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return str(path)


def run_of(*paths: str, policy: ReadPolicy = WHOLE) -> Run:
    return open_run(find(paths), policy)


def everything(run: Run) -> dict[str, list[tuple[object, ...]]]:
    return {name: run[name].drop("pos").rows() for name in FRAMES}


def spoken(run: Run) -> list[tuple[object, ...]]:
    """Who speaks in which source, how often, and last in which line."""
    stretches = run["speaker"].group_by("source", "host", "pid").agg(pl.col("lines").sum(), pl.col("last").max())
    return stretches.sort("source", "pid").rows()


def texts_of(run: Run, name: str) -> list[tuple[int, str]]:
    """The lines of a frame: their numbers and texts."""
    places = list(run[name].select("source", "line").iter_rows())
    quotes = run.quote(places)
    return [quotes[place] for place in places]


def read_on(stream: io.BufferedIOBase, size: int) -> bytes:
    """So many bytes, in as many reads as it takes."""
    data = b""
    while (size < 0 or len(data) < size) and (piece := stream.read(size - len(data) if size >= 0 else -1)):
        data += piece
    return data


def all_lines(pieces: Iterator[pl.DataFrame]) -> list[int]:
    return [line for piece in pieces for line in piece["line"]]


@given(
    data=TEXTS,
    window=st.integers(1, 500),
    chunk=st.integers(1, 500),
    steps=st.lists(st.sampled_from(["head", "tail"]), max_size=12),
)
@examples(13)
def test_growing_windows_give_the_rows_of_a_full_read(data: bytes, window: int, chunk: int, steps: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = written(Path(folder) / "rank0.log", data)
        whole = run_of(path)
        grown = run_of(path, policy=tiny(window, chunk))

        for step in [*steps, "all"]:
            grown.read_on(pl.DataFrame({"source": [0], "reach": [step]}))

        assert everything(grown) == everything(whole)
        assert grown.tally.rows() == whole.tally.rows()
        assert grown["source"].rows() == whole["source"].rows()


@given(data=TEXTS, chunk=st.integers(1, 500))
@examples(13)
def test_keeping_the_ends_leaves_out_nothing_but_calls(data: bytes, chunk: int) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(kept_calls, "FEWEST", 1)
        path = written(Path(folder) / "rank0.log", data)
        whole = run_of(path)
        ends = run_of(path, policy=tiny(1, chunk)._replace(full=True, calls=0))

        assert ends.tally.rows() == whole.tally.rows()
        assert ends.inputs[0].lines_read == whole.inputs[0].lines_read
        for name in FRAMES[1:]:
            assert texts_of(ends, name) == texts_of(whole, name)
        calls, kept = texts_of(whole, "operation"), texts_of(ends, "operation")
        assert set(kept) <= set(calls)
        assert len(kept) + ends["calls_between"]["calls"].sum() <= len(calls)


@given(
    texts=st.lists(TEXTS, min_size=1, max_size=5),
    chunk=st.integers(1, 500),
    batch=st.sampled_from([0, 10_000]),
    few=st.integers(0, 20),
)
@examples(5)
def test_several_readers_give_the_same_rows_as_one(texts: list[bytes], chunk: int, batch: int, few: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        paths = [written(Path(folder) / f"rank{number}.log", data) for number, data in enumerate(texts)]
        alone = run_of(*paths)
        # One source alone has four workers, two have two each.
        policy = WHOLE._replace(chunk=chunk, batch=batch, one_thread=0, threads=4, small_frame=few)
        shared = run_of(*paths, policy=policy)

        assert everything(shared) == everything(alone)
        assert shared.tally.sort("source").rows() == alone.tally.sort("source").rows()
        assert spoken(shared) == spoken(alone)


@given(data=TEXTS, window=st.integers(1, 500))
@examples(10)
def test_growing_windows_terminates(data: bytes, window: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for end in ("head", "tail"):
            run = run_of(written(Path(folder) / "rank0.log", data), policy=tiny(window))

            steps = 0
            while not run.inputs[0].is_whole:
                run.read_on(pl.DataFrame({"source": [0], "reach": [end]}))
                steps += 1

            assert steps < 20


def test_a_last_line_longer_than_the_window_is_read_at_once(tmp_path: Path) -> None:
    path = written(tmp_path / "rank0.log", LOG * 100 + b"x" * 3000 + b"\n")

    found = InputReader(find([path])[0], 0, tiny())
    numbers = all_lines(found.start())

    assert numbers[-1] == -1


def test_a_window_costs_the_same_whatever_the_length_of_the_file(tmp_path: Path) -> None:
    read = []
    for length in (100, 10_000):
        run = run_of(written(tmp_path / f"{length}.log", LOG * length), policy=tiny())
        read.append(run.inputs[0].bytes_read)

    assert read[0] == read[1] < 600


def test_windows_of_many_files_hold_no_more_than_those_of_some_and_a_few_are_read_whole() -> None:
    few, many = ReadPolicy.of_windows(2048), ReadPolicy.of_windows(8192)

    assert few == ReadPolicy()._replace(calls=few.calls)
    assert ReadPolicy.of_windows(1).small_file == 8 * ReadPolicy.of_windows(8).small_file > few.small_file
    assert 8192 * many.window == 2048 * few.window


def test_a_small_file_is_read_whole_at_once(tmp_path: Path) -> None:
    run = run_of(written(tmp_path / "rank0.log", LOG * 100), policy=ReadPolicy())

    assert run["source"]["is_whole"].to_list() == [True]


def test_lines_of_a_tail_get_their_true_number_once_the_windows_met(tmp_path: Path) -> None:
    text = "".join(f"{CALL.format(tid=77, n=n)}\n" for n in range(40)).encode()
    run = run_of(written(tmp_path / "rank0.log", text), policy=tiny())
    assert run["operation"]["line"].min() == -1  # the window at the end holds one call

    run.read_on(pl.DataFrame({"source": [0], "reach": ["all"]}))

    assert run["operation"]["line"].to_list() == list(range(1, 41))
    assert run["operation"]["count"].to_list() == list(range(40))


def test_calls_have_their_positions_although_the_middle_was_not_read(tmp_path: Path) -> None:
    text = "".join(f"{CALL.format(tid=77, n=n)}\n" for n in range(40)).encode()

    run = run_of(written(tmp_path / "rank0.log", text), policy=tiny())

    assert run["operation"]["count"].is_sorted()
    assert run["operation"]["count"].to_list()[-1] == 39


def test_a_file_that_vanishes_while_its_windows_grow_is_named(tmp_path: Path) -> None:
    path = written(tmp_path / "rank0.log", LOG * 100)
    run = run_of(path, policy=tiny())

    Path(path).unlink()
    run.read_on(pl.DataFrame({"source": [0], "reach": ["tail"]}))

    assert "No such file" in run["source"]["problem"][0]
    assert run.inputs[0].is_whole  # nothing asks for more of it


def test_a_file_that_shrinks_while_its_windows_grow_raises_no_error(tmp_path: Path) -> None:
    path = written(tmp_path / "rank0.log", LOG * 100)
    run = run_of(path, policy=tiny())

    Path(path).write_bytes(LOG)
    for reach in ("tail", "head", "all"):
        run.read_on(pl.DataFrame({"source": [0], "reach": [reach]}))

    assert run.inputs[0].is_whole


# Damage and other things than logs.


def test_a_truncated_archive_keeps_what_it_holds_and_names_the_problem(tmp_path: Path) -> None:
    text = "".join(f"{CALL.format(tid=77, n=n)}\n" for n in range(3000)).encode()

    for name, packed in (("a.gz", gzip.compress(text)), ("b.zst", zstandard.ZstdCompressor().compress(text))):
        run = run_of(written(tmp_path / name, packed[: len(packed) * 3 // 4]))

        assert 1000 < run["operation"].height < 3000
        assert run["operation"]["count"].to_list() == list(range(run["operation"].height))
        assert "is damaged after line" in run["source"]["problem"][0]


def test_an_archive_with_a_damaged_middle_keeps_its_beginning(tmp_path: Path) -> None:
    text = "".join(f"{CALL.format(tid=77, n=n * 7919 % 9973)}\n" for n in range(8_000)).encode()
    packed = bytearray(gzip.compress(text))
    packed[len(packed) // 2 : len(packed) // 2 + 40] = b"\xff" * 40

    run = run_of(written(tmp_path / "a.gz", bytes(packed)))

    assert run["operation"].height > 1000
    assert "is damaged after line" in run["source"]["problem"][0]


@pytest.mark.parametrize(
    "data",
    [
        b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 40,
        b"\x7fELF\x02\x01\x01" + b"\x00" * 9000,
        bytes(range(128, 256)) * 900,
    ],
    ids=["PNG", "core file", "noise"],
)
def test_binary_files_are_named_and_skipped(tmp_path: Path, data: bytes) -> None:
    run = run_of(written(tmp_path / "a", data), written(tmp_path / "rank0.log", LOG))

    assert run["source"]["problem"].to_list() == ["is not a log: binary data, skipped", ""]
    assert run["milestone"]["source"].to_list() == [1]


def test_a_pickle_is_never_loaded_and_not_taken_for_text(tmp_path: Path) -> None:
    dump = pickle.dumps({"entries": [f"NCCL INFO of step {step}" for step in range(99)]}, protocol=2)
    run = run_of(written(tmp_path / "flight.rank0", dump), written(tmp_path / "rank0.log", LOG))

    assert run["source"]["problem"].to_list() == [
        "is not a log: a pickle other than a Flight Recorder dump, skipped",
        "",
    ]


def test_a_log_after_a_block_of_nul_bytes_is_read(tmp_path: Path) -> None:
    run = run_of(written(tmp_path / "rank0.log", b"\x00" * 300_000 + b"\n" + LOG * 10))

    assert run["milestone"].height == 10


def test_an_empty_file_is_no_problem(tmp_path: Path) -> None:
    run = run_of(written(tmp_path / "a.log", b""), written(tmp_path / "rank0.log", LOG))

    assert run["source"]["problem"].to_list() == ["", ""]
    assert run["milestone"].height == 1


def test_a_blank_line_before_a_warning_does_not_hide_it(tmp_path: Path) -> None:
    warning = WARN.format(n=45210)

    run = run_of(written(tmp_path / "rank0.log", f"\n{warning}\n".encode()))

    assert run["failure"]["line"].to_list() == [2]
    assert run["failure"]["peer"].to_list() == ["node2<45210>"]


@pytest.mark.parametrize("line", [CALL.format(tid=77, n=26), INIT.format(n=3), WARN.format(n=45210)], ids=FRAMES[:3])
def test_a_last_line_cut_anywhere_never_gives_a_wrong_value(line: str) -> None:
    whole = parse(lines.block(line.encode() + b"\n", 1), nccl.dialect()).frames
    cut = [lines.block(line[:end].encode(), 1, source=end) for end in range(1, len(line) + 1)]

    found = parse(pl.concat(cut), nccl.dialect()).frames

    for name in ("operation", "communicator", "failure"):
        for row in pl.concat(found.get(name, []) or [pl.DataFrame()], how="diagonal").to_dicts():
            values = {column: value for column, value in row.items() if column != "source" and value is not None}
            assert any(values.items() <= true.items() for true in pl.concat(whole[name]).to_dicts())


@given(data=TEXTS, window=st.integers(1, 100), chunk=st.integers(1, 500))
@examples(8)
def test_compressed_files_have_the_windows_of_plain_ones(data: bytes, window: int, chunk: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        plain = written(Path(folder) / "rank0.log", data)
        packed = written(Path(folder) / "packed" / "rank0.log.gz", gzip.compress(data))
        of_plain, of_packed = (run_of(path, policy=tiny(window, chunk)) for path in (plain, packed))

        for reach in ("head", "all"):
            assert everything(of_packed) == everything(of_plain)
            assert of_packed.tally.rows() == of_plain.tally.rows()
            assert texts_of(of_packed, "operation") == texts_of(of_plain, "operation")
            for run in (of_plain, of_packed):
                run.read_on(pl.DataFrame({"source": [0], "reach": [reach]}))

        assert everything(of_packed) == everything(of_plain)


@given(
    data=st.binary(max_size=300),
    kept=st.integers(1, 50),
    steps=st.lists(st.tuples(st.sampled_from([0, 1, 2]), st.integers(-60, 300), st.integers(-1, 80)), max_size=8),
)
def test_an_unpacked_stream_is_positioned_as_a_file_is(
    data: bytes, kept: int, steps: list[tuple[int, int, int]]
) -> None:
    length, tail = measure(io.BytesIO(data), kept)
    stream, file = positioned(lambda: io.BytesIO(data), length, tail), io.BytesIO(data)

    for whence, offset, size in steps:
        place = max({0: 0, 1: file.tell(), 2: len(data)}[whence] + offset, 0)
        assert stream.seek(offset, whence) == file.seek(place)
        assert read_on(stream, size) == read_on(file, size)
        assert stream.tell() == file.tell()


def test_files_that_are_compressed_give_the_same_rows(tmp_path: Path) -> None:
    text = "".join(f"{CALL.format(tid=77, n=n)}\n" for n in range(100)).encode()

    plain = run_of(written(tmp_path / "a.log", text))
    packed = run_of(written(tmp_path / "b.log", gzip.compress(text)), policy=ReadPolicy())

    assert everything(packed) == everything(plain)


def test_reports_among_the_logs_are_skipped(tmp_path: Path) -> None:
    logs = sorted((INCIDENTS / "one-rank-stops-before-an-allreduce").glob("*.log"))
    for log in logs:
        (tmp_path / log.name).write_bytes(log.read_bytes())
    alone = as_object(analyze([str(tmp_path)]))

    forms = drawn(["text", "json", "markdown", "junit", "sarif"], 3)
    for form in forms:
        main(["hang", str(logs[0]), "--format", form, "-o", str(tmp_path / f"zz-report-{form}")])
    again = as_object(analyze([str(tmp_path)]))

    skipped = [given["problems"] for given in again["inputs"][-len(forms) :]]
    assert skipped == [["is a report of this program, skipped"]] * len(forms)
    assert again["hang"] == alone["hang"]


@pytest.mark.parametrize("version", ["2.21.5", "2.27.7"])
@pytest.mark.parametrize("kind", [FaultKind.LAGGING, FaultKind.KILLED, FaultKind.NETWORK_LOST])
def test_long_logs_are_judged_as_if_every_call_was_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: FaultKind, version: str
) -> None:
    generate(Plan(nodes=2, tp=4, version=version, bytes_per_rank=100_000, fault=Fault(kind, (5,), "world")), tmp_path)
    every_call = analyze([tmp_path], everything=True)
    monkeypatch.setattr(kept_calls, "FEWEST", 30)
    run = open_run(find([str(tmp_path)]), ReadPolicy(full=True, calls=2000, chunk=16 << 10))

    of_long_logs = build_report(run, rules=select_rules(everything=True))

    assert any(reader.is_read_through for reader in run.inputs)
    wanted, found = as_object(every_call), as_object(of_long_logs)
    for finding in wanted["findings"] + found["findings"]:
        del finding["detail"]  # it counts all calls of a process
    assert {**found, "tool": None} == {**wanted, "tool": None}
