"""Each threshold of the fabric's counters has an example on either side of it, and each condition beside one."""

from __future__ import annotations

from typing import Any

import pytest

from ncclforensics.rules.fabric import congestion, links, nvlink_counters, port_outliers, roce_counters
from tests.rule_rows import Row, Rule, findings_of


def increase(name: str, by: int | None, port: int = 1, **fields: Any) -> Row:
    """A counter of a port of gpu-a, of which two dumps show this increase within 100 s."""
    row = {
        "key": f"gpu-a/mlx5_0/{port}", "host": "gpu-a", "device": "mlx5_0", "port": port, "name": name, "increase": by,
        "dumps": 2, "value": by, "is_saturated": False, "is_reset": False, "is_lower_bound": False, "order": "time",
        "seconds": 100.0, "before_source": 0, "before_line": 900 + port,
    }  # fmt: skip
    return row | fields


def total(name: str, value: int, port: int = 1, **fields: Any) -> Row:
    """A counter of a port of gpu-a in the only dump."""
    return increase(name, None, port, dumps=1, value=value, before_source=None, before_line=None, **fields)


def titles(rule: Rule, *rows: Row) -> list[str]:
    return [finding.title for finding in findings_of(rule, counter_increase=list(rows))]


@pytest.mark.parametrize(
    ("rule", "name", "limit"),
    [
        (links.ctr_link_downed, "link_downed", 1),
        (links.ctr_link_quality, "symbol_error", 10),
        (links.ctr_link_quality, "port_rcv_errors", 10),
        (links.ctr_link_quality, "link_error_recovery", 1),
        (links.ctr_bad_elsewhere, "port_rcv_remote_physical_errors", 100),
        (congestion.ctr_discards, "port_xmit_discards", 100),
        (roce_counters.ctr_roce_loss, "local_ack_timeout_err", 10),
        (roce_counters.ctr_roce_loss, "packet_seq_err", 100),
        (roce_counters.ctr_peer_not_ready, "out_of_buffer", 100),
        (roce_counters.ctr_responder, "req_cqe_error", 1),
        (roce_counters.roce_pauses, "tx_prio3_pause", 10_000),
        (roce_counters.roce_pauses, "rx_prio3_pause", 10_000),
        (roce_counters.roce_pauses, "rx_pause_frames", 10_000),
        (roce_counters.roce_discards, "rx_prio3_discards", 100),
        (roce_counters.roce_discards, "rx_discards_phy", 100),
        (nvlink_counters.nvlink_errors, "nvlink_replay_errors", 100),
        (nvlink_counters.nvlink_errors, "nvlink_recovery_errors", 1),
    ],
)
def test_a_counter_is_reported_from_its_limit_on(rule: Rule, name: str, limit: int) -> None:
    assert not titles(rule, increase(name, limit - 1))
    assert len(titles(rule, increase(name, limit))) == 1


@pytest.mark.parametrize(
    ("rule", "name", "limit"),
    [
        (roce_counters.ctr_roce_loss, "local_ack_timeout_err", 10_000),
        (roce_counters.roce_pauses, "tx_pause_storm_error_events", 1),
        (roce_counters.roce_pauses, "rx_prio3_pause", 10_000),
        (roce_counters.roce_notifications_ignored, "rp_cnp_ignored", 1),
        (links.ctr_need_delta, "symbol_error", 1),
    ],
)
def test_a_total_is_reported_from_its_limit_on_if_there_is_one_dump(rule: Rule, name: str, limit: int) -> None:
    assert not titles(rule, total(name, limit - 1))
    assert len(titles(rule, total(name, limit))) == 1
    assert not titles(rule, total(name, limit) | {"dumps": 2, "increase": 0})


def test_a_link_that_is_trained_again_ten_times_is_an_error() -> None:
    def severities(*rows: Row) -> list[str | None]:
        return [finding.severity for finding in findings_of(links.ctr_link_quality, counter_increase=list(rows))]

    assert severities(increase("link_error_recovery", 9)) == [None]
    assert severities(increase("link_error_recovery", 10)) == ["error"]
    assert severities(increase("symbol_error", 10)) == [None]


@pytest.mark.parametrize(("lost", "ports", "expected"), [(2, 3, False), (3, 6, False), (3, 5, True)])
def test_a_node_restarted_if_three_of_its_ports_and_more_than_half_lost_their_link(
    lost: int, ports: int, *, expected: bool
) -> None:
    rows = [increase("link_downed", int(port < lost), port) for port in range(ports)]

    assert ("gpu-a lost most of its links at once" in titles(links.ctr_link_downed, *rows)) is expected


