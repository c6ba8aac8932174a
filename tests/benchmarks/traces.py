"""Profiler traces of the length of real ones: those of `simulate --slow`, with what else a profiler writes in between.

python -m tests.benchmarks.traces DIR RANKS MB

For each kernel, a published trace of a ResNet on V100s holds 3.5 events of CUDA's runtime, 5 arrows from launches to
kernels, and 5.5 operators of the host: 3.5 KB in all.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from ncclforensics.simulate.slow import SlowFault, SlowPlan, generate_slow

MB = 1_000_000
STEPS = 30
SLOW_RANK = 3
OF_KERNEL = 3300  # bytes, of a kernel and what belongs to it
_ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>"
KERNELS = (
    f"{_ADD}, at::detail::Array<char*, 3> >(int, at::native::CUDAFunctor_add<c10::BFloat16>)",
    "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_nn",
    "void cudnn::bn_fw_tr_1C11_singleread<float, 512, true, 1, 2, 0>(cudnnTensorStruct, float const*)",
)
OPERATORS = (
    "aten::add_", "aten::mm", "aten::empty_strided", "autograd::engine::evaluate_function: MmBackward0",
    "MmBackward0", "aten::as_strided",
)  # fmt: skip
RUNTIME = ("cudaLaunchKernel", "cudaStreamIsCapturing", "cudaEventQuery")


def generate(folder: Path, ranks: int, size: int) -> None:
    """Write traces of about `size` bytes each of a job in which one rank is slow; hosts have eight ranks."""
    plan = SlowPlan(SlowFault.RANK, nodes=ranks // 8, gpus_per_node=8, steps=STEPS, rank=SLOW_RANK)
    generate_slow(plan, folder)
    for path in sorted(folder.glob("*.json")):
        trace = orjson.loads(path.read_bytes())
        computing = sum(event["cat"] == "kernel" and "Seq" not in event["args"] for event in trace["traceEvents"])
        parts = max(round(size / OF_KERNEL / computing), 1)
        head = orjson.dumps({key: value for key, value in trace.items() if key not in ("traceEvents", "traceName")})
        with path.open("w", encoding="ascii") as out:
            out.write(f'{head.decode()[:-1]},\n  "traceEvents": [\n')
            out.write(",\n".join(_texts(trace["traceEvents"], parts)))
            out.write(f'\n  ],\n  "traceName": "{path.name}"\n}}\n')


def _texts(events: list[dict[str, Any]], parts: int) -> Iterator[str]:
    """Yield the events as Kineto writes them, each kernel that computes as some short ones with what belongs to it."""
    drawn = random.Random(1)
    number = 0
    for event in events:
        start, duration = event["ts"], event["dur"]
        if event["cat"] != "kernel" or "Seq" in event["args"]:
            yield _event(event["cat"], event["name"], start, duration, orjson.dumps(event["args"]).decode()[1:-1])
            continue
        for part in range(parts):
            number += 1
            begin = start + duration * part / parts
            for place in range(5 + number % 2):
                known = f'"External id": {number},"Sequence number": {number}, "Fwd thread id": 1, "Ev Idx": {place}'
                yield _event("cpu_op", OPERATORS[place % 6], begin - 90 + 7 * place, drawn.random() * 60, known)
            for place in range(3 + number % 2):
                known = f'"External id": {number},      "cbid": 211, "correlation": {number}'
                yield _event("cuda_runtime", RUNTIME[place % 3], begin - 20 + place, drawn.random() * 9, known)
            known = (
                f'"External id": {number},      "queued": 0, "device": 0, "context": 1,      "stream": 7, '
                f'"correlation": {number},      "registers per thread": 30,      "shared memory": 0,      '
                '"blocks per SM": 5.300000,      "warps per SM": 21.200001,      "grid": [4, 106, 1],      '
                '"block": [128, 1, 1],      "est. achieved occupancy %": 33'
            )
            yield _event("kernel", event["name"] if part else KERNELS[number % 3], begin, duration / parts, known)
            for _ in range(5):
                yield (
                    f'  {{\n    "ph": "f", "id": {number}, "pid": 0, "tid": 7, "ts": {begin:.3f},\n'
                    '    "cat": "ac2g", "name": "ac2g", "bp": "e"\n  }'
                )


def _event(category: str, name: str, start: float, duration: float, known: str) -> str:
    return (
        f'  {{\n    "ph": "X", "cat": "{category}", "name": "{name}", "pid": 0, "tid": 7,\n'
        f'    "ts": {start:.3f}, "dur": {duration:.3f},\n    "args": {{\n      {known}\n    }}\n  }}'
    )


if __name__ == "__main__":
    generate(Path(sys.argv[1]), int(sys.argv[2]), round(float(sys.argv[3]) * MB))
