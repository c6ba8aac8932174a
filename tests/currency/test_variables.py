"""Variables are read from a library of NCCL whose sources are not public: names, and defaults in its code."""

from __future__ import annotations

import struct
from pathlib import Path

from tests.currency.test_unknown_strings import elf
from tests.currency.variables import of_library

# The second name follows other data without a zero, and the last stands in a message only.
DATA = b"\0NCCL_ALGO\0" + b"0000:00.0NCCL_SOCKET_MAGIC\0" + b"NCCL_IB_TIMEOUT\0NCCL_MAX_CTAS\0" + b"unset NCCL_PROTO\0"
LEA_RDI, CALL = b"\x48\x8d\x3d", b"\xe8\0\0\0\0"


def code() -> bytes:
    """Code that reads three of the names: the one without a default, one with 20, one with an undefined one."""
    built = b""
    for name, default in (
        (b"NCCL_SOCKET_MAGIC", b""),
        (b"NCCL_IB_TIMEOUT", b"\xbe" + struct.pack("<i", 20)),
        (b"NCCL_MAX_CTAS", b"\x48\xc7\xc6" + struct.pack("<i", -(1 << 31))),
    ):
        built += default + LEA_RDI
        built += struct.pack("<i", DATA.index(name) - len(DATA) - len(built) - 4) + CALL
    return built


def test_names_and_defaults_are_read_from_the_code_of_a_library(tmp_path: Path) -> None:
    library = tmp_path / "libnccl.so.2"
    library.write_bytes(elf(DATA, code()))

    assert {name: reading.default for name, reading in of_library(library).items()} == {
        "NCCL_ALGO": "",
        "NCCL_SOCKET_MAGIC": "",
        "NCCL_IB_TIMEOUT": "20",
        "NCCL_MAX_CTAS": "unset",
    }
