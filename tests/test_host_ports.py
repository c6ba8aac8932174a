"""Counters and ports as a host's own tools tell them: one meaning whichever tool; broken dumps yield what they hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclforensics import analyze
from ncclforensics.report.build import Report
from ncclforensics.views.json_report import as_object
from tests.budget import examples

PORT = "/sys/class/infiniband/mlx5_0/ports/1"
SYSFS = f"""\
/sys/class/infiniband/mlx5_0/node_guid:0c42:a103:0054:b372
{PORT}/counters/link_downed:255
{PORT}/counters/port_xmit_data:1000
{PORT}/counters/port_xmit_wait:N/A (no PMA)
{PORT}/counters/symbol_error:3
{PORT}/hw_counters/lifespan:12
{PORT}/hw_counters/out_of_sequence:7
{PORT}/link_layer:InfiniBand
{PORT}/phys_state:5: LinkUp
{PORT}/rate:400 Gb/sec (4X NDR)
{PORT}/state:4: ACTIVE
"""
VERBS = """\
hca_id:	mlx5_0
	transport:			InfiniBand (0)
	node_guid:			0c42:a103:0054:b372
	phys_port_cnt:			1
		port:	1
			state:			PORT_ACTIVE (4)
			active_mtu:		4096 (5)
			port_lid:		5
			link_layer:		InfiniBand
			active_width:		4X (2)
			active_speed:		100.0 Gbps (128)
			phys_state:		LINK_UP (5)
			GID[  0]:		fe80:0000:0000:0000:0c42:a103:0054:b372
