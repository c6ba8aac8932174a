"""Names of NCCL's numbers, and texts of ranks, calls, sizes and versions."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Any

# nccl.h, ncclDataType_t; bfloat16 from 2.10.3, the 8-bit floats from 2.24.3.
DATATYPES = (
    "int8",
    "uint8",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "float32",
    "float64",
    "bfloat16",
    "float8e4m3",
    "float8e5m2",
)
ELEMENT_BYTES = (1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1)  # of each datatype
# nccl.h, ncclRedOp_t; avg from 2.10.3, larger numbers are user-defined.
OPERATIONS = ("sum", "prod", "max", "min", "avg")
REDUCTIONS = ("AllReduce", "Reduce", "ReduceScatter")
ROOTED = ("Broadcast", "Reduce", "Gather", "Scatter")
MESSAGES = ("Send", "Recv")
WITH_ROOT = (*ROOTED, *MESSAGES)  # the root of a message is its peer; NCCL prints a meaningless one of other calls
POINT_TO_POINT = (*MESSAGES, "PutSignal", "Signal", "WaitSignal")  # all other calls are collectives
IN_BYTES, BYTE = ("AllGather", "Broadcast"), "int8"  # so NCCL up to 2.21 counts them, whatever their datatype is
PAIRWISE = (*MESSAGES, "AlltoAll", "AllToAll")  # every pair of ranks connects

# Worst first: of several jobs in one folder, the worst verdict is reported as `hang`.
VERDICTS = (
    "init-failed",
    "rank-died",
    "collective-mismatch",
    "cross-communicator-deadlock",
    "lagging-ranks",
    "p2p-unmatched",
    "rank-missing",
    "init-incomplete",
    "stuck-together",
    "undecidable",
    "no-hang",
)
NO_KIND = "application"  # the contract's `inputs[].kind` of an input without a line of a known format
CERTAINTIES = ("certain", "likely", "possible")


def certainty_text(verdict: str, certainty: str) -> str:
    """Format how sure a verdict is; empty for one that says only that the inputs do not decide.

    >>> certainty_text("rank-died", "likely"), certainty_text("undecidable", "likely")
    (' (likely)', '')
    """
    return "" if verdict == "undecidable" else f" ({certainty})"


def datatype(number: int | None) -> str | None:
    """Return NCCL's name of a datatype, or its number if it has none.

    >>> datatype(9)
    'bfloat16'
    """
    if number is None:
        return None
    return DATATYPES[number] if 0 <= number < len(DATATYPES) else str(number)


def reduction(name: str | None, number: int | None) -> str | None:
    """Return NCCL's name of a reduction; None for calls that do not reduce.

    >>> reduction("AllReduce", 2), reduction("AllGather", 0), reduction("AllReduce", 77)
    ('max', None, 'user-defined')
    """
    if number is None or name not in REDUCTIONS:
        return None
    return OPERATIONS[number] if 0 <= number < len(OPERATIONS) else "user-defined"


def known(value: object) -> str:
    """Return the value as text, or `?` for None."""
    return "?" if value is None else str(value)


# Characters that are invisible or change the direction of text (Unicode's category Cf, UAX 9), as escapes.
INVISIBLE = {
    code: f"\\u{code:04x}"
    for code in (0xAD, 0x61C, *range(0x200B, 0x2010), *range(0x202A, 0x202F), *range(0x2060, 0x2070), 0xFEFF)
}


def shortened(text: str, most: int) -> str:
    """Cut a text to so many characters.

    >>> shortened("allreduce", 4)
    'all…'
    """
    return text if len(text) <= most else f"{text[: most - 1]}…"


def printable(name: str) -> str:
    r"""Replace the characters of a name that a terminal would interpret.

    >>> printable("a\x1b[2Jb.log")
    'a?[2Jb.log'
    """
    return "".join(character if character.isprintable() else "?" for character in name)


# Commands are not capitalised at the beginning of a sentence.
COMMANDS = (
    "df", "dmesg", "docker", "gdb", "getent", "ibstat", "ip", "lspci", "mlxlink", "modprobe", "mpirun",
    "nvidia-imex-ctl", "nvidia-smi", "py-spy", "srun", "ssh", "systemctl", "ulimit",
)  # fmt: skip


def sentence(text: str) -> str:
    """Make a text a sentence: capitalised, unless it begins with a command or a name of a program, with a full stop.

    >>> sentence("see dmesg"), sentence("ulimit -l unlimited"), sentence("it raised ValueError: a…")
    ('See dmesg.', 'ulimit -l unlimited.', 'It raised ValueError: a…')
    >>> sentence("ibv_reg_mr failed"), sentence("mlx5_0: no answer")
    ('ibv_reg_mr failed.', 'mlx5_0: no answer.')
    """
    first = text.partition(" ")[0].rstrip(",;:")
    begun = text if first in COMMANDS or "_" in first else text[:1].upper() + text[1:]
    return with_stop(begun)


def with_stop(text: str) -> str:
    """Return a text with a full stop, unless it has one or is cut."""
    return text if text.endswith((".", "…")) else f"{text}."


def with_open_end(text: str) -> str:
    """Mark a text that its line does not end, but the next one.

    >>> with_open_end("it does not work with this alone,"), with_open_end("it failed")
    ('it does not work with this alone …', 'it failed')
    """
    return f"{text.rstrip(' ,')} …" if text.rstrip().endswith(",") else text


def shown(value: object) -> object:
    """A value of a line, or `?` where the line lacks it.

    >>> shown(3), shown(None)
    (3, '?')
    """
    return "?" if value is None else value


def parse_short_integer(text: str | None) -> int | None:
    """Parse an unsigned integer of at most nine digits, which an Int32 column holds."""
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 10 else None


def without_folders(text: str) -> str:
    """Return a text with the names of files alone, without folders, which may be longer than the statement on them.

    >>> without_folders("/opt/venv/lib/a.so: undefined symbol: x")
    '…/a.so: undefined symbol: x'
    """
    return " ".join(f"…/{word.rpartition('/')[2]}" if word.startswith("/") else word for word in text.split())


def ranks_text(numbers: Iterable[int], noun: str = "rank") -> str:
    """Format numbers of ranks, or of other things, with ranges; empty without any.

    >>> ranks_text([3]), ranks_text([0, 1, 2, 7]), ranks_text([33, 34], "port")
    ('rank 3', 'ranks 0-2, 7', 'ports 33, 34')
    """
    distinct = set(numbers)
    return f"{noun}{'s' * (len(distinct) > 1)} {number_ranges(distinct)}" if distinct else ""


def number_ranges(numbers: Iterable[int]) -> str:
    """Format distinct numbers with ranges.

    >>> number_ranges([0, 1, 2, 3, 48, 49])
    '0-3, 48, 49'
    """
    runs: list[tuple[int, int]] = []
    ordered = sorted(set(numbers))
    start = 0
    while start < len(ordered):  # a search for the end of each range: there are thousands of jobs in hostile logs
        above = ordered[start] - start
        end = bisect_right(range(len(ordered)), above, lo=start, key=lambda place: ordered[place] - place)
        runs.append((ordered[start], ordered[end - 1]))
        start = end
    parts = [str(a) if a == b else f"{a}-{b}" if b > a + 1 else f"{a}, {b}" for a, b in runs]
    return ", ".join(parts)


def count_of(number: int, noun: str) -> str:
    """Format a number with its noun.

    >>> count_of(1, "line"), count_of(2, "process"), count_of(4, "NVSwitch")
    ('1 line', '2 processes', '4 NVSwitches')
    """
    return f"{number:,} {noun}" + ("" if number == 1 else "es" if noun.endswith(("s", "ch")) else "s")


def pci_address(busid: str) -> str:
    """Format NCCL's number of a PCI device as the kernel prints it.

    >>> pci_address("5d000"), pci_address("10000b3001")
    ('0000:5d:00.0', '10000:b3:00.1')
    """
    digits = busid[:-1].zfill(8)
    return f"{digits[:-4]}:{digits[-4:-2]}:{digits[-2:]}.{busid[-1]}"


def at_least(number: int) -> str:
    """Format a large number, rounded down to two digits.

    >>> at_least(17_123_456), at_least(310_999), at_least(1_234)
    ('17,000,000', '310,000', '1,200')
    """
    unit = 10 ** max(len(str(number)) - 2, 0)
    return f"{number // unit * unit:,}"


def argument_text(call: dict[str, Any], name: str) -> str:
    """Format one argument of a call: count, datatype, op or root, or a dash for one that such a call has not.

    >>> broadcast = {"name": "Broadcast", "count": 8404992, "op": 0, "root": 0, "root_rank": 8}
    >>> [argument_text(broadcast, name) for name in ("count", "op", "root")]
    ['8,404,992', '-', 'rank 8']
    >>> [argument_text({**broadcast, "datatype": 0}, name) for name in ("count", "datatype")]
    ['8,404,992 bytes', 'int8, or any (up to 2.21)']
    """
    match name:
        case "count":
            count = call["count"]
            return known(count) if count is None else f"{count:,}{' bytes' * _is_in_bytes(call)}"
        case "datatype" if _is_in_bytes(call):
            return f"{BYTE}, or any (up to 2.21)"
        case "datatype":
            return str(datatype(call["datatype"]))
        case "op":
            return reduction(call["name"], call["op"]) or "-"
    if call["name"] not in WITH_ROOT:
        return "-"
    return known(call["root"]) if call.get("root_rank") is None else f"rank {call['root_rank']}"


def _is_in_bytes(call: dict[str, Any]) -> bool:
    return call["name"] in IN_BYTES and datatype(call.get("datatype")) == BYTE


def short_ranks(numbers: list[int], most: int = 48, noun: str = "rank") -> str:
    """Return ranks as text of at most about this many characters, led by their number where some are left out."""
    text = ranks_text(numbers, noun)
    if len(text) <= most:
        return text
    return f"{len(numbers)} {noun}s: {text[: text.rindex(',', 0, most)].removeprefix(f'{noun}s ')}, …"


def operation_text(call: dict[str, Any]) -> str:
    """Format a call: `AllReduce #13 (1,048,576 x bfloat16, sum)`.

    `root` is a number within the communicator; `root_rank`, where it is known, the rank of the job. `caller`: the rank
    that made the Send or Recv, if it is to be named. NCCL up to 2.21 prints gathers and broadcasts of any datatype in
    int8, so these are bytes.

    >>> operation_text({"name": "AllGather", "ordinal": 4, "count": 8192, "datatype": 0, "op": 0, "root": 0})
    'AllGather #4 (8,192 bytes)'
    """
    name = call.get("name")
    if not name:
        return "a call"
    if call.get("count") is None:
        return str(name)
    more = [argument_text(call, "count") if _is_in_bytes(call) else f"{call['count']:,} x {datatype(call['datatype'])}"]
    if reduced := reduction(name, call["op"]):
        more.append(reduced)
    root = call["root"] if call.get("root_rank") is None else f"rank {call['root_rank']}"
    if name in ROOTED and root is not None:
        more.append(f"root {root}")
    if name in MESSAGES and root is not None:
        more.append(f"{'to' if name == 'Send' else 'from'} {root}")
    place = "" if call.get("ordinal") is None else f" #{call['ordinal']}"
    caller = "" if call.get("caller") is None else f" of rank {call['caller']}"
    return f"{name}{place}{caller} ({', '.join(more)})"


def bytes_text(size: int) -> str:
    """Format a number of bytes in the largest unit in which it is at least 1.

    >>> [bytes_text(size) for size in (0, 1000, 1048576, 8589934592, 26549638485, 1073692800)]
    ['0 B', '1000 B', '1 MiB', '8 GiB', '24.7 GiB', '1 GiB']
    """
    power = min(max(size.bit_length() - 1, 0) // 10, 4)
    power += power in (1, 2, 3) and round(size / (1 << 10 * power), 1) >= 1 << 10  # not `1024 MiB`
    value = size / (1 << 10 * power)
    return f"{value:.1f}".removesuffix(".0") + f" {('B', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"


def bandwidth_text(rate: float) -> str:
    """Format a bandwidth in GB/s so that two or three digits are left of it.

    >>> [bandwidth_text(rate) for rate in (367.04, 4.33, 0.516, 0.0195, 0.0)]
    ['367.0 GB/s', '4.3 GB/s', '0.52 GB/s', '19.5 MB/s', '0.0 GB/s']
    """
    if 0 < rate < 0.1:
        return f"{rate * 1000:.3g} MB/s"
    return f"{rate:.2f} GB/s" if 0 < rate < 1 else f"{rate:.1f} GB/s"


def version_text(code: int) -> str:
    """Format NCCL's version code, whose digits changed in 2.9.

    >>> version_text(2804), version_text(22807)
    ('2.8.4', '2.28.7')
    """
    unit = 10000 if code >= 10000 else 1000
    return f"{code // unit}.{code % unit // 100}.{code % 100}"


def some_of(names: Sequence[str], most: int) -> str:
    """List names, at most so many of them.

    >>> some_of(["leaf-1", "leaf-2", "leaf-3"], 2), some_of(["leaf-1"], 2)
    ('leaf-1, leaf-2 and 1 more', 'leaf-1')
    """
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
