"""Each threshold has one example on either side of it."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from ncclforensics.analyses.fabric.counters import PORT_STATE
from ncclforensics.analyses.hang.stragglers import LAG
from ncclforensics.analyses.job.calls import calls as call_frames
from ncclforensics.analyses.job.identity.identity import Rank
from ncclforensics.frames.columns import columns_of
from ncclforensics.frames.open_run import open_run
from ncclforensics.rules.hang.stragglers import boot_slow_init, capture_rank_is_slow, slow_rank_comes_late
from tests.rule_rows import findings_of

RANKS = 4
DEFAULTS = open_run([])["threshold"]
INIT_TIMES = ("kernels", "alloc", "bootstrap", "allgathers", "topo", "graphs", "connections", "total")


def _ranks() -> pl.DataFrame:
    rows = [{"job": 0, "rank_id": number, "rank": number, "host": "node1", "pid": number} for number in range(RANKS)]
    return pl.DataFrame(rows, schema=columns_of(Rank))


def _is_straggler(
    lag: float, *, calls: int = 10, late_calls: int = 10, resolution: float = 0.0, late_ranks: int = 1
) -> bool:
    """Whether the last ranks are reported if they make `late_calls` of their calls `lag` seconds late."""
    rows = [
        {
            "job": 0, "key": "0x1", "rank_id": number, "host": "node1", "nth": nth, "source": 0, "line": nth + 1,
            "lag": lag if number >= RANKS - late_ranks and nth < late_calls else 0.0, "clock_resolution": resolution,
        }
        for number in range(RANKS)
        for nth in range(calls)
    ]  # fmt: skip
    findings = slow_rank_comes_late(pl.DataFrame(rows, schema=LAG), pl.DataFrame(schema=PORT_STATE), _ranks(), DEFAULTS)
    return [finding.ranks for finding in findings] == [[*range(RANKS - late_ranks, RANKS)]]


@pytest.mark.parametrize(
    ("lag", "resolution", "expected"), [(1.0, 0.0, False), (1.05, 0.0, True), (2.0, 1.0, False), (2.05, 1.0, True)]
)
def test_straggler_is_later_than_one_second_and_the_clock_resolution(
    lag: float, resolution: float, *, expected: bool
) -> None:
    assert _is_straggler(lag, resolution=resolution) is expected


@pytest.mark.parametrize(("calls", "expected"), [(7, False), (8, True)])
def test_straggler_is_late_in_at_least_eight_calls(calls: int, *, expected: bool) -> None:
    assert _is_straggler(3.0, calls=calls, late_calls=calls) is expected


@pytest.mark.parametrize(("late_calls", "expected"), [(59, False), (60, True)])
def test_straggler_is_late_in_sixty_percent_of_its_calls(late_calls: int, *, expected: bool) -> None:
    assert _is_straggler(3.0, calls=100, late_calls=late_calls) is expected


def test_half_of_the_ranks_are_no_stragglers() -> None:
    assert _is_straggler(3.0)
    assert not _is_straggler(3.0, late_ranks=2)


def _slow_in_capture(
    excess: float, *, calls: int = 10, late_calls: int | None = None, nranks: int = 2, slow: int = 1
) -> list[str]:
    """Titles on the last ranks of a capture, which need `excess` seconds more than the others in `late_calls`."""
    late = calls if late_calls is None else late_calls
    times = [
        {"job": 0, "rank_id": n, "nranks": nranks, "ordinal": nth, "seconds": 0.05 + extra, "excess": extra}
        for n in range(nranks)
        for nth in range(calls)
        for extra in [excess if n >= nranks - slow and nth < late else 0.0]
    ]
    rows = [{"job": 0, "rank_id": n, "rank": n, "host": "node1", "pid": n} for n in range(nranks)]
    return [finding.title for finding in findings_of(capture_rank_is_slow, time_between_calls=times, rank=rows)]


KEPT_WAITING = "rank {} on node1 keeps the others waiting {} ms in every step"


@pytest.mark.parametrize(
    ("excess", "given", "expected"),
    [
        (0.11, {}, [KEPT_WAITING.format(1, 110)]),
        (0.1, {}, []),
        (0.11, {"calls": 8}, [KEPT_WAITING.format(1, 110)]),
        (0.11, {"calls": 7}, []),
        (0.11, {"late_calls": 6}, [KEPT_WAITING.format(1, 110)]),
        (0.11, {"late_calls": 5}, []),
        (2.0, {"nranks": 2}, [KEPT_WAITING.format(1, 2000)]),
        (2.0, {"nranks": 3}, []),  # slow-rank-comes-late names it
        (1.0, {"nranks": 3}, [KEPT_WAITING.format(2, 1000)]),
        (0.11, {"nranks": 4, "slow": 2}, [KEPT_WAITING.format(n, 110) for n in (2, 3)]),
        (0.11, {"nranks": 4, "slow": 3}, []),
    ],
)
def test_a_rank_of_a_capture_is_slow_by_more_than_a_tenth_of_a_second(
    excess: float, given: dict[str, int], expected: list[str]
) -> None:
    assert _slow_in_capture(excess, **given) == expected


@pytest.mark.parametrize(
    ("waited", "nranks", "expected"),
    [
        ([0.0, 10.0], 2, ["rank 0 on node1 joined ncclCommInitRank 10 s after the others"]),
        ([0.0, 9.9], 2, []),
        ([0.0, 10.0], 3, []),  # the third may have been the last
        ([0.0, 0.0, 10.0, 10.0], 4, ["ranks 0, 1 on node1 joined ncclCommInitRank 10 s after the others"]),
        ([0.0, 0.0, 0.0, 10.0], 4, []),
        ([0.0, 1.0, 10.0, 10.0], 4, ["ranks 0, 1 on node1 joined ncclCommInitRank 10 s after the others"]),
        ([0.0, 1.1, 10.0, 10.0], 4, ["rank 0 on node1 joined ncclCommInitRank 10 s after the others"]),
    ],
)
def test_the_ranks_that_did_not_wait_joined_late(waited: list[float], nranks: int, expected: list[str]) -> None:
    times = [
        {"host": "node1", "pid": n, "creator": "ncclCommInitRank", "nranks": nranks, **dict.fromkeys(INIT_TIMES, 0.0),
         "bootstrap": seconds / 2, "allgathers": seconds / 2, "total": seconds}
        for n, seconds in enumerate(waited)
    ]  # fmt: skip
    rows = [{"job": 0, "rank_id": n, "rank": n, "host": "node1", "pid": n} for n in range(8)]

    assert [finding.title for finding in findings_of(boot_slow_init, init_timing=times, rank=rows)] == expected


def _slow_init(**times: float) -> list[tuple[str, str | None]]:
    """Titles and severities of the findings on one rank's init with these phases, in seconds."""
    row: dict[str, Any] = {
        "host": "node1", "pid": 0, "creator": "ncclCommInitRank", "nranks": 8, "source": 0, "line": 1,
        **dict.fromkeys(INIT_TIMES, 0.0), **times,
    }  # fmt: skip
    schema_overrides = {"host": pl.Categorical(), "pid": pl.Int32()}
    init_timing = pl.DataFrame([row], schema_overrides=schema_overrides)
    return [(finding.title, finding.severity) for finding in boot_slow_init(init_timing, _ranks(), DEFAULTS)]


