"""What runs on each rank: rendezvous, the steps in which a drill strikes, and the measurements.

Started by `launch` as `python -m ncclforensics.capture.worker RECORD RANK LOCAL_RANK`; imports the standard library and
torch alone.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ncclforensics.capture.collectives import (
    BYTES,
    COLLECTIVES,
    COMM,
    CallError,
    Communicator,
    measure,
    pieces,
    round_trips,
)
from ncclforensics.capture.journal import Journal, host, plain

GAVE_UP = 3  # exit code: a call failed, and the journal says which
# Up to 2.7 the faster of two servers never accepts on a socket that it was given (pytorch#150215).
TAKES_SOCKETS = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 8)
STEP = 1 << 20  # bytes of the message of a step
TRIPS = 50
PARTS = 64


class Rank:
    """One rank of a capture: its journal, its communicator, and what the plan wants of it."""

    def __init__(self, record: Path, rank: int, local: int) -> None:
        self.plan: dict[str, Any] = json.loads(record.read_bytes())["plan"]
        folder = record.parent
        self.rank, self.nranks = rank, int(self.plan["nranks"])
        self.within = timedelta(seconds=self.plan["stall_s"])
        self.journal = Journal(folder / f"journal.rank{rank}.jsonl", host=host(), pid=os.getpid(), rank=rank)
        gpu = self.plan["gpus"][local] if self.plan["backend"] == "nccl" else None
        self.device = torch.device("cpu") if gpu is None else torch.device("cuda", gpu)
        self.comm = Communicator(self.journal, rank, self.nranks, self.device)
        self._birth = {
            "comm": COMM, "commid": self.plan["run"], "nranks": self.nranks, "device": gpu,
            "backend": self.plan["backend"],
        }  # fmt: skip
        self._results = open(folder / f"measured.rank{rank}.jsonl", "a", buffering=1, encoding="utf-8")
        self._turn = 0

    def note(self, **told: Any) -> None:
        """Write down a result; how many there are of rank 0 is how far the capture came."""
        self._results.write(json.dumps(told) + "\n")

    def run(self) -> None:
        """Everything, from the rendezvous to the end."""
        self.journal.write(init="START", **self._birth)
        nccl = torch.cuda.nccl.version() if dist.is_nccl_available() else ()
        self.note(torch=str(torch.__version__), nccl=".".join(map(str, nccl)) or None)
        if self.device.type == "cuda":
            self._take_device()
        try:
            self._join()
        except RuntimeError as error:  # DistError and its children are RuntimeErrors
            self._gave_up("Init", error)
        self.journal.write(init="COMPLETE", **self._birth)
        self._steps()
        if self.plan["sweep"] and self._sweep():
            self._compare()
            self.note(completed=True)
        dist.destroy_process_group()
        self.journal.write(init="DESTROY", **self._birth)

    def _take_device(self) -> None:
        """Its GPU, and no more of the memory than was asked for."""
        torch.cuda.set_device(self.device)
        share = self.plan["memory_bytes"] / torch.cuda.get_device_properties(self.device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(share, 1.0), self.device)

    def _join(self) -> None:
        """Meet the others; on one node over a socket that was bound to the loopback before anybody started."""
        listening = int(os.environ.get("NCCLFORENSICS_SOCKET", "-1"))
        serves = self.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        self.store = dist.TCPStore(
            os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), self.nranks, serves, self.within,
            wait_for_workers=False, master_listen_fd=listening if serves and listening >= 0 else None,
            use_libuv=TAKES_SOCKETS,
        )  # fmt: skip
        named = dist.PrefixStore("ncclforensics", self.store)
        dist.init_process_group(
            self.plan["backend"], store=named, rank=self.rank, world_size=self.nranks, timeout=self.within
        )

    def _gave_up(self, what: str, error: RuntimeError) -> None:
        self.journal.write(failed=what, says=plain(error))
        raise CallError(str(error)) from error

    def _steps(self) -> None:
        """The same AllReduce again and again, as a training loop makes it; here a drill strikes."""
        buffer = self.comm.floats(STEP // BYTES).zero_()
        drills = [drill for drill in self.plan["drills"] if drill["rank"] == self.rank]
        for step in range(self.plan["steps"]):
            name = "all_reduce"
            for drill in drills:
                if drill["kind"] == "slow":
                    time.sleep(drill["amount"] / 1000)
                elif drill["step"] == step:
                    name = _strike(drill["kind"])
            with self.comm.calling(name):
                COLLECTIVES[name].move(self.comm, buffer, buffer)
            self.note(step=step)

    def _sweep(self) -> bool:
        """Every collective at every size, as far as time allows."""
        ends = time.monotonic() + self.plan["sweep_s"]
        for name, size in self.plan["sweep"]:
            if not self._goes_on(time.monotonic() < ends):
                self.note(stopped_before=name, size=size)
                return False
            timing = measure(
                self.comm, name, size, warmup=self.plan["warmup"], iterations=self.plan["iterations"]
            )  # fmt: skip
            self.note(**timing.row(name))
        return True

    def _goes_on(self, wish: bool) -> bool:
        """What rank 0 decides, for all must make the same calls."""
        key, self._turn = f"turn/{self._turn}", self._turn + 1
        try:
            if self.rank == 0:
                self.store.set(key, "on" if wish else "off")
            return bool(self.store.get(key) == b"on")
        except RuntimeError as error:
            self._gave_up("Rendezvous", error)
            raise

    def _compare(self) -> None:
        """Latency between two ranks, and one large message against many small ones."""
        for peer in range(1, self.nranks):
            self._goes_on(True)  # one pair after another
            half = round_trips(self.comm, peer, TRIPS)
            if self.rank == 0:
                self.note(latency_to=peer, half_round_trip_us=half)
        largest = max(size for _, size in self.plan["sweep"])
        large, small = pieces(self.comm, largest, PARTS)
        self.note(one_large_us=large, many_small_us=small, bytes=largest, parts=PARTS)


def _strike(kind: str) -> str:
    """Do what the drill wants of this step; what to call in place of the step's own collective."""
    if kind == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    while kind == "hang":
        time.sleep(60)
    return "broadcast"


def main(record: str, rank: str, local: str) -> int:
    """Run one rank; its exit code says whether a call failed."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # where it stands, before it is taken down
    try:
        Rank(Path(record), int(rank), int(local)).run()
    except CallError as error:
        print(f"rank {rank} gave up: {error}", file=sys.stderr)  # noqa: T201  # its file is its log
        return GAVE_UP
    return 0


if __name__ == "__main__":
    code = main(*sys.argv[1:])
    sys.stderr.flush()
    os._exit(code)  # threads of the backend may still wait for ranks that are gone