"""
METRICS = """\
# HELP node_infiniband_link_downed_total Number of times the link went down
# TYPE node_infiniband_link_downed_total counter
node_infiniband_link_downed_total{device="mlx5_0",port="1",instance="gpu-a012:9100"} 255 1772448297000
node_infiniband_port_data_transmitted_bytes_total{device="mlx5_0",port="1",instance="gpu-a012:9100"} 4e+03 1772448297000
node_infiniband_out_of_sequence_packets_received_total{device="mlx5_0",port="1"} 7
node_infiniband_symbol_error_total{device="mlx5_0",port="1",instance="gpu-a012:9100"} 3 1772448297000
node_infiniband_state_id{device="mlx5_0",port="1",instance="gpu-a012:9100"} 4 1772448297000
node_infiniband_physical_state_id{device="mlx5_0",port="1",instance="gpu-a012:9100"} 5 1772448297000
node_infiniband_rate_bytes_per_second{device="mlx5_0",port="1",instance="gpu-a012:9100"} 5e+10 1772448297000
node_network_mtu_bytes{device="ens1f0",instance="gpu-a012:9100"} 9000
DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_L3{gpu="0",device="nvidia0",Hostname="gpu-a012"} 12
"""
COUNTED = {"link_downed": 255, "port_xmit_data": 4000, "symbol_error": 3, "out_of_sequence": 7}


def reported(tmp_path: Path, *dumps: str) -> Report:
    for number, dump in enumerate(dumps):
        (tmp_path / f"dump{number}").write_bytes(dump.encode())
    return analyze([str(tmp_path)], everything=True)


def copied(folder: Path, listing: str) -> None:
    """The files that grep has listed."""
    for line in listing.splitlines():
        path, _, value = line.partition(":")
        file = folder / path.removeprefix("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(value + "\n", encoding="utf-8")


def nonzero(report: Report, device: str = "mlx5_0") -> dict[str, int]:
    counters = as_object(report)["counters"]
    return {name: value for port in counters if port["device"] == device for name, value in port["nonzero"].items()}


def link(report: Report, *names: str) -> list[Any]:
    (one,) = as_object(report)["links"]
    return [one[name] for name in names]


@pytest.mark.parametrize("sort", ["grep", "json", "files"])
def test_sysfs_is_the_same_as_a_list_as_an_object_and_as_files(tmp_path: Path, sort: str) -> None:
    if sort == "files":
        copied(tmp_path / "dump", SYSFS)
        report = analyze([str(tmp_path)], everything=True)
    elif sort == "json":
        pairs = (line.partition(":") for line in SYSFS.splitlines())
        report = reported(tmp_path, "{\n" + ",\n".join(f'"{path}": "{value}\\n"' for path, _, value in pairs) + "\n}")
    else:
        report = reported(tmp_path, SYSFS)

    assert nonzero(report) == COUNTED
    (port,) = as_object(report)["counters"]
    assert port["saturated"] == ["link_downed"]
    expected = ["active", "LinkUp", 400.0, "4X", "NDR", "InfiniBand", "0x0c42a1030054b372"]
    assert link(report, "state", "physical_state", "rate_Gbps", "width", "speed", "link_layer", "guid") == expected


def test_an_unsupported_counter_is_null_not_zero(tmp_path: Path) -> None:
    report = reported(tmp_path, SYSFS)

    assert "port_xmit_wait" not in report.run["counter"]["name"].to_list()
    assert "lifespan" not in report.run["counter"]["name"].to_list()


def test_exporters_count_bytes_and_the_kernel_words_of_four(tmp_path: Path) -> None:
    report = reported(tmp_path, METRICS)

    assert nonzero(report) == COUNTED
    assert nonzero(report, "GPU0") == {"nvlink_replay_errors": 12}
    assert link(report, "host", "state", "physical_state", "rate_Gbps") == ["gpu-a012", "active", "LinkUp", 400.0]
    assert report.run["interface"].rows() == [(0, 10, "gpu-a012", "ens1f0", 9000)]
    assert as_object(report)["counters"][0]["moment"] == "2026-03-02T10:44:57"


def test_speed_and_width_of_verbs_are_a_rate(tmp_path: Path) -> None:
    report = reported(tmp_path, VERBS)

    assert link(report, "device", "port", "state", "rate_Gbps", "mtu", "lid") == ["mlx5_0", 1, "active", 400.0, 4096, 5]
    assert report.run["port_gid"].select("index", "is_link_local", "version").rows() == [(0, True, None)]


RDMA = "link mlx5_0/1 rx_write_requests 0 out_of_buffer 0 out_of_sequence 12 lifespan 10 local_ack_timeout_err 3"


@pytest.mark.parametrize(
    "dump",
    [
        RDMA,
        "link mlx5_0/1 rx_write_requests 0\n0 out_of_sequence\n12 rx_read_requests 0 local_ack_timeout_err 3",
        "link mlx5_0/1 \n    rx_write_requests 0 \n    out_of_sequence 12 \n    local_ack_timeout_err 3 ",
        '[{"ifindex":0,"ifname":"mlx5_0","port":1,"rx_write_requests":0,"out_of_sequence":12,"local_ack_timeout_err":3}]',
        '[{"ifindex":0,"ifname":"mlx5_0","port":1,"out_of_sequence":12,"local_ack_timeout_err":3,"rnr_nak_re',
    ],
)
def test_statistics_of_rdma_in_every_form(tmp_path: Path, dump: str) -> None:
    report = reported(tmp_path, dump)

    assert nonzero(report) == {"out_of_sequence": 12, "local_ack_timeout_err": 3}


def test_text_after_a_statistic_is_ignored(tmp_path: Path) -> None:
    report = reported(tmp_path, f"{RDMA}\n\nsome_word 12\n")

    assert "some_word" not in report.run["counter"]["name"].to_list()


ETHTOOL = "NIC statistics:\n     rx_prio3_pause: 12\n     [0]: rx_packets: 4\n     rx_prio3_pause_duration: 88\n"


def test_an_interface_is_known_by_the_command_and_its_device_by_the_list(tmp_path: Path) -> None:
    report = reported(
        tmp_path, f"ops@gpu-a012:~$ ibdev2netdev\nmlx5_0 port 1 ==> ens1f0 (Up)\n$ ethtool -S ens1f0\n{ETHTOOL}"
    )

    (port,) = as_object(report)["counters"]
    assert (port["host"], port["device"]) == ("gpu-a012", "mlx5_0")
    assert port["nonzero"] == {"rx_prio3_pause": 12, "rx_prio3_pause_duration": 88}


def test_statistics_without_an_interface_form_no_series(tmp_path: Path) -> None:
    report = reported(tmp_path, ETHTOOL + ETHTOOL.replace("12", "4711"))

    assert as_object(report)["counters"] == []
    assert any("without an interface" in problem for problem in as_object(report)["inputs"][0]["problems"])


MLXLINK = """\
Operational Info
----------------
State                              : Active
Physical state                     : LinkUp
Speed                              : IB-NDR
Width                              : 4x

