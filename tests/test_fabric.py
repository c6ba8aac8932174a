"""Tools of the fabric: one meaning in every form, units converted once, and broken dumps yield what they hold."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncclforensics import analyze
from ncclforensics.frames.open_run import open_run
from ncclforensics.frames.run import Run
from ncclforensics.inputs.read_policy import ReadPolicy
from ncclforensics.inputs.sources import find
from ncclforensics.report.build import Report
from ncclforensics.views.json_report import as_object
from ncclforensics.views.text_report import text as as_text
from tests.budget import examples

Read = Callable[..., Report]
Parse = Callable[..., Run]
LEAF = "0x0002c903006e29b0"
HOST = "0xb8599f0300c31d0c"
PLAIN = """\
# Port counters: Lid 12 port 1 (CapMask: 0x5A00)
PortSelect:......................1
CounterSelect:...................0x0000
SymbolErrorCounter:..............65535
LinkDownedCounter:...............2
PortXmitData:....................4294967295
PortRcvData:.....................1000
PortXmitWait:....................7
"""
OLD = """\
# Port counters: Lid 12 port 1
PortSelect:......................1
SymbolErrors:....................65535
LinkDowned:......................2
XmtData:.........................4294967295
RcvData:.........................1000
XmtWait:.........................7
"""
EXTENDED = PLAIN.replace("Port counters", "Port extended counters").replace("PortXmitData:..", "PortXmitData:..")
REPORTED = """\
Errors for "gpu-b012 mlx5_0"
   GUID 0xb8599f0300c31d0c port 1: [SymbolErrorCounter == 65535] [LinkDownedCounter == 2] [PortXmitWait == 7]
"""
DIAGNOSED = """\
Port=1 Lid=0x000c GUID=0xb8599f0300c31d0c Device=4129 Port Name=gpu-b012/mlx5_0/1
symbol_error_counter=0xffff
link_down_counter=0x02
port_xmit_data=0xffffffff
port_xmit_data_extended=0x0000000000002000
port_rcv_errors=NA
"""
TABLE = """\
START_PM_INFO
NodeGUID,PortGUID,PortNumber,link_down_counter,symbol_error_counter,port_rcv_errors
0xb8599f0300c31d0c,0xb8599f0300c31d0c,1,0x02,0xffff,NA
END_PM_INFO
"""
WARNED = """\
#warn: counter SymbolErrors = 65535     (threshold 10)
#warn: counter LinkDowned = 2   (threshold 10)
Error check on lid 12 (gpu-b012 HCA-1) port 1:  FAILED
"""


@pytest.fixture
def parse(tmp_path: Path) -> Parse:
    """The frames of some dumps: no rule is asked."""

    def reading(**files: str) -> Run:
        for name, text in files.items():
            (tmp_path / name).write_text(text)
        return open_run(find([str(tmp_path)]), ReadPolicy(full=True))

    return reading


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """The report on some dumps."""

    def reading(**files: str) -> Report:
        for name, text in files.items():
            (tmp_path / name).write_text(text)
        return analyze([str(tmp_path)], everything=True)

    return reading


def counted(run: Run, **where: Any) -> dict[str, tuple[int, bool]]:
    rows = run["counter"].filter(*(pl.col(name) == value for name, value in where.items()))
    return {name: (value, stuck) for name, value, stuck in rows.select("name", "value", "is_saturated").iter_rows()}


def said(report: Report) -> dict[str, str]:
    return {finding.rule: str(finding.severity) for finding in report.findings if finding.rule.startswith("ctr-")}


@pytest.mark.parametrize("text", [PLAIN, OLD, REPORTED, DIAGNOSED, TABLE, WARNED])
def test_a_counter_is_the_same_from_every_tool(parse: Parse, text: str) -> None:
    reported = counted(parse(a=text), port=1)

    assert reported["symbol_error"] == (65535, True)  # stuck: this or more
    assert reported["link_downed"] == (2, False)
    assert "port_rcv_errors" not in reported  # not available is not zero


def test_data_counters_count_words_of_four_bytes_and_saturate_if_narrow(parse: Parse) -> None:
    plain, extended = counted(parse(a=PLAIN)), counted(parse(a=EXTENDED))

    assert plain["port_rcv_data"] == (4000, False)
    assert plain["port_xmit_data"] == (4294967295 * 4, True)
    assert extended["port_xmit_data"] == (4294967295 * 4, False)
    assert counted(parse(a=DIAGNOSED))["port_xmit_data"] == (0x2000 * 4, False)


def test_the_sum_of_all_ports_is_not_counted_beside_the_ports(parse: Parse) -> None:
    text = """\