@pytest.mark.parametrize(("seconds", "expected"), [(9.5, 0), (10.0, 1)])
def test_init_phase_is_slow_from_ten_seconds(seconds: float, expected: int) -> None:
    assert len(_slow_init(topo=seconds)) == expected


@pytest.mark.parametrize(("seconds", "severity"), [(59.5, "info"), (60.0, "warning")])
def test_slow_init_is_a_warning_from_sixty_seconds(seconds: float, severity: str) -> None:
    assert [found for _, found in _slow_init(topo=20.0, total=seconds)] == [severity]


@pytest.mark.parametrize(
    ("version", "expected"), [("2.26.6+cuda12.9", True), ("2.27.0+cuda12.9", False), ("2.27.3+cuda12.9", False)]
)
def test_opcount_numbers_calls_in_versions_before_2_27(version: str, *, expected: bool) -> None:
    calls = pl.DataFrame(
        {
            "member": [0, 0, 0],
            "key": ["0x1"] * 3,
            "opcount": [0, 1, 2],
            "ordinal": [0, 1, 2],
            "in_tail": [False] * 3,
            "collective": [True] * 3,
        }
    )

    counts_calls = call_frames._opcount_counts_calls(pl.DataFrame({"version": [version]}))

    assert calls.select(is_counter=counts_calls)["is_counter"].all() is expected
