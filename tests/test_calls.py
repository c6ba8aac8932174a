"""Slices and checksums, used on millions of calls, do not change the frames of calls."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ncclforensics.analyses.job.calls import calls as call_frames
from ncclforensics.frames.stretches import CALLS_BETWEEN_COLUMNS
from ncclforensics.frames.templated import opcount_of

NONE_BETWEEN = pl.DataFrame(schema=CALLS_BETWEEN_COLUMNS)
CALLS = st.lists(st.lists(st.integers(0, 2), max_size=12), min_size=1, max_size=4)  # of each member, what it called


def _frames(calls: list[list[int]]) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """The frames `call`, `call_line` and `member` of communicators of two members each."""
    signatures = [3, -(2**62), 2**63 - 1]
    rows = [
        (number, number, f"comm{number // 2}", what, nth, nth, False, 1000 * number + nth)
        for number, made in enumerate(calls)
        for nth, what in enumerate(made)
    ]
    order = ["member", "rank_id", "key", "call_line", "ordinal", "nth", "in_tail", "pos"]
    call = pl.DataFrame(rows, schema={name: call_frames.CALL[name] for name in order}, orient="row")
    member = pl.DataFrame({"key": [f"comm{number // 2}" for number in range(len(calls))]})
    return call, pl.DataFrame({"signature": signatures}), member.cast(pl.Categorical)


def _expected(calls: list[list[int]]) -> list[tuple[str, int]]:
    """Return the first divergence of each communicator, comparing call by call."""
    found = []
    for number in range(0, len(calls) - 1, 2):
        pairs = zip(calls[number], calls[number + 1], strict=False)
        found += [(f"comm{number // 2}", nth) for nth, (one, other) in enumerate(pairs) if one != other][:1]
    return found


@given(CALLS, st.integers(1, 5))
@example([[0, 1, 1, 0], [1, 0, 0, 1]], 5)  # changed places in both directions
def test_first_divergence_is_found_with_slices_and_checksums(calls: list[list[int]], part: int) -> None:
    call, call_line, member = _frames(calls)
    if call.is_empty():
        return
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(call_frames, "SLICE_ROWS", part)

        end = call_frames.logged_end(call, NONE_BETWEEN, member)
        found = call_frames.logged_divergence(call, call_line, end, member)

    assert sorted(found.select(pl.col("key").cast(pl.String), "nth").rows()) == _expected(calls)


def test_only_communicators_with_differing_checksums_are_compared() -> None:
    calls = [[0, 1, 2] * 1000, [0, 1, 2] * 1000, [0] * 500, [0] * 400 + [1] + [0] * 99]
    call, call_line, member = _frames(calls)

    end = call_frames.logged_end(call, NONE_BETWEEN, member)
    candidates = call_frames._possibly_differing(call, call_line, end, member)

    assert candidates["key"].unique().to_list() == ["comm1"]


@given(st.lists(st.integers(0, 3), max_size=30), st.integers(1, 7))
def test_calls_numbered_in_slices_equal_calls_numbered_at_once(memberships: list[int], part: int) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(call_frames, "SLICE_ROWS", part)

        counted = call_frames._count_within(pl.Series(memberships, dtype=pl.UInt32), 4)

    assert counted.to_list() == [memberships[:place].count(membership) for place, membership in enumerate(memberships)]


@given(st.lists(st.integers(0, 40), unique=True), st.lists(st.integers(0, 40), max_size=20))
def test_the_counter_of_a_call_is_that_of_the_line_at_its_place(lines: list[int], calls: list[int]) -> None:
    occurrences = pl.DataFrame({"pos": sorted(lines)}, schema={"pos": pl.Int64()}).with_columns(
        opcount=pl.col("pos") + 7
    )

    counters = opcount_of(pl.DataFrame({"pos": calls}, schema={"pos": pl.Int64()}), occurrences)

    assert counters.to_list() == [pos + 7 if pos in lines else None for pos in calls]
