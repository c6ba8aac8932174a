"""Logs whose size says nothing of what is in them: one line without end, and thousands of ranks half a call ahead."""

from __future__ import annotations

from pathlib import Path

CHUNK = 10_000  # lines written at once
PREFIX = "node{node:04}:{pid}:{tid} [{dev}] NCCL INFO "
INIT = (
    "ncclCommInitRank comm 0x55d1c3e{rank:05x} rank {rank} nranks {ranks} cudaDev {dev} nvmlDev {dev} busId {dev}b000 "
    "commId 0x8f3bd2a4c1e07755 - Init {phase}\n"
)
CALL = (
    "AllReduce: opCount {number:x} sendbuff 0x7f00 recvbuff 0x7f10 count 1024 datatype 9 op 0 root 0 "
    "comm 0x55d1c3e{rank:05x} [nranks={ranks}] stream 0x55d1\n"
)
RETURNED = "transport/net.cc:1363 -> 6\n"
ERROR = "node0000:1000:1000 [0] enqueue.cc:80 NCCL WARN Cuda failure 700 'an illegal memory access was encountered'\n"


def _rank(rank: int, ranks: int, calls: int) -> str:
    """What a rank prints that makes so many calls."""
    place = {"rank": rank, "ranks": ranks, "dev": rank % 8}
    prefix = PREFIX.format(node=rank // 8, pid=1000 + rank % 8, tid=1000 + rank % 8, dev=rank % 8)
    init = [prefix + INIT.format(**place, phase=phase) for phase in ("START", "COMPLETE")]
    return "".join([*init, *(prefix + CALL.format(**place, number=number) for number in range(calls))])


def half_a_call_ahead(path: Path, ranks: int) -> None:
    """Write one log in which every other rank has made one call more."""
    path.write_text("".join(_rank(rank, ranks, 2 + rank % 2) for rank in range(ranks)), encoding="utf-8")


def flood(path: Path, size: int) -> None:
    """Write a log of 8 ranks of which one repeats a line up to `size` bytes, with an error of another in the middle."""
    lines = (PREFIX.format(node=0, pid=1003, tid=1930, dev=3) + RETURNED) * CHUNK
    with path.open("w", encoding="utf-8") as log:
        log.write("".join(_rank(rank, 8, 49 if rank == 0 else 50) for rank in range(8)))
        while log.tell() < size // 2:
            log.write(lines)
        log.write(ERROR)
        while log.tell() < size:
            log.write(lines)


# Lines that differ only in numbers, as errors leave them.
ALIKE = {
    "srun's tasks": "srun: error: node{n}: task {n}: Exited with exit code 1\n",
    "mpirun's processes": "mpirun noticed that process rank {n} with PID 1{n} on node node{n} exited on signal 9.\n",
    "completion errors": (
        "node0000:1003:1930 [3] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer 10.0.4.13<45210> "
        "with error 12, opcode 0, len {n}, vendor err 129 (Send)\n"
    ),
    "retries": (
        "node0000:1003:1930 [3] NCCL INFO socketPollConnect: connect to 10.0.4.13<45210> returned Connection refused, "
        "retrying ({n}/34) after sleep for 100 msec\n"
    ),
    "watchdog reports": (
        "[rank7]:[E1120 10:11:12.000000 ProcessGroupNCCL.cpp:616] [Rank 7] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum={n}, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600029 "
        "milliseconds before timing out.\n"
    ),
}


def alike(path: Path, form: str, size: int) -> None:
    """Write a log of 8 ranks, and up to `size` bytes of lines of this form, each with another number."""
    start = 0
    with path.open("w", encoding="utf-8") as log:
        log.write("".join(_rank(rank, 8, 49 if rank == 0 else 50) for rank in range(8)))
        while log.tell() < size:
            log.write("".join(form.format(n=n) for n in range(start, start + CHUNK)))
            start += CHUNK