Errors for 0x2c903006e29b0 "MF0;leaf-1:MQM9700/U1"
   GUID 0x2c903006e29b0 port ALL: [LinkDownedCounter == 9]
   GUID 0x2c903006e29b0 port 1: [LinkDownedCounter == 4]
   GUID 0x2c903006e29b0 port 2: [LinkDownedCounter == 5 (5.000)]
"""
    rows = parse(a=text)["counter"]

    assert rows.select("port", "value", "guid").rows() == [(1, 4, LEAF), (2, 5, LEAF)]


def test_details_of_discards_and_receive_errors_depend_on_their_heading(parse: Parse) -> None:
    text = """\
Errors for 0x2c903006e29b0 "leaf-1"
   GUID 0x2c903006e29b0 port 1: [PortXmitDiscards == 7] [PortDLIDMappingErrors == 7] [PortRcvErrors == 3] \
[PortInactiveDiscards == 3]
"""
    reported = counted(parse(a=text))

    assert reported["port_sw_hoq_lifetime_limit_discards"] == (7, False)
    assert reported["port_local_physical_errors"] == (3, False)


LINKS = """\
CA: gpu-b012 mlx5_0:
      0xb8599f0300c31d0c     12    1[  ] ==( 4X        106.25 Gbps Active/  LinkUp)==>  \
1    2[  ] "MF0;leaf-1:MQM9700/U1" ( )
Switch: 0x0002c903006e29b0 MF0;leaf-1:MQM9700/U1:
           1    2[  ] ==( 4X        106.25 Gbps Active/  LinkUp)==>      12    1[  ] "gpu-b012 mlx5_0" ( )
           1    3[  ] ==(                Down/ Polling)==>             [  ] "" ( )
