"""A flood of equal lines costs what is different in it: the middle of it is counted, and nothing is lost."""

from __future__ import annotations

import gzip
import tempfile
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclforensics import analyze
from ncclforensics.analyses.job.identity import identity
from ncclforensics.formats import dialect
from ncclforensics.frames.open_run import open_run
from ncclforensics.frames.run import Run
from ncclforensics.inputs import lines
from ncclforensics.inputs.lines import LAST, REPEATS
from ncclforensics.inputs.read_policy import ReadPolicy
from ncclforensics.inputs.sources import find
from ncclforensics.parsing import alike_rows
from ncclforensics.parsing.alike_rows import AlikeRows
from ncclforensics.parsing.matching import match
from ncclforensics.parsing.parser import COUNTS
from ncclforensics.parsing.repeated_lines import NEAR, RepeatedLines
from tests.budget import examples

PROCESS = "gpu-a012:41887:{tid} [3] "
RETURNED = PROCESS + "NCCL INFO transport/net.cc:1363 -> 6"
WARN = (
    PROCESS + "transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer 10.0.4.13<45210> with error 12, "
    "opcode 0, len 0, vendor err 129 (Send)"
)
STAMPED = "[2026-03-02 11:04:{second:02}] " + WARN
CALL = (
    "gpu-a012:41887:41887 [3] NCCL INFO AllReduce: opCount {n:x} sendbuff 0x7f recvbuff 0x7f count 8 datatype 7 op 0 "
    "root 0 comm 0x55d1c3e0 [nranks=8] stream 0x55d1"
)
UNKNOWN = PROCESS + "NCCL INFO a sentence that no grammar has"
FLOODS = (RETURNED, WARN, UNKNOWN, "loss is nan, batch skipped", "")
KEPT = 2
WHOLE = ReadPolicy(full=True, kept=1 << 20)  # nothing is dropped
COLLAPSED = WHOLE._replace(kept=KEPT)
FRAMES = ("operation", "failure", "warning", "communicator", "memory_region")


def run_of(text: str, policy: ReadPolicy) -> Run:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rank3.log"
        path.write_text(text, encoding="utf-8")
        return open_run(find([str(path)]), policy)


def counts(run: Run) -> dict[str, object]:
    row = run.tally.row(0, named=True)
    return {name: row[name] for name in COUNTS} | {"lines": run.inputs[0].lines_read}


def collapsed(texts: list[str], kept: int = KEPT) -> pl.DataFrame:
    rows = lines.block("".join(f"{text}\n" for text in texts).encode(), 1)
    return RepeatedLines(kept).collapse(rows, dialect())


FLOOD = st.tuples(st.lists(st.sampled_from(FLOODS), min_size=1, max_size=3, unique=True), st.integers(1, 60)).map(
    lambda flood: [line.format(tid=42107) for line in flood[0]] * flood[1]
)
OTHERS = st.lists(
    st.one_of(
        st.builds(CALL.format, n=st.integers(0, 9)),
        st.builds(RETURNED.format, tid=st.integers(1, 9)),
        st.sampled_from(["step 7", "x\ty", PROCESS.format(tid=7) + "NCCL INFO Connected all rings"]),
    ),
    max_size=6,
)


@given(st.lists(st.one_of(FLOOD, OTHERS), max_size=6))
@examples(12)
def test_every_line_is_counted_once_whether_it_was_kept_or_not(parts: list[list[str]]) -> None:
    text = "".join(f"{line}\n" for part in parts for line in part)

    whole, few = run_of(text, WHOLE), run_of(text, COLLAPSED)

    if text:
        assert counts(few) == counts(whole)
        assert sum(counts(few)[name] for name in COUNTS) == text.count("\n")  # type: ignore[misc]
    spoken = [run["speaker"].select("host", "pid", "lines", "last_pos").rows() for run in (whole, few)]
    assert spoken[0] == spoken[1]
    for name in ("operation", "communicator"):
        assert few[name].equals(whole[name])
    # The distinct lines, and where they stand first and last, are those of all lines.
    keys = [name for name in whole["failure"].columns if name not in ("line", "pos")]
    ends = [
        run["failure"].group_by(keys).agg(first=pl.col("line").min(), last=pl.col("line").max()).sort("first").rows()
        for run in (whole, few)
    ]
    assert ends[0] == ends[1]


def test_a_flood_keeps_its_ends_and_says_how_many_lines_it_stands_for() -> None:
    rows = collapsed([RETURNED.format(tid=7)] * 100)

    assert rows["line"].to_list() == [*range(1, NEAR + 1), *range(101 - NEAR, 101)]
    assert rows.row(0, named=True)[REPEATS] == 100 - 2 * NEAR
    assert rows.row(0, named=True)[LAST] == 100