Supported Info
--------------
Enabled Link Speed                 : 0x00000081 (NDR,SDR)

Physical Counters and BER Info
------------------------------
Time Since Last Clear [Min]        : 312.5
Effective Physical BER             : 3E-11
Raw Physical BER                   : 2E-7
Link Down Counter                  : 2
"""


def test_mlxlink_gives_state_counters_and_bit_errors(tmp_path: Path) -> None:
    report = reported(tmp_path, f"[root@gpu-a012 ~]# mlxlink -d mlx5_0 -c\n\x1b[1m{MLXLINK}\x1b[0m")

    assert nonzero(report) == {"link_downed": 2}
    expected = ["gpu-a012", "active", "LinkUp", 400.0, "NDR", None]
    assert link(report, "host", "state", "physical_state", "rate_Gbps", "speed", "speed_supported") == expected
    assert report.run["link_quality"].select("minutes", "effective_ber", "raw_ber").rows() == [(312.5, 3e-11, 2e-7)]


def test_an_nvlink_is_not_an_infiniband_port(tmp_path: Path) -> None:
    report = reported(tmp_path, MLXLINK.replace("IB-NDR", "NVLink-XDR"))

    assert link(report, "link_layer", "rate_Gbps", "speed") == ["NVLink", None, None]


def test_files_that_could_not_be_read_are_named(tmp_path: Path) -> None:
    failed = "grep: /sys/class/infiniband/mlx5_2/ports/1/counters/symbol_error: Invalid argument\n"

    report = reported(tmp_path, SYSFS + failed)

    assert as_object(report)["inputs"][0]["problems"] == [
        "line 12: 1 files of ports could not be read: Invalid argument"
    ]
    assert nonzero(report) == COUNTED


GIDS = """\
DEV	PORT	INDEX	GID					IPv4  		VER	DEV
---	----	-----	---					------------  	---	---
mlx5_0	1	0	fe80:0000:0000:0000:0e42:a1ff:fe8d:2a10			v1	ens1f0
mlx5_0	1	3	0000:0000:0000:0000:0000:ffff:0a00:040c	10.0.4.12  	v2	ens1f0
n_gids_found=2
"""


def test_gids_of_show_gids_and_of_files(tmp_path: Path) -> None:
    report = reported(tmp_path, GIDS)
    columns = ["device", "port", "index", "version", "is_ipv4", "is_link_local", "netdev"]

    assert report.run["port_gid"].select(columns).rows() == [
        ("mlx5_0", 1, 0, 1, False, True, "ens1f0"),
        ("mlx5_0", 1, 3, 2, True, False, "ens1f0"),
    ]


QOS = """\
Priority trust state: dscp
PFC configuration:
	priority    0   1   2   3   4   5   6   7
	enabled     0   0   0   1   0   0   0   0
	buffer      0   0   0   1   0   0   0   0