"""
IN_LINES = """\
0x0002c903006e29b0 "MF0;leaf-1:MQM9700/U1        "      1    2[  ] ==( 4X        106.25 Gbps Active/  LinkUp)\
==>  0xb8599f0300c31d0c     12    1[  ] "gpu-b012 mlx5_0" ( )
"""
MAP = """\
# Topology file: generated on Mon Mar  2 11:00:05 2026
Switch	65 "S-0002c903006e29b0"		# "MF0;leaf-1:MQM9700/U1" enhanced port 0 lid 1 lmc 0
[2]	"H-b8599f0300c31d0c"[1](b8599f0300c31d0c) 		# "gpu-b012 mlx5_0" lid 12 4xNDR
Ca	1 "H-b8599f0300c31d0c"		# "gpu-b012 mlx5_0"
[1](b8599f0300c31d0c) 	"S-0002c903006e29b0"[2]		# lid 12 lmc 0 "MF0;leaf-1:MQM9700/U1" lid 1 4xNDR
"""
PORTS = """\
SW     1  2 0x0002c903006e29b0 4x NDR - CA    12  1 0xb8599f0300c31d0c ( 'MF0;leaf-1:MQM9700/U1' - 'gpu-b012 mlx5_0' )
SW     1  3 0x0002c903006e29b0 4x ???                                    'MF0;leaf-1:MQM9700/U1'
"""


@pytest.mark.parametrize("text", [LINKS, IN_LINES, MAP, PORTS])
def test_a_link_is_the_same_from_every_tool(parse: Parse, text: str) -> None:
    ports = parse(a=text)["port_state"]

    (link,) = ports.filter((pl.col("guid") == LEAF) & (pl.col("port") == 2)).to_dicts()
    assert (link["rate_Gbps"], link["width"].upper(), link["speed"]) == (400.0, "4X", "NDR")
    assert (link["peer_node"], link["peer_port"], link["peer_lid"]) == ("gpu-b012 mlx5_0", 1, 12)


def test_a_fabric_map_names_nodes_known_by_lid(parse: Parse) -> None:
    run = parse(a=LINKS, b=PLAIN)

    assert run["counter"].select("host", "device", "guid").unique().rows() == [("gpu-b012", "mlx5_0", HOST)]


def test_a_time_in_any_format_applies_to_the_output_below(parse: Parse) -> None:
    heads = ("Mon Mar  2 11:00:00 UTC 2026", "Mon Mar  2 11:00:00 AM CET 2026", "=== 2026-03-02 11:00:00 ===",
             "# date: 2026-03-02T11:00:00Z")  # fmt: skip

    for head in heads:
        assert set(parse(a=f"{head}\n{PLAIN}")["counter"]["moment"]) == {datetime(2026, 3, 2, 11)}, head


def test_the_host_is_read_from_headings_prompts_and_rulers(parse: Parse) -> None:
    heads = ("===== gpu-b012 =====", "----------------\ngpu-b012\n----------------", "root@gpu-b012:~# perfquery")

    for head in heads:
        assert set(parse(a=f"{head}\n{PLAIN}")["counter"]["host"]) == {"gpu-b012"}, head
    elsewhere = "root@login:~# perfquery 12 1\n"
    assert set(parse(a=elsewhere + PLAIN)["counter"]["host"]) == {None}


IBSTAT = """\
CA 'mlx5_0'
	CA type: MT4129
	Node GUID: 0xb8599f0300c31d0c
	Port 1:
		State: Active
		Physical state: LinkUp
		Rate: 400
		Base lid: 12
		SM lid: 1
		Link layer: InfiniBand
"""
IBSTATUS = """\
Infiniband device 'mlx5_0' port 1 status:
	default gid:	 fe80:0000:0000:0000:b859:9f03:00c3:1d0c
	base lid:	 0xc
	sm lid:		 0x1
	state:		 4: ACTIVE
	phys state:	 5: LinkUp
	rate:		 400 Gb/sec (4X NDR)
	link_layer:	 InfiniBand