def test_lines_in_turn_collapse_as_one_line_does() -> None:
    turn = [RETURNED.format(tid=7), UNKNOWN.format(tid=7), ""]

    rows = collapsed(turn * 100)

    assert rows.height < 20
    assert rows[REPEATS].sum() + rows.height == 300


def test_a_line_in_the_middle_of_a_flood_stays_with_the_lines_around_it() -> None:
    flood = [RETURNED.format(tid=7)] * 100

    rows = collapsed([*flood, "Last error:", *flood])

    assert set(range(101 - NEAR, 102 + NEAR)) <= set(rows["line"])


@pytest.mark.parametrize(
    "line",
    [
        CALL.format(n=7),
        "gpu-a012:41887:42107 [3] NCCL INFO Connected all rings",
        "gpu-a012:41887:42107 [3] NCCL INFO comm 0x55d1c3e0 rank 3 nranks 8 cudaDev 0 busId 1b000 - Init COMPLETE",
    ],
)
def test_lines_whose_number_has_a_meaning_are_never_dropped(line: str) -> None:
    assert collapsed([line] * 100).height == 100


def test_lines_collapsed_in_parts_collapse_again_as_if_they_had_been_one_part() -> None:
    kept = RepeatedLines(KEPT)
    rows = lines.block(f"{RETURNED.format(tid=7)}\n".encode() * 400, 1)
    parts = [kept.collapse(rows.slice(start, 100), dialect()) for start in range(300, -1, -100)]

    again = kept.collapse(pl.concat(parts).sort("line"), dialect())

    assert again["line"].to_list() == [1, 2, 3, 398, 399, 400]
    assert again.select(REPEATS, LAST).row(0) == (394, 400)


def test_a_flood_is_a_finding_that_names_its_rank_and_the_line_between_is_found(tmp_path: Path) -> None:
    init = (
        "gpu-a{n:03}:41887:42107 [3] NCCL INFO comm 0x55d1c3e0 rank {n} nranks 2 cudaDev 3 busId 1b000 - Init {phase}\n"
    )
    for n in range(2):
        text = "".join(init.format(n=n, phase=phase) for phase in ("START", "COMPLETE"))
        text += CALL.format(n=0).replace("gpu-a012", f"gpu-a{n:03}").replace("[nranks=8]", "[nranks=2]") + "\n"
        if n:
            stamped = [STAMPED.format(second=second, tid=42107).replace("a012", "a001") for second in range(5)]
            text += "".join(f"{line}\n" * 1000 for line in stamped)
            text += "gpu-a001:41887:41887 [3] enqueue.cc:80 NCCL WARN Cuda failure 700 "
            text += "'an illegal memory access was encountered'\n"
            text += f"{stamped[-1]}\n" * 1000
        (tmp_path / f"rank{n}.log").write_text(text, encoding="utf-8")

    report = analyze([str(tmp_path)], everything=False)

    floods = [finding for finding in report.findings if finding.rule == "line-repeated-without-end"]
    assert [finding.ranks for finding in floods] == [[1]]
    assert "a second" in floods[0].title
    assert "cuda-sticky-error" in {finding.rule for finding in report.findings}
    text = report.quotes[floods[0].evidence[0].source, floods[0].evidence[0].line][1]
    assert "11:04:00" in text


@pytest.mark.parametrize("is_packed", [False, True])
def test_blank_lines_without_end_are_counted_and_the_lines_between_found(tmp_path: Path, is_packed: bool) -> None:
    blanks = "\n" * 9_000
    text = f"{CALL.format(n=0)}\n{blanks}{RETURNED.format(tid=7)}\n{blanks}{WARN.format(tid=7)}\n"
    path = tmp_path / "rank3.log"
    path.write_bytes(gzip.compress(text.encode()) if is_packed else text.encode())

    run = open_run(find([str(path)]), ReadPolicy(small_file=0, window=2_000, chunk=6_000))
    run.read_on(pl.DataFrame({"source": [0], "reach": ["tail"]}))
    run.read_on(pl.DataFrame({"source": [0], "reach": ["all"]}))

    assert run["failure"]["line"].to_list() == [9_002, 18_003]
    assert counts(run) == {"lines": 18_003, "recognised": 3, "application": 18_000, "unrecognised": 0, "damaged": 0}


RETRY = PROCESS.format(tid=7) + (
    "NCCL INFO socketPollConnect: connect to 10.0.4.13<45210> returned {why}, retrying ({n}/34) after sleep for 9 msec"
)
EXITED = "srun: error: node{n}: task {n}: Exited with exit code {code}"
ALIKE = WHOLE._replace(kept=KEPT, events=100)


def numbered(form: str, many: int, **fields: object) -> list[str]:
    return [form.format(n=n, **fields) for n in range(many)]


