"""Compare the calls of two ranks in their order, and say how they differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import takewhile

import polars as pl

from ncclforensics.analyses.verdict.job import Job
from ncclforensics.analyses.verdict.job_rows import Called
from ncclforensics.analyses.verdict.vocabulary import How
from ncclforensics.data.names import argument_text, count_of

ARGUMENTS = ("count", "datatype", "op", "root")
COMPARED_CALLS = 500  # compared after the divergence

Token = tuple[int, int]  # the communicator's index on this rank, signature of the call
TokensAndRows = tuple[list[Token], list[Called]]


def went_past(key: str, nth: int, maker: TokensAndRows, lacking: TokensAndRows) -> bool:
    """Whether `lacking` made calls that `maker` made only after its nth collective on this communicator."""
    expected, maker_rows = maker
    position = next((index for index, row in enumerate(maker_rows) if row.key == key and row.nth == nth), None)
    if position is None:
        return False
    after = expected[position + 1 :]
    actual, rows = lacking
    before = [index for index, row in enumerate(rows) if row.key == key]
    following = actual[before[-1] + 1 :] if before else actual
    last_common = next((index for index in range(position - 1, -1, -1) if maker_rows[index].key == key), -1)
    in_between = expected[last_common + 1 : position]
    if in_between[: len(following)] == following:
        return False  # it has not come to the calls right before this one
    remaining = following[len(in_between) :] if following[: len(in_between)] == in_between else following
    return bool(remaining) and bool(after) and remaining[0] == after[0] and expected[position] not in remaining[:1]


def call_tokens(calls: pl.DataFrame, job: Job) -> TokensAndRows:
    """Return the last collectives of one rank as tokens that are equal for equal calls, and their rows."""
    rows = job.describe(calls.filter(pl.col("nth").is_not_null()).tail(COMPARED_CALLS))
    return [(job.communicator_index[row.rank_id, row.key], row.signature) for row in rows], rows


def classify_difference(job: Job, majority_call: Called, minority_call: Called) -> How:
    """Classify a difference by the explanation that aligns the longest part of both sequences after it.

    Calls on all communicators are compared: a skipped call shows there at once, and on its own communicator only at the
    next call.
    """
    expected, actual = _differing_tokens(job, majority_call, minority_call)
    alignments = {
        How.SKIPPED: _common_prefix(expected[1:], actual),
        How.EXTRA: _common_prefix(expected, actual[1:]),
        How.ARGUMENTS: _common_prefix(expected[1:], actual[1:]),
        How.SWAPPED: _common_prefix(expected[2:], actual[2:]) + 1
        if len(actual) > 1 and expected[:2] == actual[:2][::-1]
        else -1,
    }
    furthest = max(alignments.values())
    how = next(name for name in (How.ARGUMENTS, *alignments) if alignments[name] == furthest)
    return how if how is not How.ARGUMENTS or majority_call.name == minority_call.name else How.ANOTHER


def lacking_stretch(job: Job, majority_call: Called, minority_call: Called) -> int:
    """Return behind how many calls of the others all that a rank called since it agreed with them stands; 0: nowhere.

    So it is where the lines of these calls, or the calls, are missing.
    """
    expected, actual = _differing_tokens(job, majority_call, minority_call)
    starts = range(1, len(expected) - len(actual) + 1)
    return next((start for start in starts if expected[start : start + len(actual)] == actual), 0)


def _differing_tokens(job: Job, left: Called, right: Called) -> tuple[list[Token], list[Token]]:
    """Return what two ranks called since their first difference behind the last agreement on this communicator."""
    calls, other_calls = (_tokens_since_agreement(job, row) for row in (left, right))
    agreeing = _common_prefix(calls, other_calls)
    return calls[agreeing:], other_calls[agreeing:]


def _tokens_since_agreement(job: Job, row: Called) -> list[Token]:
    """Return the calls of a rank after the last one on this communicator that agrees with the others."""
    actual = job.calls_of(row.rank_id)
    agreed_pos = actual.filter((pl.col("key") == row.key) & (pl.col("nth") + 1 == row.nth))["pos"]
    since = actual.filter(pl.col("pos") > agreed_pos[0]) if agreed_pos.len() else actual
    return call_tokens(since.head(COMPARED_CALLS), job)[0]


def _common_prefix(left: Sequence[object], right: Sequence[object]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False)))


def describe_difference(how: How, actual: Called, expected: Called) -> str:
    """Say what the rank of `actual` did, as the end of a sentence about it."""
    match how:
        case How.SKIPPED:
            return f"skipped one call: {call_text(expected)}"
        case How.EXTRA:
            return f"made one extra call: {call_text(actual)}"
        case How.SWAPPED:
            return f"made two calls in the opposite order: {call_text(actual)} before {call_text(expected)}"
        case How.ANOTHER:
            return f"called {actual.name} where the others called {expected.name}"
    differing = [
        f"{name} {argument_text(asdict(actual), name)} instead of {argument_text(asdict(expected), name)}"
        for name in ARGUMENTS
        if getattr(actual, name) != getattr(expected, name)
    ]
    return f"made the same call with {' and '.join(differing) or 'another argument'}"


def call_text(row: Called) -> str:
    """Return the name of a call and its size."""
    return row.name if row.count is None else f"{row.name} of {count_of(row.count, 'element')}"
