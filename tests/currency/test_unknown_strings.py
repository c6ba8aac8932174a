"""Messages of a library are found in its read-only data, and those that a grammar knows are left out."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path

from tests.currency.unknown_strings import is_message, libraries, strings, stub, unknown_messages

KNOWN = (
    "Failed to CUDA calloc %ld bytes",
    "NET/IB : %s:%d Got async error event: %s",
    "[Service thread] Could not receive type from localRank %d, res=%u, closed=%d",
)


def elf(data: bytes, code: bytes = b"") -> bytes:
    """A 64-bit library with one section of read-only data and one of code, and nothing else."""
    names = b"\0.rodata\0.text\0.shstrtab\0"
    head, size = 64, 64
    at_code, at_names = head + len(data), head + len(data) + len(code)
    at_sections = at_names + len(names)
    sections = [
        bytes(size),
        struct.pack("<IIQQQQIIQQ", 1, 1, 2, 0, head, len(data), 0, 0, 1, 0),
        struct.pack("<IIQQQQIIQQ", 9, 1, 6, 0, at_code, len(code), 0, 0, 1, 0),
        struct.pack("<IIQQQQIIQQ", 15, 3, 0, 0, at_names, len(names), 0, 0, 1, 0),
    ]
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    header = ident + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, at_sections, 0, head, 0, 0, size, 4, 3)
    return header + data + code + names + b"".join(sections)


def test_messages_are_read_from_a_library_in_a_wheel(tmp_path: Path) -> None:
    wheel = tmp_path / "nvidia_nccl.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("nvidia/nccl/lib/libnccl.so.2", elf(b"\0Failed to find rank %d in comm %p\0short\0"))
        archive.writestr("nvidia/nccl/include/nccl.h", "no library")

    ((name, data),) = libraries(wheel)

    assert name == "libnccl.so.2"
    assert list(strings(data)) == ["Failed to find rank %d in comm %p"]


def test_what_a_grammar_knows_is_left_out() -> None:
    new = "A sentence that NCCL does not print on rank %d"

    assert list(unknown_messages([*KNOWN, new], is_fragmentary=False)) == [new]


def test_what_is_new_is_printed_as_the_stub_of_a_shape() -> None:
    assert list(stub('Failed to find "%s" on rank %d'))[2] == '    | _note "Failed to find \\"" MESSAGE -> FORM'
    assert list(unknown_messages([next(stub(KNOWN[0])).removeprefix("//> ")], is_fragmentary=False)) == []


def test_parts_of_messages_of_pytorch_are_known_by_their_text() -> None:
    new = "a part that no watchdog prints"

    assert list(unknown_messages([" milliseconds before timing out.", new], is_fragmentary=True)) == [new]


def test_names_and_code_are_no_messages() -> None:
    assert is_message("Could not find NET with id %lx", "libnccl.so.2")
    assert not is_message("ncclNetPlugin_v11", "libnccl.so.2")
    assert not is_message("Could not find node", "libtorch_cuda.so")
