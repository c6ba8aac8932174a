"""What an allocator says of the memory of a full GPU, and which advice follows from that."""

from __future__ import annotations

import polars as pl

from ncclforensics.frames.columns import text_of
from ncclforensics.grammar.values import find_values

UNITS = {"GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10, "bytes": 1}
MUCH = 0.1  # share of a GPU that another process holds
LITTLE = 0.01  # share of a GPU that is worth nothing
OF_OTHERS = (
    "another process holds memory of that GPU: find it with nvidia-smi on that host (a rank on the wrong GPU, what an "
    "earlier run left there)"
)
FRAGMENTED = (
    "the memory that PyTorch holds and does not use is more than what was asked for, in pieces: set "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
)
TOO_MUCH = (
    "this process holds the memory itself: compare memory over ranks at that step; smaller batch, "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
)


ALLOCATORS = {"xla_memory": "XLA", "tensorflow_memory": "TensorFlow"}  # forms of `gpu_exception`; else PyTorch
OF_SHARE = (
    "see with nvidia-smi whether another process holds memory of that GPU: JAX and TensorFlow take most of it at their "
    "start (XLA_PYTHON_CLIENT_MEM_FRACTION, TF_FORCE_GPU_ALLOW_GROWTH); else smaller batch, or recompute activations"
)


def allocator_of(rows: pl.DataFrame, gpu_exception: pl.DataFrame) -> str:
    """Return whose allocator printed these lines."""
    forms = rows.select("source", "line").join(gpu_exception, on=["source", "line"])["form"].cast(pl.String)
    return next((ALLOCATORS[form] for form in forms if form in ALLOCATORS), "PyTorch")


def memory_state(rows: pl.DataFrame, gpu_exception: pl.DataFrame) -> tuple[str, str]:
    """Return who held the memory by the first of these lines that says so, and what to do; empty where none does."""
    stated = rows.select("source", "line").join(
        gpu_exception.select("source", "line", "wanted", text_of("unit"), text_of("memory_state")),
        on=["source", "line"],
        maintain_order="left",
    )
    for wanted, unit, text in stated.drop_nulls("memory_state").select("wanted", "unit", "memory_state").iter_rows():
        found = find_values(pl.Series([text]), "memory_part").select("form", "part_size", "part_unit").rows()
        parts = {str(form): (size, name) for form, size, name in reversed(found)}
        taken = _bytes(parts.get("used")) + _bytes(parts.get("unused"))
        alike = [(size, name) for form, size, name in found if form == "process" and _bytes((size, name)) >= taken > 0]
        parts |= {"held": min(alike, key=_bytes)} if alike and "held" not in parts else {}
        # In WSL2 the driver does not tell what a process holds, and the number is none.
        if "held" in parts and "total" in parts and _bytes(parts["held"]) <= _bytes(parts["total"]):
            first = " on the first of them" * (rows["line"].n_unique() > 1)
            return f"{_text(parts)}{first}; ", _remedy(parts, wanted * UNITS[unit])
    return "", "" if allocator_of(rows, gpu_exception) == "PyTorch" else OF_SHARE


def _text(parts: dict[str, tuple[float, str]]) -> str:
    """Say what was free and who held the rest.

    >>> _text({"total": (9.68, "GiB"), "free": (95.75, "MiB"), "held": (9.54, "GiB"), "unused": (2.57, "GiB")})
    '95.75 MiB of 9.68 GiB were free; this process held 9.54 GiB, of which it did not use 2.57 GiB'
    """
    shown = {name: f"{size:g} {unit}" for name, (size, unit) in parts.items()}
    free = f"{shown['free']} of {shown['total']} were free; " if "free" in shown else f"of {shown['total']} "
    unused = f", of which it did not use {shown['unused']}" if "unused" in shown else ""
    return f"{free}this process held {shown['held']}{unused}"


def _remedy(parts: dict[str, tuple[float, str]], wanted: float) -> str:
    """Say what to do, by who held the memory."""
    total, free, held, unused = (_bytes(parts.get(name)) for name in ("total", "free", "held", "unused"))
    if total - free - held > MUCH * total:
        return OF_OTHERS
    return FRAGMENTED if unused > max(wanted, LITTLE * total) else TOO_MUCH


def _bytes(part: tuple[float, str] | None) -> float:
    return part[0] * UNITS[part[1]] if part else 0
