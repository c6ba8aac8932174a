"""Tests of TCP by iperf: from where on a test stood still, or lost too much."""

from __future__ import annotations

import pytest

from ncclforensics.rules.benchmark.tcp_tests import bench_tcp_sent_again, bench_tcp_test_stood_still
from tests.rule_rows import Row, findings_of

TEST: Row = {"table": 0, "peer": "gpu-a013", "bandwidth_GBps": 1.1, "intervals": 10, "source": 0, "line": 14}


@pytest.mark.parametrize(
    ("still", "since", "found"), [(2, 8.0, []), (3, 7.0, ["until its end"]), (3, None, ["between"])]
)
def test_a_tcp_test_without_data_in_three_intervals_stood_still(
    still: int, since: float | None, found: list[str]
) -> None:
    row = TEST | {"still": still, "still_since": since, "first_still_line": 4}
    findings = findings_of(bench_tcp_test_stood_still, tcp_test=[row])
    assert [finding.detail.endswith(end) for finding, end in zip(findings, found, strict=True)] == [True] * len(found)


@pytest.mark.parametrize(("sent_again", "found"), [(0, 0), (690, 0), (700, 1)])
def test_one_segment_in_a_thousand_sent_again_is_worth_a_note(sent_again: int, found: int) -> None:
    row = TEST | {"sent_again": sent_again, "size_sent": 1e9}
    assert len(findings_of(bench_tcp_sent_again, tcp_test=[row])) == found