@pytest.mark.parametrize(
    ("form", "other", "frame", "fields"),
    [
        (RETRY, RETRY.format(n=7, why="No route to host"), "failure", {"why": "Connection refused"}),
        (EXITED, EXITED.format(n=7, code=139), "process_end", {"code": 1}),
    ],
)
def test_of_lines_that_differ_in_numbers_the_ends_and_every_other_kind_are_kept(
    form: str, other: str, frame: str, fields: dict[str, object]
) -> None:
    lines = [*numbered(form, 300, **fields), other, *numbered(form, 300, **fields)]
    text = "".join(f"{line}\n" for line in lines)

    whole, few = run_of(text, WHOLE), run_of(text, ALIKE)

    assert counts(few) == counts(whole)
    assert few[frame]["line"].to_list() == [1, 2, 301, 600, 601]
    assert few["repeated_line"].select("line", "last_line", "repeats").rows() == [(3, 599, 596)]
    same_lines = whole[frame].filter(pl.col("line").is_in(few[frame]["line"].implode()))
    assert same_lines.equals(few[frame])


@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 99)), max_size=80), st.integers(1, 7))
@examples(30)
def test_which_alike_rows_are_kept_does_not_depend_on_how_they_were_divided(
    values: list[tuple[str, int]], length: int
) -> None:
    rows = pl.DataFrame(
        [(0, line, text, number) for line, (text, number) in enumerate(values, 1)],
        schema={"source": pl.Int32, "line": pl.Int32, "text": pl.String, "number": pl.Int64},
        orient="row",
    )
    at_once, in_parts = AlikeRows(most=10, kept=KEPT), AlikeRows(most=10, kept=KEPT)
    pieces: list[pl.DataFrame] = []
    for part in rows.iter_slices(length):
        pieces.append(part)
        if in_parts.count(part.height):
            pieces = in_parts.bounded(pieces)
    at_once.count(rows.height)

    assert in_parts.is_flooded <= at_once.is_flooded
    if at_once.is_flooded:
        kept = at_once.bounded([rows])[0]
        assert pl.concat(in_parts.bounded(pieces)).sort("line").equals(kept.sort("line"))
        for alike in (at_once, in_parts):
            counted = 0 if alike.dropped is None else sum(alike.dropped["repeats"])
            assert kept.height + counted == rows.height


def test_of_warnings_that_each_name_another_process_the_ends_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alike_rows, "FEW_PROCESSES", 16)
    warnings = [f"gpu-a012:{pid}:{pid} [0] transport/net.cc:1363 NCCL WARN a new sentence\n" for pid in range(300)]

    run = run_of("".join(warnings), WHOLE._replace(events=100, kept=KEPT))

    assert run["warning"]["pid"].to_list() == [0, 1, 298, 299]
    assert sum(run["repeated_line"]["repeats"]) == 296
    assert counts(run)["recognised"] == 300


def test_of_too_many_processes_those_with_a_communicator_and_with_most_lines_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(identity, "MOST_PROCESSES", 2)
    init = (
        "NCCL INFO ncclCommInitRank comm 0x55d1 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1b000 commId 0x8f3b - Init "
        "START\n"
    )
    rings = "NCCL INFO Connected all rings\n"
    printed = {1: [rings], 2: [rings], 3: [rings, rings], 4: [rings], 5: [init]}

    run = run_of("".join(f"gpu-a012:{pid}:{pid} [0] {line}" for pid in printed for line in printed[pid]), WHOLE)

    assert run["process"]["pid"].to_list() == [1, 3, 5]
    assert run["member"]["pid"].to_list() == [5]


def test_texts_of_events_become_categories_only_after_most_are_dropped() -> None:
    texts = pl.Series(numbered(EXITED, 3, code=1))
    rows = lines.block("".join(f"{text}\n" for text in texts).encode(), 1)

    (ends,) = match(rows, dialect()).frames["process_end"]
    run = run_of("".join(f"{text}\n" for text in texts), WHOLE)

    assert ends["node"].dtype == ends["tasks"].dtype == pl.String  # Polars keeps a category for ever
    assert run["process_end"]["node"].dtype == pl.Categorical
    assert run["process_end"]["node"].equals(ends["node"].cast(pl.Categorical))


def test_a_million_exits_are_few_findings_and_the_count_is_said(tmp_path: Path) -> None:
    path = tmp_path / "slurm.out"
    path.write_text("".join(f"{line}\n" for line in numbered(EXITED, 70_000, code=1)), encoding="utf-8")

    report = analyze([str(path)], everything=True)

    titles = {finding.rule: finding.title for finding in report.findings}
    assert titles["line-repeated-without-end"] == "69,936 lines of slurm.out differ from others only in numbers"
    assert titles["app-process-died"].startswith("tasks 0-31, 69968-69999 of srun")