"""


@pytest.mark.parametrize("text", [IBSTAT, IBSTAT.replace("\t", ""), IBSTATUS])
def test_a_port_is_the_same_from_every_tool_of_its_host(parse: Parse, text: str) -> None:
    (port,) = parse(a=text)["port_state"].to_dicts()

    reported = {
        name: port[name] for name in ("device", "port", "lid", "state", "physical_state", "rate_Gbps", "link_layer")
    }
    assert reported == {
        "device": "mlx5_0", "port": 1, "lid": 12, "state": "active", "physical_state": "LinkUp", "rate_Gbps": 400.0,
        "link_layer": "InfiniBand",
    }  # fmt: skip


def test_json_lists_nonzero_and_saturated_counters(read: Read) -> None:
    (port,) = as_object(read(a=PLAIN))["counters"]

    assert (port["lid"], port["port"]) == (12, 1)
    assert port["nonzero"]["link_downed"] == 2
    assert port["saturated"] == ["symbol_error", "port_xmit_data"]


def test_a_dump_without_its_beginning_is_read_and_reported(read: Read) -> None:
    report = read(a="SymbolErrorCounter:..............9\nLinkDownedCounter:...............2\n" + PLAIN)

    assert report.problems(0) == ["line 1: counters before the first heading: their port is unknown"]
    assert counted(report.run, lid=12)["link_downed"] == (2, False)


def test_a_node_that_did_not_answer_is_a_problem(read: Read) -> None:
    report = read(a="ibwarn: [4711] mad_rpc: _do_madrpc failed; dport (Lid 12)\n" + PLAIN)

    assert report.problems(0) == ["line 1: the tool failed: mad_rpc: _do_madrpc failed; dport (Lid 12)"]


# From dump to dump.


def perfquery(lid: int = 12, **counters: int) -> str:
    head = f"# Port counters: Lid {lid} port 1 (CapMask: 0x5A00)\nPortSelect:......................1\n"
    return head + "".join(f"{name}:".ljust(33, ".") + f"{value}\n" for name, value in counters.items())


def counter_row(run: Run, name: str) -> dict[str, Any]:
    (row,) = run["counter_increase"].filter(pl.col("name") == name).to_dicts()
    return row


def test_file_names_order_dumps(parse: Parse) -> None:
    row = counter_row(
        parse(b_before=perfquery(LinkDownedCounter=1), a_after=perfquery(LinkDownedCounter=4)), "link_downed"
    )

    assert (row["increase"], row["order"], row["is_reset"]) == (3, "name", False)


def test_times_order_dumps_and_date_the_first_increase(read: Read) -> None:
    dumps = [f"2026-03-02 11:0{minute}:00\n" + perfquery(SymbolErrorCounter=count) for minute, count in
             enumerate((5, 5, 25, 45))]  # fmt: skip
    report = read(c=dumps[0], d=dumps[3], a=dumps[1], b=dumps[2])
    row = counter_row(report.run, "symbol_error")

    assert (row["increase"], row["order"], row["seconds"], row["dumps"]) == (40, "time", 180.0, 4)
    assert (row["last_unchanged"].minute, row["first_increase"].minute) == (1, 2)
    assert said(report) == {"ctr-link-quality": "warning"}
    assert "▁██" in as_text(report, everything=True)


def test_traffic_orders_dumps_without_times_and_names(parse: Parse) -> None:
    earlier = perfquery(LinkDownedCounter=1, PortXmitPkts=10)
    row = counter_row(parse(a=perfquery(LinkDownedCounter=2, PortXmitPkts=99), b=earlier), "link_downed")

    assert (row["increase"], row["order"]) == (1, "traffic")


def test_decreased_counters_were_reset_and_saturated_ones_give_a_minimum(parse: Parse) -> None:
    before = perfquery(SymbolErrorCounter=9, PortRcvErrors=500, PortXmitWait=4294967295)
    run = parse(before=before, after=perfquery(SymbolErrorCounter=65535, PortRcvErrors=20, PortXmitWait=4294967295))

    stuck, reset, full = (counter_row(run, name) for name in ("symbol_error", "port_rcv_errors", "port_xmit_wait"))
    assert (stuck["increase"], stuck["is_lower_bound"], stuck["is_reset"]) == (65526, True, False)
    assert (reset["increase"], reset["is_lower_bound"], reset["is_reset"]) == (20, True, True)
    assert full["increase"] is None


def test_a_narrow_counter_of_another_kind_wraps(parse: Parse) -> None:
    head = "# PortFlowCtlCounters counters: Lid 12 port 1\nPortSelect:......................1\n"
    dumps = [head + "PortXmitFlowPkts:................" + f"{value}\n" for value in (4294967000, 500)]
    row = counter_row(parse(before=dumps[0], after=dumps[1]), "port_xmit_flow_pkts")

    assert (row["increase"], row["is_reset"]) == (796, False)


def test_devices_of_unnamed_hosts_are_not_merged(parse: Parse) -> None:
    dump = "/sys/class/infiniband/mlx5_0/ports/1/counters/link_downed:{}\n"
    rows = parse(node1=dump.format(1), node2=dump.format(5))["counter_increase"]

    assert rows["dumps"].to_list() == [1, 1]


SUMMARY = "\n## Summary: 4 nodes checked, 1 bad nodes found\n## Thresholds: {}\n## Suppressed: \n"


@pytest.mark.parametrize(("thresholds", "known"), [("", 500), ("[SymbolErrorCounter = 10]", None)])
def test_counters_omitted_by_ibqueryerrors_are_zero_if_it_prints_the_rest(
    parse: Parse, thresholds: str, known: int | None
) -> None:
    last_unchanged = SUMMARY.format(thresholds)
    loud = REPORTED.replace("65535", "500") + SUMMARY.format("")

    assert counter_row(parse(before=last_unchanged, after=loud), "symbol_error")["increase"] == known


# What is a fault, and what is none.


def test_totals_of_one_dump_are_a_note(read: Read) -> None:
    report = read(a=perfquery(SymbolErrorCounter=12, LinkDownedCounter=3, LinkErrorRecoveryCounter=1))

    assert said(report) == {"ctr-need-delta": "info"}


def test_errors_of_unknown_age_are_possible_if_few_links_have_them(read: Read) -> None:
    bad, good = perfquery(1, SymbolErrorCounter=65535, LinkErrorRecoveryCounter=8), {"SymbolErrorCounter": 3}
    ports = "".join(perfquery(lid, **good) for lid in range(2, 9))

    (finding,) = [f for f in read(a=bad + ports).findings if f.rule == "ctr-link-quality"]
    assert (finding.certainty, finding.title) == ("possible", "the link of LID 1 port 1 was bad at some time")
    everywhere = "".join(perfquery(lid, SymbolErrorCounter=65535, LinkErrorRecoveryCounter=8) for lid in range(1, 9))
    assert said(read(a=everywhere)) == {"ctr-need-delta": "info"}


def test_discards_follow_from_a_link_that_went_down(read: Read) -> None:
    before = perfquery(LinkDownedCounter=1, PortXmitDiscards=0)
    report = read(before=before, after=perfquery(LinkDownedCounter=2, PortXmitDiscards=4000))

    assert said(report) == {"ctr-link-downed": "error", "ctr-discards": "info"}


DUMPS = [PLAIN, REPORTED, DIAGNOSED, TABLE, WARNED, LINKS, MAP, PORTS, IBSTAT, IBSTATUS]
DAMAGE = [b"", b"\x1b]0;x\x07", b"\xff\xfe\x00", b"9" * 40, b"\n", b"[", b'"', b"-", b"0xffffffffffffffff"]


@examples(2, with_fixtures=True)
@given(st.data())
def test_damaged_dumps_raise_no_error(tmp_path: Path, data: st.DataObject) -> None:
    for number, whole in enumerate(DUMPS):
        raw = bytearray(whole.encode())
        for _ in range(4):
            place = data.draw(st.integers(0, max(len(raw) - 1, 0)))
            raw[place : place + data.draw(st.integers(0, 9))] = data.draw(st.sampled_from(DAMAGE))
        (tmp_path / f"dump{number}").write_bytes(bytes(raw))

    report = analyze([str(tmp_path)], everything=True)

    shown = as_text(report, everything=True)
    assert "\x1b" not in shown
    assert as_object(report)["counters"]


LOG = """\
[{time}] node-a:20010:20017 [1] transport/net_ib.cc:1295 NCCL WARN NET/IB: Got completion from peer 10.0.4.12<45210> \
with status=12 opcode=0 len=0 vendor err 129 (Send) hca mlx5_0
"""


@pytest.mark.parametrize(("minute", "is_why"), [("05", True), ("30", False)])
def test_a_link_that_went_down_explains_only_failures_of_that_time(read: Read, minute: str, is_why: bool) -> None:
    link = LINKS.replace("gpu-b012", "node-a")
    before, after = perfquery(LinkDownedCounter=1), perfquery(LinkDownedCounter=2)
    dumps = {"before": f"2026-03-02 11:00:00\n{before}", "after": f"2026-03-02 11:10:00\n{after}"}

    report = read(links=link, log=LOG.format(time=f"2026-03-02 11:{minute}:00"), **dumps)

    (down,) = [finding for finding in report.findings if finding.rule == "ctr-link-downed"]
    assert ("in the log" in down.detail) == is_why
