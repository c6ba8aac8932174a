"""A connection that was closed while a thread accepted it is no lost rank: NCCL goes on."""

from __future__ import annotations

from pathlib import Path

from ncclforensics import analyze
from ncclforensics.views.json_report import as_object

CLOSED = (
    "gpu-a012:77:177 [2] misc/socket.cc:50 NCCL WARN socketProgress: Connection closed by remote peer 192.0.2.7<46494>",
    "gpu-a012:77:177 [2] NCCL INFO misc/socket.cc:58 -> 6",
    "gpu-a012:77:177 [2] NCCL INFO misc/socket.cc:666 -> 6",
)
ACCEPTING = "gpu-a012:77:177 [2] proxy.cc:1494 NCCL WARN [Service thread] Accept failed Success"


def test_a_stranger_that_connects_and_leaves_stops_nothing(tmp_path: Path) -> None:
    log = tmp_path / "job.log"

    log.write_text("\n".join([*CLOSED, ACCEPTING, ""]))
    survived = as_object(analyze(log, everything=True))
    log.write_text("\n".join([*CLOSED, ""]))
    lost = as_object(analyze(log, everything=True))

    assert "peer-lost" not in {finding["category"] for finding in survived["findings"]}
    assert "connection-to-peer-lost" in {finding["rule"] for finding in lost["findings"]}
