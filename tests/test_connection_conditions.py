"""Connections that failed, and floods of lines: each condition of their rules beside an example without it."""

from __future__ import annotations

import pytest

from ncclforensics.data.nccl_sources import SYSTEM
from ncclforensics.rules.job.floods import line_repeated_without_end
from ncclforensics.rules.transport.bootstrap import boot_connect_failed, boot_wrong_interface
from tests.rule_rows import Row, findings_of

OWNER = {"host": "gpu-a", "pid": 100}
RANKS = [{"job": 0, "rank_id": 0, "rank": 0, **OWNER}, {"job": 0, "rank_id": 1, "rank": 1, "host": "gpu-b", "pid": 1}]


def flood(repeats: int, rate: float = 0.0) -> list[tuple[str | None, str]]:
    row = {**OWNER, "source": 0, "line": 7, "last_line": 9_000_000, "message": "-> 6", "share": 0.9}
    findings = findings_of(line_repeated_without_end, flood=[{**row, "repeats": repeats, "rate": rate}], rank=RANKS)
    return [(finding.severity, finding.title) for finding in findings]


@pytest.mark.parametrize(
    ("repeats", "rate", "expected"),
    [
        (999, 0.0, []),
        (1_000, 0.0, [(None, "rank 0 on gpu-a repeated one line at least 1,000 times: -> 6")]),
        (99_999, 0.9, [(None, "rank 0 on gpu-a repeated one line at least 99,000 times: -> 6")]),
        (100_000, 1.0, [("warning", "rank 0 on gpu-a repeated one line at least 100,000 times, 1 a second: -> 6")]),
    ],
)
def test_a_flood_is_told_from_a_thousand_lines_on(
    repeats: int, rate: float, expected: list[tuple[str | None, str]]
) -> None:
    assert flood(repeats, rate) == expected


def connecting(*rows: Row, **frames: list[Row]) -> list[tuple[str, str]]:
    failures = [{**OWNER, "source": 0, "line": 10 + number, **row} for number, row in enumerate(rows)]
    findings = findings_of(boot_connect_failed, failure=failures, rank=RANKS, **frames)
    return [(finding.title, finding.role) for finding in findings]


REFUSED = {"form": "connect_failed", "error": "Connection refused", "peer": "10.0.0.2<4000>"}
TITLE = "rank 0 on gpu-a could not connect to 10.0.0.2<4000>: Connection refused"


@pytest.mark.parametrize(
    ("event", "role"),
    [
        ([], "cause"),
        ([{"kind": "lost", "at_exit": False}], "consequence"),
        ([{"kind": "lost", "at_exit": True}], "cause"),
        ([{"kind": "network", "at_exit": False}], "cause"),
    ],
)
def test_a_refused_connection_follows_from_a_lost_one(event: list[Row], role: str) -> None:
    events = [{**OWNER, **row} for row in event]

    assert connecting(REFUSED, failure_event=events) == [(TITLE, role)]
    other = {**REFUSED, "error": "No route to host"}
    title = "rank 0 on gpu-a could not connect to 10.0.0.2<4000>: No route to host"
    assert connecting(other, failure_event=events) == [(title, "cause")]


@pytest.mark.parametrize(
    ("peers", "where"),
    [
        ([None], "a peer"),
        (["<node{1}><40>", "a<1>"], "<node{1}><40>, a<1>"),
        ([f"a<{number}>" for number in range(5)], "a<0>, a<1>, a<2> and 2 more"),
    ],
)
def test_a_failed_connection_names_some_of_the_peers(peers: list[str | None], where: str) -> None:
    rows = [{**REFUSED, "peer": peer} for peer in peers]

    assert connecting(*rows) == [(f"rank 0 on gpu-a could not connect to {where}: Connection refused", "cause")]


def test_a_connection_that_failed_while_its_process_ended_is_none() -> None:
    assert connecting(REFUSED, failure_event=[{**OWNER, "source": 0, "line": 10, "at_exit": True}]) == []


@pytest.mark.parametrize(
    ("change", "event", "expected"),
    [
        ({}, [], 1),
        ({"operation": "Setup"}, [], 0),
        ({"result": SYSTEM + 1}, [], 0),
        ({"form": "cuda"}, [], 0),
        ({}, [{"kind": "hard", "at_exit": False}], 0),
        ({}, [{"kind": "hard", "at_exit": False, "pid": 7}], 1),
    ],
)
def test_a_proxy_that_could_not_connect_is_told_where_nothing_else_is(
    change: Row, event: list[Row], expected: int
) -> None:
    proxy = {"form": "proxy_failed", "operation": "Connect", "result": SYSTEM, **change}

    assert len(connecting(proxy, failure_event=[{**OWNER, **row} for row in event])) == expected


@pytest.mark.parametrize(
    ("attempt", "later", "expected"), [(34, None, 1), (33, None, 0), (34, 9, 1), (34, 10, 1), (34, 11, 0)]
)
def test_only_the_last_retry_of_a_connection_is_a_failure(attempt: int, later: int | None, expected: int) -> None:
    retry = {
        "form": "connecting_again",
        "reason": "Connection timed out",
        "attempt": attempt,
        "attempts": 34,
        "pos": 10,
    }
    progress = [{**OWNER, "last_pos": later}] if later else []

    assert len(connecting(retry, communicator_progress=progress)) == expected


@pytest.mark.parametrize(
    ("interface", "address", "verdict", "hosts", "expected"),
    [
        ("docker0", "172.17.0.1<0>", "init-incomplete", 2, 1),
        ("lo", "127.0.0.1<0>", "rank-missing", 2, 1),
        ("eth0", "fe80::1%eth0<0>", "init-failed", 2, 1),
        ("eth0", "10.0.0.1<0>", "init-incomplete", 2, 0),
        ("docker0", "172.17.0.1<0>", "no-hang", 2, 0),
        ("docker0", "172.17.0.1<0>", "init-incomplete", 1, 0),
    ],
)
def test_an_address_that_others_cannot_reach_explains_an_init_between_hosts(
    interface: str, address: str, verdict: str, hosts: int, expected: int
) -> None:
    findings = findings_of(
        boot_wrong_interface,
        milestone=[{**OWNER, "form": "bootstrap", "interface": interface, "address": address}],
        verdict=[{"job": 0, "verdict": verdict}],
        rank=RANKS[:hosts],
    )

    assert len(findings) == expected
