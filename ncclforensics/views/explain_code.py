"""What `explain` says of numbers and names of errors: Xids, statuses of InfiniBand, results of NCCL and CUDA, errno.

`79`, `Xid 79`, `status=12 vendor err 129`, `ncclSystemError`, `CUDA error 802` and `ETIMEDOUT` are all understood. A
number without its kind is looked up in all tables.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from itertools import groupby
from string import hexdigits
from typing import NamedTuple

from ncclforensics.data import cuda, nccl_sources, verbs
from ncclforensics.data.kernel_faults import FATAL_SXIDS, SXIDS, XIDS, Origin
from ncclforensics.data.names import sentence

LONGEST = 20  # digits of a number; no code has as many, and Python converts no more than some thousand
# Words that say which table a number is of.
_WORDS = {
    "xid": "xid",
    "sxid": "sxid",
    "status": "status",
    "wc": "status",
    "completion": "status",
    "vendor": "vendor",
    "syndrome": "vendor",
    "syndrom": "vendor",
    "nccl": "nccl",
    "ncclresult": "nccl",
    "cuda": "cuda",
    "cudaerror": "cuda",
    "errno": "errno",
}
_SIDES = {
    "here": "the fault is on the host that prints it",
    "peer": "the fault is at the peer, not on the host that prints it",
    "between": "the fault is between the two ports, or the peer is dead; the host that prints it need not be at fault",
    "before": "it follows from an earlier error of the same queue pair: look for that one",
}
_RULES_OF_STATUS = {
    4: ("ib-local-protection",),
    5: ("ib-flush-is-secondary",),
    **dict.fromkeys((9, 10, 11, 13), ("ib-remote-access",)),
    12: ("ib-timeout-at-start", "ib-timeout-mid-run"),
}
_RULES_OF_CUDA = {
    cuda.MEMORY: ("cuda-oom-in-nccl",),
    cuda.CORRUPTED: ("cuda-sticky-error",),
    cuda.HARDWARE: ("cuda-gpu-fault",),
    cuda.UNUSABLE: ("cuda-initialization-error",),
    cuda.HIDDEN: ("cuda-gpu-hidden",),
    cuda.FABRIC: ("fabricmanager-not-running",),
    cuda.PEER: ("p2p-access-refused",),
    cuda.UNSPECIFIC: ("cuda-initialization-error",),
}
_ADVICE_OF_RESULTS = {
    1: "the warning before it names the call of CUDA and its error",
    2: "the warning before it names the call and its errno",
    3: "read the warnings before it, and compare NCCL's versions on all hosts",
    4: "the arguments of the call are wrong: ranks, sizes, pointers, or a communicator that was destroyed",
    5: "mostly two ranks on one GPU, or calls that differ between ranks",
    6: "the fault is elsewhere: look for the process that ended, or the link that failed, first",
    7: "no error: ask again with ncclCommGetAsyncError",
    8: "look for the rank that did not come",
}


class Code(NamedTuple):
    """What one number or name of an error means."""

    title: str
    sentences: list[str]  # what follows from it, and what to do
    rules: tuple[str, ...] = ()  # that judge lines with it, the most frequent first
    source: str = ""


def codes_in(text: str) -> list[Code]:
    """Return what the numbers and names of errors in a text mean; none if it is no such text.

    >>> [code.title for code in codes_in("Xid 79")]
    ['Xid 79: it fell off the bus']
    >>> codes_in("net-socket-fallback"), codes_in("step 12 of 100")
    ([], [])
    """
    if code := _of_name(text.strip()):
        return [code]
    words = [*_words(text)]
    numbers = [word for word in words if word.isdecimal()]
    kinds = [_WORDS.get(word.lower(), "") for word in words if not word.isdecimal() and word.lower() not in _FILLERS]
    if not numbers or len(numbers) > 2 or not all(kinds) or max(map(len, numbers)) > LONGEST:
        return []
    chosen = kinds[:1] if kinds else _TABLES
    pairs = zip(("status", "vendor") if len(numbers) == 2 else chosen, numbers * len(_TABLES), strict=False)
    return [code for kind, number in pairs if (code := _TABLES[kind](int(number)))]


Table = Callable[[int], Code | None]
_FILLERS = frozenset({"error", "err", "code", "result", "ibv", "number"})


def _words(text: str) -> Iterator[str]:
    """The words and numbers of a text; hexadecimal numbers as decimal ones.

    >>> [*_words("Xid79, status=12/0x81")]
    ['Xid', '79', 'status', '12', '129']
    """
    for word in "".join(letter if letter.isalnum() else " " for letter in text).split():
        if word[:2].lower() == "0x" and word[2:] and set(word[2:]) <= set(hexdigits):
            yield str(int(word, 16))
        else:
            yield from ("".join(part) for _, part in groupby(word, key=str.isdecimal))


def _of_name(name: str) -> Code | None:
    """What a constant of a library means, by its name."""
    tables: list[tuple[dict[str, int], Table]] = [
        (verbs.STATUS_NAMES, _status),
        (nccl_sources.RESULT_NAMES, _nccl),
        (cuda.ERROR_NAMES, _cuda),
        ({known: number for number, known in errno.errorcode.items()}, _errno),
    ]
    return next((table(numbers[name]) for numbers, table in tables if name in numbers), None)


def _named(names: dict[str, int], number: int) -> str:
    """The name of a number in a table by names."""
    return next(name for name, known in names.items() if known == number)


def _xid(number: int) -> Code | None:
    if number not in XIDS:
        return None
    meaning, origin, remedy = XIDS[number]
    rules = ("cuda-gpu-fault", "kernel-xid") if origin is Origin.HARDWARE else ("kernel-xid",)
    sentences = [f"Mostly caused by {origin.value}.", f"Do: {remedy}."]
    return Code(f"Xid {number}: {meaning}", sentences, rules, "NVIDIA's catalogue of Xid errors")


def _sxid(number: int) -> Code | None:
    if number not in FATAL_SXIDS and number not in SXIDS:
        return None
    fatal = "NVIDIA calls it fatal: GPUs of that host cannot use their NVLinks until the host was reset."
    sentences = [fatal if number in FATAL_SXIDS else "NVIDIA does not call it fatal."]
    title = f"SXid {number} of an NVSwitch: {SXIDS.get(number, 'an error of the switch or of a link')}"
    return Code(title, sentences, ("kernel-nvswitch-errors",), "Fabric Manager user guide")


def _status(number: int) -> Code | None:
    if number not in verbs.STATUS:
        return None
    name, meaning, side = verbs.STATUS[number]
    title = f"status {number} ({_named(verbs.STATUS_NAMES, number)}): {name}"
    rules = _RULES_OF_STATUS.get(number, ("ib-completion-failed",))
    return Code(title, [sentence(meaning), sentence(_SIDES[side])], rules, "rdma-core, ibv_wc_status")


def _vendor(number: int) -> Code | None:
    if number not in verbs.SYNDROMES:
        return None
    status, meaning = verbs.SYNDROMES[number]
    title = f"vendor error {number} (0x{number:x}) of an mlx5 device: {meaning}"
    return Code(title, [f"It comes with status {status}. Other vendors count by numbers of their own."])


def _nccl(number: int) -> Code | None:
    if number not in nccl_sources.RESULTS:
        return None
    title = f"NCCL's result {number} ({_named(nccl_sources.RESULT_NAMES, number)}): {nccl_sources.RESULTS[number]}"
    rules = () if number == nccl_sources.IN_PROGRESS else ("error-returned-to-application",)
    return Code(title, [f"Do: {_ADVICE_OF_RESULTS[number]}."], rules, "nccl.h, ncclResult_t")


def _cuda(number: int) -> Code | None:
    if number not in cuda.ERROR_NUMBERS:
        return None
    text = cuda.ERROR_NUMBERS[number]
    advice = cuda.error_advice(text)
    rules = _RULES_OF_CUDA.get(cuda.error_kind(text), ("cuda-call-failed",))
    title = f"CUDA error {number} ({_named(cuda.ERROR_NAMES, number)}): {text}"
    return Code(title, [f"Do: {advice}."] if advice else [], rules, "CUDA runtime API, cudaError_t")


def code_of_cuda_text(text: str) -> Code | None:
    """Return what an error of CUDA means that a line states in words alone."""
    number = next((number for number, known in cuda.ERROR_NUMBERS.items() if text.startswith(known)), None)
    return None if number is None else _cuda(number)


def _errno(number: int) -> Code | None:
    if number not in errno.errorcode:
        return None
    title = f"errno {number} ({errno.errorcode[number]}) of the operating system: {os.strerror(number).lower()}"
    return Code(title, [])


_TABLES: dict[str, Table] = {
    "xid": _xid,
    "sxid": _sxid,
    "status": _status,
    "vendor": _vendor,
    "nccl": _nccl,
    "cuda": _cuda,
    "errno": _errno,
}
