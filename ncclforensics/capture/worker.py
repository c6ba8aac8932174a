"""The program of each rank: rendezvous, steps with injected faults, and measurements.

Started by `launch` as `python -m ncclforensics.capture.worker RECORD RANK LOCAL_RANK`; imports only the standard
library and torch.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import signal
import sys
import threading
import time
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ncclforensics.capture.collectives import (
    BYTES,
    COLLECTIVES,
    COMM,
    CallFailedError,
    Communicator,
    measure,
    measure_pair,
    time_calls_of,
)
from ncclforensics.capture.journal import Journal, host, plain
from ncclforensics.capture.pair_schedule import rounds_of_pairs

GAVE_UP = 3  # exit code: a call failed, and the journal says which
# Up to PyTorch 2.7, the libuv server never accepts on a given socket (pytorch#150215).
TAKES_SOCKETS = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 8)
STEP = 1 << 20  # message size of a step in bytes


class Rank:
    """One rank of a capture: its journal, its communicator and its part of the plan."""

    def __init__(self, record: Path, rank: int, local: int) -> None:
        self.plan: dict[str, Any] = json.loads(record.read_bytes())["plan"]
        folder = record.parent
        self.rank, self.nranks = rank, int(self.plan["nranks"])
        self.timeout = timedelta(seconds=self.plan["stall_s"])
        self.journal = Journal(folder / f"journal.rank{rank}.jsonl", host=host(), pid=os.getpid(), rank=rank)
        gpu = self.plan["gpus"][local] if self.plan["backend"] == "nccl" else None
        self.device = torch.device("cpu") if gpu is None else torch.device("cuda", gpu)
        self.comm = Communicator(self.journal, rank, self.nranks, self.device)
        self._communicator_fields = {
            "comm": COMM, "commid": self.plan["run"], "nranks": self.nranks, "device": gpu,
            "backend": self.plan["backend"],
        }  # fmt: skip
        self._results = open(folder / f"measured.rank{rank}.jsonl", "a", buffering=1, encoding="utf-8")
        self._trace = folder / f"trace.rank{rank}.json.gz"
        self._decisions = 0

    def write_measurement(self, **fields: Any) -> None:
        """Append a result; the number of results of rank 0 shows the progress of the capture."""
        self._results.write(json.dumps(fields) + "\n")

    def run(self) -> None:
        """Run the rank from the rendezvous to the end."""
        self.journal.write(init="START", **self._communicator_fields)
        nccl = torch.cuda.nccl.version() if dist.is_nccl_available() else ()
        self.write_measurement(torch=str(torch.__version__), nccl=".".join(map(str, nccl)) or None)
        try:
            if self.device.type == "cuda":
                self._take_device()
            self._join()
        except (RuntimeError, AssertionError) as error:  # DistErrors are RuntimeErrors; without CUDA torch asserts
            self._fail("Init", error)
        self.journal.write(init="COMPLETE", **self._communicator_fields)
        self._steps()
        if self.plan["sweep"] and self._sweep():
            self.write_measurement(completed=True)
            self._measure_pairs()
            self._measure_message_sizes()
        dist.destroy_process_group()
        self.journal.write(init="DESTROY", **self._communicator_fields)

    def _take_device(self) -> None:
        """Select the GPU of this rank, and limit its memory. Raises RuntimeError without its driver."""
        torch.cuda.init()
        torch.cuda.set_device(self.device)
        share = self.plan["memory_bytes"] / torch.cuda.get_device_properties(self.device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(share, 1.0), self.device)

    def _join(self) -> None:
        """Join the process group; on one host over a loopback socket that was bound before any rank started."""
        listening = int(os.environ.get("NCCLFORENSICS_SOCKET", "-1"))
        is_server = self.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        self.store = dist.TCPStore(
            os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), self.nranks, is_server, self.timeout,
            wait_for_workers=False, master_listen_fd=listening if is_server and listening >= 0 else None,
            use_libuv=TAKES_SOCKETS,
        )  # fmt: skip
        self._wait_for_ranks()
        # Without device_id, the backend nccl2 takes the GPU LOCAL_RANK % count, and others may guess it from the rank.
        dist.init_process_group(
            self.plan["backend"], store=dist.PrefixStore("ncclforensics", self.store), rank=self.rank,
            world_size=self.nranks, timeout=self.timeout,
            device_id=self.device if self.device.type == "cuda" else None,
        )  # fmt: skip

    def _wait_for_ranks(self) -> None:
        """Wait until every rank has come: the creation of NCCL's communicator, which follows, has no timeout."""
        self.store.set(f"host/{self.rank}", host())
        keys = [f"host/{rank}" for rank in range(self.nranks)]
        try:
            self.store.wait(keys, self.timeout)
        except RuntimeError as error:
            absent = [str(rank) for rank, key in enumerate(keys) if not self.store.check([key])]
            joined = f"{self.nranks - len(absent)}/{self.nranks} clients joined. Absent ranks: {', '.join(absent)}"
            seconds = self.timeout.total_seconds()
            # The words of PyTorch's own store, which adds no ranks.
            raise dist.DistStoreError(f"Timed out after {seconds:.0f} seconds waiting for clients. {joined}") from error

    def _fail(self, call: str, error: Exception) -> None:
        self.journal.write(failed=call, says=plain(error))
        raise CallFailedError(str(error)) from error

    def _steps(self) -> None:
        """Repeat an AllReduce as a training loop does, with the injected faults."""
        buffer = self.comm.floats(STEP // BYTES).zero_()
        faults = [fault for fault in self.plan["drills"] if fault["rank"] == self.rank]
        profiler = self._profiler()
        with profiler or nullcontext():
            for step in range(self.plan["steps"]):
                name = "all_reduce"
                for fault in faults:
                    if fault["kind"] == "slow":
                        time.sleep(fault["amount"] / 1000)
                    elif fault["step"] == step:
                        name = _inject(fault["kind"])
                with self.comm.completing(name):
                    COLLECTIVES[name].run(self.comm, buffer, buffer)
                self.write_measurement(step=step)
                if profiler:
                    profiler.step()

    def _profiler(self) -> torch.profiler.profile | None:
        """A profiler that writes a trace of the last steps, if any are to be recorded."""
        profiled = self.plan["profiled"]
        if not profiled:
            return None
        before = self.plan["steps"] - profiled
        return torch.profiler.profile(
            schedule=torch.profiler.schedule(wait=max(before - 1, 0), warmup=min(before, 1), active=profiled, repeat=1),
            on_trace_ready=lambda profile: profile.export_chrome_trace(str(self._trace)),
        )

    def _sweep(self) -> bool:
        """Measure every collective at every size, as long as there is time; return whether all were measured."""
        deadline = time.monotonic() + self.plan["sweep_s"]
        for name, size in self.plan["sweep"]:
            if not self._agree_to_continue(time.monotonic() < deadline):
                self.write_measurement(stopped_before=name, size=size)
                return False
            timing = measure(
                self.comm, name, size, warmup=self.plan["warmup"], iterations=self.plan["iterations"]
            )  # fmt: skip
            self.write_measurement(**timing.row(name))
        return True

    def _agree_to_continue(self, has_time: bool) -> bool:
        """Return the decision of rank 0: all ranks must make the same calls."""
        key, self._decisions = f"turn/{self._decisions}", self._decisions + 1
        try:
            if self.rank == 0:
                self.store.set(key, "on" if has_time else "off")
            return bool(self.store.get(key) == b"on")
        except RuntimeError as error:
            self._fail("Rendezvous", error)
            raise

    def _measure_pairs(self) -> None:
        """Measure latency and bandwidth between each two ranks, in rounds of pairs that are tested together."""
        hosts = [self.store.get(f"host/{rank}").decode() for rank in range(self.nranks)]
        deadline = time.monotonic() + self.plan["pairs_s"]
        size = self.plan["pair_bytes"]
        rounds = rounds_of_pairs(hosts)
        for done, pairs in enumerate(rounds):
            if not self._agree_to_continue(time.monotonic() < deadline):
                self.write_measurement(pair_rounds=done, of_rounds=len(rounds))
                return
            for pair in pairs:
                if self.rank in pair:
                    latency, transfer = measure_pair(self.comm, sum(pair) - self.rank, size)
                    self.write_measurement(pair=pair, latency_us=latency, transfer_us=transfer, size=size)

    def _measure_message_sizes(self) -> None:
        """Measure the same number of bytes in few large calls of AllReduce and in many small ones."""
        total = self.plan["split_bytes"]
        for calls in self.plan["splits"]:
            if not self._agree_to_continue(True):
                return
            self.write_measurement(calls=calls, total=total, total_us=time_calls_of(self.comm, total, calls))


def dump_calls(folder: Path, rank: int, backend: str) -> None:
    """Write PyTorch's Flight Recorder of this rank, unless its watchdog has, or this PyTorch has none."""
    name = "_dump_nccl_trace" if backend == "nccl" else "_dump_fr_trace"
    dump = getattr(torch._C._distributed_c10d, name, None)
    path = folder / f"flight.rank{rank}"
    if dump is not None and not path.exists():
        path.write_bytes(dump(True, False, False))  # all calls, not only open ones; stacks would take seconds


def _dump_on_sigterm(folder: Path, rank: int, backend: str) -> None:
    """Write the Flight Recorder when this process is told to end, by a thread: the main one may be inside a call."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing)  # the interpreter writes there in whichever thread the signal arrives
    signal.signal(signal.SIGTERM, lambda number, frame: None)

    def wait() -> None:
        while os.read(reading, 1) != bytes([signal.SIGTERM]):
            pass
        dump_calls(folder, rank, backend)
        ctypes.CDLL(None).signal(int(signal.SIGTERM), 0)  # the default again, which Python sets in the main thread only
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, daemon=True).start()


def _inject(kind: str) -> str:
    """Inject a fault into this step; return the collective to call instead of AllReduce."""
    if kind == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    while kind == "hang":
        time.sleep(60)
    return "broadcast"


def main(record: str, rank: str, local: str) -> int:
    """Run one rank; return its exit code."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # prints a stack trace on request
    current = Rank(Path(record), int(rank), int(local))
    backend = current.plan["backend"]
    _dump_on_sigterm(Path(record).parent, current.rank, backend)
    try:
        current.run()
    except CallFailedError as error:
        dump_calls(Path(record).parent, current.rank, backend)
        cause = type(error.__cause__)
        # As Python prints an exception that ends a rank; its stderr is a log file.
        print(f"[rank{rank}]: {cause.__module__}.{cause.__qualname__}: {error}", file=sys.stderr)  # noqa: T201
        return GAVE_UP
    return 0


if __name__ == "__main__":
    code = main(*sys.argv[1:])
    sys.stderr.flush()
    os._exit(code)  # backend threads may still wait for ranks that have ended