"""


def test_priorities_without_loss(tmp_path: Path) -> None:
    report = reported(tmp_path, f"[root@gpu-a012 ~]# mlnx_qos -i ens1f0\n{QOS}")

    columns = ["host", "netdev", "priorities", "trust"]
    assert report.run["pfc"].select(columns).rows() == [("gpu-a012", "ens1f0", [3], "dscp")]


WHOLE = SYSFS + VERBS + METRICS + RDMA + "\n" + ETHTOOL + MLXLINK + GIDS + QOS


@examples(2, with_fixtures=True)
@given(start=st.integers(0, len(WHOLE)), stop=st.integers(0, len(WHOLE)), noise=st.binary(max_size=20))
def test_damaged_dumps_raise_no_error(tmp_path: Path, start: int, stop: int, noise: bytes) -> None:
    (tmp_path / "dump").write_bytes(WHOLE[:start].encode() + noise + WHOLE[stop:].encode())

    answer = as_object(analyze([str(tmp_path)], everything=True))

    (source,) = answer["inputs"]
    counts = ("recognised", "application", "unrecognised", "damaged")
    assert source["lines"] == sum(source[name] for name in counts)


@pytest.mark.parametrize("value", ["9" * 30, "-1", "1e999", "NaN", "0x", "", "١٢"])
def test_malformed_values_become_null(tmp_path: Path, value: str) -> None:
    lines = (
        f"{PORT}/counters/symbol_error:{value}",
        f"{PORT}/rate:{value} Gb/sec",
        f"{PORT}/state:{value}: ACTIVE",
        f'node_infiniband_symbol_error_total{{device="mlx5_0",port="{value}"}} {value}',
        f'node_network_mtu_bytes{{device="ens1f0"}} {value}',
        f"link mlx5_0/1 out_of_sequence {value}",
        f"     rx_prio3_pause: {value}",
    )

    report = reported(tmp_path, SYSFS, "\n".join(lines))

    assert nonzero(report) == COUNTED


def test_samples_of_spiderpool_count_the_packets_of_an_rdma_device(tmp_path: Path) -> None:
    sample = 'rdma_packet_seq_err_total{ifname="mlx5_0",net_dev_name="ens1f0np0",node_name="gpu-a012",port="1"}'
    dumps = [f"# date: 2026-03-02 11:{minute}:57\n{sample} {value}\n" for minute, value in (("04", 4711), ("14", 9711))]
    report = reported(tmp_path, *dumps)

    assert nonzero(report) == {"packet_seq_err": 9711}
    assert [finding.rule for finding in report.findings] == ["ctr-roce-loss"]


def test_samples_of_an_exporter_with_other_labels_are_not_counted(tmp_path: Path) -> None:
    report = reported(tmp_path, 'rdma_port_rcv_data_total{device="mlx5_0",port="1"} 4711\n')

    assert as_object(report)["counters"] == []


LISTED = """\
mlx5_0 port 1 ==> {kind}0 (Up)
mlx5_1 port 1 ==> {kind}1 ({state})
"""


def downs(tmp_path: Path, text: str) -> list[tuple[str, str]]:
    findings = reported(tmp_path, text).findings
    return [(finding.title, finding.severity) for finding in findings if "down" in finding.title]


def test_an_interface_that_is_down_is_a_note_with_its_host_from_the_prompts(tmp_path: Path) -> None:
    first, second = LISTED.format(kind="ens1f", state="Down"), LISTED.format(kind="ens8f", state="Up")
    pasted = f"{first}ops@gpu-a011:~$ \nOn the other one:\n  [root@gpu-a012 tmp]# showports\n{second}"

    assert downs(tmp_path, pasted) == [
        ("gpu-a011 mlx5_1 port 1 (ens1f1): down, beside active ports of the same host", "info")
    ]


@pytest.mark.parametrize(("kind", "state"), [("ens1f", "Up"), ("ib", "Down"), ("ibp26s", "Down")])
def test_ipoib_that_is_not_set_up_shows_no_port_that_is_down(tmp_path: Path, kind: str, state: str) -> None:
    assert downs(tmp_path, LISTED.format(kind=kind, state=state)) == []


def test_all_interfaces_of_a_host_that_are_down_are_a_warning(tmp_path: Path) -> None:
    listed = LISTED.format(kind="ens1f", state="Down").replace("Up", "Down")

    assert downs(tmp_path, listed) == [("all 2 ports shown are down", "warning")]
