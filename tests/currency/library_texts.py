"""Read the texts of NCCL's messages, with their levels, out of the code of a released library for x86-64.

Releases without public sources are known by their libraries alone. Since 2.31 every message is a call of one function,
to which a number gives the level, and an address in the read-only data the text:

    mov $0x2, %edi                   level: src/include/nccl_common.h, ncclDebugLogLevel
    lea 0x2bb88f(%rip), %r9          text
    call ncclDebugLogInternal        level, flags, file, function, line, text, values of the text
"""

from __future__ import annotations

import re
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

LIBRARIES = ("libnccl.so", "libtorch_cpu.so", "libtorch_cuda.so")  # inside a wheel
WARNING, INFO = "warning", "info"
LEVELS = {2: WARNING, 3: INFO, 6: WARNING}  # WARN, INFO, ATTN
FUNCTION = b"\0_Z20ncclDebugLogInternal17ncclDebugLogLevelmPKcS1_iS1_z\0"
BRANCH = re.compile(rb"[\xe8\xe9](?=(....))", re.DOTALL)  # a call or a jump
LEVEL = re.compile(rb"(?<!\x41)\xbf([\x00-\x06])\0\0\0")
TEXT = re.compile(rb"\x4c\x8d\x0d(....)", re.DOTALL)
REACH = 160  # bytes before a call, in which its arguments are set
SYMBOLS = 2  # kind of a section


class Section(NamedTuple):
    """A section of an ELF file (System V ABI, chapter 4); `address` is where it is in memory."""

    name: str
    kind: int
    address: int
    offset: int
    size: int


def libraries(path: Path) -> Iterator[tuple[str, bytes]]:
    """Name and bytes of the libraries in a wheel, or of the library itself."""
    if path.suffix != ".whl":
        yield path.name, path.read_bytes()
        return
    with zipfile.ZipFile(path) as wheel:
        for name in wheel.namelist():
            if Path(name).name.startswith(LIBRARIES):
                yield Path(name).name, wheel.read(name)


def messages(library: bytes) -> list[tuple[str, str]]:
    """Level and text of every message; none if the library has no symbol of the function that prints them."""
    found = {section.name: section for section in sections(library)}
    function = _address(library, found)
    return [] if function is None else sorted({*_messages(library, found, function)})


def sections(library: bytes) -> Iterator[Section]:
    """The sections of a 64-bit ELF file."""
    (headers,) = struct.unpack_from("<Q", library, 40)
    size, count, of_names = struct.unpack_from("<HHH", library, 58)
    entries = [struct.unpack_from("<IIQQQQ", library, headers + size * number) for number in range(count)]
    for name, kind, _, address, offset, length in entries:
        yield Section(_string(library, entries[of_names][4] + name), kind, address, offset, length)


def contents(library: bytes, name: str) -> Iterator[tuple[int, bytes]]:
    """The sections of an ELF file whose name begins so, and where each is in it."""
    for section in sections(library):
        if section.name.startswith(name):
            yield section.offset, library[section.offset : section.offset + section.size]


def _string(library: bytes, start: int) -> str:
    return library[start : library.index(b"\0", start)].decode("utf-8", errors="replace")


def _address(library: bytes, found: dict[str, Section]) -> int | None:
    """Where the function is that prints messages."""
    symbols = next((section for section in found.values() if section.kind == SYMBOLS), None)
    if symbols is None:
        return None
    names = found[".strtab"]
    name = library.find(FUNCTION, names.offset, names.offset + names.size) + 1 - names.offset
    for at in range(symbols.offset, symbols.offset + symbols.size, 24):
        if struct.unpack_from("<I", library, at)[0] == name:
            return int(struct.unpack_from("<Q", library, at + 8)[0])
    return None


def _messages(library: bytes, found: dict[str, Section], function: int) -> Iterator[tuple[str, str]]:
    code, data = found[".text"], found[".rodata"]
    text, begin = library[code.offset : code.offset + code.size], 0
    first = found[".plt"].address - code.address if ".plt" in found else 0  # calls of other libraries begin there
    for at, target in _branches(text):
        if target == function - code.address:
            level, address = (list(pattern.finditer(text, max(begin, at - REACH), at)) for pattern in (LEVEL, TEXT))
            if level and address and (name := LEVELS.get(level[-1].group(1)[0])):
                (distance,) = struct.unpack("<i", address[-1].group(1))
                place = code.address + address[-1].end() + distance - data.address
                if 0 <= place < data.size:
                    yield name, _string(library, data.offset + place)
        if first <= target < len(text):  # else the byte is no instruction
            begin = at + 5


def _branches(code: bytes) -> Iterator[tuple[int, int]]:
    """Where the code may call or jump, and to which place in it."""
    for found in BRANCH.finditer(code):
        yield found.start(), found.start() + 5 + struct.unpack("<i", found.group(1))[0]