def test_ports_of_which_no_increase_is_known_do_not_count_as_sound() -> None:
    rows = [increase("link_downed", 1 if port < 3 else None, port) for port in range(9)]

    assert titles(links.ctr_link_downed, *rows) == ["gpu-a lost most of its links at once"]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([total("symbol_error", 1000), total("port_rcv_errors", 10)], True),
        ([total("symbol_error", 999), total("port_rcv_errors", 10)], False),
        ([total("symbol_error", 10), total("port_rcv_errors", 1000)], True),
        ([total("symbol_error", 10), total("link_error_recovery", 10)], True),
        ([total("symbol_error", 10), total("link_error_recovery", 9)], False),
        ([total("symbol_error", 1000), total("port_rcv_errors", 9)], False),
        ([total("symbol_error", 1000)], False),
        ([total("symbol_error", 1000), total("link_downed", 5)], False),
        ([total("symbol_error", 10, is_saturated=True), total("port_rcv_errors", 10)], True),
        ([total("symbol_error", 10), total("port_rcv_errors", 10, is_saturated=True)], False),
        ([increase("symbol_error", 0, value=1000), increase("port_rcv_errors", 0, value=10)], False),
    ],
)
def test_totals_of_a_link_are_bad_if_large_and_of_two_kinds(rows: list[Row], *, expected: bool) -> None:
    assert ("the link of gpu-a mlx5_0 port 1 was bad at some time" in titles(links.ctr_link_quality, *rows)) is expected


@pytest.mark.parametrize(("bad", "ports", "found"), [(3, 3, 3), (1, 4, 1), (2, 8, 2), (2, 7, 0), (4, 4, 0)])
def test_totals_are_bad_on_a_quarter_of_the_ports_at_most(bad: int, ports: int, found: int) -> None:
    rows = [
        total(name, 1000 * (port < bad), port) for port in range(ports) for name in ("symbol_error", "port_rcv_errors")
    ]

    assert len(titles(links.ctr_link_quality, *rows)) == found


def test_bad_packets_come_from_elsewhere_only_if_the_own_link_counts_none() -> None:
    remote = increase("port_rcv_remote_physical_errors", 100)

    assert titles(links.ctr_bad_elsewhere, remote) == ["bad packets arrived at gpu-a mlx5_0 port 1"]
    assert not titles(links.ctr_bad_elsewhere, remote, increase("symbol_error", 10))


@pytest.mark.parametrize(("ports", "many"), [(3, False), (4, True)])
def test_discards_on_four_ports_are_congestion(ports: int, *, many: bool) -> None:
    (title,) = titles(congestion.ctr_discards, *(increase("port_xmit_discards", 100, port) for port in range(ports)))

    assert (title == f"{ports} ports dropped outgoing packets") is many


@pytest.mark.parametrize(("downs", "is_why"), [([], False), ([1], False), ([1, 2], True)])
def test_discards_follow_if_all_their_links_went_down(downs: list[int], *, is_why: bool) -> None:
    rows = [increase("port_xmit_discards", 100, port) for port in (1, 2)]
    rows += [increase("link_downed", int(port in downs), port) for port in (1, 2)]

    (finding,) = findings_of(congestion.ctr_discards, counter_increase=list(rows))

    assert (finding.role == "consequence") is is_why


def test_discards_follow_if_the_other_end_counted_the_loss_of_the_link() -> None:
    rows = [increase("port_xmit_discards", 100), increase("link_downed", 1, 7)]
    peer = {"key": "gpu-a/mlx5_0/1", "peer_key": "gpu-a/mlx5_0/7", "peer_node": "leaf", "peer_port": 7}

    (finding,) = findings_of(congestion.ctr_discards, counter_increase=rows, port_peer=[peer])

    assert finding.role == "consequence"


@pytest.mark.parametrize(("expired", "expected"), [(0, False), (1, True)])
def test_packets_that_waited_too_long_are_told_beside_discards(expired: int, *, expected: bool) -> None:
    (name, *_) = congestion.EXPIRED
    rows = [increase("port_xmit_discards", 100), increase(name, expired)]

    (finding,) = findings_of(congestion.ctr_discards, counter_increase=list(rows))

    assert ("waited too long" in finding.detail) is expected


