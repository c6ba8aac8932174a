"""Messages of a library are found in its read-only data, and those that a grammar knows are left out."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path

from tests.currency.library_texts import libraries, messages
from tests.currency.unknown_strings import TORCH_PREFIXES, is_message, strings, stub, unknown_messages

KNOWN = (
    "Failed to CUDA calloc %ld bytes",
    "NET/IB : %s:%d Got async error event: %s",
    "[Service thread] Could not receive type from localRank %d, res=%u, closed=%d",
)


def elf(data: bytes, code: bytes = b"", symbols: bytes = b"", names: bytes = b"") -> bytes:
    """A 64-bit library with read-only data, code and a table of symbols with their names; addresses are places."""
    parts = {
        b".rodata": (1, data),
        b".text": (1, code),
        b".symtab": (2, symbols),
        b".strtab": (3, names),
    }
    of_sections = b"\0" + b"".join(name + b"\0" for name in parts) + b".shstrtab\0"
    headers, at, content = [bytes(64)], 64, b""
    for name, (kind, part) in [*parts.items(), (b".shstrtab", (3, of_sections))]:
        place = at + len(content)
        headers.append(
            struct.pack("<IIQQQQIIQQ", of_sections.index(name + b"\0"), kind, 2, place, place, len(part), 0, 0, 1, 0)
        )
        content += part
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    count = len(headers)
    header = struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, at + len(content), 0, 64, 0, 0, 64, count, count - 1)
    return ident + header + content + b"".join(headers)


def test_levels_are_read_from_the_code_of_a_library() -> None:
    data = b"a warning about %s\0a note about %s\0"
    begin, function = 64 + len(data), 0x40

    def call(at: int, level: int, text: int) -> bytes:
        """Code at a place, which passes level and text, sets %r15d, and calls the function."""
        lea = b"\x4c\x8d\x0d" + struct.pack("<i", 64 + text - (begin + at + 7))
        passed = lea + b"\xbf" + struct.pack("<I", level) + b"\x41\xbf\x05\0\0\0"
        return passed + b"\xe8" + struct.pack("<i", function - (at + len(passed) + 5))

    code = (call(0, 2, 0) + call(23, 3, data.index(b"a note"))).ljust(function, b"\x90") + b"\xc3"
    names = b"\0_Z20ncclDebugLogInternal17ncclDebugLogLevelmPKcS1_iS1_z\0"
    symbol = struct.pack("<IBBHQQ", 1, 2, 0, 2, begin + function, 1)

    assert messages(elf(data, code, symbol, names)) == [("info", "a note about %s"), ("warning", "a warning about %s")]


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

    assert list(
        unknown_messages([" milliseconds before timing out.", new], is_fragmentary=True, prefixes=TORCH_PREFIXES)
    ) == [new]


def test_names_and_code_are_no_messages() -> None:
    assert is_message("Could not find NET with id %lx", "libnccl.so.2")
    assert not is_message("ncclNetPlugin_v11", "libnccl.so.2")
    assert not is_message("Could not find node", "libtorch_cuda.so")
