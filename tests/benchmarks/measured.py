"""Measurements of days in one file: tables of nccl-tests, and counters of the ports of a fabric.

python -m tests.benchmarks.measured FILE tables|counters MB
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

MB = 1_000_000
GPUS, HOSTS, PORTS = 8, 512, 36
SETTINGS = (
    "# nccl-tests version 2.17.6 nccl-headers=22807 nccl-library=22807\n"
    "# Collective test starting: all_reduce_perf\n"
    "# nThread 1 nGpus 1 minBytes 1048576 maxBytes 8589934592 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 "
    "validation: 1 graph: 0\n"
    "#\n# Using devices\n"
)
DEVICE = "#  Rank {rank:2} Group  0 Pid {pid:6} on   gpu-a{host:03} device {rank:2} [0000:{rank}b:00] NVIDIA H100\n"
HALF_HEAD, HALF_UNITS = "    time   algbw   busbw  #wrong", "    (us)  (GB/s)  (GB/s)        "
HEAD = (
    f"#\n#{'out-of-place':>74}{'in-place':>32}\n"
    f"#       size         count      type   redop    root {2 * HALF_HEAD}\n"
    f"#        (B)    (elements)                           {2 * HALF_UNITS}\n"
)
FOOT = (
    "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : {average:.3f}\n#\n"
    "# Collective test concluded: all_reduce_perf\n#\n"
)
COUNTERS = (
    "SymbolErrorCounter", "LinkErrorRecoveryCounter", "LinkDownedCounter", "PortRcvErrors",
    "PortRcvRemotePhysicalErrors", "PortRcvSwitchRelayErrors", "PortXmitDiscards", "PortXmitConstraintErrors",
    "PortRcvConstraintErrors", "LocalLinkIntegrityErrors", "ExcessiveBufferOverrunErrors", "QP1Dropped", "VL15Dropped",
    "PortXmitData", "PortRcvData", "PortXmitPkts", "PortRcvPkts", "PortXmitWait",
)  # fmt: skip


def _table(draw: random.Random) -> str:
    """One run of all_reduce_perf on a host, each time and bandwidth another."""
    host, pid = draw.randrange(HOSTS), draw.randrange(10_000, 900_000)
    parts = [SETTINGS, *(DEVICE.format(rank=rank, pid=pid + rank, host=host) for rank in range(GPUS)), HEAD]
    average = 0.0
    for power in range(20, 34):
        size = 2**power
        halves = ""
        for _ in range(2):
            time = (40 + size / 273e3) * draw.uniform(0.99, 1.01)
            rate = size / time / 1000
            average += rate * 1.75 / 28
            halves += f"{time:9.2f}{rate:8.2f}{rate * 1.75:8.2f}       0"
        parts.append(f"{size:12}{size // 4:14}     float     sum      -1{halves}\n")
    return "".join([*parts, FOOT.format(average=average)])


def tables(path: Path, size: int) -> None:
    """Write up to `size` bytes of tables, one run after the other."""
    draw = random.Random(1)
    with path.open("w", encoding="ascii") as log:
        while log.tell() < size:
            log.write(_table(draw))


def counters(path: Path, size: int) -> None:
    """Write up to `size` bytes of what perfquery prints, each port once."""
    draw = random.Random(1)
    port = 0
    with path.open("w", encoding="ascii") as log:
        while log.tell() < size:
            lid, number = 1 + port // PORTS, 1 + port % PORTS
            log.write(f"# Port counters: Lid {lid} port {number} (CapMask: 0x5A00)\n")
            values = {"PortSelect": str(number), "CounterSelect": "0x0000"}
            values |= {name: str(draw.getrandbits(32) if name.endswith(("Data", "Pkts")) else 0) for name in COUNTERS}
            log.write("".join(f"{name + ':':.<33}{value}\n" for name, value in values.items()))
            port += 1


if __name__ == "__main__":
    {"tables": tables, "counters": counters}[sys.argv[2]](Path(sys.argv[1]), int(sys.argv[3]) * MB)