def waits(ticks: int, *, ports: int = 5, slow: int = 1, others: int = 100_000, sent: int = 1) -> list[Row]:
    """Ports that waited for credits: `slow` of them for `ticks`, the `others` less; each sent data."""
    numbers = range(ports)
    rows = [increase(congestion.WAIT, ticks if port < slow else others, port) for port in numbers]
    return rows + [increase(congestion.SENT, sent, port) for port in numbers]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (waits(1_000_000), True),
        (waits(999_999), False),
        (waits(1_000_000, others=100_001), False),
        (waits(1_000_000, ports=4), False),
        (waits(1_000_000, ports=8, slow=2), True),
        (waits(1_000_000, ports=7, slow=2), False),
        (waits(1_000_000, sent=0), False),
    ],
)
def test_a_port_waits_far_longer_than_the_others(rows: list[Row], *, expected: bool) -> None:
    assert bool(titles(congestion.ctr_congestion, *rows)) is expected


@pytest.mark.parametrize(("sent", "expected"), [(999_999, True), (1_000_000, False)])
def test_congestion_control_slows_from_one_notification_per_thousand_packets(sent: int, *, expected: bool) -> None:
    rows = [increase("rp_cnp_handled", 1000), increase("tx_packets_phy", sent)]

    assert bool(titles(roce_counters.roce_notifications, *rows)) is expected
    assert not titles(roce_counters.roce_notifications, rows[0] | {"increase": 999}, rows[1] | {"increase": 1})


def test_the_port_with_the_largest_share_of_notifications_is_told() -> None:
    rows = [increase("rp_cnp_handled", 2000, 1), increase("tx_packets_phy", 1_000_000, 1)]
    rows += [increase("rp_cnp_handled", 1500, 2), increase("tx_packets_phy", 10_000, 2)]

    (finding,) = findings_of(roce_counters.roce_notifications, counter_increase=list(rows))

    assert finding.detail.startswith("gpu-a mlx5_0 port 2: 1,500 notifications for 10,000 packets sent (15.0%)")


@pytest.mark.parametrize(("microseconds", "expected"), [(4_999_999, False), (5_000_000, True)])
def test_pauses_are_reported_from_a_twentieth_of_the_time(microseconds: int, *, expected: bool) -> None:
    rows = [increase("tx_prio3_pause", 10_000), increase("tx_prio3_pause_duration", microseconds)]

    assert bool(titles(roce_counters.roce_pauses, *rows)) is expected


@pytest.mark.parametrize(("ports", "expected"), [(2, False), (3, True)])
def test_packets_lost_on_three_ports_are_the_networks(ports: int, *, expected: bool) -> None:
    rows = [increase("packet_seq_err", 100, port) for port in range(ports)]

    (finding,) = findings_of(roce_counters.ctr_roce_loss, counter_increase=list(rows))

    assert ("the network drops packets" in finding.detail) is expected


def test_a_stalled_bus_is_the_reason_only_of_discards_at_its_own_port() -> None:
    def detail(*rows: Row) -> str:
        (finding,) = findings_of(
            roce_counters.roce_discards, counter_increase=[increase("rx_discards_phy", 100), *rows]
        )
        return finding.detail

    assert "its PCIe link" in detail(increase("outbound_pci_stalled_wr_events", 1))
    assert "its PCIe link" not in detail(increase("outbound_pci_stalled_wr_events", 0))
    assert "its PCIe link" not in detail(increase("outbound_pci_stalled_wr_events", 1, 2))


@pytest.mark.parametrize(
    ("value", "links_with_errors", "expected"), [(1000, 1, True), (999, 1, False), (1000, 2, False)]
)
def test_many_errors_of_one_nvlink_of_many_are_reported(value: int, links_with_errors: int, *, expected: bool) -> None:
    rows = [total("nvlink_replay_errors", value if n < links_with_errors else 0, n, device="GPU3") for n in range(4)]

    assert bool(titles(nvlink_counters.nvlink_errors, *rows)) is expected
    assert not titles(nvlink_counters.nvlink_errors, *(row | {"dumps": 2, "increase": 0} for row in rows))


@pytest.mark.parametrize(
    ("minutes", "rate", "expected"), [(10.0, 1.1e-12, True), (9.9, 1.1e-12, False), (10.0, 1e-12, False)]
)
def test_bit_errors_are_judged_after_ten_minutes(minutes: float, rate: float, *, expected: bool) -> None:
    row = {"host": "gpu-a", "device": "mlx5_0", "minutes": minutes, "effective_ber": rate, "ber_line": 1}

    assert bool(findings_of(nvlink_counters.link_bit_errors, link_quality=[row])) is expected


def ports_up(*rates: float, across: bool) -> list[Row]:
    """Active ports with these rates: the same port of several hosts, or the ports of one host."""
    return [
        {
            "host": f"gpu-{number}" if across else "gpu-a", "device": "mlx5_0" if across else f"mlx5_{number}",
            "port": 1, "state": "active", "rate_Gbps": rate, "link_layer": "InfiniBand", "width": "4X", "speed": "NDR",
        }
        for number, rate in enumerate(rates)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("rates", "across", "expected"),
    [
        ((400, 400, 400, 200), True, True),
        ((400, 400, 200), True, False),
        ((200, 200, 200, 400), True, False),
        ((400, 400, 400, 200), False, True),
        ((400, 400, 200), False, False),
        ((400, 400, 400, 200, 200), False, False),
    ],
)
def test_a_port_is_slow_beside_three_that_are_alike(rates: tuple[float, ...], across: bool, *, expected: bool) -> None:
    rows = ports_up(*rates, across=across)

    assert bool(findings_of(port_outliers.ctr_port_below_siblings, port_state=list(rows))) is expected


def test_lanes_are_compared_on_infiniband_and_between_active_ports() -> None:
    rows = ports_up(400, 400, 400, 200, across=False)

    for change in ({"link_layer": "Ethernet"}, {"state": "down"}):
        changed = [*rows[:3], rows[3] | change]
        assert not findings_of(port_outliers.ctr_port_below_siblings, port_state=changed)


def sent(*gigabytes: float, dumps: int = 2) -> list[Row]:
    """What ports of one host sent between two dumps, or in all."""
    rows = [increase("port_xmit_data", round(amount * 1e9), device=f"mlx5_{n}") for n, amount in enumerate(gigabytes)]
    return [row | {"key": row["device"], "dumps": dumps} for row in rows]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (sent(1.0, 0.799), True),
        (sent(1.0, 0.8), False),
        (sent(0.999, 0.5), False),
        (sent(1.0, 0.05), True),
        (sent(1.0, 0.049), False),
        (sent(10_000, 7_999, dumps=1), True),
        (sent(9_999, 5_000, dumps=1), False),
    ],
)
def test_ports_carry_unequal_traffic_from_a_fifth_on(rows: list[Row], *, expected: bool) -> None:
    assert bool(titles(port_outliers.ctr_uneven_traffic, *rows)) is expected


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        ([(9, 6), (7, 9), (9, 7), (6, 9)], []),  # each in an order of its own
        ([(9, 6), (9, 6), (9, 6), (9, 6)], ["a", "b", "c", "d"]),  # all leave one adapter out
        ([(9, 7), (7, 9), (9, 7), (2, 9)], ["d"]),  # far from what is usual
        ([(9, 9), (9, 9), (9, 7), (9, 9)], ["c"]),
        ([(9, 6), (6, 9), (9, 9)], ["a", "b"]),  # too few to know what is usual
    ],
)
def test_ports_as_far_apart_as_those_of_most_hosts_are_the_traffic_of_the_job(
    hosts: list[tuple[int, int]], expected: list[str]
) -> None:
    rows = [row | {"host": name} for name, amounts in zip("abcd", hosts, strict=False) for row in sent(*amounts)]

    assert titles(port_outliers.ctr_uneven_traffic, *rows) == [
        f"equal ports of {name} carry unequal traffic" for name in expected
    ]


@pytest.mark.parametrize(
    ("gigabytes", "state", "expected"),
    [
        ((1.0, 1.0, 1.0, 0.049), "active", True),
        ((1.0, 1.0, 1.0, 0.05), "active", False),
        ((0.999, 0.9, 0.9, 0.0), "active", False),
        ((1.0, 1.0, 0.0), "active", False),
        ((1.0, 1.0, 1.0, 0.0), "down", False),
    ],
)
def test_a_port_is_idle_beside_three_that_carry_much(
    gigabytes: tuple[float, ...], state: str, *, expected: bool
) -> None:
    states = ports_up(*([400.0] * len(gigabytes)), across=False)
    states[-1]["state"] = state

    found = findings_of(port_outliers.ctr_idle_port, counter_increase=sent(*gigabytes), port_state=states)

    assert bool(found) is expected
